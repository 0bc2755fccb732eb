"""Evaluators of openevals that need no judging model, and evaluators of your own.

Some mistakes that openevals accepts silently are refused here. For example, openevals treats a list of
references as one text that no candidate equals, and a wrongly called type checker as one that finds nothing.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import version
from types import SimpleNamespace
from typing import Any

from langchain_core.runnables.utils import is_async_callable

from langchain_cfc.errors import InputError, LabelerError, VerifierError
from langchain_cfc.extend import (
    combine_fingerprints,
    compute_fingerprint,
    list_text_aliases,
    reject_duplicate_keys,
)
from langchain_cfc_openevals.arguments import Arguments, describe_arguments, list_parts, to_callable
from langchain_cfc_openevals.evaluator import OUTPUTS, REFERENCE, Evaluator, Pairs, compare_whole


def _pair_with_aliases(text: str, reference: Any) -> list[tuple[Any, Any]]:
    try:
        return [(text, alias) for alias in list_text_aliases(reference)]
    except LabelerError as error:
        raise VerifierError(str(error)) from error


def _pair_as_json(text: str, reference: Any) -> list[tuple[Any, Any]]:
    """Return the text's JSON value with the reference; no pair if it is invalid or of another type."""
    kind: type = dict if isinstance(reference, Mapping) else list
    if not isinstance(reference, (dict, list)) or not reference or not _holds_objects(reference):
        msg = (
            f"the reference {reference!r:.80} is neither a JSON object with fields nor a list of such objects"
        )
        raise VerifierError(msg)
    try:
        value = json.loads(text, object_pairs_hook=reject_duplicate_keys, parse_constant=_reject_constant)
    except (ValueError, RecursionError):
        return []
    return [(value, reference)] if isinstance(value, kind) and _holds_objects(value) else []


def _reject_constant(constant: str) -> None:
    msg = f"{constant} is not JSON"
    raise ValueError(msg)


def _holds_objects(value: Any) -> bool:
    return isinstance(value, dict) or all(isinstance(one, dict) for one in value)


@dataclass(frozen=True)
class _BuiltinEvaluator:
    """Where to find an evaluator of openevals, and how to call it.

    Attributes:
        home: Its module.
        names: Names of the plain and the async function, or of the factories that make them.
        is_factory: Whether the names are those of factories.
        pairs: Turns text and reference into pairs to compare; see `Evaluator`.
        compares: Whether it needs a reference.
        settings: Its default settings.
        closed: Refused settings: they call a model, whose failures would count as correct answers.
        ends: Its smallest and largest score.
        graded: Whether scores may lie between the ends.
        takes_inputs: Whether it accepts the prompt.
        program: A program that it calls, which is first tested on a text with an error.
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


_BUILTINS = {
    "exact_match": _BuiltinEvaluator(
        "openevals.exact", ("exact_match", "exact_match_async"), False, _pair_with_aliases, graded=False
    ),
    "levenshtein_distance": _BuiltinEvaluator(
        "openevals.string", ("levenshtein_distance", "levenshtein_distance_async"), False, _pair_with_aliases
    ),
    "embedding_similarity": _BuiltinEvaluator(
        "openevals.string",
        ("create_embedding_similarity_evaluator", "create_async_embedding_similarity_evaluator"),
        True,
        _pair_with_aliases,
        # A cosine, or a dot product, which lies in this range for embeddings of length one; else refused.
        ends=(-1.0, 1.0),
    ),
    "json_match": _BuiltinEvaluator(
        "openevals.json",
        ("create_json_match_evaluator", "create_async_json_match_evaluator"),
        True,
        _pair_as_json,
        settings={"aggregator": "all"},
        closed=frozenset({"rubric", "judge", "model"}),
        # It passes its own `inputs` for traces, which would conflict with those given by the caller.
        takes_inputs=False,
    ),
    "mypy": _BuiltinEvaluator(
        "openevals.code.mypy",
        ("create_mypy_evaluator", "create_async_mypy_evaluator"),
        True,
        compare_whole,
        compares=False,
        closed=frozenset({"client", "model"}),
        graded=False,
        program="mypy",
    ),
}
_CODE_WITH_ERROR = 'number: int = "text"\n'


def resolve_evaluator(
    given: str | Callable[..., Any],
    settings: Mapping[str, Any] | None,
    *,
    offline: bool,
    arguments: Arguments | None,
    given_id: str | None,
) -> Evaluator:
    """Return the evaluator for a name or for a function of yours.

    Args:
        given: One of `exact_match`, `levenshtein_distance`, `embedding_similarity`, `json_match` and `mypy`;
            or a function, plain or async, with the keyword `outputs`.
        settings: Arguments of openevals's factory.
        offline: Whether there is a reference; there is none when serving.
        arguments: Source of further keywords, see `to_callable`.
        given_id: Id of your function in the fingerprint.

    Raises:
        InputError: If `given` is neither, or the evaluator cannot be made with these arguments.
    """
    name = given if isinstance(given, str) else _find_name(given)
    if name is None:
        return _wrap_function(given, settings, arguments, given_id)
    builtin = _BUILTINS.get(name)
    if builtin is None:
        msg = f"unknown evaluator {name!r}: pass one of {', '.join(_BUILTINS)}, or a function"
        raise InputError(msg)
    if given_id is not None:
        msg = f"{name} identifies itself; id= is for your own functions"
        raise InputError(msg)
    if builtin.compares and not offline and arguments is None:
        msg = (
            f"{name} compares with a reference, but there is none when serving: use it as a labeler, or "
            f"pass {REFERENCE} with arguments="
        )
        raise InputError(msg)
    return _make_builtin(name, builtin, settings, arguments)


def _find_name(function: Any) -> str | None:
    """Return the name of an evaluator that was given as openevals's own function; None for others."""
    return next(
        (
            name
            for name, builtin in _BUILTINS.items()
            if not builtin.is_factory and function in builtin.functions()
        ),
        None,
    )


