"""`JudgedEProcess`: a lower bound on a probability, from labels of all prompts by a judge, of some by people.

Prompts (Z_t, Y_t), t = 1, 2, ..., are independent and identically distributed; Y_t is 1 if people would say
that the promise is kept for prompt t. The bound is on mu = E Y, the probability for a future prompt, not on
the share among the prompts at hand. The judge sees every Z_t; people label prompt t with a probability
pi_t > 0 that is a function of Z_t alone, decided by a separate coin xi_t (the hash of the prompt's id).

*Bets.* Against the hypothesis mu <= m, with 0 <= lambda < 1/m chosen before the t-th prompt is seen, and any
g_t >= 0 chosen before its coin, the wealth is multiplied by

    g_t                                                    if people do not label it (xi_t = 0),
    (1 + lambda (Y_t - m) - (1 - pi_t) g_t) / pi_t         if they do.

Over the coin the mean of this is 1 + lambda (Y_t - m) for every g_t, and over the prompt it is at most 1
under the hypothesis. So the wealth is a test supermartingale as long as it stays non-negative, and ever
reaches 1/delta with probability at most delta (Ville 1939): people may stop at any time, for any reason.
With g_t = 1 + lambda (p_t - m) the factor is 1 + lambda (X_t - m) for X_t = p_t + (Y_t - p_t) xi_t / pi_t,
the prediction p_t of the judge corrected by people (prediction-powered inference: Angelopoulos, Bates,
Fannjiang, Jordan and Zrnic 2023; by betting: Waudby-Smith and Ramdas 2024, "Estimating means of bounded
random variables by betting", JRSS B 86; Csillag, Struchiner and Tegoni Goedert 2025, "Prediction-powered
e-values"). X_t reaches down to -p_t (1 / pi_t - 1), which keeps lambda small. Here g_t is chosen differently.

*The fastest growth.* With a_y = 1 + lambda (y - m), A_y = (a_y - (1 - pi) g) / pi and q the probability of
Y = 1 given Z, E log = pi (q log A_1 + (1 - q) log A_0) + (1 - pi) log g is concave in g, and largest where

    1 / g = q / A_1 + (1 - q) / A_0,

that is, at the smaller root of (1 - pi) g^2 - b g + a_0 a_1 = 0 with b = (1 - pi) (a_0 + a_1) + pi (q a_0 +
(1 - q) a_1). At g = a_0 / (1 - pi) the left side is pi (1 - q) (a_0 - a_1) a_0 / (1 - pi) <= 0, so the root
lies below, A_0 >= 0, and the wealth is never negative: no bound on weighted values is needed. A wrong q costs
growth, not validity. Without information in Z, q = mu, and where lambda / pi is the best lambda of people's
labels alone, the root is 1: then having a judge costs nothing.

*What is learned.* q is the share of kept promises among people's labels so far, by what the judge says and
how sure it is, with a weak prior. So a biased judge is corrected, and one that is right no more often than
chance is ignored. lambda maximises the growth that these shares predict, given how often each stratum
occurred so far. Both use earlier prompts only.

*The bound* is the largest m of a grid that is rejected together with all smaller ones. If it is mu or more,
the smallest m >= mu of the grid has been rejected, which has probability at most delta.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from langchain_cfc.support.arrays import BoolArray, FloatArray, IntArray

# Strata of prompts: the judge says that the promise is kept, and is sure or in doubt; it says that the
# promise is broken; or the outcome is known without a label.
SURE, DOUBTED, BROKEN, KNOWN = range(4)
# A judge whose doubt is at least this is not sure.
_LEAST_DOUBT = 0.25
# Prior counts of each stratum: kept and broken promises, and prompts.
_PRIOR_LABELS = np.array([(1.9, 0.1), (1.7, 0.3), (1.0, 1.0), (0.5, 0.5)])
_PRIOR_PROMPTS = np.array([4.0, 2.0, 2.0, 0.0])
# Probability that a prompt is labelled, relative to `share`: without doubt, and more per unit of doubt.
_INCLUSION_FACTORS = (0.7, 0.8)
# Fractions of the wealth to choose a bet from; the best is about proportional to the share labelled.
_BET_FRACTIONS = np.geomspace(0.001, 0.9, 20)
# The smallest share that people may label.
LEAST_SHARE = 0.01
# More than the round-off of the logarithm of the wealth after a million prompts.
_ROUND_OFF = 1e-6
# Hypotheses: probabilities in steps of half a percent, and of a tenth of one from 95 % on.
_HYPOTHESES = np.unique([*(np.arange(1, 200) / 200.0), *(np.arange(950, 1000) / 1000.0)])
LARGEST_TARGET = float(_HYPOTHESES[-1])
# How far ahead a forecast looks, in prompts, and how often it is repeated.
_FORECAST_STEPS = 10_000
_FORECASTS = 200


def compute_inclusion(share: float, doubt: FloatArray) -> FloatArray:
    """Return the probabilities with which people label prompts, given the judge's doubt in [0, 1].

    They grow from 0.7 times `share` without doubt to 1.5 times for the most doubtful prompts, capped at 1.
    """
    least, more = _INCLUSION_FACTORS
    return np.asarray(np.minimum(1.0, share * (least + more * doubt)), dtype=np.float64)


def assign_strata(kept: BoolArray, doubt: FloatArray, known: BoolArray) -> IntArray:
    """Return the stratum of each prompt, from what the judge says, its doubt, and if the outcome is known."""
    by_judge = np.where(kept, np.where(doubt < _LEAST_DOUBT, SURE, DOUBTED), BROKEN)
    return np.asarray(np.where(known, KNOWN, by_judge), dtype=np.int64)


def compute_payoffs(
    fraction: FloatArray, target: FloatArray, prediction: FloatArray, inclusion: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return what bets pay for prompts without a label, for kept promises and for broken ones.

    Args:
        fraction: Part of the wealth that is bet, lambda times the target, in [0, 1).
        target: The hypothesis: a promise is kept with at most this probability, in (0, 1).
        prediction: Probability that it is kept, given what the judge says, in (0, 1).
        inclusion: Probability that people label the prompt, in (0, 1].

    Returns:
        Three arrays of payoffs above 0, for a stake of 1.
    """
    broken = 1.0 - fraction
    kept = broken + fraction / target
    rest = 1.0 - inclusion
    middle = rest * (broken + kept) + inclusion * (prediction * broken + (1.0 - prediction) * kept)
    root = np.sqrt(np.maximum(middle * middle - 4.0 * rest * broken * kept, 0.0))
    unlabelled = 2.0 * broken * kept / (middle + root)
    return unlabelled, (kept - rest * unlabelled) / inclusion, (broken - rest * unlabelled) / inclusion


