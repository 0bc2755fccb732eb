"""The models inside a generator: found, named, and what of them cannot be reached."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

from langchain_core.language_models import BaseChatModel, BaseLanguageModel, BaseLLM
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import Runnable, RunnableLambda
from langchain_core.runnables.base import RunnableBindingBase, coerce_to_runnable
from langchain_core.runnables.configurable import RunnableConfigurableAlternatives
from pydantic import BaseModel

from langchain_cfc._internal.optional import check_installed, require
from langchain_cfc.errors import InputError
from langchain_cfc.execution import describe_error

# Where `init_chat_model` keeps what its model is made of when it is to be configured per call.
DEFERRED_MODEL_SETTINGS = "_default_config"
# Settings whose content goes into the request beside the others.
PASSED_ON = ("model_kwargs", "extra_body", "options")
# What most fields hold; a model that replays records has hundreds of thousands.
_SCALARS = (str, float, int, type(None))


def resolve_generator(generator: Any, settings: Mapping[str, Any] | None = None) -> Runnable[Any, Any]:
    """A generator as a Runnable.

    Args:
        generator: A Runnable, a function, or a model's name such as `openai:gpt-4o-mini`.
        settings: What a model that is given by name is made with, such as `temperature`.

    Returns:
        The Runnable; for a name, the chat model that LangChain's `init_chat_model` makes.

    Raises:
        MissingExtraError: If a name is given and `langchain`, or its provider's package, is not installed.
        InputError: If no model can be made of a name and its settings.
    """
    if isinstance(generator, str):
        return _named(generator, settings or {})
    runnable: Runnable[Any, Any] = coerce_to_runnable(generator)
    return runnable


def list_required_packages(name: str) -> dict[str, str]:
    """Name what must be installed for a model that is given by name.

    Args:
        name: A model's name such as `openai:gpt-4o-mini`.

    Returns:
        By module, the extra that brings it. Packages of providers that are no extra are not among them.
    """
    has_extra = name.startswith(("openai:", "gpt-"))
    return {"langchain": "langchain", **({"langchain_openai": "openai"} if has_extra else {})}


def _named(name: str, settings: Mapping[str, Any]) -> Runnable[Any, Any]:
    purpose = f"a generator given by its name ({name!r})"
    check_installed(list_required_packages(name), purpose)
    module = require("langchain.chat_models", "langchain", purpose)
    try:
        model: Runnable[Any, Any] = module.init_chat_model(name, **settings)
    except Exception as error:  # whatever the provider's package does, a missing key among it
        msg = f"no chat model can be made of the name {name!r}: {describe_error(error)}"
        raise InputError(msg) from error
    return model


def walk_runnables(part: Any) -> Iterator[Runnable[Any, Any]]:
    """A Runnable and all that it holds in its fields, itself first.

    Args:
        part: A Runnable; whatever else stands in a field is looked through or skipped.

    Yields:
        Runnables, depth first, in the order of fields. What a function has closed over is not among them.
    """
    left = [part]
    while left:
        one = left.pop()
        if isinstance(one, _SCALARS):
            continue
        if isinstance(one, Runnable):
            yield one
        if isinstance(one, BaseModel):
            # Not by `getattr`, which warns where a field is deprecated.
            values: Iterable[Any] = map(vars(one).get, type(one).model_fields)
        elif isinstance(one, Mapping):
            values = one.values()
        elif isinstance(one, (list, tuple)):
            values = one
        else:
            continue
        left += reversed([*values])


def _reached(part: Any, seen: set[int]) -> Iterator[Runnable[Any, Any]]:
    """What is inside, and what functions there have closed over, as far as LangChain finds it."""
    for one in walk_runnables(part):
        yield one
        # A function may call the very chain that it is part of.
        if isinstance(one, RunnableLambda) and id(one) not in seen:
            seen.add(id(one))
            for dependency in one.deps:
                yield from _reached(dependency, seen)


def has_model(part: Any) -> bool:
    """Whether a Runnable is or holds a language model, be it in a function that has closed over it."""
    return any(_is_model(one) for one in _reached(part, set()))


def has_retriever(part: Any) -> bool:
    """The same for a retriever."""
    return any(isinstance(one, BaseRetriever) for one in _reached(part, set()))


def get_deferred_settings(part: Any) -> dict[str, Any] | None:
    """What a model that is only made when called is made of; None for anything else."""
    held = (
        vars(part).get(DEFERRED_MODEL_SETTINGS)
        if isinstance(part, Runnable) and hasattr(part, "__dict__")
        else None
    )
    return held if isinstance(held, dict) else None


def refuse_seed(generator: Runnable[Any, Any]) -> None:
    """Refuse a fixed seed, which would make all n candidates the same.

    Args:
        generator: Whatever draws.

    Raises:
        InputError: If a model or a binding that can be seen fixes one.
    """
    for part in walk_runnables(generator):
        seed = next((seed for top in _settings(part) if (seed := find_seed(top)) is not None), None)
        if seed is not None:
            msg = (
                f"generator: {type(part).__name__} has the fixed seed {seed!r}, with which separate requests "
                "draw the same candidate n times; leave the seed out"
            )
            raise InputError(msg)


def _settings(part: Runnable[Any, Any]) -> Iterator[Mapping[str, Any]]:
    """The settings of a model or binding that may hold a seed."""
    if isinstance(part, RunnableBindingBase):
        yield part.kwargs
    elif isinstance(part, BaseLanguageModel):
        yield vars(part)
    elif (late := get_deferred_settings(part)) is not None:
        yield late


def _passed_on(settings: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Settings, and those that some of them hold for the request."""
    yield settings
    yield from (settings[name] for name in PASSED_ON if isinstance(settings.get(name), Mapping))


