"""`calibrate_chain`: rehearse, collect, calibrate and evaluate in one call that can be resumed."""

from __future__ import annotations

import asyncio
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from inspect import signature
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
from langchain_core.runnables import Runnable
from typing_extensions import Unpack

from langchain_cfc.artifact import CalibrationArtifact, name_evaluation, open_attempts, tabulate_held_out
from langchain_cfc.calibration import CalibrationConfig, calibrate
from langchain_cfc.candidates import LabelledBatch
from langchain_cfc.claims import Splitter
from langchain_cfc.errors import ArtifactError, CalibrationError, CollectionError, InputError
from langchain_cfc.evaluation import EvaluationReport, evaluate
from langchain_cfc.execution import Target
from langchain_cfc.features import FeatureMap
from langchain_cfc.guarantee import PaperPAC
from langchain_cfc.labelers import Labeler
from langchain_cfc.no_answers import Reasoning
from langchain_cfc.records import Example, Provenance, tabulate
from langchain_cfc.sampling import SamplingName
from langchain_cfc.support.database import StoreNotFoundError, find_store_file
from langchain_cfc.support.files import check_target
from langchain_cfc.support.imports import check_installed
from langchain_cfc.support.suggestions import suggest_name
from langchain_cfc.support.text import pluralize
from langchain_cfc.support.units import UNITS, Unit
from langchain_cfc.thresholds import Level
from langchain_cfc.verifiers import Verifier, VerifierEnsemble
from langchain_cfc_collect.collecting import acollect, run_in_kept_loop
from langchain_cfc_collect.executor import Components, Executor
from langchain_cfc_collect.proposal import name_store
from langchain_cfc_collect.run import CollectionOptions, CollectionResult
from langchain_cfc_collect.sources.questions import Questions, list_examples
from langchain_cfc_collect.store import Store
from langchain_cfc_collect.store.configurations import make_provenance

_DEFAULT_N: dict[Unit, int] = {"answers": 10, "claims": 1}
# Of the candidates that a calibration is rehearsed on.
_MADE_UP_ANSWERS = ("a", "bb", "ccc")
_MOST_CLAIMS = 6


class ChainOptions(TypedDict, total=False):
    """Options of `calibrate_chain` and `build_bot`: of the collection, and those of `calibrate`.

    `CalibrationConfig` documents the options of `calibrate`, and `CFCRunnable` those that both have.

    Attributes:
        n: Number of candidates per question, at least 1; by default 10, or 1 with `unit="claims"`.
        splitter: With `unit="claims"`, splits an answer into claims; by default a `SentenceSplitter`.
        answer: Answer extractor, from text to answer.
        metadata: Metadata function of the prompt, if the metadata of the examples is not enough.
        sampling: How candidates are drawn.
        reasoning: Whether reasoning in candidates' texts is removed.
        generator_id: Name of the generator, if it cannot name itself.
        verifier_id: Name of the verifier, likewise.
        answer_id: Name of the answer extractor, likewise.
        splitter_id: Name of the splitter, likewise.
        store: SQLite file or database URL for everything that was paid for; by default in the current folder,
            named after the file of examples.
        out: Where to write the artifact.
        collection: Limits on calls and cost, callbacks and further options of `collect`; by default progress
            is shown on standard error.
    """

    n: int | None
    splitter: Splitter | None
    answer: Target | None
    metadata: Target | None
    sampling: SamplingName
    reasoning: Reasoning
    generator_id: str | None
    verifier_id: str | None
    answer_id: str | None
    splitter_id: str | None
    store: str | os.PathLike[str] | None
    out: str | os.PathLike[str] | None
    collection: CollectionOptions | None
    alpha: Level | Sequence[Level] | None
    adaptive_alpha: bool | Level
    max_wrong_rate: Level | Sequence[Level] | None
    max_wrong_of_all: Level | Sequence[Level] | None
    wrong_rate_groups: bool
    delta: Level | None
    features: str | FeatureMap | None
    unit: Unit
    at_most: int
    set_rule: str
    draws: str | None
    pac: PaperPAC | None
    seed: str | int
    fit_fraction: float | None
    test_fraction: float
    allow_unattainable: bool