class JudgedPrompts(NamedTuple):
    """Prompts in the order in which they are bet on, with fields of shape (t,)."""

    strata: IntArray  # see `assign_strata`
    inclusion: FloatArray  # probability to be labelled by people; 1 in stratum `KNOWN`
    sampled: BoolArray  # whether people are to label it, or no label is needed

    @property
    def needs_label(self) -> BoolArray:
        """Which prompts people are to label."""
        return np.asarray(self.sampled & (self.strata != KNOWN), dtype=np.bool_)

    def get(self, rows: int | slice) -> JudgedPrompts:
        """Return one prompt, with fields of shape (), or several."""
        return JudgedPrompts(self.strata[..., rows], self.inclusion[..., rows], self.sampled[..., rows])


@dataclass(frozen=True)
class JudgedEProcess:
    """The evidence that a promise is kept often enough.

    It is of one sequence of prompts, until `update` is given the labels of several.
    """

    targets: FloatArray  # (g,) hypotheses, ascending
    wealth: FloatArray  # (..., g) logarithm of the wealth against each of them
    peak: FloatArray  # (..., g) its largest value so far; evidence is not taken back
    fractions: FloatArray  # (..., g) part of the wealth that is bet
    kept: FloatArray  # (..., s) promises kept by people's labels, by stratum
    labelled: FloatArray  # (..., s) people's labels
    prompts_met: FloatArray  # (..., s) prompts so far
    included: FloatArray  # (..., s) sum of their probabilities to be labelled
    refit_every: int  # prompts between two choices of bets: about as many as contain one label
    prompts: int = 0  # number of prompts so far

    @classmethod
    def start(cls, share: float, targets: FloatArray = _HYPOTHESES) -> JudgedEProcess:
        """Start before any prompt, with ascending hypotheses.

        Those by default do not depend on what is to be certified, so the target may change on the way.
        """
        return cls(
            targets=targets,
            wealth=np.zeros(len(targets)),
            peak=np.zeros(len(targets)),
            fractions=np.zeros(len(targets)),
            kept=_PRIOR_LABELS[:, 0],
            labelled=_PRIOR_LABELS.sum(axis=1),
            prompts_met=_PRIOR_PROMPTS,
            included=share * _PRIOR_PROMPTS,
            refit_every=max(1, round(1.0 / share)),
        )

    @property
    def predictions(self) -> FloatArray:
        """(..., s) probability that the promise is kept, by stratum, estimated from people's labels."""
        return self.kept / self.labelled

    def update(
        self, strata: IntArray, inclusion: FloatArray, sampled: BoolArray, kept: BoolArray
    ) -> JudgedEProcess:
        """Return the evidence after one more prompt of each sequence.

        Args:
            strata: (...) its stratum; of shape () if it is the same prompt in each sequence, as the next two.
            inclusion: (...) its probability to be labelled, 1 where no label is needed.
            sampled: (...) whether it is labelled, or needs no label.
            kept: (...) whether the promise is kept; looked at only where sampled.
        """
        fractions = self._choose_fractions() if self.prompts % self.refit_every == 0 else self.fractions
        member = strata[..., np.newaxis] == np.arange(len(_PRIOR_LABELS))
        prediction = (self.predictions * member).sum(axis=-1)
        pay, pay_kept, pay_broken = compute_payoffs(
            fractions, self.targets, prediction[..., np.newaxis], inclusion[..., np.newaxis]
        )
        by_label = np.where(kept[..., np.newaxis], pay_kept, pay_broken)
        wealth = self.wealth + np.log(np.where(sampled[..., np.newaxis], by_label, pay))
        seen = member & sampled[..., np.newaxis]
        return replace(
            self,
            wealth=wealth,
            peak=np.maximum(self.peak, wealth),
            fractions=fractions,
            kept=self.kept + (seen & kept[..., np.newaxis]),
            labelled=self.labelled + seen,
            prompts_met=self.prompts_met + member,
            included=self.included + member * inclusion[..., np.newaxis],
            prompts=self.prompts + 1,
        )

    def _choose_fractions(self) -> FloatArray:
        """Return the (..., g) fractions of wealth to bet for which the shares so far predict most growth."""
        met, shape = self.prompts_met, (..., np.newaxis, np.newaxis, slice(None))
        inclusion = np.where(met > 0.0, self.included / np.maximum(met, 1e-9), 1.0)[shape]
        predicted = self.predictions[shape]
        pay, pay_kept, pay_broken = compute_payoffs(
            _BET_FRACTIONS[:, np.newaxis], self.targets[:, np.newaxis, np.newaxis], predicted, inclusion
        )
        by_label = predicted * np.log(pay_kept) + (1.0 - predicted) * np.log(pay_broken)
        growth = inclusion * by_label + (1.0 - inclusion) * np.log(pay)
        mean = (growth * (met / met.sum(axis=-1, keepdims=True))[shape]).sum(axis=-1)
        best = mean.argmax(axis=-1)
        return np.where(mean.max(axis=-1) > 0.0, _BET_FRACTIONS[best], 0.0)

    def compute_bound(self, delta: float) -> FloatArray:
        """Return (...) lower bounds on the probability that the promise is kept; 0 if nothing is shown."""
        rejected = self.peak >= math.log(1.0 / delta) + _ROUND_OFF
        count = np.logical_and.accumulate(rejected, axis=-1).sum(axis=-1)
        return np.asarray(np.concatenate([[0.0], self.targets])[count], dtype=np.float64)

    def forecast_labels(self, target: float, delta: float, upcoming: JudgedPrompts) -> int | None:
        """Forecast how many more labels by people one sequence needs to reach a target.

        It is the median over simulations. In each, the promise is kept with a probability for each stratum
        that is drawn from its posterior given people's labels so far.

        Args:
            target: The probability to certify, at most the largest hypothesis.
            delta: Failure probability.
            upcoming: The (t,) prompts to come.

        Returns:
            The number of labels; None if these prompts are not expected to suffice.
        """
        place = int(np.searchsorted(self.targets, target))
        needed = math.log(1.0 / delta) + _ROUND_OFF
        if self.peak[place] >= needed:
            return 0
        names = ("targets", "wealth", "peak", "fractions")
        state = replace(self, **{name: getattr(self, name)[place : place + 1] for name in names})
        rng = np.random.default_rng(0)
        truth = rng.beta(self.kept, self.labelled - self.kept, (_FORECASTS, len(_PRIOR_LABELS)))
        spent = 0
        for row in range(min(len(upcoming.strata), _FORECAST_STEPS)):
            chance = truth[:, int(upcoming.strata[row])]
            state = state.update(*upcoming.get(row), rng.random(_FORECASTS) < chance)
            spent += bool(upcoming.needs_label[row])
            if 2 * int((state.peak[:, 0] >= needed).sum()) >= _FORECASTS:
                return spent
        return None
