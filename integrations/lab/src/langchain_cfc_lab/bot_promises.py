"""`compare_bot_promises`: what a bot would answer under each of three promises, from the fit split alone.

Each row takes the shares of wrong answers on the fit split for the true ones. With w of the f best-looking of
m prompts answered wrongly, and N other labelled prompts that are not held out,

- `max_wrong_rate` answers the largest share that about N labels certify (`plan_bot`);
- `max_wrong_share` answers the largest share with (1 + N w / m) / (N + 1) <= q f / m, the rule of a batch;
- `max_wrong_of_all` answers the largest share with w / m <= (N - ceil((1 - q) (N + 1))) / N, that of wrong
  answers above the order statistic that is the cut.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction
from typing import Literal

import numpy as np

from langchain_cfc.candidates import LabelledBatch
from langchain_cfc.evaluation import ReportData
from langchain_cfc.records.splits import make_split_plan
from langchain_cfc_lab.bot_plan import plan_bot, rank_answerable

RATES = ("0.02", "0.05", "0.1")
# Fewer prompts estimate no share of a few percent.
LEAST_FIT = 20

PromiseName = Literal["max_wrong_rate", "max_wrong_share", "max_wrong_of_all"]


class BotPromiseFigures(ReportData):
    """What a bot would answer under one promise, estimated from the fit split.

    Attributes:
        promise: `max_wrong_rate` (of the answered, certified), `max_wrong_share` (of a batch, on average) or
            `max_wrong_of_all` (of all questions, on average).
        rate: The largest share of wrong answers that is promised.
        answered: Share of all questions that are answered.
        wrong_of_answered: Share of wrong answers among these; 0 if nothing is answered.
        wrong_of_all: Share of all questions that are answered wrongly.
    """

    promise: PromiseName
    rate: float
    answered: float
    wrong_of_answered: float
    wrong_of_all: float


def compare_bot_promises(
    labelled: LabelledBatch, *, fit_fraction: float = 0.2, test_fraction: float = 0.2
) -> tuple[BotPromiseFigures, ...]:
    """Compare the three promises of a bot at 2, 5 and 10 %, to choose one.

    Only labels of the fit split (of seed 0) are read, because a promise on average holds only for settings
    that were chosen before the labels that calibrate it were seen, and for a certificate they are a look.

    Args:
        labelled: Labelled prompts with whole answers.
        fit_fraction: Share of the prompts not held out that is read, as in `calibrate`, in [0, 1).
        test_fraction: Share of all prompts that will be held out, in [0, 1).

    Returns:
        Nine rows, by rate and promise; none if the fit split has fewer than 20 prompts, or no answers.

    Raises:
        InputError: If a share is out of range, or prompts have weights.
    """
    rows = make_split_plan(0, fit=fit_fraction, test=test_fraction).list_rows(labelled)
    fit, others = labelled.take(rows["fit"]), len(rows["calibration"])
    if len(fit) < LEAST_FIT or not others or not len(rank_answerable(fit)[0]):
        return ()
    return tuple(_compare_at_rates(fit, others))


def _compare_at_rates(fit: LabelledBatch, others: int) -> Iterator[BotPromiseFigures]:
    means, wrong = rank_answerable(fit)
    # Prompts that tie are answered together or not at all.
    counts = np.flatnonzero(np.append(means[1:] != means[:-1], [True])) + 1
    for text in RATES:
        rate = Fraction(text)
        steps = plan_bot(fit, max_wrong_rate=text, test_fraction=0.0).rates[0].steps
        certified = [one.answered for one in steps if (one.prompts_needed or math.inf) <= others]
        above = others - math.ceil((1 - rate) * (others + 1))
        of_batch = 1 + others * wrong[counts] / len(fit) <= float(rate) * counts * (others + 1) / len(fit)
        reached: dict[PromiseName, int] = {
            "max_wrong_rate": round(max(certified, default=0.0) * len(fit)),
            "max_wrong_share": int(counts[of_batch].max(initial=0)),
            "max_wrong_of_all": int(counts[wrong[counts] * others <= above * len(fit)].max(initial=0)),
        }
        for promise, count in reached.items():
            yield BotPromiseFigures(
                promise=promise,
                rate=float(rate),
                answered=count / len(fit),
                wrong_of_answered=float(wrong[count]) / max(1, count),
                wrong_of_all=float(wrong[count]) / len(fit),
            )
