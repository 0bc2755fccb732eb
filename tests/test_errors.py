from __future__ import annotations

import builtins
import copy
import inspect
import pickle
import re

import pytest

from langchain_cfc import errors
from langchain_cfc.errors import (
    AbstentionError,
    CFCError,
    CFCWarning,
    InputError,
    MissingExtraError,
    OutsideCertifiedRegionError,
    RecordError,
)
from tests.factories import make_chain
from tests.fakes import N, ScriptedModel


def parse_documented_bases() -> dict[str, set[str]]:
    """The bases of every class, as the tree at the top of the module draws them."""
    bases: dict[str, set[str]] = {}
    above: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        found = re.match(r"^    ((?:[│ ]   |[├└]── )*)(\w+)(?: \((\w+)\))?(?: |$)", line)
        if found is None or not (found[1] or found[2].startswith("CFC")):
            continue
        depth = len(found[1]) // 4
        above[depth:] = [found[2]]
        # The root of a tree stands on what is in brackets, or on Exception.
        own = {above[depth - 1]} if depth else set()
        bases[found[2]] = own | ({found[3]} if found[3] else set()) or {"Exception"}
    return bases


def find_bases() -> dict[str, set[str]]:
    classes = [
        one for _, one in inspect.getmembers(errors, inspect.isclass) if one.__module__ == errors.__name__
    ]
    return {one.__name__: {base.__name__ for base in one.__bases__} for one in classes}


def test_documented_tree_of_errors_matches_the_classes() -> None:
    assert parse_documented_bases() == find_bases()
    assert len(find_bases()) > 15


def test_every_error_has_its_root_and_a_docstring() -> None:
    for name in find_bases():
        one = getattr(errors, name)
        assert issubclass(one, CFCWarning if name.endswith("Warning") else CFCError)
        assert inspect.getdoc(one)
        assert one.__doc__ != one.__base__.__doc__


@pytest.mark.parametrize(
    ("own", "builtin"),
    [(InputError, "ValueError"), (RecordError, "ValueError"), (MissingExtraError, "ImportError")],
)
def test_some_errors_derive_from_builtin_exceptions(own: type[Exception], builtin: str) -> None:
    assert issubclass(own, getattr(builtins, builtin))


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        (("a.jsonl", 3, "candidates[1].score", "found 2"), "a.jsonl, line 3: candidates[1].score: found 2"),
        (("a.jsonl", 3, "", "not JSON"), "a.jsonl, line 3: not JSON"),
        (("a.jsonl", 0, "", "no such file"), "a.jsonl: no such file"),
    ],
)
def test_record_error_names_file_line_and_field(parts: tuple[str, int, str, str], message: str) -> None:
    error = RecordError(*parts)
    assert str(error) == message
    assert (error.source, error.line, error.field, error.problem) == parts


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_record_error_can_be_pickled_and_copied(protocol: int) -> None:
    error = RecordError("a.jsonl", 3, "id", "missing")
    for again in (pickle.loads(pickle.dumps(error, protocol)), copy.copy(error)):  # noqa: S301 - our own bytes
        assert type(again) is RecordError
        assert (str(again), vars(again)) == (str(error), vars(error))


def test_other_errors_can_be_pickled() -> None:
    for name in find_bases().keys() - {"RecordError", "OutsideCertifiedRegionError", "AbstentionError"}:
        error = getattr(errors, name)("what happened")
        again = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes
        assert (type(again), str(again)) == (type(error), "what happened")
        assert getattr(again, "msg", None) == getattr(error, "msg", None)  # of an ImportError


def test_abstention_error_can_be_pickled_with_its_result() -> None:
    result = make_chain(generator=ScriptedModel(texts=(" ",) * N)).invoke("where?")
    error = AbstentionError(result)
    assert str(error) == (
        "No answer, because all that the model answered is blank, refused or not judged "
        "(only_blank_answers); answer in another way, for example by with_fallbacks or a person; do not "
        "draw again, because no guarantee covers that"
    )
    again = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes
    assert (type(again), str(again), again.result) == (type(error), str(error), error.result)


def test_outside_certified_region_error_names_prompts_and_pickles() -> None:
    error = OutsideCertifiedRegionError([3, 4])
    assert "prompts 3, 4 depend" in str(error)
    assert "..." not in str(OutsideCertifiedRegionError(list(range(10)))).split("depend")[0]
    assert "9, ... depend" in str(OutsideCertifiedRegionError(list(range(11))))
    again = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes
    assert (type(again), str(again), again.rows) == (type(error), str(error), [3, 4])
