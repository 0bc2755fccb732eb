"""`langchain-cfc compare`: compare methods on the same records, over random splits."""

from __future__ import annotations

import shlex
import warnings
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

import langchain_cfc_lab as lab
from langchain_cfc.artifact import open_attempts
from langchain_cfc.artifact.attempt_files import AttemptFiles
from langchain_cfc.cli.calibration_options import make_flag
from langchain_cfc.cli.formatting import (
    format_group,
    make_table,
    make_tracker,
    print_notes,
    print_result,
    report_errors,
)
from langchain_cfc.cli.inputs import AsJson, RecordPaths, open_records
from langchain_cfc.errors import InputError
from langchain_cfc.guarantee import format_share
from langchain_cfc.records import Records, tabulate
from langchain_cfc.support.suggestions import suggest_name
from langchain_cfc.support.text import format_percent
from langchain_cfc.support.units import Unit
from langchain_cfc_lab import ComparisonReport, LevelComparison, MethodComparison
from langchain_cfc_lab.cli import CORE_COUNT, FigureFolder, Jobs, SplitsSeed, print_command, split_option
from langchain_cfc_lab.compare import FEATURES, GROUPS
from langchain_cfc_lab.metrics import COST_FIGURES, find_event, is_share, list_figures
from langchain_cfc_lab.report import plots

_FAMILY_NAMES = {"ours": "ours", "paper": "the paper's own conventions", "outside": "others"}
_METHODS = "What is compared"
_method_option = partial(typer.Option, rich_help_panel=_METHODS)


def make_methods_table(level: LevelComparison, set_rule: str = "all") -> Table:
    """Make a table of every method at one level; sizes are numbers, all other figures are in percent."""
    columns = {name: figure.column for name, figure in list_figures(set_rule).items() if figure.column}
    headings = (f"alpha = {level.alpha:g}, %", *columns.values())
    table = make_table(*headings, width=30, no_wrap=True, min_width=5)
    for family, words in _FAMILY_NAMES.items():
        members = {name: one for name, one in level.methods.items() if one.family == family}
        if members:
            table.add_row(f"[dim]{words}[/]")
        for name, method in members.items():
            # Red where even the upper end of the interval misses the target.
            missed = method.kept_promise_ci[1] < level.target_coverage
            cells = {figure: _format_figure(method, figure) for figure in columns}
            if missed and "kept_promise" in method.figures:
                cells["kept_promise"] = f"[bold red]{cells['kept_promise']}[/]"
            table.add_row(f"  {escape(name)}", *cells.values())
    return table


def make_sweep_table(sweep: Sequence[LevelComparison], figure: str, set_rule: str = "all") -> Table:
    """Make a table of one figure, with a row for each method and a column for each level."""
    headings = ("alpha", *(f"{level.alpha:.6g}" for level in sweep))
    table = make_table(*headings, width=28, no_wrap=True, min_width=5)
    table.title = list_figures(set_rule)[figure].label
    if is_share(figure):
        table.add_row("[dim]target, %[/]", *(f"[dim]{100 * level.target_coverage:g}[/]" for level in sweep))
    for name in sweep[0].methods:
        table.add_row(escape(name), *(_format_figure(level.methods[name], figure) for level in sweep))
    return table


def _format_figure(method: MethodComparison, figure: str) -> str:
    spread = method.figures.get(figure)
    if spread is None:
        return "-"
    return f"{100 * spread.mean:.1f}" if is_share(figure) else f"{spread.mean:.2f}"


def _make_gaps_table(level: LevelComparison, names: Sequence[str], most: int = 8) -> Table:
    table = make_table(title="points below target, and in which group")
    for name in names:
        table.add_column(escape(name))
    gaps = level.methods[names[0]].gaps
    for one in sorted(gaps, key=lambda one: -gaps[one].shortfall.mean)[:most]:
        found = (level.methods[name].gaps[one] for name in names)
        cells = (f"{100 * gap.shortfall.mean:+5.1f} [dim]{format_group(gap.group)}[/]" for gap in found)
        table.add_row(*cells)
    return table


def make_figure_folder(folder: Path | None) -> None:
    """Make the folder for figures, if one is given, before any long computation."""
    if folder is not None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            msg = f"{folder} cannot be created as a folder ({error.strerror}): give --figures another path"
            raise InputError(msg) from error


