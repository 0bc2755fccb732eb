"""A labeler made from a judge that sees the reference: a model, a function, or an evaluator of openevals."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, TypeAlias

from langchain_core.runnables import Runnable, RunnableConfig, RunnableLambda
from langchain_core.runnables.utils import is_async_callable

from langchain_cfc.errors import InputError, LabelerError, VerifierError
from langchain_cfc.execution import Steps, Target
from langchain_cfc.labelers.base import BaseLabeler, LabelerInput
from langchain_cfc.verifiers.base import VerifierInput, combine_fingerprints
from langchain_cfc.verifiers.evaluators import EvaluatorVerifier, from_evaluator

Judge: TypeAlias = Runnable[Any, Any] | Callable[..., Any] | Callable[..., Awaitable[Any]]


class JudgeLabels(BaseLabeler):
    """Asks a judge about each distinct text of a prompt's candidates, concurrently.

    A function with a parameter `outputs` is called with keywords, as the evaluators of openevals are:
    `inputs` is the prompt, `outputs` the candidate's text, `reference_outputs` the reference. Any other
    function is called with `(prompt, reference, text)`, a Runnable with `{"prompt": ..., "reference": ...,
    "candidate": text}`. All may be async. The judge's result is read as by `from_evaluator` of
    `langchain_cfc.verifiers`.

    A result that cannot be read is asked for once more. If that one cannot be read either, the label is None:
    it counts as wrong, which costs answers but no promise, and it is counted.

    A judge makes mistakes, and a guarantee that was calibrated on its labels is about what the judge calls
    correct. Have people label a sample, use `compare_labels`, and see `bound_true_coverage`.

    Args:
        judge: A function or Runnable, plain or async, that returns True or False; or a number, with one of
            the two limits.
        at_least: Smallest number that means correct.
        at_most: Largest number that means correct, for a judge of a defect; True and False are the upper and
            the lower end of the range.
        key: See `from_evaluator`.
        range: Smallest and largest number that the judge gives; False and True are these ends.
        reference: The keyword for the reference, if the judge takes keywords; None does not pass it.
        arguments: For a Runnable only, see `from_evaluator`.

    Raises:
        InputError: If both limits are given, one lies outside of the range, the judge cannot be called, or
            `arguments` are given to a function.
    """

    def __init__(
        self,
        judge: Judge,
        *,
        at_least: float | None = None,
        at_most: float | None = None,
        key: str | None = None,
        range: tuple[float, float] = (0.0, 1.0),  # noqa: A002 - what evaluators call it
        reference: str | None = "reference_outputs",
        arguments: Target | None = None,
    ) -> None:
        self.name = "judge-labels"
        self._judge = judge
        self._make_verifier = partial(from_evaluator, key=key, range=range, higher_is_better=False)
        self._keyword = reference
        self._arguments = arguments
        if arguments is not None and not isinstance(judge, Runnable):
            msg = "arguments= is for Runnables only"
            raise InputError(msg)
        self._is_upper_limit = at_most is not None
        self._limit = _scale_limit(at_least, at_most, range)
        # Refuse an unusable judge now, and not at the first prompt.
        self._make_evaluator(None)
        rule = "as it says" if at_most is None else f"at most {at_most!r}"
        settings = {
            "correct": rule if at_least is None else f"at least {at_least!r}",
            "key": key or "its only one",
            "range": f"{range[0]!r} to {range[1]!r}",
            "reference": reference or "kept back",
        }
        parts = {"judge": judge, "arguments": arguments}
        self.fingerprint = combine_fingerprints(self.name, settings, parts)

    def __repr__(self) -> str:
        """State what is called correct."""
        return f"JudgeLabels(correct: {self.fingerprint['correct']})"

    def flow(self, given: LabelerInput, config: RunnableConfig) -> Steps[list[bool | None]]:
        """Ask the judge about each distinct text."""
        asked = VerifierInput(prompt=given["prompt"], candidates=given["candidates"])
        try:
            shares = yield from self._make_evaluator(given["reference"]).flow(asked, config)
        except VerifierError as error:
            raise LabelerError(str(error)) from error
        return [None if share is None else self._is_correct(share) for share in shares]

    def _make_evaluator(self, reference: Any) -> EvaluatorVerifier:
        """Make a verifier that passes the reference of one prompt to the judge."""
        judge = self._judge
        if isinstance(judge, Runnable):
            asked = RunnableLambda(partial(_add_reference, reference)) | judge
            return self._make_verifier(asked, arguments=self._arguments)
        if not callable(judge):
            msg = f"expected a judge, a function or Runnable, got a {type(judge).__name__}"
            raise InputError(msg)
        if not _takes_outputs(judge):
            # Not a closure, because closures cannot be pickled.
            function = _acall if is_async_callable(judge) else _call
            return self._make_verifier(partial(function, judge, reference))
        keyword = self._keyword
        arguments = None if keyword is None else partial(_make_keywords, keyword, reference)
        return self._make_verifier(judge, arguments=arguments)

    def _is_correct(self, share: float) -> bool:
        if self._limit is not None:
            return share <= self._limit if self._is_upper_limit else share >= self._limit
        if share in {0.0, 1.0}:
            return share == 1.0
        msg = (
            f"the judge returned neither True nor False, but a number at {share:g} of its range: pass "
            "at_least= or at_most= to say which numbers mean correct"
        )
        raise LabelerError(msg)


def _scale_limit(at_least: float | None, at_most: float | None, ends: tuple[float, float]) -> float | None:
    """Return the limit as a share of the range, by the same arithmetic as `EvaluatorVerifier` for numbers."""
    if at_least is not None and at_most is not None:
        msg = "at_least= and at_most= are mutually exclusive; give one"
        raise InputError(msg)
    limit = at_most if at_least is None else at_least
    if limit is None:
        return None
    low, high = ends
    if not low <= limit <= high:
        msg = f"the limit {limit!r} lies outside of the range from {low!r} to {high!r}"
        raise InputError(msg)
    return (limit - low) / (high - low)


def _takes_outputs(judge: Callable[..., Any]) -> bool:
    try:
        return "outputs" in inspect.signature(judge).parameters
    except (TypeError, ValueError):
        # A function that does not state its parameters cannot ask for keywords.
        return False


def _add_reference(reference: Any, pair: Mapping[str, Any]) -> dict[str, Any]:
    return {**pair, "reference": reference}


def _make_keywords(keyword: str, reference: Any, prompt: Any) -> dict[str, Any]:
    del prompt
    return {keyword: reference}


def _call(judge: Callable[..., Any], reference: Any, prompt: Any, candidate: str) -> Any:
    return judge(prompt, reference, candidate)


async def _acall(judge: Callable[..., Awaitable[Any]], reference: Any, prompt: Any, candidate: str) -> Any:
    return await judge(prompt, reference, candidate)
