"""HTML page of a monitor: alarms, evidence over time, and what to do."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from datetime import datetime, timezone

from langchain_cfc.monitor.status import EvidenceCurve, MonitorStatus, Test, format_evidence
from langchain_cfc.report.frame import Figure, make_figure, render_page, replace_page
from langchain_cfc.report.plots import plot_evidence

# Most tests to list; alarms and doubts are always listed.
_MOST_LISTED = 20
_BROKEN = (
    "A certified rate is not kept. Serve without it, or not at all, until a new artifact is calibrated on "
    "prompts like those of now."
)
_DRIFTED = (
    "Prompts, model or verifier are not as they were, so nothing supports the promise any more. Label a "
    "random sample of the results since then, all candidates of each, and make a new artifact of them."
)
_RECALIBRATE = "langchain-cfc monitor recalibrate artifact.json monitor.db"
_OTHER_MODEL = "none of these was calibrated. Go back to the one that was, or calibrate."
_LIMITS = (
    "Calibrate again where the artifact is too old; look at the logs where prompts fail or take too long."
)
_SAMPLING = (
    "Labelled results do not look like the others, so that labels do not speak of all results: draw them "
    "from all results, or say with what probability each was drawn."
)
_SEEN = {"drift": "results", "kept": "labels", "right": "labels", "labelled": "labelled results"}


def write_page(path: str | os.PathLike[str], status: MonitorStatus, curves: Sequence[EvidenceCurve]) -> None:
    """Write the page of a monitor as one HTML file that needs no network and no scripts.

    Args:
        path: The file; an earlier report is replaced as a whole, any other file is refused.
        status: From `CFCMonitor.status`.
        curves: From `CFCMonitor.curves`.

    Raises:
        InputError: If the path holds something that is not a report.
        MissingExtraError: If jinja2 or matplotlib is not installed.
    """
    html = render_page(
        "monitor/page.html.j2",
        title="Does the promise still stand?",
        byline=f"Artifact {status.artifact[:19]}…, {status.age_days:.1f} days old; looked at "
        f"{datetime.now(timezone.utc):%Y-%m-%d %H:%M} UTC",
        status=status,
        figures=_draw_figures(curves),
        tests=_list_tests(status),
        seen=_SEEN,
        steps=_list_steps(status),
        amount=format_evidence,
    )
    replace_page(path, html)


def _list_tests(status: MonitorStatus) -> list[Test]:
    """List alarms and doubts, and the tests that are closest to an alarm."""
    alarms = [*status.alarms, *status.doubts]
    others = [one for one in status.tests if one not in alarms and one.kind != "labelled"]
    return [*alarms, *others[: max(0, _MOST_LISTED - len(alarms))]]


def _draw_figures(curves: Sequence[EvidenceCurve]) -> Iterator[Figure]:
    """Draw a figure for drift and one for rates, if they have any outcomes."""
    for kinds, title, words in (
        (("drift",), "Evidence that prompts have changed", "Each result is one outcome."),
        (("kept", "right"), "Evidence that a certified rate is broken", "Each label is one outcome."),
    ):
        chosen = [one for one in curves if one.test.kind in kinds and one.points]
        if chosen:
            yield make_figure(
                f"figure-{kinds[0]}",
                plot_evidence(
                    {one.name: one.points for one in chosen}, chosen[0].test.needed, outcomes=_SEEN[kinds[0]]
                ),
                f"{title}: the tests that have come furthest",
                f"{words} A line that stays low shows nothing; one that climbs to the dashed line alarms by "
                "itself, several together alarm earlier.",
            )


def _list_steps(status: MonitorStatus) -> Iterator[tuple[str, str, str]]:
    """Yield what to do as (heading, sentence, command or empty text), most urgent first."""
    if any(one.kind != "drift" for one in status.alarms):
        yield "Stop relying on the promise", _BROKEN, ""
    if any(one.kind == "drift" for one in status.alarms):
        began = min(one.since for one in status.alarms if one.kind == "drift" and one.since is not None)
        since = began[:16]  # to the minute
        yield "Find what changed, and label", _DRIFTED, f"{_RECALIBRATE} --since {since}"
    if status.models:
        yield "Ask why another model answers", f"{', '.join(status.models)}: {_OTHER_MODEL}", ""
    if len(status.breaches) > len(status.models):
        yield "Bring what is beyond its limit back", _LIMITS, ""
    if status.doubts:
        yield "Draw labels at random", _SAMPLING, ""
    for one in status.notes:
        yield "Note", one, ""
    if status.sound and not status.doubts:
        yield "Look again", "No test alarms. The tests may be looked at as often as you like.", ""