def calibrate_chain(
    generator: Runnable[Any, Any] | Callable[[Any], Any] | str,
    examples: Questions,
    *,
    verifier: Verifier | VerifierEnsemble | Mapping[str, Verifier],
    labeler: Labeler,
    **options: Unpack[ChainOptions],
) -> tuple[CalibrationArtifact, EvaluationReport]:
    """Calibrate a chain on questions with known answers, and evaluate it on a held-out part of them.

    This runs `collect`, `calibrate` and `evaluate`: it draws, scores and labels candidates, calibrates on one
    part of the questions and evaluates on the other. Every finished stage is written to the store at once. So
    you can call it again with the same arguments after an interruption, or with other calibration options,
    and pay for nothing twice. For a bot with defaults for all of this, see `build_bot`.

    Args:
        generator: The chat model or chain, or a model's name such as `openai:gpt-4o-mini`.
        examples: Questions with references: pairs, mappings with both under usual names (`question` and
            `answer`, `input` and `reference`, ...), `Example`s, a pandas DataFrame, or a file. Mappings may
            also have `id`, `metadata` and `cluster`, as documented in `Example`. LangChain messages in a
            question are converted to objects (`{"role": "user", "content": ...}`), and the chain is invoked
            with these. Rows of a file or DataFrame that cannot be used are set aside, with a notice.
        verifier: One verifier, or several by name, whose mean is the score, or a `VerifierEnsemble`.
        labeler: Decides which candidates are correct, given the reference.
        **options: See `ChainOptions`; at least a promise, such as `alpha=0.1` or `max_wrong_rate=0.05`.
            `test_fraction` is 0.3 by default.

    Returns:
        The artifact, and its evaluation report at the artifact's smallest error level.

    Raises:
        InputError: If an argument or an example cannot be used, the examples lack metadata that the features
            read, a part of the split would be empty, or there are too few questions for the target even if
            the chain answered all of them. All of this is checked before anything is paid for.
        CollectionError: If candidates cannot be collected, or the budget ended the collection; finished
            stages are kept in the store.
        UnattainableTargetError: If the target is out of reach for these candidates; they are kept in the
            store as well.

    Warns:
        CollectionWarning: As in `collect`.
    """
    run = acalibrate_chain(generator, examples, verifier=verifier, labeler=labeler, **options)
    return run_in_kept_loop("acalibrate_chain(...)", run)


async def acalibrate_chain(
    generator: Runnable[Any, Any] | Callable[[Any], Any] | str,
    examples: Questions,
    *,
    verifier: Verifier | VerifierEnsemble | Mapping[str, Verifier],
    labeler: Labeler,
    **options: Unpack[ChainOptions],
) -> tuple[CalibrationArtifact, EvaluationReport]:
    """Run `calibrate_chain` on an event loop that is already running, as in a notebook; see there."""
    parts = {"generator": generator, "verifier": verifier, "labeler": labeler}
    plan = ChainPlan.make(examples, {**parts, "test_fraction": 0.3, **options}, "chain.db")
    if not plan.config.test_fraction > 0:
        msg = "test_fraction is 0, which leaves nothing to evaluate on; expected a share such as 0.3"
        raise InputError(msg)
    plan.check()
    artifact, seen = await asyncio.to_thread(plan.finish, await plan.collect())
    if seen is None:
        raise AssertionError  # a part is held out
    return artifact, seen


@dataclass(frozen=True)
class ChainPlan:
    """Plan of one `calibrate_chain` or `build_bot` call: what to collect, and how to calibrate.

    Attributes:
        examples: The questions.
        components: What draws, scores and labels.
        config: The options of `calibrate`; without `test_fraction` nothing is evaluated.
        store: Where everything is kept that was paid for.
        out: Where to write the artifact; None to write none.
        collection: Options of the collection.
    """

    examples: Sequence[Example]
    components: Components
    config: CalibrationConfig
    store: str | os.PathLike[str]
    out: str | os.PathLike[str] | None
    collection: CollectionOptions

    @classmethod
    def make(cls, examples: Questions, options: Mapping[str, Any], default_store: str) -> ChainPlan:
        """Return the plan for components and options, of which each belongs to one of its parts.

        Without one, the store is named after the file of examples, or has the default name.
        """
        rest = dict(options)
        out, store = rest.pop("out", None), rest.pop("store", None)
        if store is None:
            is_file = isinstance(examples, str | os.PathLike)
            store = name_store(str(examples)) if is_file else default_store
        collection, n = rest.pop("collection", None) or CollectionOptions(), rest.pop("n", None)
        shared = signature(Components).parameters.keys() - signature(CalibrationConfig).parameters.keys()
        parts = {name: rest.pop(name) for name in shared & rest.keys()}
        known = signature(CalibrationConfig).parameters.keys()
        if unknown := next((name for name in rest if name not in known), None):
            msg = f"there is no option {unknown!r}{suggest_name(unknown, ChainOptions.__annotations__)}"
            raise InputError(msg)
        config = CalibrationConfig(**rest)
        number = _DEFAULT_N.get(config.unit) if n is None else n
        components = Components(n=number, unit=config.unit, **parts)
        listed = list_examples(examples, collection.on_notice)
        return cls(listed, components, config, store, out, collection)

    def replace_parts(self, **parts: Any) -> ChainPlan:
        """Return the plan with other components."""
        return replace(self, components=replace(self.components, **parts))

    def check(self) -> None:
        """Raise for settings that would fail only after everything was paid for."""
        for path in (find_store_file(self.store), self.out):
            if path is not None:
                check_target(path)
        if self.out is not None and os.path.realpath(self.out) == os.path.realpath(self.store):
            msg = f"out: {self.out} is also the store; give each its own path"
            raise InputError(msg)
        rehearse_calibration(
            self.config,
            self.list_prompts(),
            make_provenance(Executor(self.components).configuration, ()),
            metadata_known=self.components.metadata is None,
        )

    def list_prompts(self) -> list[Example]:
        """Return the prompts that the store will hold: its finished and unfinished ones, and the examples."""
        prompts = {one.id: one for one in self.examples}
        with suppress(StoreNotFoundError), Store(self.store) as store:
            for prompt in (*store.read_finished(), *store.read_unfinished()):
                prompts.setdefault(prompt.example.id, prompt.example)
        return list(prompts.values())

    async def collect(self) -> CollectionResult:
        """Draw, score and label candidates into the store."""
        return await acollect(self.examples, self.components, self.store, self.collection)

    def finish(self, ended: CollectionResult) -> tuple[CalibrationArtifact, EvaluationReport | None]:
        """Calibrate, evaluate if prompts are held out, and write what has a path."""
        if not ended.complete:
            msg = (
                f"{ended.status.remaining} of {ended.status.total} questions were not started, because the "
                "budget ended or the run was stopped; call again with the same store to continue"
            )
            raise CollectionError(msg)
        with Store(self.store) as store:
            provenance = store.read_provenance()
            table = tabulate(store.read_all(), provenance=provenance, shortened=True, claims=True)
        with open_attempts([self.store], self.out) as kept:
            artifact = calibrate(
                table, provenance=provenance, after=kept.ledger, **self.config.to_arguments()
            )
            kept.record(artifact)
        artifact = _keep_equal(artifact, self.out)
        seen = None
        if self.config.test_fraction > 0:
            seen = evaluate(artifact, table, alpha=next(iter(artifact.alphas), None), provenance=provenance)
            kept.record_look(tabulate_held_out(artifact, table)[0], name_evaluation(artifact))
        if self.out is not None:
            artifact.save(self.out)
        return artifact, seen


