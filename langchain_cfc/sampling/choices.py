"""Several choices of a chat model in one request."""

from __future__ import annotations

from typing import Any

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel, LangSmithParams
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import RunnableConfig, RunnableSerializable
from langchain_core.runnables.config import ensure_config


class ChoosingModel(BaseChatModel):
    """A chat model whose choices each say which model made them, and of which the first bears the usage.

    With several choices, clients give the usage of the whole request to each of them, and none says the
    model's name; whoever adds up, such as LangChain's own usage callback, counts n-fold or not at all.
    """

    model: BaseChatModel

    @classmethod
    def of(cls, model: BaseChatModel) -> ChoosingModel:
        """The same model, its callbacks, tags and rate limiter included."""
        shared = {name: getattr(model, name) for name in BaseChatModel.model_fields}
        return cls(model=model, **shared)

    @property
    def _llm_type(self) -> str:
        return self.model._llm_type  # noqa: SLF001 - one chat model speaks for another

    @property
    def _identifying_params(self) -> dict[str, Any]:
        return dict(self.model._identifying_params)  # noqa: SLF001 - as above

    def _get_ls_params(self, stop: list[str] | None = None, **kwargs: Any) -> LangSmithParams:
        return self.model._get_ls_params(stop=stop, **kwargs)  # noqa: SLF001 - as above

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        return _counted_once(
            self.model._generate(messages, stop=stop, run_manager=run_manager, **kwargs)  # noqa: SLF001 - as above
        )

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        return _counted_once(
            await self.model._agenerate(messages, stop=stop, run_manager=run_manager, **kwargs)  # noqa: SLF001 - as above
        )


class Choices(RunnableSerializable[Any, list[BaseMessage]]):
    """A prompt to the messages of all choices that one request brings.

    Args:
        model: The chat model.
        parameter: What its provider calls the number of choices.
    """

    model: ChoosingModel
    parameter: str

    def invoke(
        self,
        input: Any,  # noqa: A002 - LangChain's name
        config: RunnableConfig | None = None,
        *,
        choices: int = 1,
        **kwargs: Any,
    ) -> list[BaseMessage]:
        """The choices, in the order of the response; as many as came."""
        result = self.model.generate_prompt(
            [self.model._convert_input(input)],  # noqa: SLF001 - what every chat model does with its input
            **self._call(config),
            **{**kwargs, self.parameter: choices},
        )
        return _messages(result.generations[0])

    async def ainvoke(
        self,
        input: Any,  # noqa: A002 - LangChain's name
        config: RunnableConfig | None = None,
        *,
        choices: int = 1,
        **kwargs: Any,
    ) -> list[BaseMessage]:
        """The same, asynchronously."""
        result = await self.model.agenerate_prompt(
            [self.model._convert_input(input)],  # noqa: SLF001 - what every chat model does with its input
            **self._call(config),
            **{**kwargs, self.parameter: choices},
        )
        return _messages(result.generations[0])

    def _call(self, config: RunnableConfig | None) -> dict[str, Any]:
        """A config as the arguments of `generate_prompt`."""
        given = ensure_config(config)
        return {
            "callbacks": given.get("callbacks"),
            "tags": given.get("tags"),
            "metadata": given.get("metadata"),
            "run_name": given.get("run_name") or self.model.model.get_name(),
            "run_id": given.get("run_id"),
        }


def choices_parameter(model: BaseChatModel) -> str:
    """What the provider of a model calls the number of choices."""
    # langchain-google-genai and langchain-google-vertexai read it under Google's own name.
    return "candidate_count" if type(model).__module__.startswith("langchain_google") else "n"


def _messages(generations: Any) -> list[BaseMessage]:
    return [one.message for one in generations if isinstance(one, ChatGeneration)]


def _counted_once(result: ChatResult) -> ChatResult:
    for position, generation in enumerate(result.generations):
        message = generation.message
        message.response_metadata = {**(result.llm_output or {}), **message.response_metadata}
        if position > 0 and isinstance(message, AIMessage):
            message.usage_metadata = None
    return result
