"""What a part states about itself, whatever wraps it or stands around it in a sequence."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator, Mapping
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.load import dumps
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import BasePromptTemplate
from langchain_core.runnables import RunnablePassthrough, RunnableSequence, RunnableWithFallbacks
from langchain_core.runnables.base import RunnableBinding, RunnableBindingBase
from langchain_core.runnables.configurable import DynamicRunnable
from langchain_core.runnables.retry import RunnableRetry

from langchain_cfc.errors import FingerprintError
from langchain_cfc.fingerprints.models import (
    NO_EFFECT,
    PROMPT_DIGEST,
    SETTINGS,
    STEPS_DIGEST,
    TOOLS,
    UNNAMED,
    add_unnamed,
    describe_settings,
    digest,
    digest_tools,
    flatten_settings,
    state_chat_model,
)


def fingerprint(part: object, given_id: str | None = None) -> dict[str, Any]:
    """Return what a generator, verifier or extractor states about itself.

    Args:
        part: Anything. An attribute `fingerprint` (a mapping) is taken as it is. A chat model states its name
            and settings, also inside a binding, retries or a sequence. A part that is configured per call,
            or has fallbacks, states nothing: which model answers is not settled yet.
        given_id: The user's name for it, stored as `id`; it vouches for the steps that cannot be described.

    Returns:
        The fingerprint as plain data; empty where nothing is known.

    Raises:
        FingerprintError: If the part states another id than the user gives.
    """
    known = _known(part, {})
    if given_id is None:
        return known
    if known.get("id", given_id) != given_id:
        msg = f"called {given_id!r}, but it says that it is {known['id']!r}"
        raise FingerprintError(msg)
    return {**{key: value for key, value in known.items() if not is_unnamed(key)}, "id": given_id}


def is_identified(stated: Mapping[str, Any]) -> bool:
    """Return whether a fingerprint names an id or a model and leaves nothing in it unnamed."""
    return bool({"id", "model"} & set(stated)) and not any(is_unnamed(key) for key in stated)


def is_unnamed(key: str) -> bool:
    """Return whether a fingerprint's key lists parts that cannot be described."""
    # Fingerprints of several parts carry the role in front: `model.unnamed`.
    return key.rpartition(".")[2] == UNNAMED


def _known(part: object, bound: Mapping[str, Any]) -> dict[str, Any]:
    """The fingerprint of a part that is called with the `bound` arguments."""
    # Wrappers come first: they hand on the attributes of what they wrap, without what they change about it.
    if isinstance(part, RunnableBindingBase):
        known = _known(part.bound, {**part.kwargs, **bound})
        # Others, such as a message history, may change the prompt.
        is_plain = isinstance(part, (RunnableBinding, RunnableRetry))
        return known if is_plain or not known else add_unnamed(known, [type(part).__name__])
    if isinstance(part, (DynamicRunnable, RunnableWithFallbacks)):
        return {}
    # A model that is only made when called would be made to be asked for attributes that it does not have.
    own = getattr(part, "fingerprint", None) if inspect.getattr_static(part, "fingerprint", None) else None
    if isinstance(own, Mapping):
        return _own(own, bound)
    if isinstance(part, RunnableSequence):
        return _sequence(part, bound)
    return state_chat_model(part, bound) if isinstance(part, BaseChatModel) else {}


def _own(own: Mapping[str, Any], bound: Mapping[str, Any]) -> dict[str, Any]:
    """A part's own fingerprint with the arguments bound to the part."""
    arguments = {name: value for name, value in bound.items() if name not in (*TOOLS, *NO_EFFECT)}
    direct = {name: value for name, value in arguments.items() if name in own}
    others = dict(flatten_settings({name: value for name, value in arguments.items() if name not in own}))
    aliased = {name: others.pop(name) for name in list(others) if name in own}
    known = {**own, **direct, **aliased, **digest_tools(bound)}
    if not others:
        return known
    if "model" not in own:
        return add_unnamed(known, [f"the arguments {', '.join(others)}"])
    settings, unnamed = describe_settings(others)
    return add_unnamed({**known, SETTINGS: {**(own.get(SETTINGS) or {}), **settings}}, unnamed)


def _sequence(sequence: RunnableSequence[Any, Any], bound: Mapping[str, Any]) -> dict[str, Any]:
    """The fingerprint of the step that answers, with digests of the steps around it."""
    steps = list(_steps(sequence))
    # A sequence hands its arguments to its first step.
    stated = [_known(step, bound if position == 0 else {}) for position, step in enumerate(steps)]
    speaking = [position for position, known in enumerate(stated) if known]
    if not speaking:
        return {}
    models = [position for position in speaking if "model" in stated[position]]
    answering = (models or speaking)[-1]
    prompts: list[str] = []
    others: list[list[str]] = []
    unnamed = [f"the arguments {', '.join(bound)}"] if bound and answering != 0 and not stated[0] else []
    for position, step in enumerate(steps):
        if position == answering or _changes_nothing(step):
            continue
        written = _written(step, stated[position])
        if written is None:
            unnamed.append(_name(step))
        elif isinstance(step, BasePromptTemplate) and position < answering:
            prompts.append(written)
        else:
            others.append(["before" if position < answering else "after", written])
    known = stated[answering]
    if prompts and known.get(PROMPT_DIGEST):
        prompts.append(known[PROMPT_DIGEST])
    if others and known.get(STEPS_DIGEST):
        others.append(["in", known[STEPS_DIGEST]])
    if prompts:
        known = {**known, PROMPT_DIGEST: digest("\n".join(prompts))}
    if others:
        known = {**known, STEPS_DIGEST: digest(json.dumps(others))}
    return add_unnamed(known, unnamed)


def _steps(sequence: RunnableSequence[Any, Any]) -> Iterator[Any]:
    """The steps of a sequence and of the sequences in it."""
    for step in sequence.steps:
        if isinstance(step, RunnableSequence):
            yield from _steps(step)
        else:
            yield step


def _changes_nothing(step: Any) -> bool:
    """Whether a step hands on what it gets; a message and its text are the same candidate."""
    if type(step) is RunnablePassthrough:
        return step.func is None and step.afunc is None
    return type(step) is StrOutputParser


def _written(step: Any, known: Mapping[str, Any]) -> str | None:
    """A step as text that is the same whenever the step is; None where there is none."""
    if known:
        return json.dumps(known, sort_keys=True) if is_identified(known) else None
    try:
        text = dumps(step)
    except (TypeError, ValueError):
        return None
    # What cannot be written is written by its address in memory, which would never agree again.
    return None if '"not_implemented"' in text else text


def _name(step: Any) -> str:
    named = step.get_name() if hasattr(step, "get_name") else ""
    kind = type(step).__name__
    return kind if not named or named == kind else f"{kind} {named!r}"
