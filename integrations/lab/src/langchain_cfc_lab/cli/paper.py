"""`langchain-cfc paper`: reproduce the experiments of the CFC paper."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from langchain_cfc.artifact import open_attempts
from langchain_cfc.cli.commands import make_app
from langchain_cfc.cli.formatting import (
    EXIT_NO,
    make_table,
    make_tracker,
    print_list,
    print_result,
    report_errors,
)
from langchain_cfc.cli.inputs import AsJson, open_records
from langchain_cfc.errors import InputError
from langchain_cfc.records import tabulate
from langchain_cfc.thresholds import format_alpha
from langchain_cfc_lab import (
    Cell,
    FigureSeries,
    StudyName,
    StudyReport,
    SyntheticReport,
    reproduce_study,
    reproduce_synthetic,
)
from langchain_cfc_lab.cli import CORE_COUNT, FigureFolder, Jobs
from langchain_cfc_lab.cli.compare import (
    make_figure_folder,
    record_comparison,
    save_figures,
)
from langchain_cfc_lab.paper import ALPHAS
from langchain_cfc_lab.report import plots
from langchain_cfc_lab.studies import NEEDS_ARCHIVE, StudyCell

app = make_app(no_args_is_help=True, help="Reproduce the experiments of the CFC paper.")


@app.command("synthetic")
def synthetic(
    jobs: Jobs = CORE_COUNT,
    alpha: Annotated[
        list[str] | None,
        typer.Option(help="Level to reproduce; repeatable. Default: all eight. The ablation belongs to 0.2."),
    ] = None,
    figures: FigureFolder = None,
    as_json: AsJson = False,
) -> None:
    """Reproduce the paper's synthetic experiment to the printed digit.

    It draws the published code's prompts, and computes the main table, the ablation and the numbers of the
    figures by the published code's conventions. A column beside each shows the same prompts with our exact
    conventions.

    Exit code 1 if a cell or a figure differs from the paper without a known cause.
    """
    with report_errors():
        make_figure_folder(figures)
        levels = [format_alpha(one) for one in alpha] if alpha else ALPHAS
        found = reproduce_synthetic(levels, jobs=jobs, progress=make_tracker("runs"))
        if figures is not None:
            _write_synthetic_figures(found, figures)
    print_result(found, _print_synthetic, as_json=as_json)
    raise typer.Exit(EXIT_NO if found.unexplained else 0)


def _write_synthetic_figures(found: SyntheticReport, folder: Path) -> None:
    main = next((level for level in found.sweep if level.alpha == 0.1), found.sweep[0])  # noqa: PLR2004
    drawn = {
        "synthetic_miscoverage_by_group": plots.plot_group_miscoverage(main, of="coverage"),
        "synthetic_threshold_by_difficulty": plots.plot_threshold_by_difficulty(main),
    }
    for figure in ("coverage", "worst_group_coverage", "mean_set_size"):
        drawn[f"synthetic_{figure}_by_alpha"] = plots.plot_by_alpha(found.sweep, figure=figure)
    save_figures(drawn, folder)


def _print_synthetic(console: Console, found: SyntheticReport) -> None:
    console.print("[dim]As printed in the paper. = where the code's conventions give the same.[/]\n")
    main = [cell for cell in found.cells if cell.table == "synthetic"]
    for alpha in dict.fromkeys(cell.alpha for cell in main):
        at_level = [cell for cell in main if cell.alpha == alpha]
        console.print(make_cells_table(at_level, f"alpha = {alpha}"), "")
    ablation = [cell for cell in found.cells if cell.table != "synthetic"]
    for setting in dict.fromkeys((cell.n_calibration, cell.n_candidates) for cell in ablation):
        cells = [cell for cell in ablation if (cell.n_calibration, cell.n_candidates) == setting]
        console.print(make_cells_table(cells, f"N = {setting[0]}, M = {setting[1]}"), "")
    for figure in dict.fromkeys(one.figure for one in found.series):
        console.print(_make_series_table([one for one in found.series if one.figure == figure], figure), "")
    for note in found.conventions:
        changes = ", ".join(f"{metric} {change:+.2f}" for metric, change in note.changes.items())
        console.print(f"[bold]{note.name}[/] {escape(note.published)}")
        console.print(f"  ours: {escape(note.ours)}{f'; largest change: {changes}' if changes else ''}")
    console.print()
    print_list(console, found.words)
    needs = make_table("needs the authors' archive", "command", texts=2)
    for name, figures in NEEDS_ARCHIVE.items():
        needs.add_row(figures, f"paper {name} --samples FOLDER")
    console.print("", needs)


def _make_series_table(series: Sequence[FigureSeries], title: str) -> Table:
    """Make a table of the numbers behind a figure, times 100, with ours below them."""
    width = max(len(one.reproduced) for one in series)
    table = make_table(f"{title}, times 100", *map(str, range(1, width + 1)), no_wrap=True)
    for one in series:
        if one.series.endswith(", sd"):
            continue
        mark = {True: " =", False: " differs", None: ""}[one.matches]
        table.add_row(f"{one.series}{mark}", *(f"{100 * value:.1f}" for value in one.reproduced))
        if one.ours is not None:
            table.add_row("[dim]  ours[/]", *(f"[dim]{100 * value:.1f}[/]" for value in one.ours))
    return table


def make_cells_table(cells: Sequence[Cell], title: str) -> Table:
    """Make a table of cells by method: as printed, whether they are reproduced, and ours."""
    metrics = list(dict.fromkeys(cell.metric for cell in cells))
    table = make_table(title, *(part for one in metrics for part in (one, "ours")), no_wrap=True)
    for method in dict.fromkeys(cell.method for cell in cells):
        row = (
            next(one for one in cells if (one.method, one.metric) == (method, metric)) for metric in metrics
        )
        table.add_row(method, *(text for cell in row for text in _format_cell(cell)))
    return table


def _format_cell(cell: Cell) -> tuple[str, str]:
    printed = cell.mean if cell.sd is None else f"{cell.mean}±{cell.sd}"
    places = cell.decimals
    given = (
        "=" if cell.matches else f"[yellow]{cell.reproduced:.{places}f}±{cell.reproduced_sd:.{places}f}[/]"
    )
    return f"{printed} {given}", "-" if cell.ours is None else f"[dim]{cell.ours:.{places}f}[/]"


def _make_study_command(name: StudyName, title: str) -> Callable[..., None]:

    def command(
        records: Annotated[
            list[str] | None,
            typer.Argument(help="Labelled records in place of the samples.", show_default="none"),
        ] = None,
        samples: Annotated[
            Path | None,
            typer.Option(
                metavar="FOLDER",
                help="Scored samples in the layout of the authors' archive.",
                exists=True,
                file_okay=False,
            ),
        ] = None,
        alpha: Annotated[
            list[str] | None, typer.Option(help="Error level; repeatable. Default: the paper's.")
        ] = None,
        jobs: Jobs = CORE_COUNT,
        as_json: AsJson = False,
    ) -> None:
        with report_errors():
            if (samples is None) == (not records):
                msg = f"give --samples FOLDER or records; {NEEDS_ARCHIVE[name]} need the authors' archive"
                raise InputError(msg)
            run = partial(
                reproduce_study,
                name,
                alphas=[format_alpha(one) for one in alpha] if alpha else None,
                jobs=jobs,
                progress=make_tracker("splits"),
            )
            if samples is not None:
                found = run(samples)
            else:
                with open_attempts(records or []) as kept, open_records(records or []) as dataset:
                    kept.check()
                    found = run(tabulate(dataset, provenance=dataset.provenance))
                    record_comparison(kept, dataset, "paper")
        print_result(found, _print_study, as_json=as_json)

    command.__doc__ = f"""Run the paper's {title} experiment by its published protocol, with ours beside.

    The authors' archive of scored samples gives the paper's tables; it is linked from
    github.com/FlynnYe/CFC-LLMs. With other samples or records the figures are others. Each cell is as
    printed in the paper, followed by the published protocol on these samples, by the same with exact
    thresholds where the published solver's exact mode is used, and by ours.
    """
    return command


def _print_study(console: Console, found: StudyReport) -> None:
    console.print(f"[dim]{found.questions} questions with up to {found.draws} draws.[/]\n")
    tables: dict[str, dict[str, list[StudyCell]]] = {}
    for cell in found.cells:
        kind = "Full table" if cell.kind == "main" else "Ablation"
        title = f"[bold]{kind}[/]: {escape(cell.features or '')}, {cell.n_candidates} draws"
        tables.setdefault(title, {}).setdefault(cell.alpha, []).append(cell)
    for title, by_level in tables.items():
        console.print(title)
        for alpha, cells in by_level.items():
            headings = f"alpha = {alpha}", "", "paper", "code", "solved", "ours"
            table = make_table(*headings, texts=2, no_wrap=True)
            for cell in cells:
                printed = cell.mean if cell.sd is None else f"{cell.mean}±{cell.sd}"
                others = (
                    "-" if one is None else f"{one:.{cell.decimals}f}"
                    for one in (cell.reproduced, cell.solved, cell.ours)
                )
                table.add_row(cell.method, cell.metric, f"{printed} {'=' if cell.matches else ' '}", *others)
            console.print(table, "")
    console.print(_make_series_table(found.series, found.series[0].figure), "")
    print_list(console, found.words)


app.command("triviaqa")(_make_study_command("triviaqa", "TriviaQA"))
app.command("gsm8k")(_make_study_command("gsm8k", "GSM8K"))
app.command("flickr8k")(_make_study_command("flickr8k", "Flickr8k"))