def find_seed(settings: Mapping[str, Any]) -> int | None:
    """Return the fixed seed in settings or in what they pass on to the request; None without any."""
    seeds = (given.get("seed") for given in _passed_on(settings))
    # llama.cpp and others write "no fixed seed" as -1.
    return next((seed for seed in seeds if isinstance(seed, int) and seed >= 0), None)


def list_opaque_parts(generator: Runnable[Any, Any]) -> list[str]:
    """Names of the functions in a generator, into which nothing can be seen from outside."""
    return [one.get_name() for one in walk_runnables(generator) if _is_opaque(one)]


def list_hidden_models(generator: Runnable[Any, Any]) -> list[str]:
    """Models that functions in a generator have closed over, and that stream or cache on their own.

    Args:
        generator: Whatever draws.

    Returns:
        For each, the model's class and the function's name.
    """
    seen: set[int] = set()
    found = [
        f"{type(model).__name__} in {one.get_name()}"
        for one in walk_runnables(generator)
        if isinstance(one, RunnableLambda)
        for dependency in one.deps
        for model in _reached(dependency, seen)
        if _is_model(model) and not _is_quiet(model)
    ]
    return list(dict.fromkeys(found))


def _is_model(part: Runnable[Any, Any]) -> bool:
    return isinstance(part, BaseLanguageModel) or get_deferred_settings(part) is not None


def _is_opaque(part: Runnable[Any, Any]) -> bool:
    return not isinstance(part, BaseModel) and get_deferred_settings(part) is None


def _is_quiet(model: Runnable[Any, Any]) -> bool:
    late = get_deferred_settings(model)
    settings: Mapping[str, Any] = {"disable_streaming": None, **late} if late is not None else vars(model)
    # Text models only stream when asked to.
    return settings.get("cache") is False and settings.get("disable_streaming", True) is True


# `streaming` is the provider's own: left on, ChatOpenAI asks for a stream and cannot read it then.
_SILENT: dict[str, Any] = {"disable_streaming": True, "streaming": False}
# Arguments that a request must not have: several choices would be paid for, and one of them used.
_UNASKED = {"n", "candidate_count", "stream"}


