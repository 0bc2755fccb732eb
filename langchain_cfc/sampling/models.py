"""Find the models inside a generator, make them by name, and switch off their streaming and caches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from langchain_core.language_models import BaseLanguageModel
from langchain_core.runnables import Runnable, RunnableLambda
from langchain_core.runnables.base import RunnableBindingBase, coerce_to_runnable
from pydantic import BaseModel

from langchain_cfc.errors import CFCError, InputError
from langchain_cfc.execution import Call, describe_error
from langchain_cfc.execution.langgraph_compat import is_made_at_each_call
from langchain_cfc.execution.steps import call_by_keys
from langchain_cfc.sampling.code_identity import is_configured_per_call
from langchain_cfc.sampling.fingerprints import PASS_THROUGH
from langchain_cfc.support.imports import check_installed, require
from langchain_cfc.support.json_text import short_repr
from langchain_cfc.support.suggestions import check_is_instance

# Skipped early, because most fields hold these, and a model that replays records has very many of them.
_SCALARS = (str, float, int, type(None))
# Characters of an error of another package that are quoted.
_LONGEST_REASON = 160


def resolve_generator(generator: Any, settings: Mapping[str, Any] | None = None) -> Runnable[Any, Any]:
    """Return a generator as a Runnable; a model's name is resolved by `init_chat_model`.

    Args:
        generator: A Runnable, a function, or a model's name such as `openai:gpt-4o-mini`.
        settings: Settings of a model given by name, such as `temperature`.

    Returns:
        The Runnable.

    Raises:
        MissingExtraError: If a name is given and `langchain`, or OpenAI's package for it, is not installed.
        InputError: If it is nothing of these, or no model can be made from the name and the settings.
    """
    if not isinstance(generator, str):
        check_is_instance("generator", generator, InputError)
        try:
            runnable: Runnable[Any, Any] = coerce_to_runnable(generator)
        except TypeError as error:
            msg = f"generator is {short_repr(generator)}; expected a model, its name, a chain or a function"
            raise InputError(msg) from error
        return runnable
    purpose = f"a generator given by its name ({generator!r})"
    check_installed(list_required_packages(generator), purpose)
    module = require("langchain.chat_models", "langchain", purpose)
    try:
        model: Runnable[Any, Any] = module.init_chat_model(generator, **(settings or {}))
    except Exception as error:  # the provider's package may raise anything, for example without a key
        reason = next(iter(describe_error(error).splitlines()), "")[:_LONGEST_REASON]
        msg = f"cannot make a chat model from the name {generator!r}: {reason}"
        raise InputError(msg) from error
    return model


def list_required_packages(name: str) -> dict[str, str]:
    """Return the modules that a model given by name requires, each with the extra that installs it.

    Packages of providers without an extra are not listed.
    """
    has_extra = name.startswith(("openai:", "gpt-"))
    return {"langchain": "langchain", **({"langchain_openai": "openai"} if has_extra else {})}


def walk_runnables(part: Any) -> Iterator[Runnable[Any, Any]]:
    """Yield a Runnable and all Runnables in its fields, itself first.

    Args:
        part: A Runnable, or any other value; models, mappings, lists and tuples are searched.

    Yields:
        Runnables, depth first, in the order of fields, without those in the closures of functions; each once,
        also if a value holds itself.
    """
    left, seen = [part], set[int]()
    while left:
        one = left.pop()
        if isinstance(one, _SCALARS) or id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, Runnable):
            yield one
        left += reversed(_list_parts(one).values())


def _list_parts(value: Any) -> dict[Any, Any]:
    """Return what a model, mapping, list or tuple holds, by field, key or position; empty for any other."""
    if isinstance(value, BaseModel):
        # Not by `getattr`, which warns about deprecated fields.
        return {name: vars(value)[name] for name in type(value).model_fields if name in vars(value)}
    if isinstance(value, (list, tuple)):
        return dict(enumerate(value))
    return dict(value) if isinstance(value, Mapping) else {}


def _walk_with_closures(part: Any, seen: set[int]) -> Iterator[Runnable[Any, Any]]:
    """Yield the Runnables in a part and in the closures of its functions, as far as LangChain finds them."""
    for one in walk_runnables(part):
        yield one
        # A function may call the very chain that it is part of.
        if isinstance(one, RunnableLambda) and id(one) not in seen:
            seen.add(id(one))
            for dependency in one.deps:
                yield from _walk_with_closures(dependency, seen)


def has_model(part: Any) -> bool:
    """Return whether a part is or holds a language model, including in a function's closure."""
    return any(_is_model(one) for one in _walk_with_closures(part, set()))


