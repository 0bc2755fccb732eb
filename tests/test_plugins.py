"""Objects by import path, and plugins of other distributions by entry point."""

from __future__ import annotations

import sys
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from langchain_cfc.errors import InputError, RecordError, StoreError
from langchain_cfc.support import plugins
from langchain_cfc.support.plugins import is_plugin_source, load_object, load_plugin
from langchain_cfc.verifiers import SequenceProbability


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a module in the working directory."""
    name = f"mybot_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(
        "def judge(prompt, candidates): return []\n"
        "def make_judge(strict=False): return ('judge', strict)\n"
        "class Judge:\n    pass\n"
        "def broken(): raise RuntimeError('no key')\n"
    )
    (tmp_path / "json.py").write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return name


def test_load_object_loads_functions_factories_and_classes(module: str) -> None:
    assert load_object(f"{module}:judge").__name__ == "judge"
    assert load_object(f"{module}:make_judge") == ("judge", False)
    assert load_object(f"{module}:make_judge", {"strict": True}) == ("judge", True)
    assert type(load_object(f"{module}:Judge")).__name__ == "Judge"
    # A part of this package needs no module.
    assert load_object("SequenceProbability", {"per_token": True}).per_token is True
    assert isinstance(load_object("SequenceProbability"), SequenceProbability)


def test_load_object_passes_on_errors_of_this_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    source = "from langchain_cfc.errors import StoreError\ndef make(): raise StoreError('in use')\n"
    for name, more in (("called_parts", ""), ("raising_parts", "make()\n")):
        (tmp_path / f"{name}.py").write_text(source + more)
        with pytest.raises(StoreError, match=r"^in use$"):
            load_object(f"{tmp_path / name}.py:make")


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("{}:none", "cannot import .*AttributeError"),
        ("nowhere:x", "cannot import 'nowhere:x': ModuleNotFoundError"),
        ("{}", "expected MODULE:NAME or FILE.py:NAME"),
        ("SequenceProbabilty", "did you mean 'SequenceProbability'"),
        ("{}:broken", "the factory .* failed with RuntimeError: no key"),
        ("json.py:x", "a module named 'json' is loaded already"),
    ],
)
def test_load_object_reports_why_it_fails(module: str, path: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        load_object(path.format(module))


def open_letters(rest: str, times: int) -> list[str]:
    """Return the letters of REST, as a plugin for `letters:REST` would."""
    if not rest.isalpha():
        msg = f"{rest} holds more than letters"
        raise ValueError(msg)
    return list(rest) * times


def open_nothing(rest: str, times: int) -> None:
    """Return what no plugin may return."""
    del rest, times


@pytest.fixture
def letters(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plugins of another distribution."""
    here = __name__
    found = [
        EntryPoint("letters", f"{here}:open_letters", "sources"),
        EntryPoint("nothing", f"{here}:open_nothing", "sources"),
    ]
    monkeypatch.setattr(plugins, "entry_points", lambda group: found if group == "sources" else [])


@pytest.mark.usefixtures("letters")
def test_load_plugin_returns_what_the_plugin_returns() -> None:
    assert load_plugin("sources", "source", list, "letters:ab", 2) == ["a", "b", "a", "b"]


@pytest.mark.usefixtures("letters")
@pytest.mark.parametrize(
    ("group", "source", "failure", "words"),
    [
        ("sources", "other:x", RecordError, "no source other: found letters, nothing"),
        ("none", "other:x", RecordError, "none is installed; langchain-cfc-other"),
        ("sources", "letters:7", InputError, "failed with ValueError: 7 holds more"),
        ("sources", "nothing:x", InputError, "returned a NoneType; expected list"),
    ],
)
def test_load_plugin_explains_what_it_cannot_load(
    group: str, source: str, failure: type[Exception], words: str
) -> None:
    with pytest.raises(failure, match=words):
        load_plugin(group, "source", list, source, 1)


def test_plugin_sources_have_a_scheme_and_are_no_files(tmp_path: Path) -> None:
    assert is_plugin_source("langsmith:questions")
    given: list[Any] = ["questions.csv", "c:questions.csv", tmp_path / "langsmith:questions"]
    assert not any(map(is_plugin_source, given))
    (tmp_path / "langsmith:questions").touch()
    assert not is_plugin_source("langsmith:questions", tmp_path)
