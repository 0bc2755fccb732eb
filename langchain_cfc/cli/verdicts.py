"""Tables and sentences that show an evaluation in a terminal, and the look that it is at labels."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Sequence

from rich.markup import escape
from rich.table import Table

from langchain_cfc.artifact import CalibrationArtifact, name_evaluation, tabulate_held_out
from langchain_cfc.artifact.attempt_files import AttemptFiles
from langchain_cfc.candidates import LabelledBatch
from langchain_cfc.certificates import BatchFigures
from langchain_cfc.certificates.batches import REPETITIONS
from langchain_cfc.cli.formatting import format_group, format_interval, make_table
from langchain_cfc.evaluation import (
    AnswersReport,
    EvaluationReport,
    GroupReport,
    MethodReport,
)
from langchain_cfc.guarantee import format_share
from langchain_cfc.records import LabelledRecord
from langchain_cfc.support.text import format_percent

# Rows about claims, and the figures that they show.
_CLAIMS_ROWS = {
    "claims kept": "kept",
    "answers with no claim left": "emptied",
    "unsupported, of all claims": "unsupported",
    "unsupported, of those shown": "unsupported_kept",
}


def record_evaluation(
    kept: AttemptFiles, artifact: CalibrationArtifact, records: Iterable[LabelledRecord] | LabelledBatch
) -> None:
    """Record a look at the test prompts before figures are shown; settings chosen by them use others."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # they were shown by the evaluation
        seen, _ = tabulate_held_out(artifact, records)
    kept.record_look(seen, name_evaluation(artifact))


def make_report_tables(report: EvaluationReport) -> Iterator[Table]:
    """Yield tables that fit 80 columns: over all prompts, then by guaranteed group and by stated coverage."""
    if report.promise == "max_wrong_of_all":
        yield _make_wrong_of_all_table(report)
        return
    yield _make_overall_table(report)
    if any(method.groups for method in report.methods.values()):
        yield _make_group_table(report)
    for method in report.methods.values():
        if method.stated_levels:
            yield _make_stated_table(method)


def _make_wrong_of_all_table(report: EvaluationReport) -> Table:
    """Make a table of answered and wrong shares of all questions, by group, with one cut beside its own."""
    limit = format_percent(report.alpha, "g")
    table = make_table(f"of all, % (limit {limit} wrong)", width=28)
    table.add_column("n", justify="right", min_width=3)
    table.add_column("answered", justify="right", no_wrap=True)
    table.add_column("wrong", justify="right", no_wrap=True)
    compared = report.methods.get("marginal")
    if compared is not None:
        table.add_column("by one cut", justify="right", no_wrap=True)
    own = report.methods["conditional"]
    rows: list[tuple[str, float, MethodReport | GroupReport, MethodReport | GroupReport | None]] = [
        ("all", report.n_test, own, compared)
    ]
    others = [None] * len(own.groups) if compared is None else compared.groups
    rows += [
        (format_group(group.words, group.name), group.n, group, other)
        for group, other in zip(own.groups, others, strict=True)
    ]
    for name, n, one, other in rows:
        cells = [name, f"{n:.0f}", f"{100 * one.mean_set_size:.0f}", _format_wrong_of_all(one, report.alpha)]
        table.add_row(*cells, *([] if other is None else [_format_wrong_of_all(other, report.alpha)]))
    return table


def _format_wrong_of_all(group: MethodReport | GroupReport, limit: float) -> str:
    low, high = (1.0 - bound for bound in reversed(group.kept_promise_ci))
    share = f"{100 * (1.0 - group.kept_promise):.1f}"
    return f"[bold red]{share}[/]" if low > limit else f"{share} [dim]({format_interval((low, high))})[/]"