def without_streaming_and_cache(part: Runnable[Any, Any], *, fresh: bool = True) -> Runnable[Any, Any]:
    """A copy of a generator or verifier whose models keep candidates to themselves.

    A streaming model would show rejected candidates' tokens to the user, and so would a judge that quotes
    them. A cache would return n times the same answer. Models are reached on their own and wherever LangChain
    keeps them in fields: bindings, retries, sequences, maps, fallbacks, models configured per call. Inside a
    function they stay as they are.

    Args:
        part: A chat model, a chain, or anything else.
        fresh: Whether models draw candidates: each answer is made anew, and one per request.

    Returns:
        The copy; the part itself where it holds no model.
    """
    if isinstance(part, (BaseChatModel, BaseLLM)):
        return part.model_copy(update=_changes(part, fresh=fresh))
    if (settings := get_deferred_settings(part)) is not None:
        return _made_late(part, settings, fresh=fresh)
    return _held_quieted(part, fresh=fresh) if isinstance(part, BaseModel) else part


def _changes(model: BaseChatModel | BaseLLM, *, fresh: bool) -> dict[str, Any]:
    """The fields of a model that have to change; providers have some of them or not."""
    changes: dict[str, Any] = {**_SILENT, "cache": False} if fresh else dict(_SILENT)
    if fresh:
        held = vars(model)
        changes |= {name: 1 for name in ("n", "candidate_count") if (held.get(name) or 1) > 1}
        changes |= {
            name: _one_answer(held[name]) for name in PASSED_ON if isinstance(held.get(name), Mapping)
        }
    return {name: value for name, value in changes.items() if name in type(model).model_fields}


def _one_answer(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of a request without those that ask for several answers, or for pieces of one."""
    kept = {name: value for name, value in arguments.items() if name not in _UNASKED}
    inner = {name: _one_answer(kept[name]) for name in PASSED_ON if isinstance(kept.get(name), Mapping)}
    return {**kept, **inner}


def _held_quieted(part: Any, *, fresh: bool) -> Any:
    """A copy of a pydantic object whose fields hold quiet models; itself where none changes."""
    fields = {name: vars(part)[name] for name in type(part).model_fields if name in vars(part)}
    inner = {name: _quieted(value, fresh=fresh) for name, value in fields.items()}
    if isinstance(part, RunnableConfigurableAlternatives):
        inner["alternatives"] = {
            key: one if isinstance(one, Runnable) else partial(_made_quiet, one, fresh=fresh)
            for key, one in inner["alternatives"].items()
        }
    if fresh and isinstance(part, RunnableBindingBase) and _one_answer(part.kwargs) != part.kwargs:
        inner["kwargs"] = _one_answer(part.kwargs)
    changed = {name: value for name, value in inner.items() if value is not fields[name]}
    return part.model_copy(update=changed) if changed else part


def _made_quiet(factory: Callable[[], Runnable[Any, Any]], *, fresh: bool) -> Runnable[Any, Any]:
    return without_streaming_and_cache(factory(), fresh=fresh)


def _made_late(part: Runnable[Any, Any], settings: dict[str, Any], *, fresh: bool) -> Runnable[Any, Any]:
    """A model that is only made when it is called, of settings that keep it quiet."""
    copy = object.__new__(type(part))
    quietly = {**(_one_answer(settings) if fresh else settings), "disable_streaming": True}
    if fresh:
        quietly["cache"] = False
    if "streaming" in settings:
        quietly["streaming"] = False
    vars(copy).update({**vars(part), DEFERRED_MODEL_SETTINGS: quietly})
    return copy


def _quieted(value: Any, *, fresh: bool) -> Any:
    """A field's value with quiet models; the value itself where it holds none."""
    if isinstance(value, Runnable):
        return without_streaming_and_cache(value, fresh=fresh)
    if isinstance(value, BaseModel):
        return _held_quieted(value, fresh=fresh)
    if isinstance(value, Mapping):
        inner = {key: _quieted(item, fresh=fresh) for key, item in value.items()}
        return inner if any(inner[key] is not item for key, item in value.items()) else value
    if type(value) in {list, tuple}:
        items = type(value)(_quieted(item, fresh=fresh) for item in value)
        return items if any(new is not old for new, old in zip(items, value, strict=True)) else value
    return value
