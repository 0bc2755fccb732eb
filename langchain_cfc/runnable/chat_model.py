"""`CFCChatModel`: a chain that answers or abstains, with the interface of a chat model.

It invokes the chain inside and returns the decision as one message. Call arguments other than the messages,
such as tools, are passed on to the model that draws the candidates.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextvars import ContextVar
from functools import partial
from typing import Any, Literal, TypeAlias, TypeVar
from uuid import UUID, uuid4

from langchain_core.caches import BaseCache
from langchain_core.callbacks import (
    AsyncCallbackManager,
    AsyncCallbackManagerForChainRun,
    AsyncCallbackManagerForLLMRun,
    BaseCallbackManager,
    CallbackManagerForChainRun,
    CallbackManagerForLLMRun,
)
from langchain_core.language_models import BaseChatModel, LangSmithParams, LanguageModelInput
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult, LLMResult
from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.runnables.config import (
    ensure_config,
    get_async_callback_manager_for_config,
    get_callback_manager_for_config,
)
from langchain_core.tools import BaseTool
from langchain_core.utils.function_calling import convert_to_openai_tool
from pydantic import ConfigDict, Field, PrivateAttr, ValidationError

from langchain_cfc.errors import AbstentionError, InputError
from langchain_cfc.execution import Step, Steps, arun_flow, run_flow, set_context_variable
from langchain_cfc.execution.langgraph_compat import NOSTREAM, get_tracing_params, make_message_id
from langchain_cfc.runnable.answering import ABSTAIN_MESSAGE, PROMISES, Answer, refuse_share_of_one
from langchain_cfc.runnable.binding import make_argument_error
from langchain_cfc.runnable.chat_arguments import (
    Arguments,
    configure_chain,
    find_answering_model,
    find_cfc_runnable,
)
from langchain_cfc.runnable.result import CFCResult
from langchain_cfc.sampling.fingerprints import compute_fingerprint

Message = TypeVar("Message", bound=BaseMessage)
LLMRun: TypeAlias = CallbackManagerForLLMRun | AsyncCallbackManagerForLLMRun

PROVIDER = "langchain-cfc"
# Arguments that LangChain passes to a chat model for tracing only, and removes before it generates.
_TRACING_ARGUMENTS = {"ls_structured_output_format", "structured_output_format"}
# Config for the child runs of `stream`, set while its only chunk is computed.
_STREAM_CONFIG: ContextVar[RunnableConfig | None] = ContextVar("langchain_cfc_streaming", default=None)
# Number of configured chains to cache: an agent binds the same few tools again and again.
_CACHE_SIZE = 16


class CFCChatModel(BaseChatModel):
    """A chat model that returns the best calibrated answer of its chain, or an abstention message.

    `response_metadata["cfc"]` of the returned message holds the reason and the fields that identify the
    guarantee, as plain data; with `full_result` the whole result. Streams yield
    exactly one chunk, because nothing can be decided before the last candidate is scored.

    Generator, verifier and metadata function get the messages unchanged, images included. A chain that was
    calibrated on texts gets the text of a single human message; a conversation that cannot be reduced to a
    text, such as one with a system prompt, earlier turns or images, is refused (see
    `langchain_cfc.verifiers.messages_to_text`).

    `alpha`, `max_wrong_rate` or `max_wrong_of_all` names the promise of a call. Tools, `stop` and all other
    call arguments are passed to the chat model in the generator, for each draw. Candidates may then be tool
    calls; the message carries the tool calls of the best candidate, with fresh ids. Such arguments change the
    model's output, so calibrate with the same ones: arguments whose fingerprint differs from the records are
    refused. Each set of arguments is served by its own copy of the chain, and a `max_concurrency` of the
    chain limits each copy separately.

    The message's `usage_metadata` is the sum over draws and verifier. Each of their calls is a child run that
    usage callbacks and tracers already count. To avoid double counting, the message that callbacks see has
    its usage in `response_metadata["cfc"]` instead. LangChain's cache is off by default because its key does
    not include the verifier.

    Args:
        chain: A `CFCRunnable`, or a chain that returns its results, such as `chain.or_else(...)`.
        abstain_message: The text of an abstention.
        on_abstain: `return` returns the abstention message; `raise` raises an `AbstentionError` that holds
            the result, for error handling such as `with_fallbacks`. Default: as the chain does.
        full_result: Whether `response_metadata["cfc"]` holds the whole result; see `CFCResult.to_message`.
        stop: Default stop sequences of the draws, for calls that give none.
        temperature: Default temperature of the draws; must be the calibrated one.
        max_tokens: Default limit on the length of a draw, in tokens.
        streaming: Whether LangChain streams by itself where it can; streams yield one chunk.

    Raises:
        InputError: If a call has arguments and the chain has no reachable chat model that takes them.
        FingerprintError: If the arguments make the generator differ from the calibrated one.
        PromptKindError: If the chain was calibrated on texts and the messages hold more than a text.
        AbstentionError: If a call abstains and `on_abstain` is `raise`, here or, if it is unset here, in the
            chain.
    """

    # Other model settings belong to the generator; given here, they would be silently ignored.
    model_config = ConfigDict(arbitrary_types_allowed=True, extra="forbid")

    chain: Runnable[Any, Any]
    abstain_message: str = ABSTAIN_MESSAGE
    on_abstain: Literal["return", "raise"] | None = None
    full_result: bool = False
    stop: list[str] | None = None
    temperature: float | None = None
    max_tokens: int | None = None
    streaming: bool = False
    cache: BaseCache | bool | None = Field(default=False, exclude=True)

    _chains: dict[str, tuple[Runnable[Any, Any], Runnable[Any, Any]]] = PrivateAttr(default_factory=dict)

    def __init__(self, **fields: Any) -> None:
        """Refuse unknown settings by an `InputError`."""
        try:
            super().__init__(**fields)
        except ValidationError as error:
            raise make_argument_error(type(self), error) from None

    @property
    def _llm_type(self) -> str:
        return PROVIDER

    @property
    def _identifying_params(self) -> dict[str, Any]:
        """The fields that traces show: names and numbers, but no prompts or keys."""
        served = find_cfc_runnable(self.chain)
        if served is None:
            return {}
        known = compute_fingerprint(served.generator)
        return {
            "model_name": known.get("model"),
            "n": served.artifact.n,
            **{name: getattr(served, name) for name in PROMISES},
            "artifact_digest": served.artifact.digest,
            "abstain_message": self.abstain_message,
            "on_abstain": self.on_abstain,
            "full_result": self.full_result,
        }

    def __repr_args__(self) -> Any:
        """Show only what traces show, because LangChain serialises unknown objects by their `repr`."""
        return self._identifying_params.items()

    def _get_ls_params(self, stop: list[str] | None = None, **kwargs: Any) -> LangSmithParams:
        """Return tracing parameters: the generator's model, with a provider that has no price list."""
        model = find_answering_model(self.chain)
        given = self._merge_arguments(stop, kwargs)
        params = LangSmithParams() if model is None else get_tracing_params(model, **given)
        return {**params, "ls_provider": PROVIDER, "ls_model_type": "chat"}

    def bind_tools(
        self,
        tools: Sequence[dict[str, Any] | type | Callable[..., Any] | BaseTool],
        *,
        tool_choice: str | None = None,
        **kwargs: Any,
    ) -> Runnable[LanguageModelInput, AIMessage]:
        """Return this model with tools that candidates may call.

        Args:
            tools: The tools. The `bind_tools` of the generator's model gets dictionaries unchanged, and
                anything else as an OpenAI-style schema, which every provider accepts.
            tool_choice: Passed on to the generator's model; usually `any`, `auto`, `none` or a tool's name.
            **kwargs: Further arguments of the generator's `bind_tools`.

        Returns:
            This model with the tools bound. An abstention calls no tools.

        Raises:
            InputError: If the chain has no reachable chat model.
            NotImplementedError: If the generator's model does not support tools.
            FingerprintError: If the arguments make the generator differ from the calibrated one.
        """
        given = {
            **kwargs,
            "tools": [tool if isinstance(tool, dict) else convert_to_openai_tool(tool) for tool in tools],
        }
        if tool_choice is not None:
            given["tool_choice"] = tool_choice
        # Fail now rather than at the first call.
        self._get_chain({}, {name: given[name] for name in given.keys() - _TRACING_ARGUMENTS})
        return self.bind(**given)

    # Tokens are those of the model that answers. Models override different ones of these three methods.

    def get_token_ids(self, text: str) -> list[int]:
        """Return the ids of a text's tokens."""
        ids: list[int] = self._count("get_token_ids", text)
        return ids

    def get_num_tokens(self, text: str) -> int:
        """Return the number of a text's tokens."""
        return int(self._count("get_num_tokens", text))

    def get_num_tokens_from_messages(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> int:
        """Return the number of tokens of messages, as `trim_messages` uses it."""
        return int(self._count("get_num_tokens_from_messages", messages, *args, **kwargs))

    def _count(self, method: str, *args: Any, **kwargs: Any) -> Any:
        if self.custom_get_token_ids is not None:
            return getattr(super(), method)(*args, **kwargs)
        model = find_answering_model(self.chain)
        if model is None:
            msg = "the chain has no reachable chat model that counts tokens: pass custom_get_token_ids="
            raise InputError(msg)
        return getattr(model, method)(*args, **kwargs)

    # LangChain's `stream` does not pass its run to `_stream`, so the draws would start root runs that its
    # callbacks do not see. The run id is therefore chosen here and passed to `_stream` in a context variable.

    def stream(
        self,
        input: LanguageModelInput,  # noqa: A002 - LangChain's name
        config: RunnableConfig | None = None,
        *,
        stop: list[str] | None = None,
        **kwargs: Any,
    ) -> Iterator[AIMessageChunk]:
        """Stream the decision as one chunk; takes the arguments of `invoke`."""
        given = ensure_config(config)
        manager, run_id = get_callback_manager_for_config(given), given.get("run_id") or uuid4()
        chunks = super().stream(input, {**given, "callbacks": manager, "run_id": run_id}, stop=stop, **kwargs)
        with set_context_variable(_STREAM_CONFIG, _make_child_config(manager, run_id)):
            decided = next(chunks)
        yield _restore_usage(decided)
        yield from chunks

    async def astream(
        self,
        input: LanguageModelInput,  # noqa: A002 - LangChain's name
        config: RunnableConfig | None = None,
        *,
        stop: list[str] | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[AIMessageChunk]:
        """Stream the decision as one chunk, asynchronously."""
        given = ensure_config(config)
        manager, run_id = get_async_callback_manager_for_config(given), given.get("run_id") or uuid4()
        chunks = super().astream(
            input, {**given, "callbacks": manager, "run_id": run_id}, stop=stop, **kwargs
        )
        with set_context_variable(_STREAM_CONFIG, _make_child_config(manager, run_id)):
            decided = await anext(chunks)
        yield _restore_usage(decided)
        async for chunk in chunks:
            yield chunk

    # Callbacks have run by the time these return, so the returned messages may carry their usage.

    def generate(self, *args: Any, **kwargs: Any) -> LLMResult:
        """Generate for several prompts; see `BaseChatModel.generate`."""
        return _restore_result_usage(super().generate(*args, **kwargs))

    async def agenerate(self, *args: Any, **kwargs: Any) -> LLMResult:
        """Generate for several prompts, asynchronously."""
        return _restore_result_usage(await super().agenerate(*args, **kwargs))

    def _should_stream(self, *, async_api: bool, run_manager: LLMRun | None = None, **kwargs: Any) -> bool:
        """Return False inside `_generate`, which has a run manager and notifies stream listeners itself."""
        return run_manager is None and super()._should_stream(async_api=async_api, **kwargs)

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        message = run_flow(self._decide_and_notify(messages, stop, run_manager, kwargs))
        return ChatResult(generations=[ChatGeneration(message=message)])

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        message = await arun_flow(self._decide_and_notify(messages, stop, run_manager, kwargs))
        return ChatResult(generations=[ChatGeneration(message=message)])

    def _stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> Iterator[ChatGenerationChunk]:
        yield _make_chunk(run_flow(self._decide(messages, stop, run_manager, kwargs)))

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        yield _make_chunk(await arun_flow(self._decide(messages, stop, run_manager, kwargs)))

    def _decide_and_notify(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None,
        run_manager: LLMRun | None,
        kwargs: Arguments,
    ) -> Steps[AIMessage]:
        """Return the decision of a call, after those who listen to a stream have been given it as a chunk."""
        message = yield from self._decide(messages, stop, run_manager, kwargs)
        is_streamed = super()._should_stream(async_api=False, run_manager=run_manager, **kwargs)
        if run_manager is not None and is_streamed:
            chunk = _make_chunk(message)
            notify: Any = partial(run_manager.on_llm_new_token, chunk.text, chunk=chunk)
            yield Step(notify, notify)
        return message

    def _decide(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None,
        run_manager: LLMRun | None,
        kwargs: Arguments,
    ) -> Steps[AIMessage]:
        """Return the message of the chain that serves a call."""
        given = self._merge_arguments(stop, kwargs)
        # `stream` concerns the delivery of the decision, not the draws.
        given.pop("stream", None)
        refuse_share_of_one(given)
        promise = {name: given.pop(name) for name in PROMISES if name in given}
        chain = self._get_chain(promise, given)
        config = (
            _STREAM_CONFIG.get()
            if run_manager is None
            else _make_child_config(run_manager, run_manager.run_id)
        )
        try:
            result = yield Step(
                lambda: chain.invoke(messages, config), lambda: chain.ainvoke(messages, config)
            )
        except AbstentionError as error:
            if self.on_abstain != "return":
                raise
            result = error.result
        return self._make_message(result, run_manager)

    def _merge_arguments(self, stop: list[str] | None, kwargs: Arguments) -> dict[str, Any]:
        """Return the arguments of a call, with this model's own settings as defaults."""
        own = {"stop": stop or self.stop, "temperature": self.temperature, "max_tokens": self.max_tokens}
        return {**{name: value for name, value in own.items() if value is not None}, **kwargs}

    def _get_chain(self, promise: Arguments, arguments: Arguments) -> Runnable[Any, Any]:
        """Return the chain with a named promise, and with further arguments for its generator."""
        promise = {name: value for name, value in promise.items() if value is not None}
        if not promise and not arguments:
            return self.chain
        try:
            key = json.dumps([promise, arguments], sort_keys=True)
        except TypeError:
            # Not JSON, for example a class: equality of arguments is unknown, so the chain is not cached.
            return configure_chain(self.chain, promise, arguments)
        base, chain = self._chains.get(key, (None, None))
        # A copy of this model with another `chain` still has the cache entries of the original chain.
        if chain is None or base is not self.chain:
            chain = configure_chain(self.chain, promise, arguments)
            latest = list(self._chains.items())[1 - _CACHE_SIZE :]
            self._chains = {**dict(latest), key: (self.chain, chain)}
        return chain

    def _make_message(self, result: Any, run_manager: LLMRun | None) -> AIMessage:
        """Return the message of a run as callbacks may see it: with the run's id, without `usage_metadata`.

        The usage is kept in the decision; `_restore_usage` restores it after callbacks have run.

        Raises:
            AbstentionError: If the result is an abstention and `on_abstain` is `raise`.
        """
        if self.on_abstain == "raise" and isinstance(result, CFCResult) and result.abstained:
            raise AbstentionError(result)
        answer = Answer(abstain_message=self.abstain_message, full_result=self.full_result)
        message = answer.to_message(result)
        changes: dict[str, Any] = {
            "id": None if run_manager is None else make_message_id(run_manager.run_id),
            "usage_metadata": None,
        }
        if message.usage_metadata is not None:
            decision = {**message.response_metadata["cfc"], "usage": message.usage_metadata}
            changes["response_metadata"] = {**message.response_metadata, "cfc": decision}
        if self.output_version == "v1":
            changes["content"] = message.content_blocks
        return message.model_copy(update=changes)


def _restore_usage(message: Message) -> Message:
    """Return a copy of a message with `usage_metadata` restored from its decision."""
    decision = message.response_metadata.get("cfc") or {}
    usage = decision.get("usage")
    if usage is None:
        return message
    changes: dict[str, Any] = {"usage_metadata": usage}
    if "candidates" not in decision:  # `usage` is a field of the whole result, but not of the short form
        short = {name: value for name, value in decision.items() if name != "usage"}
        changes["response_metadata"] = {**message.response_metadata, "cfc": short}
    return message.model_copy(update=changes)


def _restore_result_usage(result: LLMResult) -> LLMResult:
    """Return a copy of a result with usage restored; the originals stay, as callbacks may have kept them."""
    generations: list[Any] = [
        [
            one.model_copy(update={"message": _restore_usage(one.message)})
            for one in batch
            if isinstance(one, ChatGeneration)
        ]
        for batch in result.generations
    ]
    return result.model_copy(update={"generations": generations})


def _make_chunk(message: AIMessage) -> ChatGenerationChunk:
    """Return a message as the only chunk of a stream."""
    fields = {**message.model_dump(exclude={"type"}), "chunk_position": "last"}
    return ChatGenerationChunk(message=AIMessageChunk(**fields))


def _make_child_config(manager: LLMRun | BaseCallbackManager, run_id: UUID) -> RunnableConfig:
    """Return the config for child runs of a chat model's run; they do not stream into a graph.

    LangChain's run managers of models have no `get_child`, because its own models have no child runs.
    """
    is_async = isinstance(manager, (AsyncCallbackManager, AsyncCallbackManagerForLLMRun))
    parent = (AsyncCallbackManagerForChainRun if is_async else CallbackManagerForChainRun)(
        run_id=run_id,
        handlers=manager.handlers,
        inheritable_handlers=manager.inheritable_handlers,
        inheritable_tags=manager.inheritable_tags,
        inheritable_metadata=manager.inheritable_metadata,
    )
    return RunnableConfig(callbacks=parent.get_child(), tags=[NOSTREAM])
