"""What the cascade costs and keeps, over many splits of the questions, next to its alternatives.

    python cascade_table.py                 over 50 splits
    python cascade_table.py --splits 10     a quick look

Splits by different seeds are independent, but share their questions: the table speaks of this recording.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from cascade import (
    ALPHA_CHEAP,
    ALPHA_STRONG,
    BY_DIFFICULTY,
    FirstTier,
    Split,
    calibrate_second_tier,
    calibrate_tier,
    decide_questions,
)
from two_models import CHEAP, STRONG

ONE_THRESHOLD = "1"


@dataclass(frozen=True)
class Row:
    """One split, or the mean over splits; shares of the test questions unless it says otherwise.

    Attributes:
        cost: Of a question, as a share of what asking the strong model costs.
        cheap: Answered by the cheap tier.
        strong: Answered by the strong tier.
        person: Passed on to the person.
        cheap_kept: Share on which the cheap tier kept its promise: covered or flagged; NaN without one.
        strong_kept: The same of the strong tier, among the questions that it was asked.
        right: Got a set with a correct answer.
        wrong: Got a set without one.
    """

    cost: float
    cheap: float
    strong: float
    person: float
    cheap_kept: float
    strong_kept: float
    right: float
    wrong: float


def cascade(split: Split, first: FirstTier, features: str = BY_DIFFICULTY, *, naive: bool = False) -> Row:
    """A cascade on the test part of a split; see `calibrate_second_tier` for the options."""
    passed_on = ~first.on_test.answered
    artifact = calibrate_second_tier(STRONG, split, first, features, naive=naive)
    second = decide_questions(artifact, STRONG, split.test[passed_on])
    asked = float(passed_on.mean())
    answered = 1.0 - asked, asked * float(second.answered.mean())
    right = float(first.on_test.covered.mean()) + asked * float(second.covered.mean())
    return Row(
        cost=CHEAP.cost / STRONG.cost + asked,
        cheap=answered[0],
        strong=answered[1],
        person=1.0 - sum(answered),
        cheap_kept=float(first.on_test.kept.mean()),
        strong_kept=float(second.kept.mean()),
        right=right,
        wrong=sum(answered) - right,
    )


def strong_alone(split: Split) -> Row:
    """The strong model asked everything, calibrated on all questions that do not test."""
    rows = np.sort(np.concatenate([split.first, split.second]))
    one = decide_questions(calibrate_tier(STRONG, rows, ALPHA_STRONG, BY_DIFFICULTY), STRONG, split.test)
    answered, right = float(one.answered.mean()), float(one.covered.mean())
    return Row(
        cost=1.0,
        cheap=0.0,
        strong=answered,
        person=1.0 - answered,
        cheap_kept=math.nan,
        strong_kept=float(one.kept.mean()),
        right=right,
        wrong=answered - right,
    )


WAYS: dict[str, Callable[[Split, FirstTier], Row]] = {
    "strong model alone": lambda split, _: strong_alone(split),
    "cascade": cascade,
    "naive cascade": lambda split, first: cascade(split, first, naive=True),
    "cascade, one threshold": lambda split, first: cascade(split, first, ONE_THRESHOLD),
    "naive, one threshold": lambda split, first: cascade(split, first, ONE_THRESHOLD, naive=True),
}


def measure_splits(ways: Iterable[str], splits: int, alpha: str = ALPHA_CHEAP) -> dict[str, list[Row]]:
    """Measure each way on the splits by the seeds 0, 1, ...

    Args:
        ways: Names of `WAYS`.
        splits: How many.
        alpha: Level of the cheap tier.

    Returns:
        By way, a row for each split.
    """
    rows: dict[str, list[Row]] = {name: [] for name in ways}
    for seed in range(splits):
        split = Split.of(CHEAP, seed)
        first = FirstTier.of(CHEAP, split, alpha)
        for name, found in rows.items():
            found.append(WAYS[name](split, first))
    return rows


def compute_mean(rows: Sequence[Row]) -> Row:
    """Compute the mean of each column over rows."""
    return Row(**{name: float(np.mean([getattr(row, name) for row in rows])) for name in vars(rows[0])})


def format_table(means: dict[str, Row]) -> str:
    """Format the means as a table in Markdown."""
    heads = ["", "cost", "cheap", "strong", "person", "cheap kept", "strong kept", "right set", "wrong set"]
    lines = [heads, ["---"] + ["---:"] * (len(heads) - 1)]
    lines += [[name, *map(_percent, vars(row).values())] for name, row in means.items()]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _percent(share: float) -> str:
    return "" if math.isnan(share) else f"{100 * share:.1f} %"


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure all ways on random splits, and print the table."""
    parser = argparse.ArgumentParser(description="What a cascade of two models costs and keeps.")
    parser.add_argument("--splits", type=int, default=50, help="how many random splits (%(default)s)")
    options = parser.parse_args(arguments)
    print(
        format_table(
            {name: compute_mean(rows) for name, rows in measure_splits(WAYS, options.splits).items()}
        )
    )


if __name__ == "__main__":
    main()
