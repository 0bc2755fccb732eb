"""Print what certified cuts do on the recorded runs: `python office_figures.py`.

60 times the runs are split: three quarters calibrate, and the others are tested on. Beside the package stand
an agent that always runs, and a threshold on agreement alone that exact binomial tests certify.
"""

from __future__ import annotations

import gzip
import random
from collections.abc import Callable, Sequence
from itertools import accumulate
from pathlib import Path
from statistics import fmean
from typing import Literal, TypeAlias

from langchain_cfc_agents import RecordedRun, Turn, make_run_records
from scipy.stats import binom

from langchain_cfc import calibrate
from langchain_cfc.errors import UnattainableTargetError

RECORDING = Path(__file__).with_name("runs.jsonl.gz")
RATES = ("0.05", "0.1")
DELTA = "0.1"
SPLITS = 60
CALIBRATED = 0.75

Per: TypeAlias = Literal["run", "call"]
Read: TypeAlias = Callable[[Turn], float]
Cut: TypeAlias = float | None
"""A turn may run if it has at most this score; None if no cut is certified."""


def read_recording() -> list[RecordedRun]:
    """Return the runs that come with the example."""
    with gzip.open(RECORDING, "rt", encoding="utf-8") as file:
        return [RecordedRun.model_validate_json(line) for line in file]


def read_score(turn: Turn) -> float:
    """Return the score that the package cuts at."""
    return turn.score


def read_disagreement(turn: Turn) -> float:
    """Return the share of the n messages that make other calls than the one taken."""
    return (turn.candidates[turn.taken].scores or {})["agreement"]


def certify_score(runs: Sequence[RecordedRun], rate: str, per: Per) -> Cut:
    """Calibrate on runs with the package."""
    records, provenance, _ = make_run_records(runs, per=per)
    unit: Literal["claims", "answers"] = "claims" if per == "call" else "answers"
    try:
        made = calibrate(records, provenance=provenance, unit=unit, max_wrong_rate=rate, delta=DELTA)
    except UnattainableTargetError:
        return None
    return made.certified_bot.find_certificate(rate).cut


def certify_agreement(runs: Sequence[RecordedRun], rate: str, per: Per) -> Cut:
    """Return the largest disagreement that exact binomial tests certify, in order until one fails.

    A run counts as wrong if any of the calls that run is, which is at least their wrong share.
    """
    certified = None
    for cut in sorted({read_disagreement(turn) for run in runs for turn in run.guarded}):
        kept = [right for right in (keep(run, read_disagreement, cut, per) for run in runs) if right]
        if binom.cdf(sum(not all(right) for right in kept), len(kept), float(rate)) > float(DELTA):
            break
        certified = cut
    return certified


def keep(run: RecordedRun, read: Read, cut: Cut, per: Per) -> list[bool]:
    """Return the labels of the guarded calls that run unattended; per run, of all of them or of none."""
    if cut is None or run.error is not None or not isinstance(run.right, list):
        return []
    below = [score <= cut for score in accumulate(map(read, run.executed), max)]
    kept = [right for right, runs in zip(run.right, below, strict=True) if runs]
    return kept if per == "call" or all(below) else []


def compare(runs: Sequence[RecordedRun], rate: str, per: Per) -> dict[str, tuple[float, float]]:
    """Test three ways on the same splits.

    Returns:
        For each the mean share of the runs, or calls, that run unattended, and the mean wrong share of these.
    """
    found: dict[str, list[tuple[float, float | None]]] = {}
    for split in range(SPLITS):
        mixed = random.Random(split).sample(runs, len(runs))  # noqa: S311 - not for secrets
        known, new = mixed[: round(CALIBRATED * len(runs))], mixed[round(CALIBRATED * len(runs)) :]
        total = sum(len(run.guarded) for run in new) if per == "call" else len(new)
        ways: dict[str, tuple[Read, Cut]] = {
            "always run": (read_score, 1.0),
            "fixed agreement": (read_disagreement, certify_agreement(known, rate, per)),
            "guarded": (read_score, certify_score(known, rate, per)),
        }
        for way, (read, cut) in ways.items():
            kept = [right for right in (keep(run, read, cut, per) for run in new) if right]
            wrong = [fmean(not one for one in (right if per == "call" else [all(right)])) for right in kept]
            unattended = sum(map(len, kept)) if per == "call" else len(kept)
            found.setdefault(way, []).append((unattended / total, fmean(wrong) if wrong else None))
    return {
        way: (
            fmean(unattended for unattended, _ in tested),
            fmean([wrong for _, wrong in tested if wrong is not None] or [0.0]),
        )
        for way, tested in found.items()
    }


def main() -> None:
    """Print the table of figures in `examples/README.md`."""
    runs = [run for run in read_recording() if run.guarded or run.error is not None]
    calls = sum(len(run.guarded) for run in runs)
    print(f"{len(runs)} runs with {calls} guarded calls; {SPLITS} splits, {CALIBRATED:.0%} calibrate")
    print("promise                    way              unattended  wrong")
    for per in ("run", "call"):
        for rate in RATES:
            promise = f"per {per}, at most {float(rate):.0%} wrong"
            for way, (unattended, wrong) in compare(runs, rate, per).items():
                print(f"{promise:26} {way:15}  {unattended:10.1%}  {wrong:5.1%}")


if __name__ == "__main__":
    main()
