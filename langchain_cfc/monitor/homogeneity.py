"""Are results of one kind, so that an artifact may be made of them?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from langchain_cfc._extras import require
from langchain_cfc.artifact import Watched
from langchain_cfc.monitor.drift import Drift, Layout
from langchain_cfc.monitor.sampled import BLOCK, Sampled
from langchain_cfc.monitor.status import called
from langchain_cfc.monitor.traffic import Traffic, time_of


def unlike(everything: Traffic, chosen: Traffic, level: float) -> Iterator[str]:
    """In what the results that are used look unlike the others.

    Those of each block are drawn from it without replacement, if it is chance that chooses them; see
    `Sampled`.

    Args:
        everything: All results.
        chosen: Those of them that are used.
        level: Probability of saying anything where it is chance, in (0, 1).
    """
    tests = Layout.of(everything.artifact).tests
    used, results = {one.id for one in chosen.results}, everything.results if tests else ()
    sampled = Sampled.begun(everything.artifact, 0.0)
    for start in range(0, len(results), BLOCK):
        block = [(one, one.id in used) for one in results[start : start + BLOCK]]
        sampled = sampled.after(block, start)
    for what, _ in _found(tests, sampled, level):
        yield f"{what} differs between the results that are used and the others: labels do not speak of all"


def changed(traffic: Traffic, level: float) -> Iterator[str]:
    """In what results have changed while they came.

    Each is ranked among those before it, which is uniform as long as all are of one kind, see `Drift`; and
    each model draws as often in the first half as in the second, by Fisher's exact test.

    Args:
        traffic: The results that are used, in their order.
        level: Probability of saying anything where nothing changed, in (0, 1): half for either test.
    """
    half = level / 2.0
    drift = Drift.begun(traffic.artifact, 0.0).without_calibration()
    for one in traffic.results:
        drift = drift.after(one)
    for what, since in _found(drift.tests, drift, half):
        yield f"{what} has changed among these results, since about {since}: use those from then on (since)"
    for model in traffic.models:
        drew = np.array([model in one.models for one in traffic.results])
        first, last = np.array_split(drew, 2)
        table = [[int(part.sum()), int((~part).sum())] for part in (first, last)]
        p_value = require("scipy.stats", "calibrate", "recalibration").fisher_exact(table).pvalue
        if p_value <= half / len(traffic.models):
            yield (
                f"the model {model} drew {table[0][0]} of the first {len(first)} results and {table[1][0]} "
                f"of the last {len(last)}: use those since it is as it is now (since)"
            )


def _found(
    tests: Sequence[tuple[Watched, str]], part: Drift | Sampled, level: float
) -> Iterator[tuple[str, str]]:
    """Yield the quantities of the tests that alarm together, and since when, as a monitor's status does."""
    if part.mean.peak < -np.log(level):
        return
    capital = part.capital
    peaks = capital.peak >= -np.log(level)
    told: dict[str, float] = {}
    for place in np.flatnonzero(peaks).tolist():
        told.setdefault(called(tests[place][0]), float(capital.since[place]))
    for what, since in told.items():
        yield f"{what[0].upper()}{what[1:]}" if "(" not in what else what, time_of(since)
