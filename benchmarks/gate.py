"""Tracked ratios: whether serving, calibrating or solving has become slower next to its peers.

    python benchmarks/gate.py             measure, compare with ratios.json, exit with 1 if one is worse
    python benchmarks/gate.py --update    measure, and track these from now on

A ratio is our time over that of a peer, timed in turn within the run, so that a slow machine slows both. It
is worse if the whole interval of this run lies more than 20 % above the interval that is tracked. The peers
are calls by hand for serving, a bare JSON parser for calibration, a bare `abatch` for collections, and HiGHS
for thresholds. Nothing else should run on the machine.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path

# A script finds only modules of its own folder.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.lib.measuring import WARM_ROUNDS, Ratio, limit_threads, print_table, time_in_turn

TRACKED_FILE = Path(__file__).with_name("ratios.json")
# How far above the tracked interval the interval of a run may begin.
TOLERANCE = 1.2
CALIBRATION_PROMPTS = 1_000
THRESHOLD_ROUNDS = 15


def main() -> int:
    """Measure, compare or update, and print a table; return the exit code."""
    limit_threads()
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--update", action="store_true", help="track the ratios of this run")
    options = parser.parse_args()
    found = dict(measure())
    if options.update:
        text = json.dumps({name: asdict(one) for name, one in found.items()}, indent=2)
        TRACKED_FILE.write_text(text + "\n", encoding="utf-8")
    tracked = read_tracked()
    worse = find_worse(found, tracked)
    rows = [(name, tracked[name], found[name], "worse" if name in worse else "") for name in tracked]
    note = "Our time over a peer's: medians over the rounds, with an interval around the median."
    print_table("Tracked ratios", ("what, over what", "tracked", "now", ""), rows, note)
    return 1 if worse else 0


def read_tracked() -> dict[str, Ratio]:
    """Read the ratios that are tracked, by name."""
    known = json.loads(TRACKED_FILE.read_text(encoding="utf-8"))
    return {name: Ratio(**one) for name, one in known.items()}


def find_worse(found: Mapping[str, Ratio], tracked: Mapping[str, Ratio]) -> list[str]:
    """Return the names of ratios whose interval begins too far above the tracked one.

    Raises:
        ValueError: If not the same ratios are tracked as were found.
    """
    if found.keys() != tracked.keys():
        different = ", ".join(sorted(found.keys() ^ tracked.keys()))
        msg = f"ratios.json tracks other ratios than are measured ({different}): run with --update"
        raise ValueError(msg)
    return [name for name, ratio in found.items() if ratio.low > TOLERANCE * tracked[name].high]


def measure() -> Iterator[tuple[str, Ratio]]:
    """Yield each ratio with its name."""
    from benchmarks.collection import measure_memory
    from benchmarks.serving import DRAW_RULES, measure_overhead, measure_waves

    yield from measure_overhead(rounds=200)
    yield from measure_waves(rounds=20, rules=DRAW_RULES[:1])
    yield from measure_memory(rounds=9)
    yield "JSON Lines to artifact over a bare parse", measure_calibration()
    for kind in ("continuous", "groups"):
        yield f"a threshold over HiGHS, 2,000 prompts, {kind}", measure_thresholds(kind)


def measure_calibration() -> Ratio:
    """Measure `calibrate` from a file to a saved artifact over `orjson.loads` of its lines."""
    from benchmarks.scale import calibrate_file, make_lines, parse_lines

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "records.jsonl")
        make_lines(path, CALIBRATION_PROMPTS)
        ours, bare = time_in_turn([lambda _: calibrate_file(path), lambda _: parse_lines(path)], rounds=15)
    return Ratio.of(ours, bare)


def measure_thresholds(kind: str) -> Ratio:
    """Measure the threshold of a new prompt over the linear programme that `scipy` gives HiGHS."""
    from benchmarks.lib.peers import make_scipy_dual
    from benchmarks.lib.problems import make_problem, make_rule

    problem = make_problem(kind, 5, 2_000, THRESHOLD_ROUNDS + WARM_ROUNDS)
    fitted, ask = make_rule().fit(problem.features, problem.scores), make_scipy_dual("highs")(problem)
    ours, highs = time_in_turn(
        [lambda row: fitted.threshold(problem.prompts[row]), lambda row: ask(problem.prompts[row])],
        THRESHOLD_ROUNDS,
    )
    return Ratio.of(ours, highs)


if __name__ == "__main__":
    raise SystemExit(main())
