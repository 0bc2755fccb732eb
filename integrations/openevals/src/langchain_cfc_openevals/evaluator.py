"""`Evaluator`: a judge's functions, keywords and fingerprint. `PromptEvaluator`: call it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from langchain_core.callbacks import AsyncCallbackManagerForChainRun
from langchain_core.runnables import Runnable, RunnableConfig

from langchain_cfc.errors import CFCError, InputError, VerifierError
from langchain_cfc.extend import Call, Steps, to_evaluator_inputs

INPUTS, OUTPUTS, REFERENCE = "inputs", "outputs", "reference_outputs"


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
    """A judge with its fingerprint, its scale and its keywords.

    Attributes:
        function: The function, called with keywords.
        afunction: The same as an async function.
        fingerprint: Its fingerprint, see `langchain_cfc.sampling.fingerprints`.
        arguments: A function or Runnable from the prompt to further keywords; None if there are none.
        candidate: The keyword for the candidate's text.
        needs_reference: Whether a missing reference is an error.
        check: Raises a `VerifierError` for a result outside the requested scale.
        ends: The smallest and the largest possible score.
        graded: Whether scores may lie between the ends.
    """

    function: Callable[..., Any]
    afunction: Callable[..., Awaitable[Any]]
    fingerprint: Mapping[str, Any]
    arguments: Any = None
    candidate: str = OUTPUTS
    needs_reference: bool = False
    check: Callable[[Any], None] | None = None
    ends: tuple[float, float] = (0.0, 1.0)
    graded: bool = True

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
        return self._check(self._evaluator.function(**self._make_keywords(given)))

    async def _aevaluate(
        self, given: Mapping[str, Any], run_manager: AsyncCallbackManagerForChainRun, config: RunnableConfig
    ) -> Any:
        del run_manager, config
        return self._check(await self._evaluator.afunction(**self._make_keywords(given)))

    def _make_keywords(self, given: Mapping[str, Any]) -> dict[str, Any]:
        reference = {REFERENCE: given["reference"]} if "reference" in given else {}
        offered = {INPUTS: to_evaluator_inputs(given["prompt"]), **reference, **self._further}
        if self._evaluator.needs_reference and offered.get(REFERENCE) is None:
            msg = "the judge's prompt shows a reference, but there is none"
            raise VerifierError(msg)
        return {**offered, self._evaluator.candidate: given["candidate"]}

    def _check(self, result: Any) -> Any:
        if self._evaluator.check is not None:
            self._evaluator.check(result)
        return result
