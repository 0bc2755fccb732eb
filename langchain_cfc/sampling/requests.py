"""What of a generator runs once per prompt, and what is sampled n times."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, TypeGuard

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel, LangSmithParams
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import Runnable, RunnableConfig, RunnableSequence, RunnableSerializable
from langchain_core.runnables.base import RunnableBinding, RunnableBindingBase
from langchain_core.runnables.config import ensure_config
from langchain_core.runnables.retry import RunnableRetry

from langchain_cfc.sampling.models import has_model, has_retriever

AnyRunnable = Runnable[Any, Any]


@dataclass(frozen=True)
class Parts:
    """A generator in two.

    Attributes:
        once: What prepares a request, such as retrieval and the prompt template; None where nothing does.
        sampled: What is drawn from n times.
    """

    once: AnyRunnable | None
    sampled: AnyRunnable


def split_generator(generator: AnyRunnable) -> Parts:
    """Cut a chain before the model that answers, so that n candidates share one context.

    What stands before the first model of a sequence runs once per prompt. So does everything up to the last
    retriever, a model that only writes its query included, as long as a model follows. Maps, branches and
    fallbacks are not cut inside, nor is a chain with bound arguments.

    Args:
        generator: A chat model or chain.

    Returns:
        Its two parts; the first is None where the chain cannot be cut.
    """
    if isinstance(generator, RunnableSequence):
        return _split_steps(generator.steps)
    # Bound arguments would go to the first step of what is bound.
    if _is_plain(generator) and not generator.kwargs:
        parts = split_generator(generator.bound)
        if parts.once is not None:
            return Parts(_around(generator, parts.once), _around(generator, parts.sampled))
    return Parts(None, generator)


def _split_steps(steps: list[AnyRunnable]) -> Parts:
    first = _first_sampled(steps)
    if first is None:
        return Parts(None, _joined(steps))
    inner = split_generator(steps[first])
    before = [*steps[:first], *([inner.once] if inner.once is not None else [])]
    return Parts(_joined(before) if before else None, _joined([inner.sampled, *steps[first + 1 :]]))


def _first_sampled(steps: list[AnyRunnable]) -> int | None:
    """The step that holds the first model after the last retriever; the first model's if there is none."""
    models = [position for position, step in enumerate(steps) if has_model(step)]
    retrieved = max((position for position, step in enumerate(steps) if has_retriever(step)), default=-1)
    if retrieved in models and has_retriever(split_generator(steps[retrieved]).once):
        # A sequence within the sequence, cut after its own retriever.
        return retrieved
    after = [position for position in models if position > retrieved]
    return next(iter(after or models), None)


def _is_plain(part: AnyRunnable) -> TypeGuard[RunnableBindingBase[Any, Any]]:
    """Whether it is a binding or retries; others may do anything around what they bind."""
    return isinstance(part, (RunnableBinding, RunnableRetry))


def _joined(steps: list[AnyRunnable]) -> AnyRunnable:
    return steps[0] if len(steps) == 1 else RunnableSequence(*steps)


def _around(binding: RunnableBindingBase[Any, Any], bound: AnyRunnable) -> AnyRunnable:
    return binding.model_copy(update={"bound": bound})


@dataclass(frozen=True)
class AnsweringModel:
    """The sampled part of a chain, cut around its model.

    Attributes:
        model: The chat model.
        wrappers: Bindings and retries around it, outermost first.
        after: What reads its message, such as a parser; None where nothing does.
    """

    model: BaseChatModel
    wrappers: tuple[RunnableBindingBase[Any, Any], ...]
    after: AnyRunnable | None

    def around(self, inner: AnyRunnable) -> AnyRunnable:
        """The wrappers around something else."""
        for wrapper in reversed(self.wrappers):
            inner = _around(wrapper, inner)
        return inner


def find_answering_model(sampled: AnyRunnable) -> AnsweringModel | None:
    """Find the one chat model that a sampled part begins with.

    Args:
        sampled: What is drawn from n times.

    Returns:
        The model with what stands around it and after it; None where the part begins otherwise.
    """
    if isinstance(sampled, BaseChatModel):
        return AnsweringModel(sampled, (), None)
    if isinstance(sampled, RunnableSequence):
        found = find_answering_model(sampled.steps[0])
        if found is None:
            return None
        before = [] if found.after is None else [found.after]
        return replace(found, after=_joined([*before, *sampled.steps[1:]]))
    return _answering_bound(sampled) if _is_plain(sampled) else None


def _answering_bound(binding: RunnableBindingBase[Any, Any]) -> AnsweringModel | None:
    found = find_answering_model(binding.bound)
    if found is None:
        return None
    after = None if found.after is None else _around(_without_arguments(binding), found.after)
    return AnsweringModel(found.model, (binding, *found.wrappers), after)


def _without_arguments(binding: RunnableBindingBase[Any, Any]) -> RunnableBindingBase[Any, Any]:
    """Bound arguments go to the first step of what is bound, which is the model."""
    return binding.model_copy(update={"kwargs": {}})


class SingleUsageModel(BaseChatModel):
    """A chat model whose choices each say which model made them, and of which the first bears the usage.

    With several choices, clients give the usage of the whole request to each of them, and none says the
    model's name; whoever adds up, such as LangChain's own usage callback, counts n-fold or not at all.
    """

    model: BaseChatModel

    @classmethod
    def of(cls, model: BaseChatModel) -> SingleUsageModel:
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


class MultipleChoiceRequest(RunnableSerializable[Any, list[BaseMessage]]):
    """A prompt to the messages of all choices that one request brings.

    Args:
        model: The chat model.
        parameter: What its provider calls the number of choices.
    """

    model: SingleUsageModel
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


def get_choices_parameter(model: BaseChatModel) -> str:
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
