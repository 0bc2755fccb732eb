"""The page's figures: what is drawn for whom, and what each says."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from langchain_cfc._extras import require
from langchain_cfc.artifact import CertifiedPolicy
from langchain_cfc.comparison.report import ComparisonReport, DataFacts
from langchain_cfc.evaluation import EvaluationReport
from langchain_cfc.plots import (
    plot_attainable,
    plot_by_alpha,
    plot_certified_policies,
    plot_group_miscoverage,
    plot_score_histogram,
    plot_selective_risk,
    plot_threshold_by_difficulty,
    to_svg,
)

if TYPE_CHECKING:
    from markupsafe import Markup


# A figure for each family: bars of all methods abreast would be too thin to see.
_FAMILIES = {"ours": "methods of this package", "paper": "as in the paper", "outside": "from elsewhere"}


@dataclass(frozen=True)
class Figure:
    """A figure.

    Attributes:
        id: Its id in the page.
        svg: What is drawn; already escaped.
        caption: What it shows, and how to read it.
    """

    id: str
    svg: Markup
    caption: str


def evaluation_figures(report: EvaluationReport) -> Iterator[Figure]:
    """What an evaluation shows."""
    if any(method.groups for method in report.methods.values()):
        yield _drawn(
            "figure-groups",
            plot_group_miscoverage(report),
            "How often the promise is broken in each group",
            "Bars below the line keep the promise. Error bars end where the 95 % interval does.",
        )


def policy_figures(policy: CertifiedPolicy) -> Iterator[Figure]:
    """What a certified policy was chosen among."""
    if any(point.answered for point in policy.curve):
        yield _drawn(
            "figure-policies",
            plot_certified_policies(policy),
            "Wrong answers against prompts answered, policy by policy",
            "On the certification prompts. Answering more costs more wrong answers.",
        )


def data_figures(data: DataFacts) -> Iterator[Figure]:
    """What the records are like."""
    if any(data.scores.correct) or any(data.scores.wrong):
        yield _drawn(
            "figure-scores",
            plot_score_histogram(data.scores),
            "Scores of correct and of wrong candidates",
            "The further apart the two are, the smaller the sets that keep the same promise.",
        )
    if data.attainable:
        yield _drawn(
            "figure-attainable",
            plot_attainable(data.attainable),
            "Attainable coverage of each group, foretold and seen",
            "Points on the diagonal were foretold rightly by the development prompts. Where little is "
            "attainable, prompts are flagged.",
        )


def comparison_figures(report: ComparisonReport) -> Iterator[Figure]:
    """What a comparison shows."""
    methods = report.methods.values()
    for family, title in _FAMILIES.items():
        named = [name for name, method in report.methods.items() if method.family == family and method.groups]
        if named:
            yield _drawn(
                f"figure-groups-{family}",
                plot_group_miscoverage(report, methods=named),
                f"How often the promise is broken by group at alpha = {report.alpha:g}, {title}",
                "Bars below the line keep the promise. Error bars reach up by one standard deviation over "
                "splits.",
            )
        depending = [
            name for name in named if any("threshold" in one.figures for one in report.methods[name].groups)
        ]
        if depending:
            yield _drawn(
                f"figure-thresholds-{family}",
                plot_threshold_by_difficulty(report, methods=depending),
                f"Thresholds in each group at alpha = {report.alpha:g}, {title}",
                "A rule that knows nothing of difficulty has one threshold for all. Means and standard "
                "deviations over the splits.",
            )
    if len(report.sweep) > 1:
        for figure, title in (
            ("kept_promise", "Promise kept against alpha"),
            ("worst_group_kept_promise", "Promise kept in the worst group against alpha"),
            ("mean_set_size", "Candidates per set against alpha"),
        ):
            if any(figure in method.figures for level in report.sweep for method in level.methods.values()):
                yield _drawn(
                    f"figure-by-alpha-{figure.replace('_', '-')}",
                    plot_by_alpha(report.sweep, methods=report.leading(), figure=figure),
                    title,
                    "Means and standard deviations over the splits.",
                )
    answering = any("selective_accuracy" in method.figures for method in methods)
    if answering or report.data.risk.answered:
        yield _drawn(
            "figure-risk",
            plot_selective_risk(report, methods=report.leading()),
            "Wrong best answers against prompts answered",
            "The line answers the prompts of lowest best score first, without any promise; each method has a "
            "point at each alpha.",
        )


def _drawn(name: str, axes: Any, title: str, words: str) -> Figure:
    markup = require("markupsafe", "calibrate", "a report")
    return Figure(id=name, svg=markup.Markup(to_svg(axes, title=title)), caption=f"{title}. {words}")
