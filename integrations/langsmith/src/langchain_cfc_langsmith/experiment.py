"""`Experiment`: a `CFCRunnable` under `langsmith.evaluate`, measured by the package's own `evaluate`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from uuid import UUID

from langchain_cfc_collect import Columns, parse_template
from langsmith import get_current_run_tree
from langsmith.evaluation import EvaluationResult, EvaluationResults
from langsmith.run_helpers import get_tracing_context, tracing_context
from langsmith.schemas import Example, Run

from langchain_cfc import Candidate, CFCResult, CFCRunnable, PromptRecord, evaluate
from langchain_cfc.errors import CalibrationError, InputError
from langchain_cfc.evaluation import EvaluationReport
from langchain_cfc.execution import run_flow
from langchain_cfc.extend import Description
from langchain_cfc.labelers import CandidateLabeling, Labeler
from langchain_cfc.runnable import ScoredCandidate
from langchain_cfc_langsmith.labelling import label_served
from langchain_cfc_langsmith.scores import make_scores
from langchain_cfc_langsmith.source import make_row


class Experiment:
    """Target, evaluator and summary evaluator for `langsmith.evaluate`.

    The chain serves every prompt, all its candidates are labelled, and result and labels make a record. The
    summary is the report of `langchain_cfc.evaluate` on these records: coverage and kept promise on prompts
    that were not used for calibration. It sets other prompts aside or refuses them, as `evaluate` does.

    Args:
        chain: The chain, which serves at its own error level.
        labeler: The labeler that labelled the calibration records.
        columns: Maps inputs, outputs and metadata of the examples to fields, as in the collection of the
            calibration records; see `make_row`. Prompts are made from inputs and metadata only.
    """

    def __init__(self, chain: CFCRunnable, labeler: Labeler, columns: Columns) -> None:
        # All candidates are labelled, so rejected texts are needed here.
        self._chain = chain.model_copy(update={"show_rejected": True})
        self._description = Description(None, chain.metadata)
        self._labelling = CandidateLabeling(labeler)
        self._columns = columns
        self._prompt_columns = _select_prompt_columns(columns)
        self._results: dict[UUID, tuple[Any, CFCResult]] = {}
        self._records: dict[UUID, PromptRecord] = {}

    @property
    def records(self) -> list[PromptRecord]:
        """The records of all prompts that were served and labelled."""
        return list(self._records.values())

    def target(self, inputs: dict[str, Any], metadata: dict[str, Any] | None) -> dict[str, Any]:
        """Serve an example; the target for `langsmith.evaluate`.

        Args:
            inputs: The example's inputs.
            metadata: The example's metadata.

        Returns:
            `answer`, `abstained`, `reason` and `answers`, without rejected candidates.
        """
        prompt, run_id = self._make_prompt(inputs, metadata), _get_run_id()
        with _disable_tracing_if_local():
            return self._store_result(run_id, prompt, self._chain.invoke(prompt))

    async def atarget(self, inputs: dict[str, Any], metadata: dict[str, Any] | None) -> dict[str, Any]:
        """Serve an example asynchronously; the target for `langsmith.aevaluate`, see `target`."""
        prompt, run_id = self._make_prompt(inputs, metadata), _get_run_id()
        with _disable_tracing_if_local():
            return self._store_result(run_id, prompt, await self._chain.ainvoke(prompt))

    def evaluator(self, run: Run, example: Example) -> EvaluationResults:
        """Return the decision about an example, and whether the promise was kept, as scores.

        Args:
            run: A run of the target.
            example: Its example.

        Returns:
            The scores; see `make_scores`.

        Raises:
            InputError: If the target did not serve the example, or served another prompt.
            LabelerError: If its candidates cannot be labelled.
        """
        expected = self._columns.create_example(make_row(example), f"example {example.id}", 0)
        if run.id not in self._results:
            msg = f"example {example.id}: it was not served by this experiment; see the error of its run"
            raise InputError(msg)
        prompt, result = self._results[run.id]
        if prompt != expected.input:
            msg = f"example {example.id}: the target got another prompt than its columns state"
            raise InputError(msg)
        with _disable_tracing_if_local():
            described = run_flow(self._description.describe_prompt(prompt, {}))
            correct = run_flow(
                label_served(self._labelling, prompt, expected.reference, result.candidates, {})
            )
        self._records[run.id] = PromptRecord(
            **expected.model_dump(exclude={"metadata"}),
            metadata={**expected.metadata, **described},
            candidates=tuple(map(_to_candidate, result.candidates, correct)),
        )
        return EvaluationResults(results=make_scores(result, correct))

    def summary(self, runs: Sequence[Run], examples: Sequence[Example]) -> EvaluationResults:
        """Return the main figures of `langchain_cfc.evaluate` for an experiment.

        Args:
            runs: The runs of the target.
            examples: Their examples; not used.

        Returns:
            `cfc_coverage`, `cfc_kept_promise`, `cfc_abstention_rate` and `cfc_not_certifiable_rate`, with
            95 % intervals in the comments; `cfc_mean_set_size`; `cfc_contradicted`, 1 if the results
            contradict the promise; `cfc_unmeasured`, the number of examples not served or not labelled.

        Raises:
            CalibrationError: As `report` does.
        """
        del examples
        there = [self._records[run.id] for run in runs if run.id in self._records]
        unmeasured = EvaluationResult(key="cfc_unmeasured", score=len(runs) - len(there))
        report = self._report(there)
        return EvaluationResults(results=[*_make_summary(report), unmeasured])

    def report(self) -> EvaluationReport:
        """Return the full report on all records; see `langchain_cfc.evaluate`.

        Raises:
            CalibrationError: If nothing was measured, an example was served twice, or all prompts were used
                for calibration.
        """
        return self._report(self.records)

    def _report(self, records: Sequence[PromptRecord]) -> EvaluationReport:
        if not records:
            msg = "no run was measured: see the errors of the runs"
            raise CalibrationError(msg)
        if len({one.id for one in records}) < len(records):
            msg = (
                "examples were served more than once, and repetitions are not new prompts: leave "
                "num_repetitions at 1, with a new Experiment"
            )
            raise CalibrationError(msg)
        artifact, served = self._chain.artifact, self._chain.guarantee.alpha
        # A bot is served under its rate, and may stand beside sets at any level.
        alpha = served if served in artifact.alphas else next(iter(artifact.alphas), None)
        return evaluate(artifact, records, alpha=alpha)

    def _make_prompt(self, inputs: dict[str, Any], metadata: Mapping[str, Any] | None) -> Any:
        row = {**(metadata or {}), **inputs, "inputs": inputs, "metadata": metadata or {}}
        return self._prompt_columns.create_example(row, "inputs", 0).input

    def _store_result(self, run_id: UUID, prompt: Any, result: CFCResult) -> dict[str, Any]:
        self._results[run_id] = (prompt, result)
        return {
            "answer": result.best,
            "abstained": result.abstained,
            "reason": result.reason,
            "answers": list(result.answers),
        }


def _select_prompt_columns(columns: Columns) -> Columns:
    """Return the columns that make prompts, without those of references and labels."""
    named = {columns.input, *(columns.inputs or ())} - {None}
    if columns.prompt is not None:
        named |= set(parse_template(columns.prompt).required)
    heads = {str(name).partition(".")[0] for name in named}
    return Columns(
        input=columns.input,
        prompt=columns.prompt,
        inputs=columns.inputs,
        cells={name: how for name, how in columns.cells.items() if name in named | heads},
    )


def _get_run_id() -> UUID:
    run = get_current_run_tree()
    if run is None:
        msg = "the target was called outside of a run; pass it to langsmith.evaluate"
        raise InputError(msg)
    return run.id


@contextmanager
def _disable_tracing_if_local() -> Iterator[None]:
    """Disable tracing within an evaluation that is meant to stay local.

    With `upload_results=False`, LangSmith does not upload the runs of its own functions, but still those of
    LangChain runnables inside them.
    """
    if get_tracing_context().get("enabled") != "local":
        yield
        return
    with tracing_context(enabled=False):
        yield


def _to_candidate(served: ScoredCandidate, correct: bool) -> Candidate:
    return Candidate(
        text=served.text if served.data is None else None,
        message=served.data,
        score=served.score,
        correct=correct,
        answer=served.answer,
        scores=served.scores,
    )


def _make_summary(report: EvaluationReport) -> list[EvaluationResult]:
    promised = f"promised {report.target_coverage:g}; {report.n_test} prompts, {report.test_prompts}"

    def rate(name: str, value: float, interval: tuple[float, float]) -> EvaluationResult:
        low, high = interval
        return EvaluationResult(
            key=f"cfc_{name}", score=value, comment=f"95 % interval {low:.3f} to {high:.3f}; {promised}"
        )

    contradicted = [
        *report.contradicted,
        *(f"{one.max_wrong_rate:g}" for one in report.answers if one.contradicted),
    ]
    figures: list[EvaluationResult] = []
    if report.methods:
        own = report.methods["conditional"]
        figures = [
            rate("coverage", own.coverage, own.coverage_ci),
            rate("kept_promise", own.kept_promise, own.kept_promise_ci),
            rate("abstention_rate", own.abstention_rate, own.abstention_ci),
            rate("not_certifiable_rate", own.not_certifiable_rate, own.not_certifiable_ci),
            EvaluationResult(key="cfc_mean_set_size", score=own.mean_set_size),
        ]
    elif report.answers:  # a bot alone, at its smallest rate
        bot = report.answers[0]
        figures = [
            rate("wrong_rate", bot.wrong_rate, bot.wrong_rate_ci),
            EvaluationResult(key="cfc_answered_rate", score=bot.answered_rate),
        ]
    return [
        *figures,
        EvaluationResult(
            key="cfc_contradicted", score=int(bool(contradicted)), comment=", ".join(contradicted)
        ),
    ]
