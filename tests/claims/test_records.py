"""Records of claims: what is read, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from langchain_cfc import calibrate
from langchain_cfc.errors import InputError, RecordError
from langchain_cfc.records import (
    Claim,
    ClaimsRecord,
    Provenance,
    read_records,
    require_candidates,
    tabulate,
    write_records,
)

HEADER = Provenance(n=1, unit="claims", splitter={"id": "sentences"})
ANSWER = "Lima is the capital. It has 9 moons."
CLAIMS: list[dict[str, Any]] = [
    {"text": "Lima is the capital.", "start": 0, "end": 20, "score": 0.1, "supported": True},
    {"text": "It has 9 moons.", "start": 21, "end": 36, "score": 0.75, "supported": False},
]


def make_fields(*claims: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"id": "a", "input": f"Tell me of {more.get('id')}.", "claims": list(claims or CLAIMS), **more}


def change_claim(**changes: Any) -> dict[str, Any]:
    claim = {**CLAIMS[1], **changes}
    return make_fields(CLAIMS[0], {name: value for name, value in claim.items() if value is not ...})


def encode_line(one: Any) -> bytes:
    return one if isinstance(one, bytes) else json.dumps(one).encode()


@pytest.mark.parametrize(
    ("content", "where", "problem"),
    [
        (make_fields(claims=[]), "claims", "at least one claim"),
        (make_fields(claims=None), "claims", "at least one claim"),
        (change_claim(text=""), "claims[1].text", "not empty"),
        (change_claim(score=1.5), "claims[1].score", "smaller is better"),
        (change_claim(score=float("nan")), "claims[1].score", "smaller is better"),
        (change_claim(supported=...), "claims[1].supported", "the claim is unlabelled"),
        (change_claim(supported=None), "claims[1].supported", "the claim is unlabelled"),
        (change_claim(supported=1), "claims[1].supported", "true or false"),
        (change_claim(supportd=True), "claims[1].supportd", "unknown field"),
        (change_claim(start=36), "claims[1]", "expected start < end"),
        (change_claim(start=...), "claims[1]", "expected start < end"),
        (change_claim(start=-1), "claims[1].start", "at least 0"),
        (change_claim(scores={"a": "b"}), "claims[1].scores", "finite"),
        (make_fields(answer=ANSWER[:-1]), "", "has 35 characters"),
        (
            {**make_fields(), "candidates": [{"text": "x", "score": 0.5, "correct": True}]},
            "claims",
            "unknown field",
        ),
    ],
)
def test_read_records_refuses_invalid_claims(
    content: dict[str, Any], where: str, problem: str, tmp_path: Path
) -> None:
    (tmp_path / "records.jsonl").write_bytes(encode_line(content))
    with pytest.raises(RecordError) as caught:
        list(read_records(tmp_path / "records.jsonl").read_all())
    assert problem in str(caught.value)
    assert where in str(caught.value)


@pytest.mark.parametrize("name", ["records.jsonl", "records.jsonl.gz"])
def test_claims_records_round_trip(tmp_path: Path, name: str) -> None:
    records = [
        ClaimsRecord(
            id=f"p{row}", input=f"p{row}", answer=ANSWER, claims=tuple(map(Claim.model_validate, CLAIMS))
        )
        for row in range(70)
    ]
    path = tmp_path / name
    assert write_records(path, records, HEADER) == 70
    found = read_records(path)
    assert found.provenance == HEADER
    assert list(found.read_claims()) == records
    with pytest.raises(InputError, match="holds claims of one answer"):
        next(iter(found))
    first = path.read_bytes()
    write_records(path, found)
    assert path.read_bytes() == first


CANDIDATES = {"id": "b", "input": "?", "candidates": [{"text": "claims", "score": 0.5, "correct": True}]}


def test_read_records_refuses_mixed_claims_and_candidates(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    path.write_bytes(b"\n".join(map(encode_line, [make_fields(), CANDIDATES])))
    with pytest.raises(RecordError, match="expected claims"):
        tabulate(read_records(path), claims=True)
    path.write_bytes(
        encode_line({"format": "langchain-cfc/records", "version": 1, "n": 1})
        + b"\n"
        + encode_line(make_fields())
    )
    with pytest.raises(RecordError, match="found claims; expected 1 candidates"):
        tabulate(read_records(path), claims=True)


def test_functions_for_candidates_refuse_claims() -> None:
    record = ClaimsRecord.model_validate(make_fields())
    with pytest.raises(InputError, match="holds claims of one answer"):
        require_candidates(record)
    with pytest.raises(InputError, match="unit='claims'"):
        calibrate([record], alpha=0.5, features="1")
