"""How far labels can be trusted: agreement with people, and what mistakes do to the guaranteed coverage.

**Agreement.** Let p_jh be the share of candidates that a judge labels j and people label h, and p_j. and p_.h
the shares of either alone. The observed agreement is p_o = sum_k p_kk, the agreement by chance is
p_e = sum_k p_k. p_.k, and kappa = (p_o - p_e) / (1 - p_e) (Cohen 1960). Kappa is a smooth function of the
shares. By the delta method, the error of its estimate is the mean over the candidates of

    u = (1{j = h} - (1 - kappa) (p_.j + p_h.) - p_o + 2 (1 - kappa) p_e) / (1 - p_e).

For independent candidates the variance is mean(u^2) / N, which is that of Fleiss, Cohen and Everitt (1969,
"Large sample standard errors of kappa and weighted kappa", Psychological Bulletin 72), equation 13.
Candidates of one prompt are not independent. Then the sums of u over each of I prompts replace its values:

    var(kappa) = I / (I - 1) sum_i (sum of u in prompt i)^2 / N^2.

The interval is computed on the scale of atanh(kappa), which keeps it within [-1, 1] and covers better if one
label is rare. It is also no shorter than I prompts allow: what none of them showed may still happen to a
share u of prompts, where (1 - u)^I = (1 - confidence) / 2. If that share were all disagreement, kappa would
move down by u p_o / (1 - p_e); if it were all agreement, kappa would move up by u (1 - p_o) / (1 - p_e).

**Mistakes.** Calibration guarantees that the answer set holds a candidate that is *labelled* correct, with
probability at least c = 1 - alpha. Let L be that event, and T the event that the set holds a candidate that
*is* correct; "or the prompt is flagged" may be added to both, because a flag does not depend on the prompt's
labels. Wrong candidates are labelled correct with probability e0.

*Independent mistakes.* Suppose that, given which candidates are correct and everything that the set is made
from, distinct answers are labelled independently of one another, and wrong ones correct with probability at
most e0. If the set, of at most m distinct answers, holds no correct one, L requires a mistake on one of them:
P(L | not T) <= q = 1 - (1 - e0)^m. So 1 - c >= P(not L) >= (1 - q) P(not T), and

    P(T) >= 1 - (1 - c) / (1 - e0)^m.

Correct candidates that are labelled wrong cost no coverage: they make thresholds and answer sets larger.

*Any mistakes.* A judge may err on the same kind of answer again and again, and most often where the score is
best. Then nothing better than counting holds: L without T requires a wrong candidate that is labelled
correct. With W wrong candidates per prompt on average, of which a share e0 is labelled correct,

    P(T) >= P(L) - e0 W,

and there are mistakes that attain it.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Hashable, Sequence
from statistics import NormalDist

from pydantic import BaseModel, ConfigDict

from langchain_cfc.certificates.bounds import clopper_pearson
from langchain_cfc.errors import InputError


class IntervalEstimate(BaseModel):
    """Estimated number with its two-sided confidence interval."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    value: float | None  # the observed number; None without any observation
    low: float
    high: float


class Agreement(BaseModel):
    """A judge's labels compared with those of people, which are assumed to be right.

    Attributes:
        correct_called_correct: Number of correct candidates that the judge calls correct.
        correct_called_wrong: Number of correct candidates that it calls wrong.
        wrong_called_correct: Number of wrong candidates that it calls correct.
        wrong_called_wrong: Number of wrong candidates that it calls wrong.
        prompts: Number of independent prompts that these candidates are from.
        confidence: Confidence level of the intervals.
        error_on_correct: Share of the correct candidates that are called wrong, e1.
        error_on_wrong: Share of the wrong candidates that are called correct, e0.
        kappa: Agreement beyond chance, in [-1, 1]: 1 for labels that always agree, 0 for labels that agree as
            often as by chance. None if both give every candidate the same label, because agreement by chance
            is then perfect as well. The interval is approximate, and too short if either side gave one of the
            labels to fewer than about ten independent candidates.
    """

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    correct_called_correct: int
    correct_called_wrong: int
    wrong_called_correct: int
    wrong_called_wrong: int
    prompts: int
    confidence: float
    error_on_correct: IntervalEstimate
    error_on_wrong: IntervalEstimate
    kappa: IntervalEstimate | None