def record_comparison(kept: AttemptFiles, dataset: Records, what: str) -> None:
    """Record a look at all labels before figures are shown; settings chosen by them certify on others."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # they were shown by the comparison
        seen = tabulate(dataset, claims=True)
    kept.record_look(seen, what)


def _draw_figures(report: ComparisonReport) -> dict[str, Any]:
    methods = report.list_leading()
    drawn = {
        "miscoverage_by_group": plots.plot_group_miscoverage(report, methods=methods),
        "coverage_missed_by_group": plots.plot_group_miscoverage(report, methods=methods, of="coverage"),
        "scores": plots.plot_score_histogram(report.data.scores),
        "wrong_answers": plots.plot_selective_risk(report, methods=methods),
    }
    by_threshold = [
        name for name in methods if any("threshold" in one.figures for one in report.methods[name].groups)
    ]
    if by_threshold:
        drawn["threshold_by_difficulty"] = plots.plot_threshold_by_difficulty(report, methods=by_threshold)
    sizes = (name for name in list_figures(report.set_rule) if not is_share(name))
    for figure in ("kept_promise", "coverage", "worst_group_coverage", "worst_group_kept_promise", *sizes):
        drawn[f"{figure}_by_alpha"] = plots.plot_by_alpha(report.sweep, methods=methods, figure=figure)
    return drawn


def save_figures(drawn: dict[str, Any], folder: Path) -> None:
    """Write figures as PNG and SVG; `drawn` maps names of files to axes."""
    for name, axes in drawn.items():
        for kind in ("png", "svg"):
            axes.figure.savefig(folder / f"{name}.{kind}", dpi=150)


def compare(
    records: RecordPaths,
    alpha: Annotated[
        list[str] | None,
        _method_option(help="Error level; repeatable.", show_default="8 within reach"),
    ] = None,
    method: Annotated[
        list[str] | None,
        _method_option(
            help="Families (ours, paper, outside) or methods: conditional, marginal, confident, learned, "
            "each optionally with a set rule (conditional:best_prefix), or a name from the table; "
            "repeatable. For claims: conditional, marginal, confident, learned, back-off and "
            "conditional-back-off.",
            show_default="all",
        ),
    ] = None,
    features: Annotated[
        str, _method_option(help="Feature map of methods that do not specify one.")
    ] = FEATURES,
    unit: Annotated[Unit, make_flag("unit", rich_help_panel=_METHODS)] = "answers",
    at_most: Annotated[int, make_flag("at_most", rich_help_panel=_METHODS)] = 0,
    set_rule: Annotated[
        str,
        _method_option(
            help="Set rule of methods that do not specify one; best_answer for --max-wrong-of-all."
        ),
    ] = "all",
    groups: Annotated[
        str, _method_option(help="Groups to report: bins(STATISTIC, K), group(KEY) or hard(...).")
    ] = GROUPS,
    draws: Annotated[str | None, make_flag("draws", rich_help_panel=_METHODS)] = None,
    splits: Annotated[int, split_option(help="Number of random splits.")] = 100,
    seed: SplitsSeed = "0",
    test_fraction: Annotated[float, split_option(help="Share of prompts to test on in each split.")] = 0.5,
    fit_fraction: Annotated[
        float, split_option(help="Share of the remaining prompts to fit feature maps on.")
    ] = 0.2,
    jobs: Jobs = CORE_COUNT,
    metric: Annotated[
        list[str] | None,
        typer.Option(
            help="Metric to print against alpha; repeatable. Default: "
            f"worst_group_kept_promise and {COST_FIGURES['answers']}."
        ),
    ] = None,
    figures: FigureFolder = None,
    as_json: AsJson = False,
) -> None:
    """Compare methods on labelled records over random splits.

    The methods are ours, the paper's and those of other papers. Each split holds out part of the prompts
    and calibrates every method on the rest. Shares are means over splits, in percent.

        langchain-cfc compare records.jsonl --figures FOLDER
    """
    with report_errors():
        listed = list_figures("claims(0)" if unit == "claims" else set_rule)
        unknown = [one for one in metric or () if one not in listed]
        if unknown:
            known = ", ".join(listed) + suggest_name(unknown[0], listed)
            msg = f"unknown metric {unknown[0]!r}; known are {known}"
            raise InputError(msg)
        make_figure_folder(figures)
        with open_attempts(records) as kept, open_records(records) as dataset:
            kept.check()
            found = lab.compare(
                dataset,
                alpha=alpha or None,
                methods=method or None,
                features=features,
                unit=unit,
                at_most=at_most,
                set_rule=set_rule,
                groups=groups,
                draws=draws,
                splits=splits,
                seed=seed,
                test_fraction=test_fraction,
                fit_fraction=fit_fraction,
                jobs=jobs,
                progress=make_tracker("splits"),
                provenance=dataset.provenance,
            )
            record_comparison(kept, dataset, "compare")
        if figures is not None:
            save_figures(_draw_figures(found), figures)
    against = metric or ("worst_group_kept_promise", COST_FIGURES[find_event(found.set_rule)])
    shown = partial(_print_comparison, records=records, figures=against)
    print_result(found, shown, as_json=as_json)


def _conclude(found: ComparisonReport) -> tuple[str, str]:
    """Return what a comparison says about methods that `calibrate` has, and the name of the best one.

    Of those that keep the promise in every group, the best answers most prompts, or keeps most claims. If
    none keeps it, the best comes nearest.
    """
    ours = [name for name in found.methods if name.partition(":")[0] in {"conditional", "marginal"}]
    if not ours:
        return "", ""
    of_claims = find_event(found.set_rule) == "claims"

    def get_mean(name: str, figure: str) -> float:
        return found.methods[name].figures[figure].mean

    def get_gain(name: str) -> float:
        return get_mean(name, "claims_kept") if of_claims else 1.0 - get_mean(name, "abstention_rate")

    worst = {name: get_mean(name, "worst_group_kept_promise") for name in ours}
    target = format_share(found.target_coverage)
    best = max((name for name in ours if worst[name] >= found.target_coverage), key=get_gain, default=None)
    if best is None:
        best = max(ours, key=lambda name: worst[name])
        nearest = f"{best} comes nearest, with {format_percent(worst[best], '.1f')} in the worst."
        return f"no method keeps {target} in every group; {nearest}", best
    if not get_gain(best):
        return f"the methods that keep {target} in every group answer nothing: choose a larger alpha.", ""
    did = f"keeps {format_percent(get_gain(best))} of the claims" if of_claims else ""
    did = did or f"answers {format_percent(get_gain(best))} of the prompts"
    return (
        f"{best} keeps the promise of {target} in every group "
        f"({format_percent(worst[best], '.1f')} in the worst) and {did}, more than others that keep it."
    ), best


def _make_command(found: ComparisonReport, name: str, records: Sequence[str]) -> str:
    """Return the command that calibrates a method on records."""
    kind, _, rule = name.partition(":")
    event = find_event(found.set_rule)
    level = "--max-wrong-of-all" if event == "best_answer" else "--alpha"
    options = [level, f"{found.alpha:g}", "--features", found.features if kind == "conditional" else "1"]
    if event == "claims":
        options += ["--unit", "claims", "--at-most", str(found.at_most)]
    elif event == "answers" and (rule or found.set_rule) != "all":
        options += ["--set-rule", rule or found.set_rule]
    return shlex.join(["langchain-cfc", "calibrate", *records, *options, "--out", "artifact.json"])


def _print_comparison(
    console: Console,
    found: ComparisonReport,
    *,
    records: Sequence[str],
    figures: Sequence[str],
) -> None:
    """Print a comparison, with a table against alpha for each of `figures`."""
    conclusion, best = _conclude(found)
    if conclusion:
        console.print(f"At alpha = {found.alpha:g}, {escape(conclusion)}{' Next:' if best else ''}")
    if best:
        print_command(console, _make_command(found, best, records))
    data = found.data
    auroc = "" if data.auroc is None else f", AUROC of scores {data.auroc:.2f}"
    drawn = (
        f"{found.n_candidates} candidates each; attainable coverage {100 * data.attainable_coverage:.1f} %"
    )
    if found.unit == "claims":
        drawn = f"{escape(found.set_rule)}, {100 * data.correct_candidates:.1f} % of the claims are supported"
    console.print(
        f"{data.prompts} prompts, {drawn}{auroc}\n{found.splits} splits: {found.n_test} prompts "
        f"test, {found.n_calibration} calibrate our methods, and the others with those that fit features:\n"
        f"{escape(found.features)}\n"
    )
    console.print(make_methods_table(found, found.set_rule))
    figures_in_words = [
        f"{one.column}: {one.definition}" for one in list_figures(found.set_rule).values() if one.column
    ]
    own = {name: one for name, one in found.methods.items() if one.family == "ours" and ":" not in name}
    for legend in (
        [*figures_in_words, "red: below the target"],
        [f"{name}: {one.words}" for name, one in own.items()],
    ):
        console.print(f"[dim]{escape('; '.join(legend))}[/]\n")
    for name in figures if len(found.sweep) > 1 else ():
        console.print(make_sweep_table(found.sweep, name, found.set_rule), "")
    names = [name for name in ("conditional", "marginal") if name in found.methods]
    if names and found.methods[names[0]].gaps:
        console.print(_make_gaps_table(found, names), "")
    print_notes(console, found.notes)
