"""Make verifiers from evaluators, such as those of openevals."""

from __future__ import annotations

import inspect
import json
import math
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeAlias

from langchain_core.messages import BaseMessage
from langchain_core.runnables import Runnable, RunnableConfig

from langchain_cfc.errors import InputError, VerifierError
from langchain_cfc.execution import Call, Steps, Target, call_by_keys
from langchain_cfc.sampling import make_silent_call
from langchain_cfc.sampling.models import make_optional_call
from langchain_cfc.support.normalisation import normalise_answer
from langchain_cfc.support.text import quote
from langchain_cfc.verifiers.base import TextVerifier, combine_fingerprints, to_python_scalar
from langchain_cfc.verifiers.prompts import unwrap_prompt

Evaluator: TypeAlias = Runnable[Any, Any] | Callable[..., Any] | Callable[..., Awaitable[Any]]


class EvaluatorCall:
    """Asks an evaluator about texts, and reads its results as shares of its range.

    Args:
        evaluator: See `from_evaluator`.
        key: See `from_evaluator`.
        ends: Smallest and largest value.
        arguments: See `from_evaluator`.
        names: What else it is asked with: `prompt`, and offline `reference`.

    Raises:
        InputError: As `from_evaluator`.
    """

    def __init__(
        self,
        evaluator: Evaluator,
        key: str | None,
        ends: tuple[float, float],
        arguments: Target | None,
        names: tuple[str, ...] = ("prompt",),
    ) -> None:
        if not (ends[0] < ends[1] and math.isfinite(ends[1] - ends[0])):
            msg = f"range must be two finite numbers, the smaller one first, got {ends!r}"
            raise InputError(msg)
        self._key = key
        self._ends = ends
        # Which keywords it takes besides `outputs`; None if it takes no keywords.
        self._keywords = _find_keywords(evaluator)
        function: Any = evaluator
        self._call = (
            make_silent_call("evaluator", function, VerifierError, keys=(*names, "candidate"))
            if self._keywords is None
            else Call("evaluator", call_by_keys(function, None), VerifierError)
        )
        self._arguments = make_optional_call("arguments function", arguments, VerifierError)
        if self._arguments is not None and self._keywords is None and not isinstance(evaluator, Runnable):
            msg = "arguments= is for Runnables and functions with a keyword outputs=; this is neither"
            raise InputError(msg)

    def compute_shares(
        self, given: Mapping[str, Any], config: RunnableConfig, texts: list[str]
    ) -> Steps[list[float | None]]:
        """Return where in its range the evaluator puts each text, asked once more if that cannot be read.

        `given` maps the names besides the candidate to values.
        """
        further = yield from self._make_arguments(given["prompt"], config)
        if self._keywords is None:
            shared = {**given, **({"arguments": further} if further else {})}
            requests = [{**shared, "candidate": text} for text in texts]
        else:
            requests = [{**self._offer(given), "outputs": text, **further} for text in texts]
        results = yield from self._call.invoke_each(requests, config)
        shares = [self._read_share(result) for result in results]
        unread = [slot for slot, share in enumerate(shares) if share is None]
        if unread:
            again = yield from self._call.invoke_each([requests[slot] for slot in unread], config)
            for slot, result in zip(unread, again, strict=True):
                results[slot], shares[slot] = result, self._read_share(result)
        if len(shares) > 1 and set(shares) == {None}:
            raise self._make_error(_read_value(results[0], self._key))
        return shares

    def _offer(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return prompt and reference by the keywords of openevals, as far as the evaluator takes them."""
        offered = {"inputs": to_evaluator_inputs(given["prompt"])}
        if "reference" in given:
            offered["reference_outputs"] = given["reference"]
        return {name: value for name, value in offered.items() if name in (self._keywords or ())}

    def _make_arguments(self, prompt: Any, config: RunnableConfig) -> Steps[dict[str, Any]]:
        if self._arguments is None:
            return {}
        arguments = yield from self._arguments.invoke_one(prompt, config)
        if not isinstance(arguments, Mapping):
            msg = f"arguments= returned a {type(arguments).__name__}; expected a mapping of keyword arguments"
            raise VerifierError(msg)
        return dict(arguments)

    def _make_error(self, value: Any) -> VerifierError:
        low, high = self._ends
        return VerifierError(
            f"the evaluator returned {quote(repr(value))}; expected True, False or a number from {low:g} "
            f"to {high:g}. Pass range=(low, high) for another range"
        )

    def _read_share(self, result: Any) -> float | None:
        value = _read_value(result, self._key)
        number = to_python_scalar(value)
        if isinstance(number, str):
            number = _read_text(number, self._key)
        low, high = self._ends
        if isinstance(number, bool):
            return float(number)
        if number is None or (isinstance(number, float) and math.isnan(number)):
            return None
        if isinstance(number, (int, float)) and low <= number <= high:
            return (number - low) / (high - low)
        raise self._make_error(value)


class EvaluatorVerifier(TextVerifier):
    """Asks an evaluator about each distinct text of a prompt's candidates, concurrently.

    Made by `from_evaluator`. The score lies in [0, 1], and smaller is better, even if the evaluator's larger
    values are better.
    """

    def __init__(
        self,
        evaluator: Evaluator,
        key: str | None,
        higher_is_better: bool,
        ends: tuple[float, float],
        arguments: Target | None,
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
        self.fingerprint = combine_fingerprints(
            self.name, settings, {"evaluator": evaluator, "arguments": arguments}
        )
        self._evaluate = EvaluatorCall(evaluator, key, ends, arguments)

    def __repr__(self) -> str:
        """State which value is read, and how."""
        better = "higher" if self.higher_is_better else "lower"
        return (
            f"EvaluatorVerifier(key={self.key!r}, {better} is better, {self.ends[0]:g} to {self.ends[1]:g})"
        )

    def score_texts(self, prompt: Any, config: RunnableConfig, texts: list[str]) -> Steps[list[float | None]]:
        """Score each text by where in its range the evaluator puts it."""
        shares = yield from self._evaluate.compute_shares({"prompt": prompt}, config, texts)
        return [1.0 - one if self.higher_is_better and one is not None else one for one in shares]


def from_evaluator(
    evaluator: Evaluator,
    *,
    key: str | None = None,
    higher_is_better: bool = True,
    range: tuple[float, float] = (0.0, 1.0),  # noqa: A002 - what evaluators call it
    arguments: Target | None = None,
) -> EvaluatorVerifier:
    """Make a verifier from an evaluator of one candidate: a function of yours, or one of openevals.

    An evaluator with a parameter `outputs` is called with keywords, as those of openevals are: `inputs` is
    the prompt, `outputs` the candidate's text. A Runnable is invoked with `{"prompt": ..., "candidate":
    text}`, any other function is called with `(prompt, text)`. All may be async.

    It returns a number, a bool, a mapping or object with a `score`, a list of such mappings, or text that
    states a verdict, also as JSON. It is called once more for a text if the result cannot be read (None, NaN
    or other text); then there is no verdict. Streaming cannot be disabled here for models inside a function:
    if a judge quotes candidates, make its models with `disable_streaming=True`, or users who stream the chain
    see its tokens.

    Args:
        evaluator: A function or Runnable, plain or async.
        key: Which result to read: the entry of a list with this `key`, or the value under this key in a
            mapping without a `score`. Needed only if there are several.
        higher_is_better: Whether larger values are better, as throughout openevals; the score is then 1 - the
            scaled value. Pass False for an evaluator of a defect, such as toxicity.
        range: Smallest and largest value, scaled to 0 and 1; False and True stand for 0 and 1.
        arguments: Function or Runnable, plain or async, from a prompt to further keyword arguments, such as
            `reference_outputs` or `context`; called once per prompt. A Runnable gets them as `arguments`.

    Returns:
        A verifier. Evaluations of a prompt run concurrently, and candidates with equal texts share one.

    Raises:
        InputError: If the evaluator cannot be called, its parameters cannot be read, the range is empty, or
            `arguments` are given to a function that takes no keywords.
    """
    return EvaluatorVerifier(evaluator, key, higher_is_better, (float(range[0]), float(range[1])), arguments)


def _find_keywords(evaluator: Evaluator) -> frozenset[str] | None:
    """Return which keywords besides `outputs` an evaluator takes; None if it takes no keywords."""
    if isinstance(evaluator, Runnable):
        return None
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
        return None
    takes_any = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters.values())
    return frozenset(["inputs", "reference_outputs"] if takes_any else parameters)


def to_evaluator_inputs(prompt: Any) -> Any:
    """Return a prompt in the types that evaluators such as those of openevals take.

    A mapping is copied, since openevals writes into it.
    """
    return dict(prompt) if isinstance(prompt, Mapping) else unwrap_prompt(prompt)


_VERDICTS = {
    **dict.fromkeys(["true", "yes", "correct"], True),
    **dict.fromkeys(["false", "no", "incorrect"], False),
}
_FENCE = re.compile(r"```\w*\s(.*)```", re.DOTALL)
_NAMED = re.compile(r"(?:score|verdict|result)[\s*_]*[:=](.+)", re.IGNORECASE)


def _read_text(text: str, key: str | None) -> Any:
    """Return the verdict or number that a text states, also as JSON; None if it states none."""
    fenced = _FENCE.search(text)
    text = fenced[1] if fenced else text
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        named = _NAMED.findall(text)
        return _VERDICTS.get(normalise_answer(text), _read_text(named[-1], key) if named else None)
    return None if isinstance(value, str) else _read_value(value, key)


def _read_value(result: Any, key: str | None) -> Any:
    """Return the value in an evaluator's result."""
    if isinstance(result, BaseMessage):
        return str(result.text)
    if hasattr(result, "model_dump"):
        result = result.model_dump()
    if isinstance(result, Mapping):
        return _read_mapping(result, key)
    if isinstance(result, Sequence) and not isinstance(result, str):
        return _read_several(result, key)
    return result


def _read_mapping(result: Mapping[str, Any], key: str | None) -> Any:
    named = result.get("key")
    if "score" in result and (key is None or named is None or named == key):
        return result["score"]
    if key is not None and "score" not in result and key in result:
        return result[key]
    wanted = "'score'" if key is None else f"{key!r}"
    msg = f"the evaluator's result holds no {wanted}, only {', '.join(map(repr, result))}"
    raise VerifierError(msg if named is None else f"{msg}, for the key {named!r}")


def _read_several(results: Sequence[Any], key: str | None) -> Any:
    keys = [one.get("key") if isinstance(one, Mapping) else None for one in results]
    chosen = [one for one, name in zip(results, keys, strict=True) if key is None or name == key]
    if len(chosen) == 1:
        return _read_value(chosen[0], key)
    listed = ", ".join(map(repr, keys)) or "none"
    msg = f"the evaluator returned {len(results)} results, with the keys {listed}: pass key= to choose one"
    raise VerifierError(msg)
