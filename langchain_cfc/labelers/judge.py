"""A labeler made from a judge that sees the reference: a model, a function, or an evaluator of openevals."""

from __future__ import annotations

from functools import partial

from langchain_core.runnables import RunnableConfig

from langchain_cfc.errors import InputError, LabelerError, VerifierError
from langchain_cfc.execution import Steps, Target, map_distinct
from langchain_cfc.labelers.base import BaseLabeler, LabelerInput
from langchain_cfc.verifiers.base import combine_fingerprints
from langchain_cfc.verifiers.evaluators import Evaluator, EvaluatorCall


class JudgeLabels(BaseLabeler):
    """Asks a judge about each distinct text of a prompt's candidates, concurrently.

    A function with a parameter `outputs` is called with keywords, as the evaluators of openevals are:
    `inputs` is the prompt, `outputs` the candidate's text, `reference_outputs` the reference; of the first
    and the last only what it takes. Any other function is called with `(prompt, reference, text)`, a Runnable
    with `{"prompt": ..., "reference": ..., "candidate": text}`. All may be async. The judge's result is read
    as by `from_evaluator` of `langchain_cfc.verifiers`.

    A result that cannot be read is asked for once more. If that one cannot be read either, the label is None:
    it counts as wrong, which costs answers but no promise, and it is counted.

    A judge makes mistakes, and a guarantee that was calibrated on its labels is about what the judge calls
    correct. Have people label a sample: `compare_labels` measures the judge, `PeopleSample` certifies.

    Args:
        judge: A function or Runnable, plain or async, that returns True or False; or a number, with one of
            the two limits.
        at_least: Smallest number that means correct.
        at_most: Largest number that means correct, for a judge of a defect; True and False are the upper and
            the lower end of the range.
        key: See `from_evaluator`.
        range: Smallest and largest number that the judge gives; False and True are these ends.
        arguments: See `from_evaluator`.

    Raises:
        InputError: If both limits are given, one lies outside of the range, or as `from_evaluator`.
    """

    def __init__(
        self,
        judge: Evaluator,
        *,
        at_least: float | None = None,
        at_most: float | None = None,
        key: str | None = None,
        range: tuple[float, float] = (0.0, 1.0),  # noqa: A002 - what evaluators call it
        arguments: Target | None = None,
    ) -> None:
        self.name = "judge-labels"
        self._is_upper_limit = at_most is not None
        self._limit = _scale_limit(at_least, at_most, range)
        self._judge = EvaluatorCall(judge, key, range, arguments, ("prompt", "reference"))
        rule = "as it says" if at_most is None else f"at most {at_most!r}"
        settings = {
            "correct": rule if at_least is None else f"at least {at_least!r}",
            "key": key or "its only one",
            "range": f"{range[0]!r} to {range[1]!r}",
        }
        parts = {"judge": judge, "arguments": arguments}
        self.fingerprint = combine_fingerprints(self.name, settings, parts)

    def __repr__(self) -> str:
        """State what is called correct."""
        return f"JudgeLabels(correct: {self.fingerprint['correct']})"

    def flow(self, given: LabelerInput, config: RunnableConfig) -> Steps[list[bool | None]]:
        """Ask the judge about each distinct text."""
        asked = {"prompt": given["prompt"], "reference": given["reference"]}
        texts = [candidate.text for candidate in given["candidates"]]
        try:
            shares = yield from map_distinct(texts, partial(self._judge.compute_shares, asked, config))
        except VerifierError as error:
            raise LabelerError(str(error)) from error
        return [None if share is None else self._is_correct(share) for share in shares]

    def _is_correct(self, share: float) -> bool:
        if self._limit is not None:
            return share <= self._limit if self._is_upper_limit else share >= self._limit
        if share in {0.0, 1.0}:
            return share == 1.0
        msg = (
            f"the judge returned neither True nor False, but a number at {share:g} of its range: pass "
            "`at_least=` or `at_most=` to say which numbers mean correct"
        )
        raise LabelerError(msg)


def _scale_limit(at_least: float | None, at_most: float | None, ends: tuple[float, float]) -> float | None:
    """Return the limit as a share of the range, by the same arithmetic as `EvaluatorCall`."""
    if at_least is not None and at_most is not None:
        msg = "`at_least=` and `at_most=` are mutually exclusive; give one"
        raise InputError(msg)
    limit = at_most if at_least is None else at_least
    if limit is None:
        return None
    low, high = ends
    if not low <= limit <= high:
        msg = f"the limit {limit!r} lies outside of the range from {low!r} to {high!r}"
        raise InputError(msg)
    return (limit - low) / (high - low)