def compare_labels(
    judge: Sequence[bool],
    people: Sequence[bool],
    prompts: Sequence[Hashable] | None = None,
    confidence: float = 0.95,
) -> Agreement:
    """Compare a judge's labels with those of people.

    Args:
        judge: N labels, True where the judge calls the candidate correct.
        people: N labels of the same candidates.
        prompts: The id of each candidate's prompt. By default all candidates are treated as independent; if
            several are of one prompt, the interval is then too short.
        confidence: Confidence level of the intervals, in (0, 1).

    Returns:
        The confusion table, and the shares of mistakes and kappa with their intervals.

    Raises:
        InputError: If there are no candidates, their numbers differ, a label is not a boolean, or the
            confidence is not in (0, 1).

    Examples:
        >>> found = compare_labels([True, True, False, False], [True, False, False, False])
        >>> found.error_on_wrong.value, found.kappa.value
        (0.3333333333333333, 0.5)
    """
    _check_labels(judge, people, prompts, confidence)
    pairs = list(zip(judge, people, strict=True))
    counts = Counter(pairs)
    names: Sequence[Hashable] = range(len(pairs)) if prompts is None else prompts
    on_correct, on_wrong = (
        estimate_rate(
            counts[not side, side],
            [name for name, (_, truth) in zip(names, pairs, strict=True) if truth is side],
            confidence,
        )
        for side in (True, False)
    )
    return Agreement(
        correct_called_correct=counts[True, True],
        correct_called_wrong=counts[False, True],
        wrong_called_correct=counts[True, False],
        wrong_called_wrong=counts[False, False],
        prompts=len(set(names)),
        confidence=confidence,
        error_on_correct=on_correct,
        error_on_wrong=on_wrong,
        kappa=_compute_kappa(pairs, names, confidence),
    )


def estimate_rate(part: int, prompts: Sequence[Hashable], confidence: float) -> IntervalEstimate:
    """Return the share `part` / number of candidates with its interval, given each candidate's prompt.

    The interval is that of Clopper and Pearson. If prompts have several candidates, the i-th m_i, the
    variance of the share is largest if mistakes come together. Then it equals the variance of
    (sum m_i)^2 / sum m_i^2 independent ones (Kish 1965, "Survey Sampling"), and the interval for that number
    is used as an approximation.
    """
    total = len(prompts)
    if total == 0:
        return IntervalEstimate(value=None, low=0.0, high=1.0)
    size = total**2 / sum(count**2 for count in Counter(prompts).values())
    low, high = clopper_pearson(part * size / total, size, confidence)
    return IntervalEstimate(value=part / total, low=low, high=high)


def bound_true_coverage(labelled: float, *, error_on_wrong: float, largest_set: int) -> float:
    """Bound true coverage from below given labelled coverage, for independent mistakes of the labeler.

    This assumes that, given which candidates are correct and everything that the set is made from (scores and
    features included), distinct answers are labelled independently of one another. A judge that is fooled by
    the same kind of answer as the verifier violates this; `bound_true_coverage_at_worst` does not assume it.
    The bound also holds for *covered or flagged*, and within a group, with the rate of the group.

    Args:
        labelled: Share of prompts whose set holds a candidate labelled correct, guaranteed or measured, in
            [0, 1].
        error_on_wrong: Largest probability that a wrong candidate is labelled correct, e0, in [0, 1]. For an
            estimated rate, pass the upper end of its interval.
        largest_set: Largest number m of distinct answers in a set; at most n.

    Returns:
        Lower bound of the share of prompts whose set holds a correct candidate: 1 - (1 - labelled)
        / (1 - e0)^m, not below 0.

    Raises:
        InputError: If a number lies outside of its range.

    Examples:
        >>> round(bound_true_coverage(0.9, error_on_wrong=0.02, largest_set=5), 3)
        0.889
    """
    _check_shares(labelled, error_on_wrong)
    if not isinstance(largest_set, int) or largest_set < 1:  # type: ignore[redundant-expr]  # floats come too
        msg = f"largest_set is {largest_set!r}; expected a whole number of at least 1"
        raise InputError(msg)
    # A large power may underflow to 0, and then the bound is 0.
    right = (1.0 - error_on_wrong) ** largest_set
    return max(0.0, 1.0 - (1.0 - labelled) / right) if right > 0.0 else 0.0


