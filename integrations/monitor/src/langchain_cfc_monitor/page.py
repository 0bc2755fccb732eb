"""HTML page of a monitor: alarms, evidence over time, and what to do."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from datetime import datetime, timezone

from langchain_cfc_lab.report.frame import Figure, make_figure, render_page, replace_page
from langchain_cfc_lab.report.plots import plot_evidence

from langchain_cfc_monitor.status import EvidenceCurve, MonitorStatus, Test, format_evidence

# Most tests to list; alarms and doubts are always listed.
_MOST_LISTED = 20
_BROKEN_RATE_ADVICE = (
    "A certified rate does not hold. Serve without it, or stop serving, until a new artifact is calibrated "
    "on prompts like the current ones."
)
_DRIFT_ADVICE = (
    "Prompts, model or verifier have changed since calibration, so nothing supports the promise any more. "
    "Label a random sample of the results since then, all candidates of each, and calibrate a new artifact "
    "on them."
)
_OTHER_MODEL_ADVICE = "not calibrated. Go back to the calibrated model, or calibrate again."
_LIMITS_ADVICE = (
    "Calibrate again if the artifact is too old; check the logs if prompts fail or take too long."
)
_SAMPLING_ADVICE = (
    "Labelled results look different from the others, so the labels are not a fair sample: choose them at "
    "random from all results, or state the probability with which each was chosen."
)
_OUTCOMES = {"drift": "results", "kept": "labels", "right": "labels", "labelled": "labelled results"}


def write_page(
    path: str | os.PathLike[str],
    status: MonitorStatus,
    curves: Sequence[EvidenceCurve],
    *,
    recalibrate: str = "langchain-cfc monitor recalibrate artifact.json monitor.db",
) -> None:
    """Write the page of a monitor as one HTML file that needs no network and no scripts.

    Args:
        path: The file; an earlier report is replaced as a whole, any other file is refused.
        status: From `CFCMonitor.read_status`.
        curves: From `CFCMonitor.read_curves`.
        recalibrate: The command that calibrates again on the labelled results of this monitor.

    Raises:
        InputError: If the path holds something that is not a report.
        MissingExtraError: If jinja2 or matplotlib is not installed.
    """
    html = render_page(
        "langchain_cfc_monitor/page.html.j2",
        title="Does the promise still hold?",
        byline=f"Artifact {status.artifact[:19]}…, {status.age_days:.1f} days old; checked "
        f"{datetime.now(timezone.utc):%Y-%m-%d %H:%M} UTC",
        status=status,
        figures=_draw_figures(curves),
        tests=_list_tests(status),
        seen=_OUTCOMES,
        steps=_list_steps(status, recalibrate),
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
        (("kept", "right"), "Evidence that a certified rate is violated", "Each label is one outcome."),
    ):
        chosen = [one for one in curves if one.test.kind in kinds and one.points]
        if chosen:
            yield make_figure(
                f"figure-{kinds[0]}",
                plot_evidence(
                    {one.name: one.points for one in chosen},
                    chosen[0].test.needed,
                    outcomes=_OUTCOMES[kinds[0]],
                ),
                f"{title}: the tests closest to an alarm",
                f"{words} A line that stays low is no evidence; one that reaches the dashed line alarms by "
                "itself, and several together alarm earlier.",
            )


def _list_steps(status: MonitorStatus, recalibrate: str) -> Iterator[tuple[str, str, str]]:
    """Yield what to do as (heading, sentence, command or empty text), most urgent first."""
    if any(one.kind != "drift" for one in status.alarms):
        yield "Stop relying on the promise", _BROKEN_RATE_ADVICE, ""
    if any(one.kind == "drift" for one in status.alarms):
        began = min(one.since for one in status.alarms if one.kind == "drift" and one.since is not None)
        since = began[:16]  # to the minute
        yield "Find what changed, and label", _DRIFT_ADVICE, f"{recalibrate} --since {since}"
    if status.models:
        yield "Find out why another model answers", f"{', '.join(status.models)}: {_OTHER_MODEL_ADVICE}", ""
    if len(status.breaches) > len(status.models):
        yield "Fix what exceeds its limit", _LIMITS_ADVICE, ""
    if status.doubts:
        yield "Choose results to label at random", _SAMPLING_ADVICE, ""
    for one in status.notes:
        yield "Note", one, ""
    if status.results and status.sound and not status.doubts:
        yield "Check again", "No test alarms. You may check the tests as often as you like.", ""
