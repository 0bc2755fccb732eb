"""`langchain-cfc compare`: many methods on the same records, split again and again."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from langchain_cfc import comparison
from langchain_cfc.cli.comparing import (
    LEGEND,
    check_figures,
    cores,
    gaps_table,
    methods_table,
    sweep_table,
    watched,
    write_figures,
)
from langchain_cfc.cli.opening import DATASET, opened
from langchain_cfc.cli.output import emit_json, failures_explained, out
from langchain_cfc.comparison import ComparisonReport
from langchain_cfc.comparison.compare import FEATURES, GROUPS, METHODS
from langchain_cfc.errors import InputError
from langchain_cfc.report import Sources, check_report, write_report

SHOWN = ("worst_group_kept_promise", "mean_distinct_answers")


def compare(
    records: Annotated[list[str], typer.Argument(help=DATASET)],
    alpha: Annotated[
        list[str] | None,
        typer.Option(help="Error level; several may be given.", show_default="8 within reach"),
    ] = None,
    method: Annotated[
        list[str] | None,
        typer.Option(
            help="Families (ours, paper, outside) or methods: conditional, marginal, confident, learned, "
            "each perhaps with a set rule of its own (conditional:best_prefix), or a name of the table. "
            "Several may be given.",
            show_default="all",
        ),
    ] = None,
    features: Annotated[str, typer.Option(help="Feature map of methods that name none.")] = FEATURES,
    set_rule: Annotated[str, typer.Option(help="Set rule of methods that name none.")] = "all",
    groups: Annotated[
        str, typer.Option(help="Groups to look at: bins(STATISTIC, K), group(KEY) or hard(...).")
    ] = GROUPS,
    combine: Annotated[
        list[str] | None, typer.Option(help="Verifier to combine into the score; several may be given.")
    ] = None,
    n: Annotated[int | None, typer.Option(help="Candidates to use; default all recorded.")] = None,
    splits: Annotated[int, typer.Option(help="Number of random splits.")] = 100,
    seed: Annotated[str, typer.Option(help="Another seed gives other splits.")] = "0",
    test_fraction: Annotated[float, typer.Option(help="Share of prompts tested on in each split.")] = 0.5,
    fit_fraction: Annotated[float, typer.Option(help="Share of the others that fits feature maps.")] = 0.2,
    jobs: Annotated[int | None, typer.Option(min=1, help="Processes; default one per core.")] = None,
    figure: Annotated[
        list[str] | None,
        typer.Option(help="Figure shown against alpha; several may be given.", show_default=", ".join(SHOWN)),
    ] = None,
    report: Annotated[Path | None, typer.Option(help="Write one HTML page with everything.")] = None,
    figures: Annotated[Path | None, typer.Option(help="Write the figures into a folder.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Compare methods on labelled records over random splits.

    The methods are ours, the paper's and those of other papers. Each split holds a part of the prompts out
    and calibrates every method on the rest. Shares are means over splits, in percent.

        langchain-cfc compare records.jsonl --report comparison.html
    """
    with failures_explained():
        unknown = [one for one in figure or () if one not in comparison.FIGURES]
        if unknown:
            msg = f"unknown figure {unknown[0]!r}; known are {', '.join(comparison.FIGURES)}"
            raise InputError(msg)
        if report is not None:
            check_report(report)
        if figures is not None:
            check_figures(figures)
        with opened(records, combine or ()) as dataset:
            found = comparison.compare(
                dataset.records,
                alpha=alpha or None,
                methods=method or METHODS,
                features=features,
                set_rule=set_rule,
                groups=groups,
                combine=combine,
                n=n,
                splits=splits,
                seed=seed,
                test_fraction=test_fraction,
                fit_fraction=fit_fraction,
                jobs=jobs or cores(),
                progress=watched("splits"),
                provenance=dataset.provenance,
            )
        if report is not None:
            write_report(report, comparison=found, sources=Sources(records=tuple(records)))
        if figures is not None:
            write_figures(found, figures)
    if as_json:
        emit_json(found.model_dump(mode="json"))
        return
    show(out(), found, figure or SHOWN)
    if report is not None:
        out().print(f"\nThe whole comparison: {escape(str(report))}", soft_wrap=True)


def show(console: Console, found: ComparisonReport, figures: Sequence[str]) -> None:
    """Print a comparison.

    Args:
        console: Where to.
        found: The comparison.
        figures: Names of the figures to show against alpha.
    """
    data = found.data
    auroc = "" if data.auroc is None else f", AUROC of scores {data.auroc:.2f}"
    console.print(
        f"{data.prompts} prompts, {found.n_candidates} candidates each; attainable coverage "
        f"{100 * data.attainable_coverage:.1f} %{auroc}\n{found.splits} splits: {found.n_test} prompts "
        f"test, {found.n_calibration} calibrate our methods, and the others with those that fit features:\n"
        f"{escape(found.features)}\n"
    )
    console.print(methods_table(found))
    console.print(f"[dim]{LEGEND}[/]\n")
    for name in figures if len(found.sweep) > 1 else ():
        console.print(sweep_table(found.sweep, name), "")
    shown = [name for name in ("conditional", "marginal") if name in found.methods]
    if shown and found.methods[shown[0]].gaps:
        console.print(gaps_table(found, shown), "")
    for note in found.notes:
        console.print(f"[yellow]note:[/] {escape(note)}")
