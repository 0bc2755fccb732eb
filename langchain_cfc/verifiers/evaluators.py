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
from langchain_cfc.execution import Call, Steps
from langchain_cfc.execution.steps import call_by_keys
from langchain_cfc.sampling import make_silent_call
from langchain_cfc.support.normalisation import normalise_answer
from langchain_cfc.support.text import quote
from langchain_cfc.verifiers.base import TextVerifier, combine_fingerprints, to_python_scalar
from langchain_cfc.verifiers.prompts import unwrap_prompt

Evaluator: TypeAlias = Runnable[Any, Any] | Callable[..., Any] | Callable[..., Awaitable[Any]]


class EvaluatorCall:
    """Asks an evaluator about texts, and reads its results as numbers from 0 to 1.

    Args:
        evaluator: See `from_evaluator`.
        names: What else it is asked with: `prompt`, and offline `reference`.

    Raises:
        InputError: As `from_evaluator`.
    """

    def __init__(self, evaluator: Evaluator, names: tuple[str, ...] = ("prompt",)) -> None:
        # Which keywords it takes besides `outputs`; None if it takes no keywords.
        self._keywords = _find_keywords(evaluator)
        function: Any = evaluator
        self._call = (
            make_silent_call("evaluator", function, VerifierError, keys=(*names, "candidate"))
            if self._keywords is None
            else Call("evaluator", call_by_keys(function, None), VerifierError)
        )

    def rate(
        self, given: Mapping[str, Any], config: RunnableConfig, texts: list[str]
    ) -> Steps[list[float | None]]:
        """Return the evaluator's number for each text, asked once more if that cannot be read.

        `given` maps the names besides the candidate to values.
        """
        if self._keywords is None:
            requests = [{**given, "candidate": text} for text in texts]
        else:
            requests = [{**self._offer(given), "outputs": text} for text in texts]
        results = yield from self._call.invoke_each(requests, config)
        numbers = list(map(_read_number, results))
        unread = [slot for slot, number in enumerate(numbers) if number is None]
        if unread:
            again = yield from self._call.invoke_each([requests[slot] for slot in unread], config)
            for slot, result in zip(unread, again, strict=True):
                results[slot], numbers[slot] = result, _read_number(result)
        if len(numbers) > 1 and set(numbers) == {None}:
            raise _make_error(_read_value(results[0]))
        return numbers

    def _offer(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return prompt and reference by the keywords of openevals, as far as the evaluator takes them."""
        offered = {"inputs": to_evaluator_inputs(given["prompt"])}
        if "reference" in given:
            offered["reference_outputs"] = given["reference"]
        return {name: value for name, value in offered.items() if name in (self._keywords or ())}


def _make_error(value: Any) -> VerifierError:
    return VerifierError(
        f"the evaluator returned {quote(repr(value))}; expected True, False or a number from 0 to 1. Wrap it "
        "in a function that returns one"
    )


def _read_number(result: Any) -> float | None:
    """Return the number from 0 to 1 that a result states; None if it cannot be read."""
    value = _read_value(result)
    number = to_python_scalar(value)
    if isinstance(number, str):
        number = _read_text(number)
    if number is None or (isinstance(number, float) and math.isnan(number)):
        return None
    if isinstance(number, (bool, int, float)) and 0.0 <= number <= 1.0:
        return float(number)
    raise _make_error(value)


class EvaluatorVerifier(TextVerifier):
    """Asks an evaluator about each distinct text of a prompt's candidates, concurrently.

    Made by `from_evaluator`. The score lies in [0, 1], and smaller is better, even if the evaluator's larger
    values are better.
    """

    def __init__(self, evaluator: Evaluator, higher_is_better: bool) -> None:
        self.name = "evaluator"
        self.higher_is_better = higher_is_better
        settings = {"better": "higher" if higher_is_better else "lower"}
        self.fingerprint = combine_fingerprints(self.name, settings, {"evaluator": evaluator})
        self._evaluate = EvaluatorCall(evaluator)

    def score_texts(self, prompt: Any, config: RunnableConfig, texts: list[str]) -> Steps[list[float | None]]:
        """Score each text by the evaluator's number."""
        numbers = yield from self._evaluate.rate({"prompt": prompt}, config, texts)
        return [1.0 - one if self.higher_is_better and one is not None else one for one in numbers]


def from_evaluator(evaluator: Evaluator, *, higher_is_better: bool = True) -> EvaluatorVerifier:
    """Make a verifier from an evaluator of one candidate: a function of yours, or one of openevals.

    An evaluator with a parameter `outputs` is called with keywords, as those of openevals are: `inputs` is
    the prompt, `outputs` the candidate's text. A Runnable is invoked with `{"prompt": ..., "candidate":
    text}`, any other function is called with `(prompt, text)`. All may be async. Wrap one that needs more,
    such as a context: `lambda prompt, text: judge(outputs=text, context=retrieve(prompt))`.

    It returns a number from 0 to 1, a bool, a mapping or object with a `score`, a list with one such mapping,
    or text that states a verdict, also as JSON. Wrap one that returns several results or numbers in another
    range in a function: `lambda prompt, text: grade(text) / 10`. It is called once more for a text if the
    result cannot be read (None, NaN or other text); then there is no verdict. Streaming cannot be disabled
    here for models inside a function: if a judge quotes candidates, make its models with
    `disable_streaming=True`, or users who stream the chain see its tokens.

    Args:
        evaluator: A function or Runnable, plain or async.
        higher_is_better: Whether larger values are better, as throughout openevals; the score is then 1 - the
            value. Pass False for an evaluator of a defect, such as toxicity.

    Returns:
        A verifier. Evaluations of a prompt run concurrently, and candidates with equal texts share one.

    Raises:
        InputError: If the evaluator cannot be called.
    """
    return EvaluatorVerifier(evaluator, higher_is_better)


def _find_keywords(evaluator: Evaluator) -> frozenset[str] | None:
    """Return which keywords besides `outputs` an evaluator takes; None if it takes no keywords."""
    if isinstance(evaluator, Runnable):
        return None
    if not callable(evaluator):
        msg = f"expected an evaluator, a function or Runnable, got a {type(evaluator).__name__}"
        raise InputError(msg)
    try:
        parameters = inspect.signature(evaluator).parameters
    except (TypeError, ValueError):
        return None  # of a built-in function, which has no parameter `outputs`
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


def _read_text(text: str) -> Any:
    """Return the verdict or number that a text states, also as JSON; None if it states none."""
    fenced = _FENCE.search(text)
    text = fenced[1] if fenced else text
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        named = _NAMED.findall(text)
        return _VERDICTS.get(normalise_answer(text), _read_text(named[-1]) if named else None)
    return None if isinstance(value, str) else _read_value(value)


def _read_value(result: Any) -> Any:
    """Return the value in an evaluator's result."""
    if isinstance(result, BaseMessage):
        return str(result.text)
    if hasattr(result, "model_dump"):
        result = result.model_dump()
    if isinstance(result, Mapping):
        if "score" in result:
            return result["score"]
        msg = f"the evaluator's result holds no 'score', only {', '.join(map(repr, result))}"
        raise VerifierError(msg)
    if isinstance(result, Sequence) and not isinstance(result, str):
        if len(result) == 1:
            return _read_value(result[0])
        msg = f"the evaluator returned {len(result)} results: wrap it in a function that returns one"
        raise VerifierError(msg)
    return result
