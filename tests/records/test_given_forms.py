"""`calibrate`, `evaluate` and `write_records` take records in any form; mistakes are typed errors."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest

from langchain_cfc import CalibrationArtifact, calibrate, evaluate, read_records
from langchain_cfc.certificates import certify
from langchain_cfc.errors import CFCError, InputError, RecordError
from langchain_cfc.records import tabulate, write_records
from tests.factories import make_records

RECORDS = make_records()
FORMS = ["path", "text", "dicts", "generator", "frame"]


@pytest.fixture(autouse=True)
def _same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1767225600")


def give(form: str, folder: Path) -> Any:
    path = folder / "records.jsonl"
    write_records(path, RECORDS)
    dicts = [one.model_dump(mode="json") for one in RECORDS]
    if form == "frame":
        return pytest.importorskip("pandas").DataFrame(dicts)
    return {"path": path, "text": str(path), "dicts": dicts, "generator": (one for one in dicts)}[form]


def calibrate_quietly(records: Any) -> CalibrationArtifact:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return calibrate(records, alpha=0.3, features="1", test_fraction=0.3)


@pytest.mark.parametrize("form", ["dicts", "frame", "x.csv", "x.parquet", "x.jsonl"])
def test_table_of_answers_is_refused_with_the_command_that_imports_it(form: str, tmp_path: Path) -> None:
    frame = pytest.importorskip("pandas").DataFrame(
        {"question": ["Which?"], "answer": ["Lima"], "score": [0.1]}
    )
    given: Any = {"dicts": frame.to_dict("records"), "frame": frame}.get(form, tmp_path / form)
    if form == "x.csv":
        frame.to_csv(given)
    elif form == "x.parquet":
        pytest.importorskip("pyarrow")
        frame.to_parquet(given)
    elif form == "x.jsonl":
        frame.to_json(given, orient="records", lines=True)
    with pytest.raises(RecordError, match=r"candidates: missing.*\n  langchain-cfc store import"):
        calibrate_quietly(given)


@pytest.mark.parametrize("form", FORMS)
def test_records_in_any_form_calibrate_to_the_same_artifact(form: str, tmp_path: Path) -> None:
    expected = calibrate_quietly(RECORDS)
    assert calibrate_quietly(give(form, tmp_path)) == expected
    saved = tmp_path / "artifact.json"
    expected.save(saved)
    assert evaluate(saved, give(form, tmp_path)) == evaluate(expected, RECORDS)
    assert write_records(tmp_path / "again.jsonl", give(form, tmp_path)) == len(RECORDS)
    assert list(read_records(tmp_path / "again.jsonl")) == list(RECORDS)


@pytest.mark.parametrize(
    "given", [None, 3, RECORDS[0].model_dump(), "no_such_file.jsonl", [3], ["records.jsonl"], [{}]]
)
def test_anything_else_in_place_of_records_is_a_typed_error(given: Any, tmp_path: Path) -> None:
    artifact = calibrate_quietly(RECORDS)
    for use in (
        calibrate_quietly,
        lambda one: evaluate(artifact, one),
        lambda one: write_records(tmp_path / "r", one),
    ):
        with pytest.raises(InputError) as caught:
            use(given)
        assert len(str(caught.value)) < 250


def test_dict_with_a_wrong_field_is_named_by_place_and_field() -> None:
    dicts = [one.model_dump(mode="json") for one in RECORDS]
    dicts[6]["candidates"][1]["score"] = 1.5
    with pytest.raises(RecordError, match=r"line 7: candidates\[1\]\.score: found 1\.5"):
        calibrate_quietly(dicts)


def test_table_cannot_be_written_as_records(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no texts"):
        write_records(tmp_path / "records.jsonl", tabulate(RECORDS))


@pytest.mark.parametrize("use", [evaluate, certify])
def test_arguments_in_the_wrong_order_are_refused(use: Any) -> None:
    artifact = calibrate_quietly(RECORDS)
    for given in (RECORDS, None, {}, artifact.model_dump()):
        with pytest.raises(CFCError, match=r"artifact is .*; expected what calibrate returns"):
            use(given, artifact)
