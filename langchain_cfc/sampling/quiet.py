"""Quiet copies of generators and verifiers: their models do not stream, and those that draw do not cache."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from langchain_core.language_models import BaseChatModel, BaseLLM
from langchain_core.runnables import Runnable
from langchain_core.runnables.base import RunnableBindingBase
from langchain_core.runnables.configurable import RunnableConfigurableAlternatives
from pydantic import BaseModel

from langchain_cfc.sampling.models import LATE_MODEL_SETTINGS, PASSED_ON, late_settings

# `streaming` is the provider's own: left on, ChatOpenAI asks for a stream and cannot read it then.
_SILENT: dict[str, Any] = {"disable_streaming": True, "streaming": False}
# Arguments that a request must not have: several choices would be paid for, and one of them used.
_UNASKED = {"n", "candidate_count", "stream"}


def quiet(part: Runnable[Any, Any], *, fresh: bool = True) -> Runnable[Any, Any]:
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
    if (settings := late_settings(part)) is not None:
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
    return quiet(factory(), fresh=fresh)


def _made_late(part: Runnable[Any, Any], settings: dict[str, Any], *, fresh: bool) -> Runnable[Any, Any]:
    """A model that is only made when it is called, of settings that keep it quiet."""
    copy = object.__new__(type(part))
    quietly = {**(_one_answer(settings) if fresh else settings), "disable_streaming": True}
    if fresh:
        quietly["cache"] = False
    if "streaming" in settings:
        quietly["streaming"] = False
    vars(copy).update({**vars(part), LATE_MODEL_SETTINGS: quietly})
    return copy


def _quieted(value: Any, *, fresh: bool) -> Any:
    """A field's value with quiet models; the value itself where it holds none."""
    if isinstance(value, Runnable):
        return quiet(value, fresh=fresh)
    if isinstance(value, BaseModel):
        return _held_quieted(value, fresh=fresh)
    if isinstance(value, Mapping):
        inner = {key: _quieted(item, fresh=fresh) for key, item in value.items()}
        return inner if any(inner[key] is not item for key, item in value.items()) else value
    if type(value) in {list, tuple}:
        items = type(value)(_quieted(item, fresh=fresh) for item in value)
        return items if any(new is not old for new, old in zip(items, value, strict=True)) else value
    return value
