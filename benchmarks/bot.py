"""How much bot mode answers at a certified wrong-answer rate, next to a baseline of thirty lines.

    python benchmarks/bot.py                                   the recording that ships with the package
    python benchmarks/bot.py RECORDING ... --splits 100 --jobs 2

Each split certifies on a random half of the prompts and is judged on the other half. The baseline knows one
score, the mean score of the candidates, and a grid of cuts fixed beforehand. It tests them from the strictest
on, with exact binomial tests on all labels, and answers below the last cut that passes. Bot mode has the same
labels, and both spend 80 % of delta, as a first test on labels does. A share answered counts 0 where nothing
was certified. A bot is violated if its wrong answers on the test half refute the certified rate at level 0.01
(exact binomial test); the law allows it in a share delta of the splits and, by chance alone, in a further
0.01. The control answers below the largest cut whose wrong answers are few enough among the labels, without a
test.

Every recording is also scored by the agreement of its candidates (self-consistency), where many mean scores
tie.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

# A script finds only modules of its own folder.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.lib.measuring import limit_threads, print_table

limit_threads()  # before NumPy is imported

import numpy as np  # noqa: E402 - after the threads are limited

from langchain_cfc import calibrate, read_records  # noqa: E402 - the path comes first
from langchain_cfc.candidates import LabelledBatch, score_by_agreement  # noqa: E402 - the path comes first
from langchain_cfc.certificates.bounds import binomial_p_value  # noqa: E402 - the path comes first
from langchain_cfc.certificates.coverage import compute_outcomes  # noqa: E402 - the path comes first
from langchain_cfc.demo import load_recording  # noqa: E402 - the path comes first
from langchain_cfc.errors import UnattainableTargetError  # noqa: E402 - the path comes first
from langchain_cfc.records import tabulate  # noqa: E402 - the path comes first
from langchain_cfc.records.splits import make_split_plan  # noqa: E402 - the path comes first

RATES = ("0.05", "0.1", "0.15", "0.2", "0.3")
DELTA, LEVEL = "0.1", 0.08
REFUTATION_LEVEL = 0.01
CUTS = np.linspace(0.01, 1.0, 100)
# Answered test prompts and wrong ones of them; None where nothing is certified.
Counts = tuple[int, int] | None


@dataclass(frozen=True)
class Row:
    """The results of one method at one rate over all splits."""

    rate: str
    method: str
    found: float  # share of splits with a bot
    answered: float  # mean share of the test prompts that are answered
    violated: float  # share of splits whose bot is violated on the test prompts


def main(arguments: Sequence[str] | None = None) -> None:
    """Compare bot mode with the baseline, and print a table for each recording."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("recordings", nargs="*", type=Path, help="records; by default the demo's")
    parser.add_argument("--splits", type=int, default=100, help="random halves of each recording")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--rates", nargs="+", default=RATES, help="largest shares of wrong answers")
    options = parser.parse_args(arguments)
    tables = {path.stem: tabulate(read_records(path)) for path in options.recordings}
    for name, table in list_scorings(tables or {"demo": tabulate(load_recording())}):
        rows = compare_methods(table, options.rates, options.splits, options.jobs)
        cells = [
            (one.rate, one.method, f"{one.found:.2f}", f"{one.answered:.3f}", f"{one.violated:.3f}")
            for one in rows
        ]
        title = f"{name}, {options.splits} splits, delta = {DELTA}"
        print_table(title, ("at most wrong", "method", "found", "answered", "violated"), cells)


def list_scorings(tables: Mapping[str, LabelledBatch]) -> Iterator[tuple[str, LabelledBatch]]:
    """Yield each recording with its own scores, and with those of self-consistency."""
    for name, table in tables.items():
        yield name, table
        if table.draws.answer_codes is not None:
            scores = score_by_agreement(table.draws.answer_codes)
            draws = replace(table.draws, scores=scores, precomputed={})
            yield f"{name}, scored by agreement", replace(table, draws=draws)


