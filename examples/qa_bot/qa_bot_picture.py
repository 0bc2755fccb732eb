"""The small picture: every candidate's score as a mark, and the threshold as a line. No texts."""

from __future__ import annotations

import math

import altair as alt
import pandas as pd  # type: ignore[import-untyped]

from langchain_cfc import CFCResult

# Each has a contrast of at least 3 with a white page and with a dark one.
_ACCEPTED, _REJECTED, _LINE = "#2a7de1", "#8a8d98", "#d9541e"


def draw_picture(result: CFCResult) -> alt.LayerChart:
    """Draw the candidates and threshold of a decision.

    Args:
        result: What was decided.

    Returns:
        A chart: draws 1 to n from top to bottom, scores from left to right. Accepted candidates are discs,
        rejected ones crosses, so that colours need not be told apart.
    """
    kinds = ["accepted", "rejected"]
    rows = [
        {"draw": one.slot + 1, "score": one.score, "candidate": kinds[not one.accepted]}
        for one in result.candidates
    ]
    at = [result.threshold] if _is_drawn(result) else []
    marks = (
        alt.Chart(pd.DataFrame(rows))
        .mark_point(size=70, filled=True, opacity=1)
        .encode(
            x=alt.X(
                "score:Q",
                title="score, smaller is better",
                scale=alt.Scale(domain=[min([0.0, *at]), max([1.0, *at])], nice=False),
                axis=alt.Axis(tickCount=5),
            ),
            y=alt.Y("draw:O", title="draw"),
            shape=alt.Shape("candidate:N", scale=alt.Scale(domain=kinds, range=["circle", "cross"])),
            color=alt.Color(
                "candidate:N",
                scale=alt.Scale(domain=kinds, range=[_ACCEPTED, _REJECTED]),
                legend=alt.Legend(orient="top", title=None),
            ),
            tooltip=["draw:O", alt.Tooltip("score:Q", format=".3f"), "candidate:N"],
        )
    )
    line = (
        alt.Chart(pd.DataFrame({"threshold": at}))
        .mark_rule(color=_LINE, strokeDash=[6, 4], size=2)
        .encode(x="threshold:Q")
    )
    # Words take the colour of the page's text, be it light or dark.
    chart: alt.LayerChart = (
        alt.layer(marks, line, description=describe_picture(result))
        .properties(height=alt.Step(16))
        .configure_axis(labelColor="currentColor", titleColor="currentColor", labelOverlap=False)
        .configure_legend(labelColor="currentColor")
    )
    return chart


def describe_picture(result: CFCResult) -> str:
    """Describe the picture of a decision in a sentence."""
    inside = sum(one.accepted for one in result.candidates)
    line = f"the line is the threshold, {result.threshold:.3f}"
    if not _is_drawn(result):
        line = "no line, for no threshold can be certified"
    return f"{len(result.candidates)} candidates, {inside} accepted; {line}"


def _is_drawn(result: CFCResult) -> bool:
    return result.reason != "not_certifiable" and math.isfinite(result.threshold)
