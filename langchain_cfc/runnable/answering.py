"""Turn a result into a chat message or text (`Answer`), or ask a fallback on abstention (`OrElse`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar, overload

from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.runnables import Runnable, RunnableConfig, RunnableSerializable
from langchain_core.runnables.base import coerce_to_runnable
from pydantic import BaseModel, ConfigDict, SkipValidation

from langchain_cfc.errors import AbstentionError, InputError, ServingError
from langchain_cfc.execution import FlowRunnable, Step, Steps, add_tags
from langchain_cfc.execution.limits import share_limiter
from langchain_cfc.runnable.result import CFCResult

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence


Output = TypeVar("Output")
Configs: TypeAlias = RunnableConfig | list[RunnableConfig] | None

ABSTAIN_MESSAGE = "I do not know."
"""The default text of an abstention."""

# Arguments that name the promise of a chain, or of a call.
PROMISES = ("alpha", "max_wrong_rate", "max_wrong_of_all")


class AnsweringRunnable(RunnableSerializable[Any, Output]):
    """Base class of runnables that answer or abstain; the prompts of a batch share one limit."""

    @overload
    def as_answer(
        self, *, abstain_message: str = ..., text: Literal[False] = ..., full_result: bool = ...
    ) -> Runnable[Any, AIMessage]: ...

    @overload
    def as_answer(
        self, *, abstain_message: str = ..., text: Literal[True], full_result: bool = ...
    ) -> Runnable[Any, str]: ...

    @overload
    def as_answer(
        self, *, abstain_message: str = ..., text: bool, full_result: bool = ...
    ) -> Runnable[Any, AIMessage | str]: ...

    def as_answer(
        self, *, abstain_message: str = ABSTAIN_MESSAGE, text: bool = False, full_result: bool = False
    ) -> Runnable[Any, Any]:
        """Return a chain that outputs the best answer, or an abstention message.

        Args:
            abstain_message: The text of an abstention.
            text: Whether to return plain text, as a tool should; by default it returns a message with the
                decision in `response_metadata["cfc"]`.
            full_result: Whether that metadata holds the whole result; see `CFCResult.to_message`.

        Returns:
            A chain that ends with the answer.
        """
        return self | Answer(abstain_message=abstain_message, text=text, full_result=full_result)

    def or_else(self, fallback: Runnable[Any, Any] | Callable[[Any], Any]) -> OrElse:
        """Return a chain that asks a fallback when this one abstains: a stronger model, a search, a person.

        Errors are still raised; use `with_fallbacks` for those. An abstention is a result, not an error, so
        `with_fallbacks` does not see it unless `on_abstain="raise"` turns it into one.

        Args:
            fallback: Invoked with the same prompt. Another `CFCRunnable` answers under its own artifact,
                which must have been calibrated on prompts on which this chain abstains: the abstentions
                select the prompts, and with an artifact calibrated on all prompts the combined coverage may
                be far below what either guarantees. Any other fallback answers without a guarantee.

        Returns:
            A chain that returns this chain's result or the fallback's output. If the fallback returns None,
            it raises a `ServingError`.
        """
        return OrElse(first=self, fallback=coerce_to_runnable(fallback))

    # The four batch methods differ from LangChain's only in that all prompts of a batch share one limit.

    def batch(self, inputs: list[Any], config: Configs = None, **kwargs: Any) -> list[Output]:
        """Serve several prompts; see `Runnable.batch`."""
        return super().batch(inputs, share_limiter(config, len(inputs)), **kwargs)

    async def abatch(self, inputs: list[Any], config: Configs = None, **kwargs: Any) -> list[Output]:
        """Serve several prompts; see `Runnable.abatch`."""
        return await super().abatch(inputs, share_limiter(config, len(inputs)), **kwargs)

    def batch_as_completed(  # type: ignore[override]  # LangChain's two overloads in one
        self, inputs: Sequence[Any], config: Configs = None, **kwargs: Any
    ) -> Iterator[tuple[int, Any]]:
        """Serve several prompts; see `Runnable.batch_as_completed`."""
        yield from super().batch_as_completed(inputs, share_limiter(config, len(inputs)), **kwargs)

    async def abatch_as_completed(  # type: ignore[override]  # as above
        self, inputs: Sequence[Any], config: Configs = None, **kwargs: Any
    ) -> AsyncIterator[tuple[int, Any]]:
        """Serve several prompts; see `Runnable.abatch_as_completed`."""
        async for one in super().abatch_as_completed(inputs, share_limiter(config, len(inputs)), **kwargs):
            yield one


def refuse_share_of_one(named: Mapping[str, Any]) -> None:
    """Raise an InputError if arguments of one call name the promise of a batch."""
    if "max_wrong_share" in named:
        msg = (
            "max_wrong_share is about a batch: call answer_batch on the CFCRunnable. One question is served "
            "under max_wrong_rate or max_wrong_of_all"
        )
        raise InputError(msg)


class OrElse(FlowRunnable[Any, Any], AnsweringRunnable[Any]):
    """A chain with a fallback for abstentions, as made by `or_else`."""

    model_config = ConfigDict(arbitrary_types_allowed=True, extra="forbid", frozen=True)

    first: SkipValidation[AnsweringRunnable[Any]]
    fallback: SkipValidation[Runnable[Any, Any]]

    @property
    def OutputType(self) -> Any:  # noqa: N802 - LangChain's name
        """The output type, for schemas: a fallback may return anything."""
        return Any

    def get_input_schema(self, config: RunnableConfig | None = None) -> type[BaseModel]:
        """Return the input schema of the first chain, which a tool made from this chain also uses."""
        schema: type[Any] = self.first.get_input_schema(config)
        return schema

    def flow(self, given: Any, config: RunnableConfig, **kwargs: Any) -> Steps[Any]:
        """Return the first chain's result, or the fallback's output; only the first chain gets `kwargs`."""
        first = add_tags(config, "cfc:first")
        try:
            result = yield Step(
                lambda: self.first.invoke(given, first, **kwargs),
                lambda: self.first.ainvoke(given, first, **kwargs),
            )
        except AbstentionError as error:
            result = error.result
        if not isinstance(result, CFCResult) or not result.abstained:
            return result
        second = add_tags(config, "cfc:fallback")
        answer = yield Step(
            lambda: self.fallback.invoke(given, second), lambda: self.fallback.ainvoke(given, second)
        )
        if answer is None:
            msg = (
                f"the fallback {self.fallback.get_name()} of or_else returned None, which is no answer: let "
                "it return text, a message or a CFCResult"
            )
            raise ServingError(msg)
        return answer


class Answer(RunnableSerializable[Any, AIMessage | str]):
    """The step that turns a result into a message or text, as made by `as_answer`.

    Args:
        abstain_message: The text of an abstention.
        text: Whether to return plain text instead of a message.
        full_result: Whether messages hold the whole result; see `CFCResult.to_message`.
    """

    abstain_message: str = ABSTAIN_MESSAGE
    text: bool = False
    full_result: bool = False

    def invoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> AIMessage | str:  # noqa: A002 - LangChain's name
        """Return the best answer or the abstention message.

        Args:
            input: A `CFCResult`, or the output of a fallback.
            config: LangChain config.
            **kwargs: Not supported.

        Returns:
            A message or text. The message of a fallback has `guarantee: None` in `response_metadata["cfc"]`.

        Raises:
            ServingError: If the input is None, because the fallback gave no answer.
        """
        return self._call_with_config(self._answer, input, config, **kwargs)

    def to_message(self, given: Any) -> AIMessage:
        """Return the best answer or the abstention as a message, even if `text` is set; see `invoke`."""
        if isinstance(given, CFCResult):
            return given.to_message(self.abstain_message, full_result=self.full_result)
        return _make_fallback_message(given)

    def _answer(self, given: Any) -> AIMessage | str:
        message = self.to_message(given)
        return str(message.text) if self.text else message


def _make_fallback_message(given: Any) -> AIMessage:
    """Return the output of a fallback as a message that states no guarantee."""
    note = {"cfc": {"guarantee": None}}
    if isinstance(given, AIMessage):
        return given.model_copy(update={"response_metadata": {**given.response_metadata, **note}})
    if given is None:
        msg = "the fallback returned None, which is no answer: let it return text, a message or a CFCResult"
        raise ServingError(msg)
    content = str(given.text) if isinstance(given, BaseMessage) else given
    return AIMessage(content if isinstance(content, str) else str(content), response_metadata=note)
