"""Further keywords of an evaluator, such as `context`: from a function of the prompt, or from its fields."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, TypeAlias

from langchain_core.runnables import Runnable

from langchain_cfc.errors import InputError
from langchain_cfc.extend import Target, without_streaming_and_cache

Arguments: TypeAlias = Mapping[str, str] | Target


def to_callable(given: Arguments | None, candidate: str) -> Any:
    """Return the function that computes an evaluator's further keywords from a prompt.

    Args:
        given: A function or Runnable from the prompt to a mapping of keywords; or, for prompts that are
            mappings, a mapping from keywords to fields of the prompt.
        candidate: The keyword of the candidate, which is reserved.

    Returns:
        A function or Runnable, whose models do not stream; None if nothing is given.

    Raises:
        InputError: If `given` is none of these, or uses the reserved keyword.
    """
    if given is None:
        return None
    if isinstance(given, Mapping):
        if candidate in given or not given:
            msg = f"arguments={dict(given)!r} must name keywords other than the candidate's, {candidate!r}"
            raise InputError(msg)
        return partial(_pick_fields, dict(given))
    if isinstance(given, Runnable):
        return without_streaming_and_cache(given, fresh=False)
    if callable(given):
        return given
    msg = f"arguments= is a {type(given).__name__}; expected a function of the prompt, or its fields by name"
    raise InputError(msg)


def describe_arguments(given: Arguments | None) -> str:
    """Return a description of the arguments as a text, for a fingerprint."""
    if isinstance(given, Mapping):
        return ", ".join(f"{name}: {field}" for name, field in sorted(given.items()))
    return "none" if given is None else "own"


def list_parts(given: Arguments | None) -> dict[str, object]:
    """Return the function behind the arguments as a part of a fingerprint; none if there is no function."""
    return {} if given is None or isinstance(given, Mapping) else {"arguments": given}


def _pick_fields(fields: Mapping[str, str], prompt: Any) -> dict[str, Any]:
    missing = [field for field in fields.values() if not isinstance(prompt, Mapping) or field not in prompt]
    if missing:
        held = ", ".join(map(repr, prompt)) if isinstance(prompt, Mapping) else f"a {type(prompt).__name__}"
        msg = f"the prompt holds no {', '.join(map(repr, missing))}; it is {held}"
        raise InputError(msg)
    return {name: prompt[field] for name, field in fields.items()}
