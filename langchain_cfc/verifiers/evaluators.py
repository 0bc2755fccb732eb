"""A verifier out of an evaluator that somebody has already, such as one of openevals."""

from __future__ import annotations

import inspect
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

from langchain_core.prompt_values import PromptValue, StringPromptValue
from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.runnables.utils import is_async_callable

from langchain_cfc.errors import InputError, VerifierError
from langchain_cfc.execution import Call, Steps, Target, call_by_keys
from langchain_cfc.sampling import without_streaming_and_cache
from langchain_cfc.verifiers.base import (
    BaseVerifier,
    VerifierInput,
    combined_fingerprint,
    distinct_texts,
    to_python_scalar,
)

Evaluator: TypeAlias = Runnable[Any, Any] | Callable[..., Any] | Callable[..., Awaitable[Any]]
Arguments: TypeAlias = Runnable[Any, Any] | Callable[[Any], Any] | Callable[[Any], Awaitable[Any]]


class EvaluatorVerifier(BaseVerifier):
    """Asks an evaluator about each distinct text of a prompt's candidates, concurrently.

    The score lies in [0, 1], and smaller is better, whichever way the evaluator counts. Made by
    `from_evaluator`.
    """

    def __init__(
        self,
        evaluator: Evaluator,
        key: str | None,
        higher_is_better: bool,
        ends: tuple[float, float],
        arguments: Arguments | None,
    ) -> None:
        self.name = "evaluator"
        self.key = key
        self.higher_is_better = higher_is_better
        self.ends = ends
        settings = {
            "key": key or "its only one",
            "better": "higher" if higher_is_better else "lower",
            "range": f"{ends[0]!r} to {ends[1]!r}",
            "arguments": "none" if arguments is None else "own",
        }
        parts: dict[str, object] = {"evaluator": evaluator}
        if arguments is not None:
            parts["arguments"] = arguments
        self.fingerprint = combined_fingerprint(self.name, settings, parts)
        target, self._by_keyword = _target(evaluator)
        self._call = Call("evaluator", target, VerifierError)
        further = (
            without_streaming_and_cache(arguments, fresh=False)
            if isinstance(arguments, Runnable)
            else arguments
        )
        self._arguments = None if further is None else Call("arguments function", further, VerifierError)
        if self._arguments is not None and not self._by_keyword:
            msg = "arguments= is for evaluators that take keywords, outputs= among them; this one does not"
            raise InputError(msg)

    def __repr__(self) -> str:
        """Which value is read, and how."""
        better = "higher" if self.higher_is_better else "lower"
        return f"Evaluated(key={self.key!r}, {better} is better, {self.ends[0]:g} to {self.ends[1]:g})"

    def scored(self, given: VerifierInput, config: RunnableConfig) -> Steps[list[float]]:
        """One evaluation per distinct text."""
        texts = distinct_texts(given["candidates"])
        prompt = given["prompt"]
        if self._by_keyword:
            further = yield from self._further(prompt, config)
            asked = [{"inputs": to_evaluator_inputs(prompt), "outputs": text, **further} for text in texts]
        else:
            asked = [{"prompt": prompt, "candidate": text} for text in texts]
        results = yield from self._call.each(asked, config)
        by_text = {text: self._score(result) for text, result in zip(texts, results, strict=True)}
        return [by_text[candidate.text] for candidate in given["candidates"]]

    def _further(self, prompt: Any, config: RunnableConfig) -> Steps[dict[str, Any]]:
        if self._arguments is None:
            return {}
        found = yield from self._arguments.one(prompt, config)
        if not isinstance(found, Mapping):
            msg = f"arguments= returned a {type(found).__name__}; expected a mapping of keyword arguments"
            raise VerifierError(msg)
        return dict(found)

    def _score(self, result: Any) -> float:
        share = self._share(_value(result, self.key))
        return 1.0 - share if self.higher_is_better else share

    def _share(self, value: Any) -> float:
        """How far up a value lies between the ends."""
        number = to_python_scalar(value)
        if isinstance(number, bool):
            return float(number)
        low, high = self.ends
        # NaN fails this as well.
        if isinstance(number, (int, float)) and low <= number <= high:
            return (number - low) / (high - low)
        msg = (
            f"the evaluator returned {value!r:.80}; expected True, False or a number from {low:g} to "
            f"{high:g}. range=(low, high) states another range"
        )
        raise VerifierError(msg)


