"""Generators taken apart: what runs once per prompt, what is sampled n times, and the model in that."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeGuard

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import Runnable, RunnableConfig, RunnableSequence, RunnableSerializable
from langchain_core.runnables.base import RunnableBinding, RunnableBindingBase
from langchain_core.runnables.config import ensure_config
from langchain_core.runnables.retry import RunnableRetry

from langchain_cfc.execution.langgraph_compat import DelegatingChatModel, convert_model_input
from langchain_cfc.sampling.models import has_model, has_retriever

AnyRunnable = Runnable[Any, Any]


class GeneratorParts(NamedTuple):
    """A generator, cut before its first model call."""

    once: AnyRunnable | None  # what prepares a request, such as retrieval and the prompt template
    sampled: AnyRunnable  # what is drawn from n times


def split_generator(generator: AnyRunnable) -> GeneratorParts:
    """Cut a chain before the model that answers, so that n candidates share one context.

    What stands before the first model of a sequence runs once per prompt. So does everything up to the last
    retriever, a model that only writes its query included, as long as a model follows. Maps, branches and
    fallbacks are not cut inside, nor is a chain with bound arguments.
    """
    if isinstance(generator, RunnableSequence):
        return _split_steps(generator.steps)
    # Bound arguments would go to the first step of what is bound.
    if _is_transparent(generator) and not generator.kwargs:
        once, sampled = split_generator(generator.bound)
        if once is not None:
            return GeneratorParts(_rebind(generator, once), _rebind(generator, sampled))
    return GeneratorParts(None, generator)


def _split_steps(steps: list[AnyRunnable]) -> GeneratorParts:
    first = _find_first_sampled(steps)
    if first is None:
        return GeneratorParts(None, _join(steps))
    once, sampled = split_generator(steps[first])
    before = [*steps[:first], *([once] if once is not None else [])]
    return GeneratorParts(_join(before) if before else None, _join([sampled, *steps[first + 1 :]]))


def _find_first_sampled(steps: list[AnyRunnable]) -> int | None:
    """Return the step with the first model after the last retriever, or else with the first model."""
    models = [position for position, step in enumerate(steps) if has_model(step)]
    retrieved = max((position for position, step in enumerate(steps) if has_retriever(step)), default=-1)
    if retrieved in models and has_retriever(split_generator(steps[retrieved]).once):
        # A sequence within the sequence, cut after its own retriever.
        return retrieved
    after = [position for position in models if position > retrieved]
    return next(iter(after or models), None)


def _is_transparent(part: AnyRunnable) -> TypeGuard[RunnableBindingBase[Any, Any]]:
    """Return whether a part is a binding or retries; others may do anything around what they bind."""
    return isinstance(part, (RunnableBinding, RunnableRetry))


def _join(steps: list[AnyRunnable]) -> AnyRunnable:
    return steps[0] if len(steps) == 1 else RunnableSequence(*steps)


def _rebind(binding: RunnableBindingBase[Any, Any], bound: AnyRunnable) -> AnyRunnable:
    return binding.model_copy(update={"bound": bound})


@dataclass(frozen=True)
class AnsweringModel:
    """The chat model that a sampled part begins with."""

    model: BaseChatModel
    wrappers: tuple[RunnableBindingBase[Any, Any], ...]  # bindings and retries around it, outermost first
    after: AnyRunnable | None  # what reads its message, such as a parser

    def wrap(self, inner: AnyRunnable) -> AnyRunnable:
        """Return another runnable inside the same wrappers."""
        for wrapper in reversed(self.wrappers):
            inner = _rebind(wrapper, inner)
        return inner


def find_answering_model(sampled: AnyRunnable) -> AnsweringModel | None:
    """Return the one chat model that a sampled part begins with; None where it begins otherwise."""
    if isinstance(sampled, BaseChatModel):
        return AnsweringModel(sampled, (), None)
    if isinstance(sampled, RunnableSequence):
        found = find_answering_model(sampled.steps[0])
        if found is None:
            return None
        before = [] if found.after is None else [found.after]
        return replace(found, after=_join([*before, *sampled.steps[1:]]))
    if not _is_transparent(sampled):
        return None
    found = find_answering_model(sampled.bound)
    if found is None:
        return None
    # Bound arguments go to the first step of what is bound, which is the model.
    without_arguments = sampled.model_copy(update={"kwargs": {}})
    after = None if found.after is None else _rebind(without_arguments, found.after)
    return AnsweringModel(found.model, (sampled, *found.wrappers), after)


class SingleUsageModel(DelegatingChatModel):
    """A chat model whose choices each name the model that made them, and of which the first has the usage.

    With several choices, clients give the usage of the whole request to each of them, and none has the
    model's name; code that adds usage up, such as LangChain's own callback, counts n-fold or not at all.
    """

    @classmethod
    def of(cls, model: BaseChatModel) -> SingleUsageModel:
        """Wrap a model, with its callbacks, tags and rate limiter."""
        shared = {name: getattr(model, name) for name in BaseChatModel.model_fields}
        return cls(model=model, **shared)

    def change_result(self, result: ChatResult) -> ChatResult:
        """Name the model in each choice, and leave the usage to the first."""
        for position, generation in enumerate(result.generations):
            message = generation.message
            message.response_metadata = {**(result.llm_output or {}), **message.response_metadata}
            if position > 0 and isinstance(message, AIMessage):
                message.usage_metadata = None
        return result


class MultipleChoiceRequest(RunnableSerializable[Any, list[BaseMessage]]):
    """Asks a chat model for several choices in one request, and returns as many messages as came."""

    model: SingleUsageModel
    parameter: str  # what the model's provider calls the number of choices

    def invoke(
        self,
        input: Any,  # noqa: A002 - LangChain's name
        config: RunnableConfig | None = None,
        *,
        choices: int = 1,
        **kwargs: Any,
    ) -> list[BaseMessage]:
        """Return the choices in the order of the response."""
        arguments = self._make_arguments(config, choices, kwargs)
        result = self.model.generate_prompt([convert_model_input(self.model, input)], **arguments)
        return _list_messages(result.generations[0])

    async def ainvoke(
        self,
        input: Any,  # noqa: A002 - LangChain's name
        config: RunnableConfig | None = None,
        *,
        choices: int = 1,
        **kwargs: Any,
    ) -> list[BaseMessage]:
        """Return the choices in the order of the response, asynchronously."""
        arguments = self._make_arguments(config, choices, kwargs)
        result = await self.model.agenerate_prompt([convert_model_input(self.model, input)], **arguments)
        return _list_messages(result.generations[0])

    def _make_arguments(
        self, config: RunnableConfig | None, choices: int, kwargs: dict[str, Any]
    ) -> dict[str, Any]:
        """Return the arguments of `generate_prompt`; LangChain takes the parts of a config one by one."""
        given = ensure_config(config)
        return {
            **{key: given.get(key) for key in ("callbacks", "tags", "metadata", "run_id")},
            "run_name": given.get("run_name") or self.model.model.get_name(),
            **kwargs,
            self.parameter: choices,
        }


def get_choices_parameter(model: BaseChatModel) -> str:
    """Return what the provider of a model calls the number of choices."""
    # langchain-google-genai and langchain-google-vertexai read it under Google's own name.
    return "candidate_count" if type(model).__module__.startswith("langchain_google") else "n"


def _list_messages(generations: Any) -> list[BaseMessage]:
    return [one.message for one in generations if isinstance(one, ChatGeneration)]