def _keep_equal(artifact: CalibrationArtifact, path: str | os.PathLike[str] | None) -> CalibrationArtifact:
    """Return the artifact in a file if this one differs from it in the time of creation alone.

    A program that calibrates whenever it starts then serves under one digest, by which messages and logs name
    the artifact.
    """
    if path is None or not Path(path).is_file():
        return artifact
    try:
        kept = CalibrationArtifact.load(path)
    except ArtifactError:
        return artifact
    dated = artifact.model_copy(update={"created_at": kept.created_at})
    # Equal attempts have equal outcomes.
    is_equal = (dated.frozen_digest, dated.attempts) == (kept.frozen_digest, kept.attempts)
    return kept if is_equal else artifact


def rehearse_calibration(
    config: CalibrationConfig,
    prompts: Sequence[Example],
    provenance: Provenance,
    *,
    metadata_known: bool = True,
) -> None:
    """Refuse a calibration that would fail for any candidates and labels of N prompts, before they are paid.

    The prompts, their metadata, their split and the options are known. So calibration runs on made-up
    candidates: with random scores and answers, all correct, which is the best case for a target. Metadata is
    not complete if a function will add to it.

    Raises `InputError` for options that conflict with each other or with the prompts, an empty part of the
    split, or a target out of reach; `FeatureError` for features that the metadata does not suit.
    """
    config.check()
    check_installed({"scipy": "calibrate"}, "a calibration with its evaluation")
    made_up, plan = _make_up_candidates(prompts, provenance), config.plan_split()
    if config.test_fraction > 0 and len(plan.list_rows(made_up)["test"]) == 0:
        msg = (
            f"test_fraction = {config.test_fraction:g} of {len(prompts)} prompts leaves none to evaluate on: "
            "raise it, or add more prompts"
        )
        raise InputError(msg)
    if not metadata_known:
        known = [term.text for term in config.feature_map.terms if not term.metadata_keys]
        config = replace(config, features=" + ".join(known) or "1")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            calibrate(made_up, provenance=provenance, **config.to_arguments())
        except CalibrationError as error:  # nothing is labelled yet, so an argument is at fault
            reason, _, is_tested = str(error).partition("\nThis was test")
            larger = ", or allow more" if "allow more" in is_tested else ""
            advice = f"\n{pluralize(len(prompts), 'prompt')} cannot suffice: add some{larger}"
            raise InputError(reason + (advice if is_tested else "")) from error


def _make_up_candidates(prompts: Sequence[Example], provenance: Provenance) -> LabelledBatch:
    """Return the prompts with candidates, or with an answer of some claims, that are all correct."""
    rng = np.random.default_rng(0)
    is_fixed_count = UNITS[provenance.unit or "answers"].is_fixed_count
    counts = [provenance.n if is_fixed_count else int(rng.integers(1, _MOST_CLAIMS)) for _ in prompts]
    answers = [rng.choice(_MADE_UP_ANSWERS, count).tolist() for count in counts] if is_fixed_count else None
    return LabelledBatch.from_arrays(
        [one.id for one in prompts],
        [rng.random(count).tolist() for count in counts],
        [[True] * count for count in counts],
        answers,
        clusters=[one.cluster for one in prompts],
        metadata=[one.metadata for one in prompts],
        extracted=provenance.answer is not None,
    )
