"""What a sweep costs: 100 splits x 7 methods x 8 alphas, against one HiGHS linear programme per test prompt.

    python benchmarks/sweep.py --json sweep.json

20,000 prompts of the paper's synthetic experiment with 50 candidates each, half of which calibrate in each
split and half of which are tested on; d = 3 features [1, T, T^2]; the paper's methods, all figures included.
The same sweep by a solver would ask it once for each test prompt, level and feature map with its own scores:
CFC and CFC-FULL share thresholds, as do CFC-PAC and CFC-PAC-FULL, so that is 2 x 8 x 10,000 programmes a
split. Their time is extrapolated from a sample of programmes of the same size in the same run, solved from
nothing and, what a careful user would do, from the last basis. Thresholds of the sample are compared with
ours.

One process with one BLAS thread throughout.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from statistics import median

# A script finds only modules of its own folder.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.lib.measuring import limit_threads

SPLITS, PROMPTS, CANDIDATES, SAMPLE = 100, 20_000, 50, 40
ALPHAS = ("0.1", "0.15", "0.2", "0.25", "0.3", "0.35", "0.4", "0.45")
METHODS = ("TopK", "ICP", "Learnt CP", "CFC", "CFC-FULL", "CFC-PAC", "CFC-PAC-FULL")
OWN_THRESHOLDS = 2  # of CFC and of CFC-PAC; the full variants share them
FEATURES = "meta(difficulty)^2"


def main() -> None:
    """Measure, and print the figures as JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what docs/reproduce.py reads")
    parser.add_argument("--splits", type=int, default=SPLITS, help="number of splits that are measured")
    parser.add_argument("--sample", type=int, default=SAMPLE, help="number of programmes that are solved")
    options = parser.parse_args()
    limit_threads()
    text = json.dumps(measure_sweep(options.splits, options.sample), indent=2)
    print(text)
    if options.json:  # HiGHS prints, too
        options.json.write_text(text + "\n", encoding="utf-8")


def measure_sweep(splits: int, sample: int) -> dict[str, float]:
    """Return seconds, counts and ratios by name, from so many splits and linear programmes."""
    import numpy as np
    from langchain_cfc_lab.methods import get_methods
    from langchain_cfc_lab.paper import draw_prompts
    from langchain_cfc_lab.splits import Comparison, make_pool

    from benchmarks.lib.peers import make_scipy_dual, make_warm_highs
    from benchmarks.lib.problems import TAU, Problem
    from langchain_cfc.thresholds import ConditionalThreshold

    drawn = draw_prompts(1, PROMPTS, CANDIDATES).take(np.arange(PROMPTS))
    groups = "bins(meta(difficulty), 10)"
    comparison = Comparison(
        make_pool(drawn, "sweep"), get_methods(METHODS), ALPHAS, FEATURES, "all", groups, "sweep", 0.5, 0.01
    )
    comparison.measure_split(splits)  # fills the caches of the pool, which all splits share
    started = time.perf_counter()
    for number in range(splits):
        comparison.measure_split(number)
    sweep = (time.perf_counter() - started) * SPLITS / splits

    rows = np.random.default_rng(1).permutation(PROMPTS)
    features = comparison.pool.compute_features(FEATURES, rows)
    success = comparison.pool.compute_success_scores("all", 1.0)
    half = PROMPTS // 2
    problem = Problem(features[rows[:half]], success[rows[:half]], features[rows[half : half + sample]])
    alpha = str(float(1 - TAU))
    ours = ConditionalThreshold(alpha).fit(problem.features, problem.scores).thresholds(problem.prompts)
    found = {"sweep_seconds": sweep, "programmes": float(SPLITS * len(ALPHAS) * OWN_THRESHOLDS * half)}
    for name, peer in (("cold", make_scipy_dual("highs")), ("warm", make_warm_highs)):
        ask = peer(problem)
        seconds, values = [], []
        for phi in problem.prompts:
            started = time.perf_counter()
            values.append(ask(phi))
            seconds.append(time.perf_counter() - started)
        each = median(seconds)
        found[f"{name}_seconds_each"] = each
        found[f"{name}_seconds_extrapolated"] = each * found["programmes"]
        found[f"{name}_times_slower"] = each * found["programmes"] / sweep
        found[f"{name}_largest_difference"] = float(np.abs(np.array(values) - ours).max())
    return found


if __name__ == "__main__":
    main()
