"""What `compare` and `paper` share: options, tables, and figures as files."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.table import Table

from langchain_cfc.cli.output import counted, group_label
from langchain_cfc.comparison import ComparisonReport, LevelComparison, MethodComparison
from langchain_cfc.errors import InputError

_HEADINGS = {
    "kept_promise": "kept",
    "worst_group_kept_promise": "worst",
    "coverage": "cov.",
    "not_certifiable_rate": "flag",
    "abstention_rate": "none",
    "mean_distinct_answers": "answers",
    "selective_accuracy": "right",
}
LEGEND = (
    "kept: covered or flagged, red where that misses the target (who flags all keeps 100 %: read it with "
    "flag); worst: the same in the group that is worst; cov.: the set holds a correct answer; flag: not "
    "certifiable; none: no answer; answers: distinct ones, 0 where there is none; right: best answer right "
    "where there is one"
)
_CALLED = {
    "kept_promise": "kept",
    "worst_group_kept_promise": "kept, worst group",
    "coverage": "covered",
    "worst_group_coverage": "covered, worst groups",
    "mean_set_size": "candidates per set",
    "mean_distinct_answers": "answers per set",
}
_OF_THE_PROMISE = frozenset({"kept_promise", "worst_group_kept_promise"})
_SIZES = ("mean_set_size", "mean_distinct_answers", "mean_candidates_drawn")
_FAMILIES = {"ours": "ours", "paper": "the paper's own conventions", "outside": "others"}
_FILES = ("png", "svg")


def cores() -> int:
    """Number of processes that splits are measured by unless told otherwise."""
    return os.cpu_count() or 1


def watched(what: str) -> Any:
    """A progress bar on standard error, for functions that wrap what they go through."""
    return lambda items, total: counted(items, what, total)


def methods_table(level: LevelComparison) -> Table:
    """Every method at one level; sizes are numbers, all else is in percent."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column(f"alpha = {level.alpha:g}, %", no_wrap=True, overflow="ellipsis", max_width=30)
    for heading in _HEADINGS.values():
        table.add_column(heading, justify="right", no_wrap=True, min_width=5)
    for family, words in _FAMILIES.items():
        members = {name: one for name, one in level.methods.items() if one.family == family}
        if members:
            table.add_row(f"[dim]{words}[/]")
        for name, method in members.items():
            table.add_row(f"  {escape(name)}", *_cells(method, level.target_coverage))
    return table


def _cells(method: MethodComparison, target: float) -> Iterator[str]:
    for name in _HEADINGS:
        spread = method.figures.get(name)
        if spread is None or (name in _OF_THE_PROMISE and not method.aims_at_coverage):
            yield "-"
        elif name in _SIZES:
            yield f"{spread.mean:.2f}"
        else:
            share = f"{100 * spread.mean:.1f}"
            # Red where even the upper end of the interval misses what was asked for.
            missed = method.aims_at_coverage and name == "kept_promise" and method.kept_promise_ci[1] < target
            yield f"[bold red]{share}[/]" if missed else share


def sweep_table(sweep: Sequence[LevelComparison], figure: str) -> Table:
    """One figure of every method at every level."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    called = _CALLED.get(figure, figure.replace("_", " "))
    table.add_column(f"{called}; alpha", no_wrap=True, overflow="ellipsis", max_width=28)
    for level in sweep:
        table.add_column(f"{level.alpha:.6g}", justify="right", no_wrap=True, min_width=5)
    if figure not in _SIZES:
        table.add_row("[dim]target, %[/]", *(f"[dim]{100 * level.target_coverage:g}[/]" for level in sweep))
    for name in sweep[0].methods:
        table.add_row(escape(name), *(_cell(level.methods[name], figure) for level in sweep))
    return table


def _cell(method: MethodComparison, figure: str) -> str:
    spread = method.figures.get(figure)
    if spread is None or (figure in _OF_THE_PROMISE and not method.aims_at_coverage):
        return "-"
    return f"{spread.mean:.2f}" if figure in _SIZES else f"{100 * spread.mean:.1f}"


def gaps_table(level: LevelComparison, methods: Iterable[str], most: int = 8) -> Table:
    """Where the promise falls short most, by property of prompts: the widest gaps of the first method."""
    names = [name for name in methods if name in level.methods]
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("points below target", no_wrap=True, overflow="ellipsis", max_width=20)
    for name in names:
        table.add_column(f"{escape(name)}, and where", no_wrap=True, overflow="ellipsis", max_width=28)
    gaps = level.methods[names[0]].gaps
    for one in sorted(gaps, key=lambda one: -gaps[one].shortfall.mean)[:most]:
        found = (level.methods[name].gaps[one] for name in names)
        cells = (f"{100 * gap.shortfall.mean:+5.1f} [dim]{group_label(gap.group)}[/]" for gap in found)
        table.add_row(escape(one), *cells)
    return table


def check_figures(folder: Path) -> None:
    """Make the folder for figures, before anything takes time.

    Raises:
        InputError: If that cannot be done.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        msg = f"{folder} cannot be a folder ({error.strerror}): give --figures another"
        raise InputError(msg) from error


def write_figures(report: ComparisonReport, folder: Path) -> list[Path]:
    """Write every figure of a comparison as PNG and SVG.

    Args:
        report: The comparison.
        folder: Where to.

    Returns:
        The files.
    """
    from langchain_cfc import plots

    methods = report.leading()
    drawn = {
        "miscoverage_by_group": plots.plot_group_miscoverage(report, methods=methods),
        "coverage_missed_by_group": plots.plot_group_miscoverage(report, methods=methods, of="coverage"),
        "scores": plots.plot_score_histogram(report.data.scores),
        "attainable_coverage": plots.plot_attainable(report.data.attainable),
        "wrong_answers": plots.plot_selective_risk(report, methods=methods),
    }
    by_threshold = [
        name for name in methods if any("threshold" in one.figures for one in report.methods[name].groups)
    ]
    if by_threshold:
        drawn["threshold_by_difficulty"] = plots.plot_threshold_by_difficulty(report, methods=by_threshold)
    for figure in ("kept_promise", "coverage", "worst_group_coverage", "worst_group_kept_promise", *_SIZES):
        drawn[f"{figure}_by_alpha"] = plots.plot_by_alpha(report.sweep, methods=methods, figure=figure)
    return save_figures(drawn, folder)


def save_figures(drawn: dict[str, Any], folder: Path) -> list[Path]:
    """Write drawn figures, by name of the file."""
    written = []
    for name, axes in drawn.items():
        for kind in _FILES:
            path = folder / f"{name}.{kind}"
            axes.figure.savefig(path, dpi=150)
            written.append(path)
    return written
