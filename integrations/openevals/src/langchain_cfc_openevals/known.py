"""The evaluators of openevals that need no model to judge, and those of your own.

What openevals lets pass here is refused: a list of references counts as one text that no candidate equals, a
type checker that was called wrongly as one that found nothing.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import version
from typing import Any

from langchain_core.runnables.utils import is_async_callable

from langchain_cfc.errors import InputError, LabelerError, VerifierError
from langchain_cfc.extend import (
    combined_fingerprint,
    compute_fingerprint,
    list_text_aliases,
    reject_duplicate_keys,
)
from langchain_cfc_openevals.arguments import Arguments, callable_of, said
from langchain_cfc_openevals.evaluator import OUTPUTS, REFERENCE, Evaluator, Pairs, as_they_are


def _each_alias(text: str, reference: Any) -> list[tuple[Any, Any]]:
    try:
        return [(text, alias) for alias in list_text_aliases(reference)]
    except LabelerError as error:
        raise VerifierError(str(error)) from error


def _as_json(text: str, reference: Any) -> list[tuple[Any, Any]]:
    """The value that a text is; no pair where it is none, or not of the reference's kind."""
    kind: type = dict if isinstance(reference, Mapping) else list
    if not isinstance(reference, (dict, list)) or not reference or not _is_of_objects(reference):
        msg = f"the reference {reference!r:.80} is no JSON object with fields, nor a list of such objects"
        raise VerifierError(msg)
    try:
        value = json.loads(text, object_pairs_hook=reject_duplicate_keys, parse_constant=_refused)
    except (ValueError, RecursionError):
        return []
    return [(value, reference)] if isinstance(value, kind) and _is_of_objects(value) else []


def _refused(constant: str) -> None:
    msg = f"{constant} is no JSON"
    raise ValueError(msg)


def _is_of_objects(value: Any) -> bool:
    return isinstance(value, dict) or all(isinstance(one, dict) for one in value)


@dataclass(frozen=True)
class _Known:
    """Where an evaluator stands in openevals, and what is known of it.

    Attributes:
        home: Its module.
        names: The plain function and the async one, or the functions that make them.
        is_factory: Whether these make it.
        pairs: What it compares with what.
        compares: Whether it needs a reference.
        settings: What it is made with unless told otherwise.
        closed: Settings that ask a model, whose faults would pass for right answers.
        ends: Its scores.
        graded: Whether scores lie between the ends.
        takes_inputs: Whether it can be told the prompt.
        program: A program that it calls, and whose verdict is tried on a text that is wrong.
    """

    home: str
    names: tuple[str, str]
    is_factory: bool
    pairs: Pairs
    compares: bool = True
    settings: Mapping[str, Any] | None = None
    closed: frozenset[str] = frozenset()
    ends: tuple[float, float] = (0.0, 1.0)
    graded: bool = True
    takes_inputs: bool = True
    program: str | None = None

    def functions(self) -> list[Any]:
        module = import_module(self.home)
        return [getattr(module, name) for name in self.names]


_KNOWN = {
    "exact_match": _Known(
        "openevals.exact", ("exact_match", "exact_match_async"), False, _each_alias, graded=False
    ),
    "levenshtein_distance": _Known(
        "openevals.string", ("levenshtein_distance", "levenshtein_distance_async"), False, _each_alias
    ),
    "embedding_similarity": _Known(
        "openevals.string",
        ("create_embedding_similarity_evaluator", "create_async_embedding_similarity_evaluator"),
        True,
        _each_alias,
        # A cosine; a dot product lies there as well for embeddings of length one, and is refused beyond.
        ends=(-1.0, 1.0),
    ),
    "json_match": _Known(
        "openevals.json",
        ("create_json_match_evaluator", "create_async_json_match_evaluator"),
        True,
        _as_json,
        settings={"aggregator": "all"},
        closed=frozenset({"rubric", "judge", "model"}),
        # Its own `inputs`, for traces, stand in the way of those that it is called with.
        takes_inputs=False,
    ),
    "mypy": _Known(
        "openevals.code.mypy",
        ("create_mypy_evaluator", "create_async_mypy_evaluator"),
        True,
        as_they_are,
        compares=False,
        closed=frozenset({"client", "model"}),
        graded=False,
        program="mypy",
    ),
}
_WRONG = 'number: int = "text"\n'