def _make_builtin(
    name: str, builtin: _BuiltinEvaluator, settings: Mapping[str, Any] | None, arguments: Arguments | None
) -> Evaluator:
    options = {**(builtin.settings or {}), **(settings or {})}
    closed = sorted(builtin.closed & set(options))
    if closed or (options and not builtin.is_factory):
        refused = ", ".join(closed or options)
        why = "asks a model in a way that counts its failures as correct" if closed else "does not exist"
        msg = f"{name}: the setting {refused} {why}"
        raise InputError(msg)
    function, afunction = builtin.functions()
    if builtin.is_factory:
        function, afunction = _call_factory(name, function, options), _call_factory(name, afunction, options)
    program = {} if builtin.program is None else {"program": _check_program(builtin.program, function)}
    facts = {
        "openevals": version("openevals"),
        "evaluator": name,
        "arguments": describe_arguments(arguments),
        "settings": _serialize_settings(name, options),
        **program,
    }
    return Evaluator(
        function,
        afunction,
        combine_fingerprints("openevals", facts, list_parts(arguments)),
        to_callable(arguments, OUTPUTS),
        pairs=builtin.pairs,
        ends=builtin.ends,
        graded=builtin.graded and options.get("aggregator") != "all",
        takes_inputs=builtin.takes_inputs,
    )


def _call_factory(name: str, factory: Callable[..., Any], settings: Mapping[str, Any]) -> Any:
    try:
        return factory(**settings)
    except (TypeError, ValueError) as error:
        msg = f"{name} cannot be made with {dict(settings)!r}: {error}"
        raise InputError(msg) from error


def _serialize_settings(name: str, settings: Mapping[str, Any]) -> str:
    try:
        return json.dumps(dict(settings), sort_keys=True)
    except (TypeError, ValueError) as error:
        msg = f"{name}: its settings are not plain data ({error}); create it yourself and pass the function"
        raise InputError(msg) from error


def _check_program(program: str, function: Callable[..., Any]) -> str:
    """Return the version of a program, after checking that it detects a type error."""
    try:
        program_version = subprocess.run(  # noqa: S603 - a name from the table above
            [program, "--version"], check=True, capture_output=True, text=True
        ).stdout.strip()
        found = function(outputs=_CODE_WITH_ERROR)["score"]
    except (OSError, subprocess.CalledProcessError) as error:
        msg = f"{program} cannot be run ({error}): install it in the environment in use"
        raise InputError(msg) from error
    if found is False:
        return program_version
    msg = f"{program} as called here finds no error in {_CODE_WITH_ERROR!r}: check its arguments"
    raise InputError(msg)


def _wrap_function(
    given: Any, settings: Mapping[str, Any] | None, arguments: Arguments | None, given_id: str | None
) -> Evaluator:
    if not callable(given) or settings:
        msg = f"got {given!r:.80}; expected an evaluator's name, or a function created with its settings"
        raise InputError(msg)
    is_async = is_async_callable(given)
    named = SimpleNamespace(fingerprint=compute_fingerprint(given, given_id))
    return Evaluator(
        None if is_async else given,
        given if is_async else None,
        combine_fingerprints(
            "openevals",
            {"openevals": version("openevals"), "arguments": describe_arguments(arguments)},
            {"function": named, **list_parts(arguments)},
        ),
        to_callable(arguments, OUTPUTS),
        graded=False,
    )