def _make_overall_table(report: EvaluationReport) -> Table:
    table = make_table()
    table.add_column("over all prompts, %", min_width=31)
    for name in report.methods:
        table.add_column(name, justify="right")
        table.add_column("95 % CI", justify="right", style="dim")

    methods = report.methods.values()

    def add_row(label: str, values: Iterable[str], ci: str = "", style: str = "") -> None:
        cells: list[str] = []
        for value, method in zip(values, methods, strict=True):
            cells += [value, format_interval(getattr(method, ci)) if ci else ""]
        table.add_row(label, *cells, style=style)

    def add_shares(label: str, name: str, ci: str = "", style: str = "") -> None:
        add_row(label, (f"{100 * getattr(method, name):.1f}" for method in methods), ci, style)

    if any(method.stated_levels for method in methods):
        add_shares(f"promised (at most {100 * report.target_coverage:g})", "stated_coverage")
        add_shares("promise kept", "kept_promise", "kept_promise_ci", "bold")
    else:
        target = f"target {100 * report.target_coverage:g}"
        add_shares(f"promise kept ({target})", "kept_promise", "kept_promise_ci", "bold")
    if all(method.claims is not None for method in methods):
        for label, name in _CLAIMS_ROWS.items():
            add_row(label, (f"{100 * getattr(method.claims, name):.1f}" for method in methods))
        return table
    add_shares("set holds a correct answer", "coverage", "coverage_ci")
    add_shares("flagged as not certifiable", "not_certifiable_rate", "not_certifiable_ci")
    if any(method.refused_rate > 0.0 for method in methods):
        add_shares("- as too few prompts were kept", "refused_rate")
    add_shares("abstained (flagged or empty)", "abstention_rate", "abstention_ci")
    add_row("candidates per set", (f"{method.mean_set_size:.2f}" for method in methods))
    add_row("distinct answers per set", (f"{method.mean_distinct_answers:.2f}" for method in methods))
    if report.mean_draws is not None:
        drawn = [f"{report.mean_draws:.2f}"] * len(methods)
        add_row(f"draws per prompt (of {report.n_candidates})", drawn)
    return table


def format_calls(report: EvaluationReport) -> str:
    """Return a line that says how many candidates are drawn for a thousand questions."""
    each = report.n_candidates if report.mean_draws is None else report.mean_draws
    most = f", instead of {1000 * report.n_candidates:,} without the rule"
    saved = "" if report.mean_draws is None else most
    return f"A thousand questions like these take {1000 * each:,.0f} draws{saved}."


def _make_group_table(report: EvaluationReport) -> Table:
    own = next(iter(report.methods))
    table = make_table("promise kept by group, %", width=34)
    table.add_column("n", justify="right", min_width=3)
    for name in report.methods:
        table.add_column(name, justify="right", no_wrap=True)
    claims = [group.claims for group in report.methods[own].groups]
    table.add_column("flagged" if None in claims else "claims kept", justify="right", no_wrap=True)
    for index, group in enumerate(report.methods[own].groups):
        cells = [
            _format_kept(method.groups[index], method.groups[index].stated_coverage)
            for method in report.methods.values()
        ]
        share = group.not_certifiable_rate if group.claims is None else group.claims.kept
        flagged = f"{100 * share:.0f}"
        table.add_row(format_group(group.words, group.name), f"{group.n:.0f}", *cells, flagged)
    return table


def _make_stated_table(method: MethodReport) -> Table:
    results = (
        ("right answer in set", "flagged") if method.claims is None else ("claims kept", "no claim left")
    )
    table = make_table("by stated coverage, %", "n", "kept", *results, texts=0)
    for level in method.stated_levels:
        shares = (level.coverage, level.not_certifiable_rate)
        if level.claims is not None:
            shares = (level.claims.kept, level.claims.emptied)
        table.add_row(
            f"{100 * level.stated_coverage:g}",
            f"{level.n:.0f}",
            _format_kept(level, level.stated_coverage),
            *(f"{100 * share:.0f}" for share in shares),
        )
    return table


def _format_kept(group: GroupReport, target: float) -> str:
    share = f"{100 * group.kept_promise:.0f}"
    if group.kept_promise_ci[1] < target:
        share = f"[bold red]{share}[/]"
    bounds = f"({format_interval(group.kept_promise_ci)})"
    return f"{share} [dim]{bounds:>8}[/]"


def make_answers_table(reports: Sequence[AnswersReport]) -> Table:
    """Make a table of bot mode's answers at each certified rate; red where it was wrong too often."""
    headings: tuple[str, ...] = ("at most wrong", "answered", "wrong", "wrong rate", "95 % CI")
    if reports[0].claims is not None:  # one claim of each answer counts
        headings = ("at most unsupported", "show claims", "unsupported", "rate", "95 % CI", "claims kept")
    table = make_table(*headings, texts=0)
    for one in reports:
        rate = format_percent(one.wrong_rate, ".1f")
        table.add_row(
            format_share(one.max_wrong_rate),
            format_percent(one.answered_rate),
            f"{one.wrong} of {one.answered}",
            f"[bold red]{rate}[/]" if one.contradicted else rate,
            format_interval(one.wrong_rate_ci),
            *([] if one.claims is None else [format_percent(one.claims.kept)]),
        )
    return table


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