def has_retriever(part: Any) -> bool:
    """Return whether a part is or holds a retriever, including in a function's closure."""
    from langchain_core.retrievers import BaseRetriever  # late, as in fingerprints

    return any(isinstance(one, BaseRetriever) for one in _walk_with_closures(part, set()))


def refuse_seed(generator: Runnable[Any, Any]) -> None:
    """Raise an `InputError` if a visible model or binding fixes a seed: all candidates would be the same."""
    for part in walk_runnables(generator):
        is_asking = isinstance(part, (BaseLanguageModel, RunnableBindingBase))
        if is_asking and (seed := find_seed(_get_arguments(part))) is not None:
            msg = (
                f"generator: {type(part).__name__} has the fixed seed {seed!r}, with which separate "
                "requests draw the same candidate n times; remove the seed"
            )
            raise InputError(msg)


def find_seed(settings: Mapping[str, Any]) -> int | None:
    """Return the fixed seed in settings, or in mappings that they pass on to the request; None if none."""
    seeds = (given.get("seed") for given in _list_passed_on(settings))
    # llama.cpp and others write "no fixed seed" as -1.
    return next((seed for seed in seeds if isinstance(seed, int) and seed >= 0), None)


def may_call_tools(generator: Runnable[Any, Any]) -> bool:
    """Return whether a generator has tools, so that calling one is an answer; True if that cannot be seen."""
    return bool(list_opaque_parts(generator)) or any(
        given.get("tools") or given.get("functions")
        for part in walk_runnables(generator)
        for given in _list_passed_on(_get_arguments(part))
    )


def _get_arguments(part: Runnable[Any, Any]) -> Mapping[str, Any]:
    return part.kwargs if isinstance(part, RunnableBindingBase) else vars(part)