def evaluator_of(
    given: str | Callable[..., Any],
    settings: Mapping[str, Any] | None,
    *,
    offline: bool,
    arguments: Arguments | None,
    given_id: str | None,
) -> Evaluator:
    """An evaluator by its name, or a function of yours.

    Args:
        given: One of `exact_match`, `levenshtein_distance`, `embedding_similarity`, `json_match` and `mypy`;
            or a function, plain or async, that takes `outputs` by keyword.
        settings: What openevals makes it with.
        offline: Whether there is a reference, which nobody has when serving.
        arguments: Where further keywords come from, see `callable_of`.
        given_id: What a function of yours is called in the fingerprint.

    Raises:
        InputError: If it is neither, or cannot be made so.
    """
    name = given if isinstance(given, str) else _name_of(given)
    if name is None:
        return _own(given, settings, arguments, given_id)
    known = _KNOWN.get(name)
    if known is None:
        msg = f"no evaluator is called {name!r}: give one of {', '.join(_KNOWN)}, or a function"
        raise InputError(msg)
    if given_id is not None:
        msg = f"{name} says itself what it is; id= is for functions of yours"
        raise InputError(msg)
    if known.compares and not offline and arguments is None:
        msg = (
            f"{name} compares with a reference, which nobody has when serving: use it as a labeler, or say "
            f"with arguments= where {REFERENCE} comes from"
        )
        raise InputError(msg)
    return _made(name, known, settings, arguments)


def _name_of(function: Any) -> str | None:
    """The name of a function that openevals exports itself."""
    return next(
        (name for name, known in _KNOWN.items() if not known.is_factory and function in known.functions()),
        None,
    )


def _made(
    name: str, known: _Known, settings: Mapping[str, Any] | None, arguments: Arguments | None
) -> Evaluator:
    told = {**(known.settings or {}), **(settings or {})}
    closed = sorted(known.closed & set(told))
    if closed or (told and not known.is_factory):
        refused = ", ".join(closed or told)
        why = "asks a model in a way whose faults count as right" if closed else "is none that it has"
        msg = f"{name}: the setting {refused} {why}"
        raise InputError(msg)
    function, afunction = known.functions()
    if known.is_factory:
        function, afunction = _called(name, function, told), _called(name, afunction, told)
    program = {} if known.program is None else {"program": _tried(known.program, function)}
    facts = {
        "openevals": version("openevals"),
        "evaluator": name,
        "arguments": said(arguments),
        "settings": _written(name, told),
        **program,
    }
    further = {} if arguments is None or isinstance(arguments, Mapping) else {"arguments": arguments}
    return Evaluator(
        function,
        afunction,
        combined_fingerprint("openevals", facts, further),
        callable_of(arguments, OUTPUTS),
        pairs=known.pairs,
        ends=known.ends,
        graded=known.graded and told.get("aggregator") != "all",
        takes_inputs=known.takes_inputs,
    )


def _called(name: str, factory: Callable[..., Any], settings: Mapping[str, Any]) -> Any:
    try:
        return factory(**settings)
    except (TypeError, ValueError) as error:
        msg = f"{name} cannot be made with {dict(settings)!r}: {error}"
        raise InputError(msg) from error


def _written(name: str, settings: Mapping[str, Any]) -> str:
    try:
        return json.dumps(dict(settings), sort_keys=True)
    except (TypeError, ValueError) as error:
        msg = f"{name}: its settings are no plain data ({error}); make it yourself and give the function"
        raise InputError(msg) from error


def _tried(program: str, function: Callable[..., Any]) -> str:
    """The version of a program that finds what is wrong."""
    try:
        told = subprocess.run(  # noqa: S603 - a name from the table above
            [program, "--version"], check=True, capture_output=True, text=True
        ).stdout.strip()
        found = function(outputs=_WRONG)["score"]
    except (OSError, subprocess.CalledProcessError) as error:
        msg = f"{program} cannot be run ({error}): install it in the environment whose programs are called"
        raise InputError(msg) from error
    if found is False:
        return told
    msg = f"{program} as it is called here finds no fault in {_WRONG!r}: look at its arguments"
    raise InputError(msg)


def _own(
    given: Any, settings: Mapping[str, Any] | None, arguments: Arguments | None, given_id: str | None
) -> Evaluator:
    if not callable(given) or settings:
        msg = f"got {given!r:.80}; expected an evaluator's name, or a function made with its settings already"
        raise InputError(msg)
    is_async = is_async_callable(given)
    known = compute_fingerprint(given, given_id)
    named = _Named(known)
    parts: dict[str, object] = {"function": named}
    if arguments is not None and not isinstance(arguments, Mapping):
        parts["arguments"] = arguments
    return Evaluator(
        None if is_async else given,
        given if is_async else None,
        combined_fingerprint(
            "openevals", {"openevals": version("openevals"), "arguments": said(arguments)}, parts
        ),
        callable_of(arguments, OUTPUTS),
        graded=False,
    )


@dataclass(frozen=True)
class _Named:
    """Something that is known by its fingerprint."""

    fingerprint: Mapping[str, Any]
