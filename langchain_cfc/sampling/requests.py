"""Split generators into the part that runs once per prompt and the part that is sampled n times."""

from __future__ import annotations

from functools import wraps
from typing import Any, NamedTuple

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage
from langchain_core.outputs import ChatResult
from langchain_core.runnables import Runnable, RunnableSequence
from langchain_core.runnables.base import RunnableBindingBase

from langchain_cfc.sampling.code_identity import is_transparent
from langchain_cfc.sampling.models import has_model, has_retriever

AnyRunnable = Runnable[Any, Any]


class GeneratorParts(NamedTuple):
    """A generator, cut before the model that answers."""

    per_prompt: AnyRunnable | None  # prepares a request, for example retrieval and the prompt template
    per_candidate: AnyRunnable  # is invoked for each of the n candidates


def split_generator(generator: AnyRunnable) -> GeneratorParts:
    """Cut a chain before the model that answers, so that all n candidates share one context.

    The steps before the first model of a sequence run once per prompt. So do all steps up to the last
    retriever, including a model that only writes its query, as long as a model follows. Maps, branches,
    fallbacks and chains with bound arguments are not cut.
    """
    if isinstance(generator, RunnableSequence):
        return _split_steps(generator.steps)
    # Bound arguments belong to the first step of the bound sequence, so it must stay whole.
    if is_transparent(generator) and not generator.kwargs:
        per_prompt, per_candidate = split_generator(generator.bound)
        if per_prompt is not None:
            return GeneratorParts(_rebind(generator, per_prompt), _rebind(generator, per_candidate))
    return GeneratorParts(None, generator)


def _split_steps(steps: list[AnyRunnable]) -> GeneratorParts:
    first = _find_first_sampled(steps)
    if first is None:
        return GeneratorParts(None, _join(steps))
    per_prompt, per_candidate = split_generator(steps[first])
    before = [*steps[:first], *([per_prompt] if per_prompt is not None else [])]
    return GeneratorParts(_join(before) if before else None, _join([per_candidate, *steps[first + 1 :]]))


def _find_first_sampled(steps: list[AnyRunnable]) -> int | None:
    """Return the position of the first model after the last retriever, or else of the first model."""
    models = [position for position, step in enumerate(steps) if has_model(step)]
    retrieved = max((position for position, step in enumerate(steps) if has_retriever(step)), default=-1)
    if retrieved in models and has_retriever(split_generator(steps[retrieved]).per_prompt):
        # The step is a nested sequence, which is cut after its own retriever.
        return retrieved
    after = [position for position in models if position > retrieved]
    return next(iter(after or models), None)


def _join(steps: list[AnyRunnable]) -> AnyRunnable:
    return steps[0] if len(steps) == 1 else RunnableSequence(*steps)


def _rebind(binding: RunnableBindingBase[Any, Any], bound: AnyRunnable) -> AnyRunnable:
    return binding.model_copy(update={"bound": bound})


class AnsweringModel(NamedTuple):
    """The chat model at the beginning of a sampled part, with its wrappers and the following steps."""

    model: BaseChatModel
    choices: AnyRunnable  # the model that states its usage once, in its bindings and retries
    after: AnyRunnable | None  # reads the model's message, for example a parser


def find_answering_model(sampled: AnyRunnable) -> AnsweringModel | None:
    """Return the chat model at the beginning of a sampled part; None if it does not begin with one."""
    if isinstance(sampled, BaseChatModel):
        return AnsweringModel(sampled, state_usage_once(sampled), None)
    if isinstance(sampled, RunnableSequence):
        found = find_answering_model(sampled.steps[0])
        if found is None:
            return None
        before = [] if found.after is None else [found.after]
        return found._replace(after=_join([*before, *sampled.steps[1:]]))
    if not is_transparent(sampled) or (found := find_answering_model(sampled.bound)) is None:
        return None
    # Bound arguments belong to the first step of the bound sequence, which is the model.
    without_arguments = sampled.model_copy(update={"kwargs": {}})
    after = None if found.after is None else _rebind(without_arguments, found.after)
    return AnsweringModel(found.model, _rebind(sampled, found.choices), after)


def state_usage_once(model: BaseChatModel) -> BaseChatModel:
    """Return a copy of a model where every choice names the model, and only the first has the usage.

    With several choices, clients put the usage of the whole request into each message and the model's name
    into none. Code that sums usage, such as LangChain's own callback, then counts it n times or not at all.
    """

    @wraps(model._generate)  # noqa: SLF001 - LangChain's interface for subclasses, as below
    def generate(*args: Any, **kwargs: Any) -> ChatResult:
        return _move_usage(model._generate(*args, **kwargs))  # noqa: SLF001

    @wraps(model._agenerate)  # noqa: SLF001
    async def agenerate(*args: Any, **kwargs: Any) -> ChatResult:
        return _move_usage(await model._agenerate(*args, **kwargs))  # noqa: SLF001

    counted = model.model_copy()
    counted.__dict__.update(_generate=generate, _agenerate=agenerate)
    return counted


def _move_usage(result: ChatResult) -> ChatResult:
    for position, generation in enumerate(result.generations):
        message = generation.message
        message.response_metadata = {**(result.llm_output or {}), **message.response_metadata}
        if position > 0 and isinstance(message, AIMessage):
            message.usage_metadata = None
    return result


def get_choices_parameter(model: BaseChatModel) -> str:
    """Return the name that a model's provider uses for the number of choices."""
    # langchain-google-genai and langchain-google-vertexai use Google's own name.
    return "candidate_count" if type(model).__module__.startswith("langchain_google") else "n"