def from_evaluator(
    evaluator: Evaluator,
    *,
    key: str | None = None,
    higher_is_better: bool = True,
    range: tuple[float, float] = (0.0, 1.0),  # noqa: A002 - what evaluators call it
    arguments: Arguments | None = None,
) -> EvaluatorVerifier:
    """A verifier out of an evaluator.

    An evaluator with a parameter `outputs` is called with keywords, as those of openevals are: `inputs` is
    the prompt, `outputs` the candidate's text. A Runnable is invoked with `{"prompt": ..., "candidate":
    text}`, any other function called with `(prompt, text)`. All may be async.

    It returns a number, a bool, a mapping or object with a `score`, or a list of such mappings. Models inside
    of a function are out of reach: those of a judge that quotes candidates should be made with
    `disable_streaming=True`, or whoever streams the chain sees its tokens.

    Args:
        evaluator: A function or Runnable, plain or async.
        key: Which result to read: the one of a list with this `key`, or what a mapping without a `score`
            holds under it. Needed only where there are several.
        higher_is_better: Whether a larger value is a better one, as it is throughout openevals; the score is
            then 1 - value. Say False for an evaluator of a fault, such as toxicity.
        range: The smallest and the largest value it gives, scaled to 0 and 1; True and False are the ends.
        arguments: Prompt to further keyword arguments, such as `reference_outputs` or `context`: a function
            or Runnable, plain or async, asked once per prompt.

    Returns:
        A verifier; the evaluations of a prompt run concurrently, and candidates of one text share one.

    Raises:
        InputError: If the evaluator cannot be called, its parameters cannot be read, the range is empty, or
            `arguments` are given to one that takes no keywords.
    """
    low, high = range
    if not (low < high and math.isfinite(high - low)):
        msg = f"range must be two finite numbers, the smaller one first, got {range!r}"
        raise InputError(msg)
    return EvaluatorVerifier(evaluator, key, higher_is_better, (float(low), float(high)), arguments)


def _target(evaluator: Evaluator) -> tuple[Target, bool]:
    """What to call with a mapping, and whether it takes keywords."""
    if isinstance(evaluator, Runnable):
        return without_streaming_and_cache(evaluator, fresh=False), False
    if not callable(evaluator):
        msg = f"expected an evaluator, a function or Runnable, got a {type(evaluator).__name__}"
        raise InputError(msg)
    try:
        parameters = inspect.signature(evaluator).parameters
    except (TypeError, ValueError) as error:
        msg = (
            f"the parameters of the evaluator cannot be read ({error}): wrap it in a function (prompt, text)"
        )
        raise InputError(msg) from error
    if "outputs" not in parameters:
        return call_by_keys(evaluator, ("prompt", "candidate")), False
    anything = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters.values())
    unwanted = frozenset() if anything or "inputs" in parameters else frozenset({"inputs"})
    # No closure, for those cannot be pickled.
    return partial(_acalled if is_async_callable(evaluator) else _called, evaluator, unwanted), True


def _called(evaluator: Callable[..., Any], unwanted: frozenset[str], given: Mapping[str, Any]) -> Any:
    return evaluator(**{name: value for name, value in given.items() if name not in unwanted})


async def _acalled(
    evaluator: Callable[..., Awaitable[Any]], unwanted: frozenset[str], given: Mapping[str, Any]
) -> Any:
    return await evaluator(**{name: value for name, value in given.items() if name not in unwanted})


def to_evaluator_inputs(prompt: Any) -> Any:
    """Return a prompt in the types that evaluators such as those of openevals take.

    Args:
        prompt: What a chain is invoked with.

    Returns:
        Text or messages of a prompt value, a copy of a mapping, since openevals writes into it, and anything
        else as it is.
    """
    if isinstance(prompt, StringPromptValue):
        return prompt.text
    if isinstance(prompt, PromptValue):
        return prompt.to_messages()
    return dict(prompt) if isinstance(prompt, Mapping) else prompt


def _value(result: Any, key: str | None) -> Any:
    """The value that a result holds."""
    if hasattr(result, "model_dump"):
        result = result.model_dump()
    if isinstance(result, Mapping):
        return _of_mapping(result, key)
    if isinstance(result, Sequence) and not isinstance(result, str):
        return _of_several(result, key)
    return result


def _of_mapping(result: Mapping[str, Any], key: str | None) -> Any:
    named = result.get("key")
    if "score" in result and (key is None or named is None or named == key):
        return result["score"]
    if key is not None and "score" not in result and key in result:
        return result[key]
    wanted = "'score'" if key is None else f"{key!r}"
    msg = f"the evaluator's result holds no {wanted}, only {', '.join(map(repr, result))}"
    raise VerifierError(msg if named is None else f"{msg}, for the key {named!r}")


def _of_several(results: Sequence[Any], key: str | None) -> Any:
    keys = [one.get("key") if isinstance(one, Mapping) else None for one in results]
    chosen = [one for one, name in zip(results, keys, strict=True) if key is None or name == key]
    if len(chosen) == 1:
        return _value(chosen[0], key)
    listed = ", ".join(map(repr, keys)) or "none"
    msg = (
        f"the evaluator returned {len(results)} results, with the keys {listed}: key= says which one to read"
    )
    raise VerifierError(msg)
