"""Writing a report where nothing else is lost."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from langchain_cfc._files import atomic_writer
from langchain_cfc.artifact import CalibrationArtifact
from langchain_cfc.comparison.report import ComparisonReport
from langchain_cfc.errors import InputError
from langchain_cfc.evaluation import EvaluationReport
from langchain_cfc.report.hardest import HardestPrompts
from langchain_cfc.report.next_steps import Sources
from langchain_cfc.report.page import GENERATOR, page

# The page says what it is within its first lines.
HEAD_BYTES = 1024


def write_report(
    path: str | os.PathLike[str],
    *,
    artifact: CalibrationArtifact | None = None,
    evaluation: EvaluationReport | None = None,
    comparison: ComparisonReport | None = None,
    hardest: HardestPrompts | None = None,
    sources: Sources | None = None,
    notes: Sequence[str] = (),
    title: str | None = None,
) -> None:
    """Write a report: one HTML file that needs no network and no script.

    Args:
        path: Where; an earlier report is replaced as a whole, anything else is not.
        artifact: The artifact it is about, if it is about one; then with an evaluation.
        evaluation: The artifact's evaluation at one of its levels.
        comparison: A comparison of methods, beside the artifact or by itself.
        hardest: The artifact's hardest test prompts; with texts only if they were found with texts.
        sources: Names of files for the commands that it recommends; placeholders by default.
        notes: What a reader has to know before all else, such as that the records come from another model.
        title: Its title.

    Raises:
        InputError: If the path holds something that is no report, there is nothing to report on, or the
            evaluation is not the artifact's.
        MissingExtraError: If jinja2, matplotlib or SciPy is not installed.
    """
    check_report(path)
    text = page(
        artifact=artifact,
        evaluation=evaluation,
        comparison=comparison,
        hardest=hardest,
        sources=sources,
        notes=notes,
        title=title,
    )
    with atomic_writer(path) as file:
        file.write(text.encode())


def check_report(path: str | os.PathLike[str]) -> None:
    """Refuse to write a report over anything that is none, such as the records it is made from.

    Args:
        path: Where a report is to be written.

    Raises:
        InputError: If the path holds something else, or is `-`.
    """
    target = Path(path)
    if str(target) == "-":
        msg = "reports are written to files: give a path"
        raise InputError(msg)
    if target.is_dir() or not target.parent.is_dir():
        problem = "is a folder" if target.is_dir() else "lies in a folder that does not exist"
        msg = f"{target} {problem}: give another path"
        raise InputError(msg)
    if target.is_file() and not _looks_like_report(target):
        msg = f"{target} exists and is not a report; it will not be overwritten: give another path"
        raise InputError(msg)


def _looks_like_report(path: Path) -> bool:
    with path.open("rb") as file:
        return f'<meta name="generator" content="{GENERATOR}">'.encode() in file.read(HEAD_BYTES)