def _list_passed_on(settings: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    inner = [settings[name] for name in PASS_THROUGH if isinstance(settings.get(name), Mapping)]
    return [settings, *inner]


def list_opaque_parts(generator: Runnable[Any, Any]) -> list[str]:
    """Return the names of a generator's functions, whose models cannot be seen from outside."""
    return [one.get_name() for one in walk_runnables(generator) if not isinstance(one, BaseModel)]


def list_hidden_models(generator: Runnable[Any, Any]) -> list[str]:
    """Return the models in closures of functions that may stream or cache, as `model in function`."""
    seen: set[int] = set()
    found = [
        f"{type(model).__name__} in {one.get_name()}"
        for one in walk_runnables(generator)
        if isinstance(one, RunnableLambda)
        for dependency in one.deps
        for model in _walk_with_closures(dependency, seen)
        if _is_model(model) and _may_stream_or_cache(model)
    ]
    return list(dict.fromkeys(found))


def _is_model(part: Runnable[Any, Any]) -> bool:
    return isinstance(part, BaseLanguageModel) or is_made_at_each_call(part)


def _may_stream_or_cache(model: Runnable[Any, Any]) -> bool:
    settings = vars(model)
    # Text models have no `disable_streaming`: they stream only when asked to.
    return not (settings.get("cache") is False and settings.get("disable_streaming", True) is True)


# `streaming` is a provider's field: left on, ChatOpenAI requests a stream that it then cannot read.
_STREAMING_OFF: dict[str, Any] = {"disable_streaming": True, "streaming": False}
# Arguments removed from requests: streaming, and several choices, which are all billed but only one is used.
_REMOVED_ARGUMENTS = {"n", "candidate_count", "stream"}


def without_streaming_and_cache(part: Runnable[Any, Any], *, fresh: bool = True) -> Runnable[Any, Any]:
    """Return a copy of a generator or verifier whose models neither stream nor cache.

    A streaming model would show the tokens of rejected candidates to the user, and so would a judge that
    quotes them. A cache would return the same answer n times. Models are found wherever LangChain keeps them
    in fields: bindings, retries, sequences, maps, fallbacks. Models inside a function stay unchanged.

    Args:
        part: A chat model, a chain, or anything else.
        fresh: Whether the models draw candidates. If so, caches are switched off and each request asks for a
            single answer; otherwise only streaming is switched off.

    Returns:
        The copy; the part itself if it holds no model.

    Raises:
        InputError: If a model is only made at each call, or a value with models in it holds itself.
    """
    try:
        silent: Runnable[Any, Any] = _silence(part, fresh=fresh)
    except RecursionError:
        msg = f"a field of the {type(part).__name__} holds models and itself, so that it cannot be copied"
        raise InputError(msg) from None
    return silent


def make_silent_call(
    name: str,
    target: Runnable[Any, Any] | Callable[..., Any],
    failure: type[CFCError],
    keys: Sequence[str] | None = None,
    hint: str = "expected a function or a Runnable",
) -> Call:
    """Return a `Call` whose models do not stream; a function gets the values of `keys` as its arguments.

    Raises an error of the type `failure`, whose message ends with the `hint`, if it cannot be called.
    """
    check_is_instance(name, target, failure)
    if isinstance(target, Runnable):
        return Call(name, without_streaming_and_cache(target, fresh=False), failure)
    if not callable(target):
        msg = f"got a {type(target).__name__} as {name}: {hint}"
        raise failure(msg)
    return Call(name, target if keys is None else call_by_keys(target, keys), failure)


def _change_model_fields(model: BaseLanguageModel[Any], *, fresh: bool) -> dict[str, Any]:
    """Return the new values of a model's fields, limited to fields that the model's class has."""
    changes = dict(_STREAMING_OFF)
    if fresh:
        values = vars(model)
        changes["cache"] = False
        changes |= {name: 1 for name in ("n", "candidate_count") if (values.get(name) or 1) > 1}
        changes |= {
            name: _ask_for_one_answer(values[name])
            for name in PASS_THROUGH
            if isinstance(values.get(name), Mapping)
        }
    return {name: value for name, value in changes.items() if name in type(model).model_fields}


def _ask_for_one_answer(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a request without those that ask for several answers or a stream."""
    return {
        name: _ask_for_one_answer(one) if name in PASS_THROUGH and isinstance(one, Mapping) else one
        for name, one in arguments.items()
        if name not in _REMOVED_ARGUMENTS
    }


def _silence(value: Any, *, fresh: bool) -> Any:
    """Return a value with silent models; the value itself if nothing in it changes."""
    if isinstance(value, BaseLanguageModel):
        return value.model_copy(update=_change_model_fields(value, fresh=fresh))
    if is_made_at_each_call(value):
        msg = (
            "a model that is made at each call is not known beforehand: leave out configurable_fields, as in "
            "init_chat_model('openai:gpt-4o-mini')"
        )
        raise InputError(msg)
    if next(walk_runnables(value), None) is None:
        return value  # which may hold itself
    held = _list_parts(value)
    silent = {key: _silence(one, fresh=fresh) for key, one in held.items()}
    if "alternatives" in silent and is_configured_per_call(value):
        silent["alternatives"] = {
            key: one if isinstance(one, Runnable) else partial(_make_silent, one, fresh=fresh)
            for key, one in silent["alternatives"].items()
        }
    if fresh and isinstance(value, RunnableBindingBase):
        arguments = _ask_for_one_answer(silent["kwargs"])
        silent["kwargs"] = silent["kwargs"] if arguments == silent["kwargs"] else arguments
    changed = {key: one for key, one in silent.items() if one is not held[key]}
    if changed and isinstance(value, BaseModel):
        return value.model_copy(update=changed)
    if changed and isinstance(value, Mapping):
        return silent
    return type(value)(silent.values()) if changed and type(value) in {list, tuple} else value


def _make_silent(factory: Callable[[], Runnable[Any, Any]], *, fresh: bool) -> Runnable[Any, Any]:
    return without_streaming_and_cache(factory(), fresh=fresh)
