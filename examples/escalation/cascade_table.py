"""What the cascade costs, and how often it is wrong, over many splits, next to its alternatives.

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
    RATE_CHEAP,
    RATE_STRONG,
    FirstTier,
    Outcomes,
    Split,
    certify_second_tier,
    certify_tier,
    decide_questions,
)
from two_models import CHEAP, STRONG


@dataclass(frozen=True)
class Row:
    """One split, or the mean over splits; shares of the test questions unless it says otherwise.

    Attributes:
        cost: Of a question, as a share of what asking the strong model costs.
        cheap: Answered by the cheap tier.
        strong: Answered by the strong tier.
        person: Passed on to the person.
        cheap_wrong: Share of the cheap tier's answers that are wrong; NaN without one.
        strong_wrong: The same of the strong tier.
        wrong: The same of both together.
    """

    cost: float
    cheap: float
    strong: float
    person: float
    cheap_wrong: float
    strong_wrong: float
    wrong: float


def _divide(wrong: int, answered: int) -> float:
    return wrong / answered if answered else math.nan


def _make_row(cost: float, first: Outcomes | None, second: Outcomes, size: int) -> Row:
    cheap = (0, 0) if first is None else (int(first.answered.sum()), int(first.wrong.sum()))
    strong = int(second.answered.sum()), int(second.wrong.sum())
    answered, wrong = cheap[0] + strong[0], cheap[1] + strong[1]
    return Row(
        cost=cost,
        cheap=cheap[0] / size,
        strong=strong[0] / size,
        person=1.0 - answered / size,
        cheap_wrong=_divide(cheap[1], cheap[0]),
        strong_wrong=_divide(strong[1], strong[0]),
        wrong=_divide(wrong, answered),
    )


def cascade(split: Split, first: FirstTier, *, naive: bool = False) -> Row:
    """A cascade on the test part of a split; see `certify_second_tier` for `naive`."""
    passed_on = ~first.on_test.answered
    artifact = certify_second_tier(STRONG, split, first, naive=naive)
    second = decide_questions(artifact, STRONG, split.test[passed_on])
    cost = CHEAP.cost / STRONG.cost + float(passed_on.mean())
    return _make_row(cost, first.on_test, second, len(split.test))


def strong_alone(split: Split) -> Row:
    """The strong model asked everything, certified on all questions that do not test."""
    rows = np.sort(np.concatenate([split.first, split.second]))
    outcomes = decide_questions(certify_tier(STRONG, rows, RATE_STRONG), STRONG, split.test)
    return _make_row(1.0, None, outcomes, len(split.test))


WAYS: dict[str, Callable[[Split, FirstTier], Row]] = {
    "strong model alone": lambda split, _: strong_alone(split),
    "cascade": cascade,
    "naive cascade": lambda split, first: cascade(split, first, naive=True),
}


def measure_splits(ways: Iterable[str], splits: int, rate: str = RATE_CHEAP) -> dict[str, list[Row]]:
    """Measure each way on the splits by the seeds 0, 1, ...

    Args:
        ways: Names of `WAYS`.
        splits: How many.
        rate: Rate of the cheap tier.

    Returns:
        By way, a row for each split.
    """
    rows: dict[str, list[Row]] = {name: [] for name in ways}
    for seed in range(splits):
        split = Split.of(CHEAP, seed)
        first = FirstTier.of(CHEAP, split, rate)
        for name, found in rows.items():
            found.append(WAYS[name](split, first))
    return rows


def compute_mean(rows: Sequence[Row]) -> Row:
    """Compute the mean of each column over rows."""
    return Row(**{name: float(np.mean([getattr(row, name) for row in rows])) for name in vars(rows[0])})


def format_table(means: dict[str, Row]) -> str:
    """Format the means as a table in Markdown."""
    heads = ["", "cost", "cheap", "strong", "person", "cheap wrong", "strong wrong", "wrong"]
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
