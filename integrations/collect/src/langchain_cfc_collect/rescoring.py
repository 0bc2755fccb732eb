"""`rescore`: score the stored candidates of a collection with another verifier, into a new store.

Nothing is drawn or labelled: the new store takes prompts, candidates, claims and labels from the old one,
which is only read. Scores are made as by `collect`, so limits, budgets, failures and resuming are the same. A
verifier sees what was stored, so one that reads log-probabilities needs a store that still has the messages.
Before the new store is written, the verifier is tried on a prompt; its scores are kept for the run.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import replace
from functools import partial
from typing import Any, NoReturn

from langchain_core.runnables import RunnableConfig

from langchain_cfc.artifact import open_attempts
from langchain_cfc.draw_rules import parse_draw_rule
from langchain_cfc.errors import CollectionError, InputError
from langchain_cfc.execution import Steps
from langchain_cfc.records import Example
from langchain_cfc.sampling.fingerprints import CLASS
from langchain_cfc.support.database import StoreNotFoundError
from langchain_cfc.support.files import check_target
from langchain_cfc.verifiers import Verifier, VerifierEnsemble, VerifierInput
from langchain_cfc.verifiers.base import BaseVerifier, VerifierScores
from langchain_cfc_collect.collecting import explain_unverified_parts, run_executor, run_in_kept_loop
from langchain_cfc_collect.costs import Stage, Usage
from langchain_cfc_collect.executor import Components, Executor
from langchain_cfc_collect.relabeling import try_stage
from langchain_cfc_collect.run import (
    MAX_FAILURES_AT_START,
    CollectionOptions,
    CollectionResult,
)
from langchain_cfc_collect.stages import Journal, Labels, Outcome
from langchain_cfc_collect.status import CollectionStatus, EarlyWarnings
from langchain_cfc_collect.store import Store, StoredPrompt, rows
from langchain_cfc_collect.store.configurations import VERIFIER_KEYS, replace_parts
from langchain_cfc_collect.store.dataset import MakeWrites

# Stored scores of the prompt that is being scored, for verifiers that return what was recorded.
_STORED: ContextVar[VerifierScores | None] = ContextVar("cfc_stored_scores", default=None)


def rescore(
    source: str | os.PathLike[str],
    verifier: Verifier | VerifierEnsemble | Mapping[str, Verifier],
    store: str | os.PathLike[str],
    options: CollectionOptions | None = None,
    *,
    weights: Mapping[str, float] | None = None,
    verifier_id: str | None = None,
) -> CollectionResult:
    """Score the stored candidates or claims of a collection with another verifier, into a new store.

    Nothing is drawn, and labels stay. To resume an interrupted run, call this again. Prompts that were drawn
    but not labelled are scored; `collect` on the new store, with the new verifier, continues with them.

    Args:
        source: The store to read: path of an SQLite file, or the URL of a PostgreSQL database.
        verifier: The new verifier, or a mapping of several by name, whose mean is the score.
        store: The store to write, created if it does not exist.
        options: Limits, callbacks and further options as in `collect`; the budget counts calls of the
            verifier only. Batches and new labels are not possible.
        weights: Weight of each verifier in the mean by name, as in `VerifierEnsemble`. Those that are not in
            `verifier`, which may be empty, are not called: their recorded outputs are used. If one verifier
            made all scores of the old store, this names it.
        verifier_id: Name of the verifier in the records, if it cannot name itself.

    Returns:
        The result of the run; complete if every prompt of the new store is labelled, or has failed.

    Raises:
        CollectionError: If the verifier fails on the first prompts, as one that reads messages does if they
            were not kept. Nothing is written then.
        StoreError: If a store cannot be read or written, or the new one holds something else.
        InputError: If candidates were drawn by a rule that looks at scores, or an option cannot be used.
    """
    return run_in_kept_loop(
        "arescore(...)", arescore(source, verifier, store, options, weights=weights, verifier_id=verifier_id)
    )


async def arescore(
    source: str | os.PathLike[str],
    verifier: Verifier | VerifierEnsemble | Mapping[str, Verifier],
    store: str | os.PathLike[str],
    options: CollectionOptions | None = None,
    *,
    weights: Mapping[str, float] | None = None,
    verifier_id: str | None = None,
) -> CollectionResult:
    """Run `rescore` on an event loop that is already running, as in a notebook; see there."""
    options = options or CollectionOptions()
    for name, is_set in (("relabel", options.relabel), ("batch", options.call_policy.batch)):
        if is_set:
            msg = f"{name}: rescoring keeps labels and calls the verifier live; leave {name} out"
            raise InputError(msg)
    with Store(source) as old:
        recorded: Sequence[str] = ()
        if weights is not None:
            verifier, recorded = _add_recorded(old, verifier, weights)
        executor = Rescorer(old, verifier, verifier_id, options)
        # Outputs are taken from records, which only finished prompts have.
        stage = Stage.LABELLED if recorded else Stage.DRAWN
        if _is_new(store):
            await executor.try_verifier(stage)
        with Store(store, create=True) as new, new.lock(), open_attempts([source]) as attempts:
            new.set_configuration(executor.configuration)
            status = executor.copy_prompts(new, stage, options)
            with open_attempts([store]) as own:
                own.record(attempts.ledger)  # the labels are the same, so tests on them count
        if status is not None:
            doubt = explain_unverified_parts(executor.configuration)
            if doubt is not None:
                options.on_notice(doubt)
            if options.on_progress is not None:
                options.on_progress(status)
            return CollectionResult(status, complete=not status.remaining)
        ended = await run_executor((), executor, store, replace(options, settings={}))
    return replace(ended, complete=ended.complete and not ended.status.remaining)


class Rescorer(Executor):
    """Executor that scores with another verifier, and gives prompts the labels of a store.

    Args:
        source: The store.
        verifier: The verifier, or several by name.
        verifier_id: Its name in the records.
        options: Limits and retries of calls, and how the verifier is made, in `settings`.

    Raises:
        StoreError: If nothing was collected in the store.
        InputError: If a draw rule looks at scores.
    """

    def __init__(
        self,
        source: Store,
        verifier: Verifier | VerifierEnsemble | Mapping[str, Verifier],
        verifier_id: str | None,
        options: CollectionOptions,
    ) -> None:
        provenance = source.read_provenance()
        if provenance.draws is not None and parse_draw_rule(provenance.draws).needs_scores:
            msg = (
                f"the candidates of {source.name} were drawn by {provenance.draws}, which looks at scores: "
                "with another verifier it would have stopped elsewhere, so collect again"
            )
            raise InputError(msg)
        self._source, self._unit = source, source.unit  # a property that asks the database
        # Labels and scores of the prompts that are left for a run, by id.
        self._left: dict[str, tuple[Labels | None, VerifierScores | None]] = {}
        self._tried: dict[str, Outcome] = {}
        super().__init__(
            Components(
                generator=self._refuse,
                verifier=verifier,
                labeler=self._refuse,
                n=None if provenance.draws else provenance.n,
                draws=provenance.draws,
                unit=self._unit,
                splitter=self._refuse if self._unit == "claims" else None,
                verifier_id=verifier_id,
            ),
            options.call_policy,
            options.config,
        )
        stated = {**self.configuration, **options.settings}
        self.configuration = replace_parts(source.configuration, stated, VERIFIER_KEYS)

    def _refuse(self, *given: Any) -> NoReturn:
        del given
        msg = f"not drawn, split or labelled in {self._source.name}: collect it there"
        raise CollectionError(msg)

    async def try_verifier(self, stage: Stage) -> None:
        """Score the first prompts that have finished a stage until one succeeds, and keep the outcomes.

        Raises `CollectionError` if none succeeds.
        """
        source, score_prompt = self._source, super().score

        async def score(prompt: StoredPrompt) -> Outcome:
            _STORED.set(prompt.scores)
            outcome = await score_prompt(prompt, Journal())
            self._tried[prompt.example.id] = outcome
            return outcome

        what = f"the verifier cannot score what is in {source.name}, so nothing was written"
        await try_stage(source, source.read_finished(stage), score, MAX_FAILURES_AT_START, what)

    def copy_prompts(
        self, target: Store, stage: Stage, options: CollectionOptions
    ) -> CollectionStatus | None:
        """Copy the prompts that have finished a stage, all or none, with labels and scores if these are made.

        Scores are made here if the verifier only computes, unless callbacks are to trace it. Labels follow
        scores, so others are kept for `label`. Prompts that the target has stay as they are.

        Args:
            target: The store to write.
            stage: The stage.
            options: Callbacks.

        Returns:
            The status of the target if all prompts are scored; None if a run has to go on with them.

        Raises:
            StoreError: If the target has other candidates of a prompt, or another reference.
        """
        # The models are the same for all prompts, and the store names them once.
        usage = Usage.from_models(self._source.read_models())
        status = CollectionStatus(total=0, failed=0, usage=usage, unit=self._unit)
        early = EarlyWarnings(self.configuration["n"], status)
        is_new = not any(target.count_stages().values())

        def list_copies() -> Iterator[tuple[Example, MakeWrites]]:
            used = usage if is_new else Usage()
            for prompt in self._source.read_finished(stage):
                scores = self._score_here(prompt) if is_new and not options.config else None
                is_kept = scores is None or prompt.labels is None or options.keep_payloads
                kept = (prompt.draws or ()) if is_kept else ()
                yield prompt.example, partial(rows.copy_stages, prompt.row, kept, scores, used)
                used = Usage()
                if scores is None:
                    self._left[prompt.example.id] = prompt.labels, prompt.scores
                    continue
                status.total += 1
                scored = replace(prompt, scores=scores)
                status.add_prompt(scored)
                for notice in early.check_labels(scored):
                    options.on_notice(notice)

        target.add_with_stages(list_copies())
        return status if is_new and not self._left else None

    def _score_here(self, prompt: StoredPrompt) -> VerifierScores | None:
        """Return the scores of a prompt; None if the verifier makes calls, or the answer is not split yet."""
        if self._unit == "claims" and prompt.claims is None:
            return None
        _STORED.set(prompt.scores)
        return self.score_without_calls(prompt)

    async def score(self, prompt: StoredPrompt, journal: Journal) -> Outcome:
        """Score candidates or claims with the new verifier."""
        tried = self._tried.pop(prompt.example.id, None)
        _STORED.set(self._left.get(prompt.example.id, (None, None))[1])
        return tried or await super().score(prompt, journal)

    async def label(self, prompt: StoredPrompt, journal: Journal) -> Outcome:
        """Return the labels that the prompt has in the old store, or None."""
        del journal
        return Outcome(self._left.get(prompt.example.id, (None, None))[0], Usage())


class _RecordedOutputs(BaseVerifier):
    """Verifier that returns the recorded outputs of one, for the prompt that is being scored."""

    def __init__(self, fingerprint: Mapping[str, Any], name: str) -> None:
        self.fingerprint = {CLASS: None, **fingerprint}  # this class is not the verifier's
        self._name = name

    def flow(self, given: VerifierInput, config: RunnableConfig) -> Steps[list[Any]]:
        """Return what is recorded: with several verifiers their outputs, with one its verdicts."""
        del config
        yield from ()
        stored = _STORED.get() or VerifierScores([None] * len(given["candidates"]))
        if stored.outputs is None:
            return list(stored.verdicts)
        return [None if one is None else one[self._name] for one in stored.outputs]


def _add_recorded(
    source: Store, verifier: Any, weights: Mapping[str, float]
) -> tuple[VerifierEnsemble, Sequence[str]]:
    """Return the verifiers that have weights, and the names of those whose outputs a store has recorded."""
    if not isinstance(verifier, Mapping):
        msg = "weights: pass the verifiers as a mapping by name; an empty one for recorded outputs alone"
        raise InputError(msg)
    recorded = [name for name in weights if name not in verifier]
    if not recorded:
        return VerifierEnsemble(verifier, weights), recorded
    stored = (one.scores for one in source.read_finished(messages=False) if one.scores is not None)
    first = next((one for one in stored if any(verdict is not None for verdict in one.verdicts)), None)
    if first is None:
        msg = f"weights: {source.name} has no labelled prompt yet with recorded outputs: label some first"
        raise InputError(msg)
    # Only the mean of several verifiers has outputs; one verifier may get any name.
    known = next((list(one) for one in first.outputs or () if one is not None), recorded[:1])
    unknown = next((name for name in recorded if name not in known), None)
    if unknown is not None:
        have = "one verifier" if first.outputs is None else ", ".join(known)
        msg = f"weights: {source.name} has recorded {have}, so {unknown!r} needs a verifier"
        raise InputError(msg)
    stated = source.read_provenance().verifier or {}
    made: dict[str, Any] = {}
    for name in recorded:
        keys = {key: one for key, one in stated.items() if key.startswith(f"{name}.")}
        part = {key.removeprefix(f"{name}."): one for key, one in keys.items()}
        made[name] = _RecordedOutputs(part or stated, name)
    return VerifierEnsemble({**made, **verifier}, weights), recorded


def _is_new(store: str | os.PathLike[str]) -> bool:
    """Return whether a store does not exist yet; raise if it cannot be created, before anything is paid."""
    try:
        with Store(store):
            return False
    except StoreNotFoundError:
        where = os.fspath(store)
    if "://" not in where:
        check_target(where)
    return True
