"""`rescore`: score the stored candidates of a collection with another verifier, into a new store.

Nothing is drawn or labelled: the new store takes prompts, candidates, claims and labels from the old one,
which is only read. Scores are made as by `collect`, so limits, budgets, failures and resuming are the same. A
verifier sees what was stored, so one that reads log-probabilities needs a store that still has the messages.
Before the new store is written, the verifier is tried on a prompt; its scores are kept for the run.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from dataclasses import replace
from typing import Any, NoReturn

from langchain_cfc.artifact import open_attempts
from langchain_cfc.draw_rules import parse_draw_rule
from langchain_cfc.errors import CollectionError, InputError
from langchain_cfc.records import ClaimsRecord, Example
from langchain_cfc.sampling import DrawnCandidate
from langchain_cfc.sampling.fingerprints import CLASS
from langchain_cfc.support.database import StoreNotFoundError
from langchain_cfc.support.files import check_target
from langchain_cfc.verifiers import Verifier, VerifierEnsemble
from langchain_cfc_collect.collecting import run_executor, run_in_new_loop
from langchain_cfc_collect.costs import Stage, Usage
from langchain_cfc_collect.executor import Components, Executor
from langchain_cfc_collect.relabeling import try_stage
from langchain_cfc_collect.run import (
    MAX_FAILURES_AT_START,
    CollectionOptions,
    CollectionResult,
)
from langchain_cfc_collect.stages import Journal, Outcome
from langchain_cfc_collect.store import Store, StoredPrompt, rows
from langchain_cfc_collect.store.configurations import VERIFIER_KEYS, replace_parts
from langchain_cfc_collect.store.dataset import MakeWrites
from langchain_cfc_collect.store.schema import Write

_RECORDS_ENDINGS = (".jsonl", ".jsonl.gz", ".parquet")
# Id of the prompt that is being scored, for verifiers that return what was recorded for it.
_PROMPT_ID: ContextVar[str] = ContextVar("cfc_rescored_prompt")


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
    return run_in_new_loop(
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
    """Run `rescore` on an event loop that is already running.

    Args:
        source: As in `rescore`.
        verifier: As in `rescore`.
        store: As in `rescore`.
        options: As in `rescore`.
        weights: As in `rescore`.
        verifier_id: As in `rescore`.

    Returns:
        The result of the run.
    """
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
        if _is_new(store):
            await executor.try_verifier()
        with Store(store, create=True) as new, new.lock(), open_attempts([source]) as attempts:
            new.set_configuration(executor.configuration)
            # Outputs are taken from records, which only finished prompts have.
            _copy_prompts(old, new, Stage.LABELLED if recorded else Stage.DRAWN)
            with open_attempts([store]) as own:
                own.record(attempts.ledger)  # the labels are the same, so tests on them count
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
        is_claims = source.unit == "claims"
        self._source = source
        self._labels = {one.example.id: one.labels for one in source.read_finished(messages=False)}
        self._tried: dict[str, Outcome] = {}
        super().__init__(
            Components(
                generator=_refuse,
                verifier=verifier,
                labeler=_refuse,
                n=None if provenance.draws else provenance.n,
                draws=provenance.draws,
                unit=source.unit,
                splitter=_refuse if is_claims else None,
                verifier_id=verifier_id,
            ),
            options.call_policy,
            options.config,
        )
        stated = {**self.configuration, **options.settings}
        self.configuration = replace_parts(source.configuration, stated, VERIFIER_KEYS)

    async def try_verifier(self) -> None:
        """Score the first prompts until one succeeds, and keep the outcomes for the run.

        Raises `CollectionError` if none succeeds. Prompts whose messages were removed come first.
        """
        source, score_prompt = self._source, super().score

        async def score(prompt: StoredPrompt, candidates: Sequence[DrawnCandidate]) -> Outcome:
            answers = prompt.draws if source.unit == "claims" else None
            _PROMPT_ID.set(prompt.example.id)
            outcome = await score_prompt(prompt.example, candidates, Journal(), answers)
            self._tried[prompt.example.id] = outcome
            return outcome

        what = f"the verifier cannot score what is in {source.name}, so nothing was written"
        prompts = source.read_finished(Stage.DRAWN, source.find_stripped())
        await try_stage(source, prompts, score, MAX_FAILURES_AT_START, what)

    async def draw(self, example: Example, journal: Journal) -> Outcome:
        """Refuse to draw."""
        del example, journal
        return Outcome(CollectionError(f"not drawn in {self._source.name}: collect it there"), Usage())

    async def split(self, answer: DrawnCandidate, journal: Journal) -> Outcome:
        """Refuse to split an answer."""
        del answer, journal
        return Outcome(CollectionError(f"not split in {self._source.name}: collect it there"), Usage())

    async def score(
        self,
        example: Example,
        draws: Sequence[DrawnCandidate],
        journal: Journal,
        answers: Sequence[DrawnCandidate] | None = None,
    ) -> Outcome:
        """Score candidates or claims with the new verifier."""
        tried = self._tried.pop(example.id, None)
        _PROMPT_ID.set(example.id)
        return tried or await super().score(example, draws, journal, answers)

    async def label(self, example: Example, draws: Sequence[DrawnCandidate], journal: Journal) -> Outcome:
        """Return the labels that the prompt has in the old store, or None."""
        del draws, journal
        return Outcome(self._labels.get(example.id), Usage())


class _RecordedOutputs:
    """Verifier that returns the recorded outputs of one, for the prompt that is being scored."""

    def __init__(self, fingerprint: Mapping[str, Any], outputs: Mapping[str, Sequence[float | None]]) -> None:
        self.fingerprint = {CLASS: None, **fingerprint}  # this class is not the verifier's
        self._outputs = outputs

    def __call__(self, prompt: Any, candidates: Sequence[DrawnCandidate]) -> Sequence[float | None]:
        del prompt, candidates
        return self._outputs[_PROMPT_ID.get()]


def _add_recorded(
    source: Store, verifier: Any, weights: Mapping[str, float]
) -> tuple[VerifierEnsemble, Sequence[str]]:
    """Return the verifiers that have weights, and the names of those whose outputs a store has recorded."""
    if not isinstance(verifier, Mapping):
        msg = "weights: pass the verifiers as a mapping by name; an empty one for recorded outputs alone"
        raise InputError(msg)
    known = source.read_provenance().verifier or {}
    recorded = [name for name in weights if name not in verifier]
    outputs: dict[str, dict[str, list[float | None]]] = {name: {} for name in recorded}
    for record in source.read_all() if recorded else ():
        rows = record.claims if isinstance(record, ClaimsRecord) else record.candidates
        named = [one.scores for one in rows if one.scores is not None]
        for name in recorded:
            if named and name in named[0]:
                found = [None if one.scores is None else one.scores[name] for one in rows]
            elif named or len(recorded) > 1:
                have = f"has recorded {', '.join(named[0])}" if named else "has recorded one verifier"
                msg = f"weights: {source.name} {have}, so {name!r} needs a verifier"
                raise InputError(msg)
            else:
                found = [None if _has_no_verdict(one) else one.score for one in rows]
            outputs[name][record.id] = found
    parts = {
        name: {key.removeprefix(f"{name}."): one for key, one in known.items() if key.startswith(f"{name}.")}
        for name in recorded
    }
    stated = {name: part or known for name, part in parts.items()}
    made = {name: _RecordedOutputs(stated[name], outputs[name]) for name in recorded}
    every = {**made, **verifier}
    return VerifierEnsemble({name: every[name] for name in every}, weights), recorded


def _has_no_verdict(one: Any) -> bool:
    return bool(one.no_verdict or getattr(one, "no_answer", None))


def _refuse(*given: Any) -> NoReturn:
    del given
    msg = "rescoring neither draws, splits nor labels"
    raise CollectionError(msg)


def _is_new(store: str | os.PathLike[str]) -> bool:
    """Return whether a store does not exist yet; raise if it cannot be created, before anything is paid."""
    try:
        with Store(store):
            return False
    except StoreNotFoundError:
        where = os.fspath(store)
    if where.endswith(_RECORDS_ENDINGS):
        msg = f"{where} is the name of a records file: name a new store, such as rescored.db, and export that"
        raise InputError(msg)
    if "://" not in where:
        check_target(where)
    return True


def _copy_prompts(source: Store, target: Store, stage: Stage) -> None:
    """Copy the prompts that have finished a stage, without their scores and labels, all or none."""
    models = Usage.from_models(source.read_models())
    items = ((prompt.example, _make_copy(prompt, models)) for prompt in source.read_finished(stage))
    target.add_with_stages(items)


def _make_copy(prompt: StoredPrompt, models: Usage) -> MakeWrites:
    def make_writes(position: int) -> list[list[Write]]:
        # The models are the same for all prompts, and the store names them once.
        usage = Usage() if position else models
        writes = [rows.insert_draws(position, prompt.draws or (), usage)]
        if prompt.claims is not None:
            writes.append(rows.insert_claims(position, prompt.claims, Usage()))
        return writes

    return make_writes
