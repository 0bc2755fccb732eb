"""`CalibrationArtifact.load` refuses every file that `save` did not write, and names the place in it."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from langchain_cfc import calibrate
from langchain_cfc.artifact import CalibrationArtifact, PackedArray
from langchain_cfc.errors import ArtifactDigestError, ArtifactError, ArtifactFormatError
from langchain_cfc.records import Provenance
from tests.artifact.files import (
    get_content,
    get_value,
    load_bytes,
    load_content,
    make_records,
    seal_content,
    set_value,
)
from tests.lengths import LONG


@pytest.fixture(scope="module")
def small_file() -> bytes:
    """The file of an artifact that is as small as can be."""
    return calibrate(make_records(0, 8), alpha="0.3", features="1", allow_unattainable=True).to_bytes()


def is_refused(data: bytes) -> bool:
    try:
        load_bytes(data)
    except (ArtifactFormatError, ArtifactDigestError):
        return True
    return False


def test_load_refuses_every_changed_byte(small_file: bytes) -> None:
    # One random change at every place, and at punctuation and digits each change of a single bit; the quick
    # tier takes every fifteenth place.
    assert not is_refused(small_file)  # the control
    rng = np.random.default_rng(0)
    changes = [(place, int(rng.integers(1, 256))) for place in range(0, len(small_file), 1 if LONG else 15)]
    step = 5 if LONG else 75
    telling = [
        place
        for place in range(0, len(small_file), step)
        if small_file[place : place + 1] in b'{}[],:"0123456789-. \n'
    ]
    changes += [(place, 1 << bit) for place in telling for bit in range(8)]
    accepted = []
    for place, change in changes:
        data = bytearray(small_file)
        data[place] ^= change
        if not is_refused(bytes(data)):
            accepted.append((place, change))
    assert accepted == []


def test_load_refuses_every_truncation(small_file: bytes) -> None:
    lengths = range(0, len(small_file), 1 if LONG else 21)
    assert [length for length in lengths if not is_refused(small_file[:length])] == []


@pytest.mark.parametrize("addition", [b"\n", b" ", b"\0", b"{}", b"//"])
def test_load_refuses_bytes_added_before_or_after(addition: bytes, small_file: bytes) -> None:
    assert is_refused(small_file + addition)
    assert is_refused(addition + small_file)


def test_load_refuses_the_same_json_in_another_layout(small_file: bytes) -> None:
    file = json.loads(small_file)
    with pytest.raises(ArtifactDigestError, match="changed or damaged"):
        load_bytes(json.dumps(file).encode())
    reordered = {key: file[key] for key in ("version", "format", "content", "digest")}
    with pytest.raises(ArtifactDigestError):
        load_bytes((json.dumps(reordered, indent=1) + "\n").encode())


def test_load_refuses_a_duplicate_key(small_file: bytes) -> None:
    assert small_file.count(b'"n": 4,') == 1
    with pytest.raises(ArtifactDigestError):
        load_bytes(small_file.replace(b'"n": 4,', b'"n": 5,\n  "n": 4,'))


def test_load_names_a_missing_file_and_what_writes_one(tmp_path: Path) -> None:
    with pytest.raises(ArtifactFormatError, match=r"missing\.json: cannot be read .*artifact\.save"):
        CalibrationArtifact.load(tmp_path / "missing.json")
    with pytest.raises(ArtifactFormatError, match="cannot be read"):
        CalibrationArtifact.load(tmp_path)


@pytest.mark.parametrize(
    "data",
    [b"", b" ", b"no JSON", b"\xff\xfe", b"\x1f\x8b", b"[" * 100_000, b'{"a":' * 100_000, b"9" * 10_000],
    ids=["empty", "blank", "words", "utf-16", "gzip", "deep list", "deep object", "huge number"],
)
def test_load_refuses_bytes_that_are_not_json(data: bytes) -> None:
    with pytest.raises(ArtifactFormatError, match=r"forged\.json: not JSON"):
        load_bytes(data)


@pytest.mark.parametrize(
    "data", [b"[]", b"null", b"1", b'"langchain-cfc/artifact"', b"{}", b'{"version": 1}']
)
def test_load_refuses_json_that_is_not_an_artifact(data: bytes) -> None:
    with pytest.raises(ArtifactFormatError, match="not a calibration artifact"):
        load_bytes(data)


VERSION = "version {}; this library reads version 2"
DIGEST = "does not match its digest"


@pytest.mark.parametrize(
    ("envelope", "error", "message"),
    [
        ({"format": "langchain-cfc/records"}, ArtifactFormatError, "not a calibration artifact"),
        ({"version": 1}, ArtifactFormatError, VERSION.format("1")),
        ({"version": 3}, ArtifactFormatError, VERSION.format("3")),
        ({"version": 0}, ArtifactFormatError, VERSION.format("0")),
        ({"version": "2"}, ArtifactFormatError, VERSION.format("'2'")),
        ({"version": None}, ArtifactFormatError, VERSION.format("None")),
        # 2.0 equals 2 but is written differently.
        ({"version": 2.0}, ArtifactDigestError, None),
        ({"digest": ""}, ArtifactDigestError, DIGEST),
        ({"digest": "sha256:" + "0" * 64}, ArtifactDigestError, DIGEST),
        ({"digest": None}, ArtifactDigestError, DIGEST),
        ({"digest": []}, ArtifactDigestError, DIGEST),
        ({"surprise": 1}, ArtifactFormatError, "surprise"),
    ],
)
def test_load_refuses_an_invalid_envelope(
    envelope: dict[str, Any], error: type[ArtifactError], message: str | None, content: dict[str, Any]
) -> None:
    with pytest.raises(error, match=message):
        load_content(content, **envelope)


# From here on the digest matches content that `save` did not write.


def list_objects(
    value: Any, path: tuple[str | int, ...] = ()
) -> Iterator[tuple[tuple[str | int, ...], dict[str, Any]]]:
    """Every object inside a JSON value, with the keys and positions that lead to it."""
    if isinstance(value, dict):
        yield path, value
    for step, item in value.items() if isinstance(value, dict) else enumerate(value):
        if isinstance(item, dict | list):
            yield from list_objects(item, (*path, step))


@pytest.fixture(scope="module")
def complete_artifact() -> CalibrationArtifact:
    """An artifact in which nothing optional is missing."""
    provenance = Provenance(
        n=4, generator={"id": "g"}, verifier={"id": "v"}, labeler={"id": "l"}, answer={"id": "a"}
    )
    return calibrate(
        make_records(0, 60),
        alpha=["0.2", "0.3"],
        features="bins(mean_score, 2) + group(topic)",
        test_fraction=0.1,
        provenance=provenance,
    )


@pytest.fixture
def complete_content(complete_artifact: CalibrationArtifact) -> dict[str, Any]:
    """What the file of that artifact holds, to be tampered with."""
    return get_content(complete_artifact)


def test_load_refuses_an_extra_field_anywhere_by_name(complete_content: dict[str, Any]) -> None:
    load_content(complete_content)
    # Fingerprints are the user's own, and the digests are named by parts; anything else is ours.
    free = {("provenance", part) for part in ("generator", "verifier", "labeler", "answer")}
    free.add(("calibration", "digests"))
    places = [path for path, _ in list_objects(complete_content) if path not in free]
    assert {(), ("calibration", "split"), ("calibration", "groups", 0), ("levels", 1, "rule")} <= set(places)
    for path in places:
        forged = json.loads(json.dumps(complete_content))
        array = next(iter(forged["arrays"]))
        is_state = path[:1] == ("levels",) and len(path) == 3
        get_value(forged, path)["surprise"] = (
            array if is_state else forged["arrays"][array] if path == ("arrays",) else 1
        )
        with pytest.raises(ArtifactFormatError, match="surprise"):
            load_content(forged)


def test_load_refuses_a_missing_field_anywhere(complete_content: dict[str, Any]) -> None:
    free = {("provenance", part) for part in ("generator", "verifier", "labeler", "answer")}
    free.add(("calibration", "digests"))
    # Omitted where they have nothing to say.
    optional = {"reference", "alpha", "batch"}
    removals = [
        (path, key)
        for path, found in list_objects(complete_content)
        if path not in free and path[:1] + path[2:] != ("reference", "counts")
        for key in found
        if not (key in optional and path[:1] in {(), ("reference",)}) and key != "prompt_kinds"
    ]
    assert len(removals) > 60
    accepted = []
    for path, key in removals[:: 1 if LONG else 3]:
        forged = json.loads(json.dumps(complete_content))
        del get_value(forged, path)[key]
        if not is_refused(seal_content(forged)):
            accepted.append((path, key))
    assert accepted == []
    for key in set(complete_content) - optional:
        with pytest.raises(ArtifactFormatError, match=key):
            load_content({name: value for name, value in complete_content.items() if name != key})


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("n", 0, "n >= 1"),
        ("n", "4", "n: "),
        ("n", 4.0, "n: "),
        ("n", True, "n: "),
        ("set_rule", "everything", "unknown set rule"),
        ("set_rule", ["all"], "set_rule: "),
        ("levels", [], "belongs to no level"),
        ("levels", {}, "levels: "),
        ("features", {}, "text and terms"),
        ("features.text", "no_such(thing)", "no_such"),
        ("features.terms", [], "terms"),
        ("features.terms.0.cuts", ["0.5"], "cuts"),
        ("features.terms.1.categories", [None], "categories"),
        ("provenance.n", 0, r"provenance\.n"),
        ("provenance", 1, "provenance: "),
        ("calibration.split.fit", 1.5, r"calibration\.split\.fit"),
        ("calibration.split.seed", 0, r"calibration\.split\.seed"),
        ("calibration.sketch", [1], r"calibration\.sketch"),
        ("calibration.split.test", 0, "not in the canonical form"),
        ("created_at", None, "created_at"),
    ],
)
def test_load_refuses_an_invalid_value_and_names_its_field(
    path: str, value: object, message: str, *, complete_content: dict[str, Any]
) -> None:
    set_value(complete_content, path, value)
    with pytest.raises(ArtifactFormatError, match=message):
        load_content(complete_content)


@pytest.mark.parametrize(
    "alphas", [["0.3", "0.2"], ["0.2", "0.2"], ["0.20", "0.3"], ["0.2", "1"], ["0.2", "x"]]
)
def test_load_refuses_levels_out_of_order_or_not_canonical(
    alphas: list[str], content: dict[str, Any]
) -> None:
    for level, alpha in zip(content["levels"], alphas, strict=True):
        level["alpha"] = alpha
    with pytest.raises(ArtifactFormatError, match=r"alpha"):
        load_content(content)


def test_load_refuses_states_for_another_number_of_features(content: dict[str, Any]) -> None:
    content["features"] = calibrate(make_records(0, 60), alpha="0.2", features="mean_score").features
    with pytest.raises(ArtifactFormatError, match=r"states for 2 features, got \[6\]"):
        load_content(content)


def encode_numbers(*numbers: float) -> str:
    return base64.b64encode(np.array(numbers, dtype="<f8").tobytes()).decode()


@pytest.mark.parametrize(
    ("forged", "message"),
    [
        ({"shape": [1], "float64": encode_numbers(0.5)[:-1]}, "not base64"),
        ({"shape": [2], "float64": encode_numbers(0.5)}, "holds 8 bytes"),
        ({"shape": [0, 10**30], "float64": ""}, "not a valid artifact"),
        ({"shape": [1.0], "float64": encode_numbers(0.5)}, r"shape\.0"),
        ({"shape": "1", "float64": encode_numbers(0.5)}, "shape"),
        ({"shape": [1], "float64": encode_numbers(float("nan"))}, "not finite"),
        ({"shape": [1, 1], "float64": encode_numbers(0.5)}, "shapes"),
        ({"shape": [2], "float64": encode_numbers(0.5, 0.6)}, r"states for 1 features, got"),
        ({"shape": [1], "float64": encode_numbers(5.0)}, "none above the cap"),
    ],
)
def test_load_refuses_an_invalid_array(forged: dict[str, Any], message: str) -> None:
    made = calibrate(make_records(0, 60), alpha="0.2", features="1", delta="0.1")
    content = made.model_dump(mode="json")
    content["arrays"][content["levels"][0]["rule"]["quantiles"]] = forged
    with pytest.raises(ArtifactFormatError, match=message):
        load_content(content)


def test_load_refuses_calibration_arrays_that_do_not_match(content: dict[str, Any]) -> None:
    name = content["levels"][0]["rule"]["success_scores"]
    scores = PackedArray(**content["arrays"][name]).unpack()
    for forged in (scores[:-1], scores[:0], np.full_like(scores, 9.0)):
        content["arrays"][name] = PackedArray.pack(forged).model_dump()
        with pytest.raises(ArtifactFormatError):
            load_content(content)


def test_load_refuses_an_array_that_no_level_uses(content: dict[str, Any]) -> None:
    content["arrays"]["smuggled"] = PackedArray.pack(np.zeros(1)).model_dump()
    with pytest.raises(ArtifactFormatError, match="'smuggled' belongs to no level"):
        load_content(content)


def test_load_names_a_missing_array(content: dict[str, Any]) -> None:
    name = content["levels"][0]["rule"]["features"]
    del content["arrays"][name]
    with pytest.raises(ArtifactFormatError, match=f"array '{name}' is missing"):
        load_content(content)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_load_refuses_numbers_that_are_not_finite(number: str, content: dict[str, Any]) -> None:
    content["calibration"]["attainable_coverage"] = float(number)
    data = seal_content(content)
    if number == "1e999":
        data = data.replace(b"Infinity", b"1e999")
    assert number.encode() in data
    with pytest.raises(ArtifactError) as caught:
        load_bytes(data)
    assert type(caught.value) in {ArtifactFormatError, ArtifactDigestError}


def test_load_refuses_pipes_and_devices(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(ArtifactFormatError, match=r"cannot be read \(not a regular file"):
            CalibrationArtifact.load(path)


def test_load_refuses_files_above_the_size_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("langchain_cfc.artifact.files.MAX_BYTES", 1 << 20)
    with (tmp_path / "large").open("wb") as file:
        file.truncate((1 << 20) + 1)
    with pytest.raises(ArtifactFormatError, match=r"cannot be read \(larger than 1 MiB"):
        CalibrationArtifact.load(tmp_path / "large")
