"""Artifacts of earlier releases are read, decide as they did, and have the documented form."""

from __future__ import annotations

import copy
import functools
import json
import math
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from docs.schema import SCHEMA, build_schema, format_schema
from langchain_cfc import CalibrationArtifact
from langchain_cfc.artifact.content import ArtifactContent
from langchain_cfc.certificates.recomputation import recompute_certificates
from langchain_cfc.errors import ArtifactFormatError
from langchain_cfc.support import __version__
from tests.artifact.files import get_content, load_content, set_value
from tests.artifact.goldens import EXPECTED, FOLDER, MAKERS, decide_on_prompts

GOLDEN = sorted(path for path in FOLDER.glob("*/*.json") if path.name != EXPECTED)
EACH_GOLDEN_FILE = pytest.mark.parametrize("path", GOLDEN, ids=lambda path: f"{path.parent.name}/{path.stem}")


def test_golden_files_of_this_release_cover_the_whole_format() -> None:
    own = [path for path in GOLDEN if path.parent.name == __version__]
    assert {path.stem for path in own} == set(MAKERS)
    contents = [json.loads(path.read_bytes())["content"] for path in own]
    # A field that is in no file could change unnoticed.
    assert set().union(*contents) == set(ArtifactContent.model_fields)


@EACH_GOLDEN_FILE
def test_golden_file_loads_and_saves_to_the_same_bytes(path: Path) -> None:
    artifact = CalibrationArtifact.load(path)
    assert artifact.to_bytes() == path.read_bytes()
    assert artifact.library_version == path.parent.name
    assert all(one.agrees for one in recompute_certificates(artifact))
    for alpha in artifact.alphas:
        assert artifact.make_guarantee(alpha).sentence


@EACH_GOLDEN_FILE
def test_golden_file_gives_the_recorded_decisions(path: Path) -> None:
    artifact = CalibrationArtifact.load(path)
    found = decide_on_prompts(path.stem, artifact)
    expected = json.loads((path.parent / EXPECTED).read_text())[path.stem]
    if artifact.confidence is None:
        # A regression is solved for each prompt, and another processor may round its last bits differently.
        for alpha, one in expected.items():
            pairs = zip(found[alpha].pop("thresholds"), one.pop("thresholds"), strict=True)
            for served, known in pairs:
                assert math.isclose(float.fromhex(served), float.fromhex(known), rel_tol=1e-12)
    assert found == expected


# The form as data


@functools.cache
def make_validator() -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator(build_schema())


def test_committed_schema_equals_the_schema_of_the_models() -> None:
    jsonschema.Draft202012Validator.check_schema(build_schema())
    assert SCHEMA.read_text() == format_schema(), "run python docs/schema.py"


@EACH_GOLDEN_FILE
def test_golden_file_validates_against_the_schema(path: Path) -> None:
    make_validator().validate(json.loads(path.read_bytes()))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("version", 3),
        ("format", "langchain-cfc/records"),
        ("digest", "sha256:x"),
        ("surprise", 1),
        ("content.surprise", 1),
        ("content.n", "4"),
        ("content.n", ...),
        ("content.levels.0.alpha", 0.3),
        ("content.certificates.0.shares.0.kept_at_least", 1.5),
        ("content.certificates.0.artifact_digest", ...),
    ],
)
def test_schema_refuses_files_of_another_form(path: str, value: Any) -> None:
    file = json.loads((FOLDER / "0.1.0" / "certified.json").read_bytes())
    make_validator().validate(file)
    set_value(file, path, value)
    with pytest.raises(jsonschema.ValidationError):
        make_validator().validate(file)


# Files of later releases


def test_load_names_the_later_release_that_wrote_the_file(artifact: CalibrationArtifact) -> None:
    later = {**get_content(artifact), "library_version": "0.9.1"}
    said = r"langchain-cfc 0\.9\.1 wrote it, and this is .*: use that release or a later one"
    # A format of another version, and a field that this release does not know.
    with pytest.raises(ArtifactFormatError, match=rf"artifact version 3; .* reads version 2; {said}"):
        load_content(later, version=3)
    with pytest.raises(ArtifactFormatError, match=rf"a_later_field: Extra inputs are not permitted; {said}"):
        load_content({**later, "a_later_field": 1})
    # Of the same form it is read: minor releases add fields only where they are used.
    bare = copy.deepcopy(later)
    assert load_content(bare).library_version == "0.9.1"


@pytest.mark.parametrize("release", ["\x1b[31mred", "1" * 100, 7, None, ["0.9"]])
def test_load_does_not_repeat_an_invalid_release_name(release: Any, artifact: CalibrationArtifact) -> None:
    with pytest.raises(ArtifactFormatError) as refused:
        load_content({**get_content(artifact), "library_version": release}, version=3)
    assert str(refused.value).endswith(
        "reads version 2; calibrate again or use another release of the library"
    )
