"""Arguments of `CFCRunnable`: a path is an artifact, and mistakes end in one short typed error."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from langchain_cfc import CalibrationArtifact, CFCRunnable
from langchain_cfc.errors import ArtifactFormatError, InputError
from tests.factories import make_artifact
from tests.fakes import ScriptedModel, verify


def make_arguments(**changes: Any) -> dict[str, Any]:
    return {"generator": ScriptedModel(), "verifier": verify, "artifact": make_artifact(), **changes}


@pytest.mark.parametrize("kind", [str, Path])
def test_artifact_may_be_the_path_of_its_file(tmp_path: Path, kind: type[Any]) -> None:
    saved = tmp_path / "artifact.json"
    make_artifact().save(saved)
    served = CFCRunnable(**make_arguments(artifact=kind(saved)))
    assert served.artifact.digest == CalibrationArtifact.load(saved).digest
    assert served.invoke("Who wrote it?").guarantee.artifact_digest == served.artifact.digest
    assert served.model_copy(update={"timeout": 5.0}).artifact is served.artifact
    with pytest.raises(ArtifactFormatError, match="cannot be read"):
        CFCRunnable(**make_arguments(artifact=kind(tmp_path / "another.json")))


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"n": 3}, ["no argument 'n'", "fixed by the artifact"]),
        ({"set_rule": "all"}, ["no argument 'set_rule'", "give it to calibrate"]),
        ({"alhpa": 0.1}, ["no argument 'alhpa'", "did you mean alpha=?"]),
        ({"time_out": 3}, ["did you mean timeout=?"]),
        ({"fallback": None}, ["no argument 'fallback'", "it takes generator, verifier, artifact,"]),
        ({"artifact": {"n": 4}}, ["artifact is {'n': 4}", "the path of its file"]),
        ({"artifact": None}, ["artifact is None", "calibrate"]),
        ({"generator": 3}, ["generator is 3", "a model, its name"]),
        ({"timeout": -1}, ["timeout is -1; expected greater than 0"]),
        ({"output": "claim"}, ["output is 'claim'; expected 'answers' or 'claims'"]),
    ],
)
def test_arguments_that_cannot_be_used_are_refused_in_one_short_line(
    changes: dict[str, Any], parts: list[str]
) -> None:
    check_refused(make_arguments(**changes), parts)


@pytest.mark.parametrize("name", ["model", "llm", "chat"])
def test_other_name_of_a_missing_argument_is_taken_for_it(name: str) -> None:
    given = make_arguments()
    check_refused({name: given.pop("generator"), **given}, [f"'{name}'", "did you mean generator=?"])


@pytest.mark.parametrize("name", ["generator", "verifier", "artifact"])
def test_missing_argument_is_named(name: str) -> None:
    given = make_arguments()
    del given[name]
    check_refused(given, [f"lacks {name}: pass {name}="])


def test_key_given_by_mistake_is_not_shown() -> None:
    with pytest.raises(InputError) as caught:
        CFCRunnable(**make_arguments(api_key="key-12345"))
    assert "key-12345" not in str(caught.value)


def check_refused(given: dict[str, Any], parts: list[str]) -> None:
    with pytest.raises(InputError) as caught:
        CFCRunnable(**given)
    message = str(caught.value)
    assert "pydantic" not in message
    assert "\n" not in message
    assert len(message) < 330
    for part in parts:
        assert part in message
