"""What exact conditional thresholds cost, as ratios against SciPy's HiGHS in the same run.

    OPENBLAS_NUM_THREADS=1 python benchmarks/thresholds.py             a table
    OPENBLAS_NUM_THREADS=1 python benchmarks/thresholds.py --json      the same as JSON

Times are medians over several runs of this process on whatever machine it is; only the ratios are worth
quoting. Every figure comes with the largest difference between the two solvers' thresholds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from scipy.optimize import linprog

from langchain_cfc.thresholds import ConditionalThreshold
from langchain_cfc.thresholds.growing import grown_fit
from langchain_cfc.thresholds.simplex import Rows

ALPHA, TAU = "0.1", Fraction(9, 10)
HOPELESS = 0.05
SIZES = ((3, 1_000), (3, 10_000), (3, 100_000), (10, 1_000), (10, 10_000), (10, 100_000))


def made(d: int, size: int) -> Rows:
    """Continuous features and scores, a twentieth of the prompts without a correct candidate."""
    rng = np.random.default_rng(size + d)
    features = rng.random((size, d))
    features[:, 0] = 1.0
    scores = 0.5 * features[:, 1] + 0.5 * rng.random(size)
    scores[rng.random(size) < HOPELESS] = 2.0
    return Rows.unweighted(features, scores)


def highs(rows: Rows, phi: Any) -> float:
    """The threshold by one dual programme."""
    tau = float(TAU)
    result = linprog(
        -rows.scores, A_eq=rows.features.T, b_eq=-(tau - 1e-8) * phi, bounds=(tau - 1.0, tau), method="highs"
    )
    return float(-result.eqlin.marginals @ phi)


def median_time(call: Callable[[], Any], runs: int) -> float:
    """Median seconds of a call."""
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def measured(d: int, size: int, runs: int) -> dict[str, Any]:
    """One row: the base regression of calibration, and a single threshold, beside HiGHS."""
    rows = made(d, size)
    mean = rows.features.mean(axis=0)
    fit = grown_fit(rows, TAU)
    if fit is None:
        msg = "the mean prompt's threshold is infinite"
        raise ValueError(msg)
    rule = ConditionalThreshold(ALPHA).fit(rows.features, rows.scores)
    rule.threshold(mean)  # the solver is made at the first question
    queries = rows.features[:20]
    ours = [rule.threshold(phi) for phi in queries]
    theirs = [highs(rows, phi) for phi in queries[:2]]
    finite = [abs(a - b) for a, b in zip(ours, theirs, strict=False) if np.isfinite(a)]
    calibration = median_time(lambda: grown_fit(rows, TAU), runs)
    query = median_time(lambda: [rule.threshold(phi) for phi in queries], runs) / len(queries)
    base_peer = median_time(lambda: highs(rows, mean), 1)
    query_peer = median_time(lambda: [highs(rows, phi) for phi in queries[:2]], 1) / 2
    return {
        "d": d,
        "n": size,
        "calibration_ms": 1e3 * calibration,
        "calibration_vs_highs": base_peer / calibration,
        "calibration_vs_sort": calibration / median_time(lambda: np.sort(rows.scores), runs),
        "query_ms": 1e3 * query,
        "query_vs_highs": query_peer / query,
        "largest_difference": max([abs(fit.value(mean)[0] - highs(rows, mean)), *finite]),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Cost of exact conditional thresholds beside HiGHS.")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--runs", type=int, default=5, help="runs of which the median counts")
    options = parser.parse_args(arguments)
    results = [measured(d, size, options.runs) for d, size in SIZES]
    if options.json:
        print(json.dumps(results, indent=2))
        return
    table = Table(box=None, header_style="bold")
    for heading in (
        "d",
        "N",
        "calibrate, ms",
        "HiGHS / ours",
        "ours / sort",
        "query, ms",
        "HiGHS / ours",
        "difference",
    ):
        table.add_column(heading, justify="right")
    for row in results:
        table.add_row(
            str(row["d"]),
            f"{row['n']:,}",
            f"{row['calibration_ms']:.1f}",
            f"{row['calibration_vs_highs']:.0f}",
            f"{row['calibration_vs_sort']:.0f}",
            f"{row['query_ms']:.2f}",
            f"{row['query_vs_highs']:.0f}",
            f"{row['largest_difference']:.0e}",
        )
    Console().print(table)


if __name__ == "__main__":
    main()
