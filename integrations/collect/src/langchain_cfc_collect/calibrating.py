"""`calibrate_chain`: collect, calibrate and evaluate in one call that can be resumed."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from inspect import signature
from pathlib import Path
from typing import Any, TypeAlias

from langchain_core.messages import BaseMessage, convert_to_messages
from langchain_core.prompt_values import PromptValue, StringPromptValue
from langchain_core.runnables import Runnable

from langchain_cfc.artifact import CalibrationArtifact, name_evaluation, open_attempts, tabulate_held_out
from langchain_cfc.calibration import CalibrationConfig, calibrate
from langchain_cfc.calibration.rehearsal import rehearse_calibration
from langchain_cfc.candidates import Unit
from langchain_cfc.claims import Splitter
from langchain_cfc.errors import CFCError, CollectionError, InputError, StoreError
from langchain_cfc.evaluation import EvaluationReport, evaluate
from langchain_cfc.execution import Target
from langchain_cfc.labelers import Labeler
from langchain_cfc.no_answers import Reasoning
from langchain_cfc.records import Example, tabulate
from langchain_cfc.records.schema import make_provenance, validate_fields
from langchain_cfc.sampling import SamplingName
from langchain_cfc.support.files import check_target
from langchain_cfc.support.imports import require
from langchain_cfc.support.json_text import short_repr
from langchain_cfc.support.suggestions import suggest_name
from langchain_cfc.verifiers import Verifier
from langchain_cfc_collect.collecting import acollect, run_in_new_loop
from langchain_cfc_collect.costs import Stage
from langchain_cfc_collect.executor import Components, Executor
from langchain_cfc_collect.run import CollectionOptions, CollectionResult
from langchain_cfc_collect.sources import Rows, read_examples
from langchain_cfc_collect.sources.detection import detect_columns
from langchain_cfc_collect.sources.files import IN_MEMORY, to_plain
from langchain_cfc_collect.sources.templates import serialize_messages
from langchain_cfc_collect.store import Store

# A question with its reference: a pair, a mapping of both under usual names, or an `Example`.
Question: TypeAlias = tuple[Any, Any] | Mapping[str, Any] | Example
_PAIR_LENGTH = 2
# Keys that a mapping may have besides the question and the reference; they mean the same as in records.
_EXAMPLE_FIELDS = ("id", "metadata", "cluster")
_DEFAULT_N: dict[Unit, int] = {"answers": 10, "claims": 1}


def calibrate_chain(
    generator: Runnable[Any, Any] | Callable[[Any], Any] | str,
    examples: Iterable[Question],
    *,
    verifier: Verifier | Mapping[str, Verifier],
    labeler: Labeler,
    n: int | None = None,
    splitter: Splitter | None = None,
    answer: Target | None = None,
    metadata: Target | None = None,
    sampling: SamplingName = "requests",
    reasoning: Reasoning = "strip",
    generator_id: str | None = None,
    verifier_id: str | None = None,
    answer_id: str | None = None,
    splitter_id: str | None = None,
    store: str | os.PathLike[str] | None = None,
    out: str | os.PathLike[str] | None = None,
    report: str | os.PathLike[str] | None = None,
    test_fraction: float = 0.3,
    collection: CollectionOptions | None = None,
    **calibration: Any,
) -> tuple[CalibrationArtifact, EvaluationReport]:
    """Calibrate a chain on questions with known answers, and evaluate it on a held-out part of them.

    This runs `collect`, `calibrate` and `evaluate`: it draws, scores and labels candidates, calibrates on one
    part of the questions and evaluates on the other. Every finished stage is written to the store at once. So
    you can call it again with the same arguments after an interruption, or with other calibration options,
    and pay for nothing twice.

    Args:
        generator: The chat model or chain, or a model's name such as `openai:gpt-4o-mini`.
        examples: Questions with references: pairs, mappings with both under usual names (`question` and
            `answer`, `input` and `reference`, ...), or `Example`s. Mappings may also have `id`, `metadata`
            and `cluster`, as documented in `Example`. LangChain messages in a question are converted to
            objects (`{"role": "user", "content": ...}`), and the chain is invoked with these.
        verifier: One verifier, or several by name, whose mean is the score, or a `VerifierEnsemble`.
        labeler: Decides which candidates are correct, given the reference.
        n: Number of candidates per question, at least 1; None for 10, or for 1 with `unit="claims"`.
        splitter: With `unit="claims"`, splits an answer into claims; by default a `SentenceSplitter`.
        answer: Answer extractor, from text to answer; None without one.
        metadata: Metadata function of the prompt; None to use only the metadata of the examples.
        sampling: How candidates are drawn, see `CFCRunnable`.
        reasoning: Whether reasoning in candidates' texts is removed, likewise.
        generator_id: Name of the generator, if it cannot name itself.
        verifier_id: Name of the verifier, likewise.
        answer_id: Name of the answer extractor, likewise.
        splitter_id: Name of the splitter, likewise.
        store: SQLite file or database URL for everything that was paid for; None for a temporary file, which
            is deleted after success. If something fails, the file is kept and the error says where.
        out: Where to write the artifact; None to write none.
        report: Where to write the HTML report; None to write none.
        test_fraction: Share of the questions held out for the evaluation, in (0, 1).
        collection: Limits on calls and cost, callbacks and further options of `collect`; by default progress
            is shown on standard error.
        **calibration: The options of `calibrate`, such as `alpha=0.1` or `max_wrong_rate=0.05`:
            `CalibrationConfig` documents them.

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
        MissingExtraError: If a report is wanted and langchain-cfc-lab is not installed.

    Warns:
        CollectionWarning: As in `collect`.
    """
    given = dict(locals())
    options = given.pop("calibration")
    return run_in_new_loop("acalibrate_chain(...)", acalibrate_chain(**given, **options))


async def acalibrate_chain(
    generator: Runnable[Any, Any] | Callable[[Any], Any] | str,
    examples: Iterable[Question],
    *,
    test_fraction: float = 0.3,
    **options: Any,
) -> tuple[CalibrationArtifact, EvaluationReport]:
    """Run `calibrate_chain` on an event loop that is already running, as in a notebook.

    Args:
        generator: As in `calibrate_chain`.
        examples: As in `calibrate_chain`.
        test_fraction: As in `calibrate_chain`.
        **options: As in `calibrate_chain`.

    Returns:
        The artifact and the report.
    """
    plan = _make_plan(generator, examples, test_fraction=test_fraction, **options)
    plan.check()
    with plan.open_store_path() as path:
        ended = await acollect(plan.examples, plan.components, path, plan.collection)
        return await asyncio.to_thread(plan.finish, path, ended)


@dataclass(frozen=True)
class _Plan:
    """Plan of one `calibrate_chain` call: what to collect, how to calibrate and where to write."""

    examples: Sequence[Example]
    components: Components
    config: CalibrationConfig
    store: str | os.PathLike[str] | None
    out: str | os.PathLike[str] | None
    report: str | os.PathLike[str] | None
    collection: CollectionOptions | None

    def check(self) -> None:
        """Raise for settings that would fail only after everything was paid for."""
        self.config.check()
        if not self.config.test_fraction > 0:
            msg = "test_fraction is 0, which leaves nothing to evaluate on; expected a share such as 0.3"
            raise InputError(msg)
        self._check_targets()
        rehearse_calibration(
            self.config,
            self._list_prompts(),
            make_provenance(Executor(self.components).configuration, ()),
            metadata_known=self.components.metadata is None,
        )

    def _check_targets(self) -> None:
        """Raise for paths that cannot be written to, or that are given twice."""
        if self.out is not None:
            check_target(self.out)
        if self.report is not None:
            _import_report().check_report(self.report)
        given = {"store": self.store, "out": self.out, "report": self.report}
        seen: dict[str, str] = {}
        for name, path in given.items():
            if path is None:
                continue
            other = seen.setdefault(os.path.realpath(path), name)
            if other != name:
                msg = f"{name}: {path} is also the {other}; give each its own path"
                raise InputError(msg)

    def _list_prompts(self) -> list[Example]:
        """Return the prompts that the store will hold: its finished and unfinished ones, and the examples."""
        prompts = {one.id: one for one in self.examples}
        if self.store is not None:
            # A store that does not exist yet has no prompts; `collect` reports one that cannot be used.
            with suppress(StoreError), Store(self.store) as store:
                for prompt in (*store.read_finished(), *store.read_unfinished()):
                    prompts.setdefault(prompt.example.id, prompt.example)
        return list(prompts.values())

    @contextmanager
    def open_store_path(self) -> Iterator[str]:
        """Yield the location of the store: as given, or a temporary file that is deleted after success.

        If something fails after the first payment, the file is kept and the error says where.
        """
        if self.store is not None:
            yield str(self.store)
            return
        folder = tempfile.mkdtemp(prefix="langchain-cfc-")
        path = str(Path(folder, "collection.db"))
        try:
            yield path
        except BaseException as error:
            note = _describe_kept_store(path)
            if note is None:
                shutil.rmtree(folder, ignore_errors=True)
            elif isinstance(error, CFCError):
                error.args = (f"{str(error).rstrip('.')}. {note}", *error.args[1:])
            else:  # for example KeyboardInterrupt, which has no message to add to
                with suppress(Warning):
                    (self.collection or CollectionOptions()).on_notice(note)
            raise
        shutil.rmtree(folder, ignore_errors=True)

    def finish(self, path: str, ended: CollectionResult) -> tuple[CalibrationArtifact, EvaluationReport]:
        """Calibrate and evaluate, and write the artifact and the report if their paths are given."""
        if not ended.complete:
            msg = (
                f"{ended.status.remaining} of {ended.status.total} questions were not started, because the "
                "budget ended or the run was stopped; call again with the same store to continue"
            )
            raise CollectionError(msg)
        with Store(path) as store:
            provenance = store.read_provenance()
            table = tabulate(store.read_all(), provenance=provenance, shortened=True, claims=True)
        with open_attempts([path], self.out) as kept:
            artifact = calibrate(
                table, provenance=provenance, after=kept.ledger, **self.config.to_arguments()
            )
            kept.record(artifact)
        seen = evaluate(artifact, table, alpha=next(iter(artifact.alphas), None), provenance=provenance)
        kept.record_look(tabulate_held_out(artifact, table)[0], name_evaluation(artifact))
        if self.out is not None:
            artifact.save(self.out)
        if self.report is not None:
            reports = _import_report()
            reports.write_report(
                self.report,
                artifact=artifact,
                evaluation=seen,
                hardest=reports.find_hardest_prompts(artifact, table, seen.alpha),
                sources=reports.Sources(str(self.out or "artifact.json"), (path,)),
            )
        return artifact, seen


def _import_report() -> Any:
    return require("langchain_cfc_lab.report", "lab", "a report")


def _describe_kept_store(path: str) -> str | None:
    """Describe what a temporary store holds and how to reuse it; None if nothing in it was paid for."""
    advice = f"pass store={path!r} to calibrate on them, or to continue, without paying for them again"
    try:
        with Store(path) as store:
            stages = store.count_stages()
            labelled = stages[Stage.LABELLED]
            is_paid = bool(store.read_usage().calls or sum(stages.values()) > stages[Stage.OPEN])
    except StoreError:
        # The store may be damaged, but may also hold paid results, so it is never deleted.
        return f"What was paid for is kept in {path}" if Path(path).exists() else None
    return f"The {labelled} labelled prompts are kept in {path}: {advice}" if is_paid else None


def _make_plan(
    generator: Any,
    examples: Iterable[Question],
    *,
    test_fraction: float,
    n: int | None = None,
    store: str | os.PathLike[str] | None = None,
    out: str | os.PathLike[str] | None = None,
    report: str | os.PathLike[str] | None = None,
    collection: CollectionOptions | None = None,
    **options: Any,
) -> _Plan:
    """Return the plan for a `calibrate_chain` call; `options` go to `Components` and `CalibrationConfig`."""
    listed = _list_examples(examples)
    shared = signature(calibrate_chain).parameters.keys() & signature(Components).parameters.keys()
    parts = {name: options.pop(name) for name in shared if name in options}
    config = CalibrationConfig(test_fraction=test_fraction, **options)
    number = _DEFAULT_N[config.unit] if n is None else n
    components = Components(generator, n=number, unit=config.unit, **parts)
    return _Plan(listed, components, config, store, out, report, collection)


def _list_examples(examples: Iterable[Question]) -> list[Example]:
    given = list(examples)
    if given and all(isinstance(one, Example) for one in given):
        return given  # type: ignore[return-value]  # all were looked at
    rows = [_make_row(number, one) for number, one in enumerate(given, start=1)]
    columns = detect_columns(
        Rows.from_iterable([{key: row[key] for key in row if key not in _EXAMPLE_FIELDS} for row in rows])
    )
    known = [str(columns.input), str(columns.reference), *_EXAMPLE_FIELDS]
    for number, row in enumerate(rows, start=1):
        for key in row:
            if not any(f"{name}.".startswith(f"{key}.") for name in known):
                msg = (
                    f"example {number} has the unknown key {short_repr(key)}; known are {', '.join(known)}"
                    f"{suggest_name(str(key), known)}. Values that features read belong in metadata"
                )
                raise InputError(msg)
    stated = {name: name for name in ("id", "cluster") if any(name in row for row in rows)}
    if "cluster" in stated:
        rows = [{"cluster": None, **row} for row in rows]
    made = read_examples(Rows.from_iterable(rows), columns.model_copy(update=stated))
    return [
        _add_metadata(one, row.get("metadata"), number)
        for number, (one, row) in enumerate(zip(made, rows, strict=True), start=1)
    ]


def _make_row(number: int, given: Any) -> Mapping[str, Any]:
    try:
        if isinstance(given, Mapping):
            return {key: _replace_messages(value) for key, value in given.items()}
        if isinstance(given, (tuple, list)) and len(given) == _PAIR_LENGTH:
            return {"question": _replace_messages(given[0]), "reference": given[1]}
    except ValueError as error:
        msg = f"example {number}: {error}"
        raise InputError(msg) from error
    msg = (
        f"example {number} is {short_repr(given)}; expected a pair of question and reference, a mapping of "
        "both, or Examples alone"
    )
    raise InputError(msg)


def _replace_messages(value: Any) -> Any:
    """Return a prompt with its messages as objects, which records can store and LangChain accepts."""
    if isinstance(value, PromptValue):
        return value.text if isinstance(value, StringPromptValue) else serialize_messages(value.to_messages())
    if isinstance(value, list) and any(isinstance(one, BaseMessage) for one in value):
        return serialize_messages(convert_to_messages(value))
    if isinstance(value, Mapping):  # the input of an agent, or of a prompt with a placeholder
        return {key: _replace_messages(item) for key, item in value.items()}
    return value


def _add_metadata(example: Example, metadata: Any, number: int) -> Example:
    """Return the example with its metadata, without nulls, as `read_examples` does for columns."""
    if metadata is None:
        return example
    plain = to_plain(metadata)
    if isinstance(plain, dict):
        plain = {key: value for key, value in plain.items() if value is not None}
    return validate_fields(Example, {**dict(example), "metadata": plain}, IN_MEMORY, number)
