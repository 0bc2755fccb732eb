"""How far labels can be trusted: a judge's labels compared with those of people.

Kappa is the agreement beyond chance (Cohen 1960): (p_o - p_e) / (1 - p_e), where p_o is the share of
candidates with the same label of both, and p_e the same share if labels were exchanged at random.

A guarantee is overstated by wrong candidates that are labelled correct, whose share is `error_on_wrong`. It
says nothing about which: a judge may err where the verifier errs, on the answers that are served. What a
promise is worth in truth is certified by people's labels of a random sample, see `PeopleSample`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence

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
            is then perfect as well.
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
    kappa: float | None


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
        The confusion table, the shares of mistakes with their intervals, and kappa.

    Raises:
        InputError: If there are no candidates, their numbers differ, a label is not a boolean, or the
            confidence is not in (0, 1).

    Examples:
        >>> found = compare_labels([True, True, False, False], [True, False, False, False])
        >>> found.error_on_wrong.value, found.kappa
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
        kappa=_compute_kappa(pairs),
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


def _compute_kappa(pairs: Sequence[tuple[bool, bool]]) -> float | None:
    size = len(pairs)
    calls, truths = Counter(call for call, _ in pairs), Counter(truth for _, truth in pairs)
    # In whole numbers, so that round-off cannot make agreement by chance look like 1.
    by_chance = sum(calls[label] * truths[label] for label in (True, False))
    observed = size * sum(call == truth for call, truth in pairs)
    return None if by_chance == size**2 else (observed - by_chance) / (size**2 - by_chance)
