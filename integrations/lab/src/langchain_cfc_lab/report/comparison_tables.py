"""Tables of a comparison of methods."""

from __future__ import annotations

from collections.abc import Iterator

from langchain_cfc.features import name_group
from langchain_cfc.guarantee import format_share
from langchain_cfc_lab.comparison_report import (
    ComparisonReport,
    Gap,
    LevelComparison,
    MethodComparison,
)
from langchain_cfc_lab.metrics import COST_FIGURES, find_event, is_share, list_figures
from langchain_cfc_lab.report._text import NO_BREAK, format_interval, to_percent
from langchain_cfc_lab.report.tables import UNDEFINED, Cell, Row, Table, make_group_row, make_promise_cell


def tabulate_promises(comparison: LevelComparison) -> Table:
    """Tabulate what each method does, and what it promises."""
    families = {"ours": "this package", "paper": "as in the paper", "outside": "from elsewhere"}
    return Table(
        id="methods",
        caption="The methods",
        head=("Method", "From", "What it does", "What it promises"),
        rows=tuple(
            Row(
                name,
                tuple(Cell(text, kind="words") for text in (families[one.family], one.words, one.promise)),
            )
            for name, one in comparison.methods.items()
        ),
    )


MOST_GAPS = 3


def tabulate_comparison(comparison: ComparisonReport) -> Table:
    """Tabulate each method's main figures at the leading level."""
    methods = comparison.methods
    shown = [
        name
        for name, figure in list_figures(comparison.set_rule).items()
        if figure.column and any(name in one.figures for one in methods.values())
    ]
    return Table(
        id="comparison",
        caption=f"The methods at alpha = {comparison.alpha:g}, over {comparison.splits} splits",
        head=("Method", *(_make_heading(comparison, figure) for figure in shown)),
        rows=tuple(
            Row(name, tuple(_make_spread_cell(method, figure) for figure in shown))
            for name, method in methods.items()
        ),
        note=(
            f"Means over the splits; the target is {format_share(comparison.target_coverage)}. Beside each "
            "is its 95 % interval over new prompts, which accounts approximately for prompts shared by "
            "splits. A method without a promise may still do well here, on average."
        ),
    )


def tabulate_sweep(comparison: ComparisonReport) -> Iterator[Table]:
    """Tabulate the kept promise and what it costs by level; yield nothing for a single level."""
    if len(comparison.sweep) < 2:  # noqa: PLR2004 - the table above has it
        return
    for figure in ("kept_promise", COST_FIGURES[find_event(comparison.set_rule)]):
        yield Table(
            id=f"sweep-{figure.replace('_', '-')}",
            caption=f"{_make_heading(comparison, figure)} at every level",
            head=("Method", *(f"alpha = {level.alpha:g}" for level in comparison.sweep)),
            rows=tuple(
                Row(
                    name,
                    tuple(_make_spread_cell(level.methods[name], figure) for level in comparison.sweep),
                )
                for name in comparison.methods
            ),
        )


def _make_heading(comparison: ComparisonReport, figure: str) -> str:
    return list_figures(comparison.set_rule)[figure].label.capitalize()


def tabulate_gaps(comparison: LevelComparison) -> Iterator[Table]:
    """Tabulate where each method falls short most; yield no table if no property of prompts is known."""
    worst = {
        name: sorted(one.gaps.values(), key=lambda gap: -gap.shortfall.mean)[:MOST_GAPS]
        for name, one in comparison.methods.items()
    }
    columns = max(map(len, worst.values()), default=0)
    if columns == 0:
        return

    def make_cell(method: str, gap: Gap) -> Cell:
        interval = gap.shortfall.interval
        between = "" if interval is None else f"{100 * interval[0]:+.1f} to {100 * interval[1]:+.1f}; "
        detail = f"{between}{name_group(gap.group)}"
        sure = interval is not None and interval[0] > 0.0
        falls_short = sure and comparison.methods[method].aims_at_coverage
        return Cell(f"{100 * gap.shortfall.mean:+.1f}", detail, "bad" if falls_short else "")

    yield Table(
        id="gaps",
        caption="Largest shortfall of each method, in points below the target",
        head=("Method", *("Most", "Then", "Then")[:columns]),
        rows=tuple(
            Row(
                name,
                (*(make_cell(name, gap) for gap in gaps), *[UNDEFINED] * (columns - len(gaps))),
            )
            for name, gaps in worst.items()
        ),
        note=(
            "Prompts are grouped by every known property; for each property the group that keeps the promise "
            "least often counts. Negative if all groups reach the target; red if the whole interval lies "
            "below it."
        ),
    )


def tabulate_compared_groups(comparison: LevelComparison) -> Iterator[Table]:
    """Tabulate how often each method keeps the promise in each group; yield no table without groups."""
    methods = comparison.methods
    sizes = {group.name: group for one in methods.values() for group in one.groups}
    if not sizes:
        return
    by_name = {name: {group.name: group for group in one.groups} for name, one in methods.items()}

    def make_cell(method: str, group: str) -> Cell:
        seen = by_name[method].get(group)
        aimed = methods[method].aims_at_coverage
        return make_promise_cell(seen, comparison.target_coverage, aimed=aimed) if seen else UNDEFINED

    rows = (
        make_group_row(
            group,
            (Cell(f"{group.n:,.0f}"), *(make_cell(method, group.name) for method in methods)),
        )
        for group in sizes.values()
    )
    note = (
        "Mean number of test prompts, mean share and its 95 % interval. The target is "
        f"{format_share(comparison.target_coverage)}."
    )
    head = ("Group", "Prompts", *methods)
    yield Table("compared-groups", "Promise kept, group by group", head, tuple(rows), note)


def _make_spread_cell(method: MethodComparison, figure: str) -> Cell:
    spread, share = method.figures.get(figure), is_share(figure)
    if spread is None:
        return UNDEFINED
    shown = to_percent(spread.mean, 1) if share else f"{spread.mean:.2f}"
    if spread.interval is None:
        return Cell(shown, "one split only")
    if share:
        return Cell(shown, format_interval(spread.interval, 1))
    low, high = spread.interval  # it is approximate and may reach below 0, which a size cannot
    return Cell(shown, NO_BREAK.join([f"{max(0.0, low):.2f}", "to", f"{high:.2f}"]))
