"""What commands print of evaluations beside their summary, and the look that an evaluation is at labels."""

from __future__ import annotations

import warnings
from collections.abc import Iterable

from rich.markup import escape
from rich.table import Table

from langchain_cfc.artifact import CalibrationArtifact, name_evaluation, tabulate_held_out
from langchain_cfc.artifact.attempt_files import AttemptFiles
from langchain_cfc.candidates import LabelledBatch
from langchain_cfc.certificates import BatchFigures
from langchain_cfc.certificates.batches import REPETITIONS
from langchain_cfc.cli.formatting import format_interval, make_table
from langchain_cfc.evaluation import EvaluationReport
from langchain_cfc.guarantee import format_share
from langchain_cfc.records import LabelledRecord
from langchain_cfc.support.text import format_percent


def record_evaluation(
    kept: AttemptFiles, artifact: CalibrationArtifact, records: Iterable[LabelledRecord] | LabelledBatch
) -> None:
    """Record a look at the test prompts before figures are shown; settings chosen by them use others."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # they were shown by the evaluation
        seen, _ = tabulate_held_out(artifact, records)
    kept.record_look(seen, name_evaluation(artifact))


def make_batches_table(batches: Iterable[BatchFigures]) -> Table:
    """Make a table of answered and wrong shares of random batches, with the spread of the middle 80 %."""
    title = f"Batches (ask --batch): means of {REPETITIONS} random ones, and the middle 80 % of them"
    table = make_table("at most wrong", "questions", "answered", "", "wrong", "", texts=0, title=title)
    for one in batches:
        table.add_row(
            format_share(one.max_wrong_share),
            f"{one.size}",
            format_percent(one.answered),
            format_interval(one.answered_spread),
            format_percent(one.wrong, ".1f"),
            format_interval(one.wrong_spread),
        )
    return table


def format_verdict(report: EvaluationReport) -> str:
    """Return the report's verdict with markup, red if something contradicts the promise."""
    return escape(report.verdict) if report.is_passed else f"[bold red]{escape(report.verdict)}[/]"
