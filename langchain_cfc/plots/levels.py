"""Any figure of a comparison against alpha."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from langchain_cfc.comparison.report import LevelComparison, Spread
from langchain_cfc.errors import InputError
from langchain_cfc.plots.axes import TARGET, finish, ink, new_axes, percent
from langchain_cfc.plots.style import as_aimed, chosen, nested, styles

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTH = 4.8  # inches
BEYOND = 0.01  # of alpha: how far the target line goes on at either end
_AIM_AT_TARGET = ("coverage", "kept_promise")  # how names of figures end that the target is for
_ARE_NO_SHARES = "mean_"
_CALLED = {
    "coverage": "set holds a correct answer",
    "kept_promise": "promise kept",
    "worst_group_coverage": "coverage of the worst group",
    "worst_group_kept_promise": "promise kept in the worst group",
    "size_stratified_kept_promise": "promise kept at the worst set size",
    "worst_slab_kept_promise": "promise kept in the worst slab",
    "mean_set_size": "candidates per set",
    "mean_distinct_answers": "distinct answers per set",
    "mean_candidates_drawn": "candidates drawn",
    "not_certifiable_rate": "flagged as not certifiable",
    "abstention_rate": "abstained, flagged ones included",
    "selective_accuracy": "best answer correct where answered",
    "all_correct_rate": "nothing wrong returned",
}


def plot_by_alpha(
    levels: Sequence[LevelComparison],
    ax: Axes | None = None,
    *,
    methods: Sequence[str] | None = None,
    figure: str = "kept_promise",
) -> Axes:
    """A figure of each method against alpha, with one standard deviation over the splits.

    Args:
        levels: The levels of a comparison, such as its `sweep`.
        ax: The axis to draw on; None for one in a figure of its own.
        methods: Names of the methods to draw; None for all. Those without the figure are left out.
        figure: Name of the figure, such as `kept_promise`, `worst_group_coverage` (the paper's GSC) or
            `mean_distinct_answers`. Figures named after coverage or the kept promise are held against the
            target 1 - alpha.

    Returns:
        The axis.

    Raises:
        InputError: If a method is not in the report, or none of them has the figure at any level.
        MissingExtraError: If matplotlib is not installed.
    """
    levels = sorted(levels, key=lambda level: level.alpha)
    there = {name: method for level in levels for name, method in level.methods.items()}
    found = {name: _course(levels, name, figure) for name in chosen(there, methods)}
    drawn = {name: course for name, course in found.items() if course}
    if not drawn:
        msg = f"nothing to draw: no method has the figure {figure!r}; there are {_known(levels, found)}"
        raise InputError(msg)
    aimed = figure.endswith(_AIM_AT_TARGET)
    names = [as_aimed(name, there[name]) if aimed else name for name in drawn]
    if aimed:
        names.insert(0, "target 1 - alpha")
    ax = ax or new_axes(WIDTH, names)
    looks = styles(there)
    handles: list[Any] = [
        ax.errorbar(
            list(course),
            [spread.mean for spread in course.values()],
            yerr=[spread.sd for spread in course.values()],
            **looks[name].points(ink(ax), size),
        )
        for (name, course), size in zip(drawn.items(), nested(len(drawn)), strict=True)
    ]
    if aimed:
        ends = [levels[0].alpha - BEYOND, levels[-1].alpha + BEYOND]
        handles[:0] = ax.plot(ends, [1.0 - alpha for alpha in ends], color=ink(ax), **TARGET)
    ax.set_xlabel("alpha")
    called = _CALLED.get(figure, figure.replace("_", " "))
    ax.set_ylabel(f"{called}\nmean ± sd over splits", parse_math=False)
    if not figure.startswith(_ARE_NO_SHARES):
        ax.yaxis.set_major_formatter(percent)
    return finish(ax, handles, names)


def _course(levels: Sequence[LevelComparison], name: str, figure: str) -> dict[float, Spread]:
    """The figure of one method by alpha, where it has it."""
    found = ((level.alpha, level.methods[name].figures) for level in levels if name in level.methods)
    return {alpha: figures[figure] for alpha, figures in found if figure in figures}


def _known(levels: Sequence[LevelComparison], methods: Mapping[str, object]) -> str:
    figures = {
        figure: None
        for level in levels
        for name, method in level.methods.items()
        if name in methods
        for figure in method.figures
    }
    return ", ".join(figures) or "none"