def compare_methods(table: LabelledBatch, rates: Sequence[str], splits: int, jobs: int = 1) -> list[Row]:
    """Run all methods at all rates on the same splits of a recording."""
    measure = partial(measure_split, table, tuple(rates))
    if jobs > 1:
        with ProcessPoolExecutor(jobs) as pool:
            found = list(pool.map(measure, range(splits)))
    else:
        found = [measure(seed) for seed in range(splits)]
    return [
        summarise_counts(rate, method, [one[rate, method] for one in found])
        for rate in rates
        for method in METHODS
    ]


def summarise_counts(rate: str, method: str, seen: Sequence[tuple[int, Counts]]) -> Row:
    """Summarise the number of test prompts and the counts of every split."""
    certified = [(size, *counts) for size, counts in seen if counts is not None]
    violated = sum(
        answered > 0 and 1.0 - binomial_p_value(wrong - 1, answered, float(rate)) <= REFUTATION_LEVEL
        for _, answered, wrong in certified
        if wrong > 0
    )
    return Row(
        rate=rate,
        method=method,
        found=len(certified) / len(seen),
        answered=sum(answered / size for size, answered, _ in certified) / len(seen),
        violated=violated / len(seen),
    )


def measure_split(
    table: LabelledBatch, rates: Sequence[str], seed: int
) -> dict[tuple[str, str], tuple[int, Counts]]:
    """Certify on one half of the prompts, and count answers on the other, by rate and method."""
    rows = make_split_plan(f"half {seed}", fit=0.0, test=0.5).list_rows(table)
    known, test = table.take(rows["calibration"]), table.take(rows["test"])
    return {
        (rate, name): (len(test), method(known, test, rate, seed))
        for rate in rates
        for name, method in METHODS.items()
    }


def find_best(labelled: LabelledBatch) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean score of each prompt, and whether its best candidate is wrong."""
    scores = labelled.draws.scores
    best = scores.argmin(axis=1)
    return scores.mean(axis=1), ~labelled.correct[np.arange(len(labelled)), best]


def count_answers_below(labelled: LabelledBatch, cut: float | None) -> Counts:
    """Count answers and wrong ones below a cut of the mean score."""
    if cut is None:
        return None
    means, wrong = find_best(labelled)
    return int((means <= cut).sum()), int((wrong & (means <= cut)).sum())


def run_baseline(known: LabelledBatch, test: LabelledBatch, rate: str, _: int) -> Counts:
    """Test the cuts in sequence, from the strictest with enough answers on."""
    passed = None
    for cut in CUTS:
        answered, wrong = count_answers_below(known, cut) or (0, 0)
        if binomial_p_value(0, answered, float(rate)) > LEVEL:
            continue  # too few answers, even if all of them were right
        if binomial_p_value(wrong, answered, float(rate)) > LEVEL:
            break
        passed = cut
    return count_answers_below(test, passed)


def run_control(known: LabelledBatch, test: LabelledBatch, rate: str, _: int) -> Counts:
    """Take the largest cut whose wrong answers are few enough, without a test."""
    counts = [(cut, *(count_answers_below(known, cut) or (0, 0))) for cut in CUTS]
    fine = [cut for cut, answered, wrong in counts if answered and wrong <= float(rate) * answered]
    return count_answers_below(test, max(fine, default=None))


def run_bot(known: LabelledBatch, test: LabelledBatch, rate: str, seed: int) -> Counts:
    """Certify a cut with bot mode, and follow it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            artifact = calibrate(known, max_wrong_rate=rate, delta=DELTA, seed=seed)
        except UnattainableTargetError:
            return None
    certificate = artifact.certified_bot.certificates[0]
    seen = compute_outcomes(artifact, test, certificate.alpha, cut=certificate.cut)
    return seen.count_answers(seen.decisions.answered)


METHODS: dict[str, Callable[[LabelledBatch, LabelledBatch, str, int], Counts]] = {
    "bot mode": run_bot,
    "baseline": run_baseline,
    "control": run_control,
}

if __name__ == "__main__":
    main()