def bound_true_coverage_at_worst(labelled: float, *, error_on_wrong: float, wrong_per_prompt: float) -> float:
    """Bound true coverage from below given labelled coverage, for mistakes that may depend on anything.

    Args:
        labelled: As in `bound_true_coverage`.
        error_on_wrong: Share of all wrong candidates that are labelled correct, e0, in [0, 1].
        wrong_per_prompt: Mean number of wrong candidates per prompt, at least 0.

    Returns:
        labelled - e0 W, not below 0.

    Raises:
        InputError: If a number lies outside of its range.
    """
    _check_shares(labelled, error_on_wrong)
    if not 0.0 <= wrong_per_prompt < math.inf:
        msg = f"wrong_per_prompt is {wrong_per_prompt!r}; expected a finite number of at least 0"
        raise InputError(msg)
    return max(0.0, labelled - error_on_wrong * wrong_per_prompt)


def _check_shares(labelled: float, error_on_wrong: float) -> None:
    shares = {"labelled": labelled, "error_on_wrong": error_on_wrong}
    for name, share in shares.items():
        if not 0.0 <= share <= 1.0:
            msg = f"{name} is {share!r}; expected a share in [0, 1]"
            raise InputError(msg)


def _check_labels(
    judge: Sequence[bool], people: Sequence[bool], prompts: Sequence[Hashable] | None, confidence: float
) -> None:
    sizes = {len(judge), len(people), len(judge if prompts is None else prompts)}
    if len(sizes) > 1 or sizes == {0}:
        of_prompts = "" if prompts is None else f" from {len(prompts)} prompts"
        msg = (
            f"got {len(judge)} labels of the judge and {len(people)} of people{of_prompts}; expected "
            "equally many, at least one"
        )
        raise InputError(msg)
    for label in (*judge, *people):
        if not isinstance(label, bool):
            msg = f"a label is {label!r}; expected True or False"
            raise InputError(msg)
    if not 0.0 < confidence < 1.0:
        msg = f"confidence must lie strictly between 0 and 1, got {confidence}"
        raise InputError(msg)


def _compute_kappa(
    pairs: Sequence[tuple[bool, bool]], prompts: Sequence[Hashable], confidence: float
) -> IntervalEstimate | None:
    size = len(pairs)
    calls, truths = Counter(call for call, _ in pairs), Counter(truth for _, truth in pairs)
    # In whole numbers, so that round-off cannot make agreement by chance look like 1.
    by_chance = sum(calls[label] * truths[label] for label in (True, False))
    if by_chance == size**2:
        return None
    observed, expected = sum(call == truth for call, truth in pairs) / size, by_chance / size**2
    kappa = (observed - expected) / (1.0 - expected)
    sums: defaultdict[Hashable, float] = defaultdict(float)
    for (call, truth), prompt in zip(pairs, prompts, strict=True):
        shares = (truths[call] + calls[truth]) / size
        error = (call == truth) - observed - (1.0 - kappa) * (shares - 2.0 * expected)
        sums[prompt] += error / (1.0 - expected)
    deviation = _compute_deviation(list(sums.values()), size)
    low, high = _compute_interval(kappa, NormalDist().inv_cdf(0.5 + confidence / 2.0) * deviation)
    # What none of the prompts showed may still happen to a share `unseen` of prompts.
    unseen = 1.0 - ((1.0 - confidence) / 2.0) ** (1.0 / len(sums))
    low = min(low, kappa - unseen * observed / (1.0 - expected))
    high = max(high, kappa + unseen * (1.0 - observed) / (1.0 - expected))
    return IntervalEstimate(value=kappa, low=max(-1.0, low), high=min(1.0, high))


def _compute_interval(kappa: float, half: float) -> tuple[float, float]:
    """Return kappa minus and plus `half`, on the scale of its inverse hyperbolic tangent."""
    if abs(kappa) >= 1.0:
        return kappa, kappa
    centre, half = math.atanh(kappa), half / (1.0 - kappa**2)
    return math.tanh(centre - half), math.tanh(centre + half)


def _compute_deviation(sums: Sequence[float], size: int) -> float:
    """Return the standard error from the sums over prompts; infinite if there is only one prompt."""
    if len(sums) == 1:
        return math.inf
    return math.sqrt(len(sums) / (len(sums) - 1) * math.fsum(one * one for one in sums)) / size
