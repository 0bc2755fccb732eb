"""`Evaluator`: an evaluator's functions, keywords and fingerprint. `PromptEvaluator`: call it."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from langchain_core.callbacks import AsyncCallbackManagerForChainRun
from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.runnables.config import run_in_executor

from langchain_cfc.errors import CFCError, InputError, VerifierError
from langchain_cfc.extend import Call, Steps, to_evaluator_inputs

Function: TypeAlias = Callable[..., Any]
AsyncFunction: TypeAlias = Callable[..., Awaitable[Any]]
Pairs: TypeAlias = Callable[[str, Any], Sequence[tuple[Any, Any]]]

INPUTS, OUTPUTS, REFERENCE = "inputs", "outputs", "reference_outputs"


def compare_whole(text: str, reference: Any) -> list[tuple[Any, Any]]:
    """Return a single pair to compare: the text and the whole reference."""
    return [(text, reference)]


def to_range(ends: Sequence[float] | None) -> tuple[float, float] | None:
    """Return the ends of a range as a pair, also from a list, as files hold them.

    Raises:
        InputError: If there are not exactly two ends.
    """
    if ends is None:
        return None
    if len(ends) != 2:  # noqa: PLR2004 - a pair
        msg = f"range must be two numbers, the smaller one first, got {ends!r}"
        raise InputError(msg)
    return (ends[0], ends[1])


@dataclass(frozen=True)
class Evaluator:
    """An evaluator with its fingerprint, its scale and its keywords.

    Attributes:
        function: The function, called with keywords; None if there is only an async one.
        afunction: The async function; None if there is none, so that `function` is called in a thread.
        fingerprint: Its fingerprint, see `langchain_cfc.sampling.fingerprints`.
        arguments: A function or Runnable from the prompt to further keywords; None if there are none.
        candidate: The keyword for the candidate's text.
        pairs: Turns text and reference into pairs to compare. The best result of several pairs counts; if
            there is no pair, the candidate is wrong.
        check: Raises a `VerifierError` for a result that violates the evaluator's own rules.
        ends: The smallest and the largest possible score.
        graded: Whether scores may lie between the ends.
        takes_inputs: Whether it accepts the prompt.
    """

    function: Function | None
    afunction: AsyncFunction | None
    fingerprint: Mapping[str, Any]
    arguments: Any = None
    candidate: str = OUTPUTS
    pairs: Pairs = compare_whole
    check: Callable[[Any], None] | None = None
    ends: tuple[float, float] = (0.0, 1.0)
    graded: bool = True
    takes_inputs: bool = True

    def make_keywords(
        self, prompt: Any, config: RunnableConfig, failure: type[CFCError]
    ) -> Steps[dict[str, Any]]:
        """Return the further keywords for a prompt.

        Args:
            prompt: The prompt.
            config: Config of the call.
            failure: The error type that failures are converted to.

        Returns:
            The keywords; they replace `inputs` or the reference if they have the same name.

        Raises:
            CFCError: Of type `failure`, if they cannot be computed or would replace the candidate.
        """
        if self.arguments is None:
            return {}
        found = yield from Call("arguments function", self.arguments, failure).invoke_one(prompt, config)
        if not isinstance(found, Mapping):
            msg = f"arguments= returned a {type(found).__name__}; expected a mapping of keywords"
            raise failure(msg)
        if self.candidate in found:
            msg = f"arguments= returned {self.candidate!r}, which is reserved for the candidate"
            raise failure(msg)
        return dict(found)


class PromptEvaluator(Runnable[Mapping[str, Any], Any]):
    """A Runnable around an evaluator; its input has `prompt`, `candidate` and, offline, `reference`.

    Args:
        evaluator: The evaluator to call.
        further: Further keywords for it.
    """

    def __init__(self, evaluator: Evaluator, further: Mapping[str, Any]) -> None:
        self.name = "openevals"
        self.fingerprint = evaluator.fingerprint
        self._evaluator = evaluator
        self._further = further

    def invoke(self, input: Mapping[str, Any], config: RunnableConfig | None = None, **kwargs: Any) -> Any:  # noqa: A002 - LangChain's name
        """Return the result for one candidate; models that the evaluator calls inherit the config."""
        return self._call_with_config(self._evaluate, input, config, **kwargs)

    async def ainvoke(
        self,
        input: Mapping[str, Any],  # noqa: A002 - LangChain's name
        config: RunnableConfig | None = None,
        **kwargs: Any,
    ) -> Any:
        """Return the result for one candidate, asynchronously."""
        return await self._acall_with_config(self._aevaluate, input, config, **kwargs)

    def _evaluate(self, given: Mapping[str, Any]) -> Any:
        function = self._evaluator.function
        if function is None:
            msg = "the evaluator is async: use ainvoke, or pass a sync one"
            raise VerifierError(msg)
        return self._find_best([function(**keywords) for keywords in self._keywords(given, function)])

    async def _aevaluate(
        self, given: Mapping[str, Any], run_manager: AsyncCallbackManagerForChainRun, config: RunnableConfig
    ) -> Any:
        del run_manager
        afunction = self._evaluator.afunction
        if afunction is None:
            return await run_in_executor(config, self._evaluate, given)
        return self._find_best([await afunction(**keywords) for keywords in self._keywords(given, afunction)])

    def _keywords(self, given: Mapping[str, Any], function: Callable[..., Any]) -> list[dict[str, Any]]:
        reference = {REFERENCE: given["reference"]} if "reference" in given else {}
        offered = {INPUTS: to_evaluator_inputs(given["prompt"]), **reference, **self._further}
        pairs = self._evaluator.pairs(given["candidate"], offered.get(REFERENCE))
        keywords = [
            # Without a reference the keyword is left out, so that an evaluator that requires one fails.
            {**offered, **({REFERENCE: one} if REFERENCE in offered else {}), self._evaluator.candidate: text}
            for text, one in pairs
        ]
        unknown = _find_unaccepted(function) | (frozenset() if self._evaluator.takes_inputs else {INPUTS})
        return [{name: one[name] for name in one if name not in unknown} for one in keywords]

    def _find_best(self, results: Sequence[Any]) -> Any:
        if self._evaluator.check is not None:
            for result in results:
                self._evaluator.check(result)
        if len(results) == 1:
            return results[0]
        return max((result["score"] for result in results), default=False)


def _find_unaccepted(function: Callable[..., Any]) -> frozenset[str]:
    """Return the offered keywords that a function does not accept."""
    parameters = inspect.signature(function).parameters
    if any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters.values()):
        return frozenset()
    return frozenset({INPUTS, REFERENCE} - set(parameters))
