"""Review sheets of claims, and records with the labels that people gave."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_cfc_collect import HumanLabels
from langchain_cfc_collect.human import format_value
from langchain_cfc_collect.review import (
    CLAIM_COLUMNS,
    read_people_claims,
    write_review,
)

from integrations.collect.tests.claiming import Claiming, make_examples, make_parts
from integrations.collect.tests.filling import fill_in, make_numbered_records, read_rows_of, write_rows
from integrations.collect.tests.sharing import make_silent_options
from langchain_cfc.errors import InputError, RecordError
from langchain_cfc.labelers import LabelerInput
from langchain_cfc.records import ClaimsRecord, Provenance
from langchain_cfc.sampling import DrawnCandidate
from langchain_cfc.sampling.fingerprints import compute_fingerprint
from tests.cli.running import run
from tests.factories import make_answer, update_claims

HEADER = Provenance(n=1, unit="claims", labeler={"id": "judge"})


def make_record(name: str, *texts: str, supported: bool = False, cluster: str | None = None) -> ClaimsRecord:
    """An answer that is a line for each claim."""
    claims = ((text, 0.5, supported) for text in texts)
    return make_answer(name, *claims, input=f"Tell me about {name}.", reference="x", cluster=cluster)


def make_records(size: int) -> list[ClaimsRecord]:
    return [
        make_record(f"p{number}", *(f"={number}/{slot}" for slot in range(1 + number % 3)))
        for number in range(size)
    ]


def test_claim_sheet_shows_each_claim_and_its_answer_without_labels(tmp_path: Path) -> None:
    path = tmp_path / "sheet.csv"
    record = make_record("peru", "Its capital is Lima.", "It has 2 coasts.").model_copy(
        update={"answer": "Its capital is Lima.\nIt has two coasts."}
    )
    unplaced = record.claims[0].model_copy(update={"text": "Lost.", "start": None, "end": None})
    record = record.model_copy(update={"claims": (*record.claims, unplaced)})
    write_review([record], 1, path)
    header, *rows = read_rows_of(path)
    assert header == [*(f"'{name}" for name in CLAIM_COLUMNS), "supported"]
    # A claim may be worded differently from the part of the answer that makes it.
    spans = ["'Its capital is Lima.", "'It has two coast", "'"]
    assert [row[4] for row in rows] == spans
    assert [row[5] for row in rows] == ["'Its capital is Lima.", "'It has 2 coasts.", "'Lost."]
    assert {tuple(row[:4]) for row in rows} == {("'peru", "'Tell me about peru.", "'x", f"'{record.answer}")}
    assert {row[6] for row in rows} == {""}


TEXTS = st.lists(
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1),
    min_size=1,
    max_size=4,
    unique_by=format_value,
)


@given(st.lists(TEXTS, min_size=1, max_size=4), st.integers())
def test_read_people_claims_returns_the_labels_filled_in(
    tmp_path_factory: Any, answers: list[list[str]], luck: int
) -> None:
    path = tmp_path_factory.mktemp("sheets") / "sheet.csv"
    records = [make_record(f"p{number}", *texts) for number, texts in enumerate(answers)]
    write_review(records, len(records), path)

    def judge(name: str, text: str) -> bool:
        return hash((name, format_value(text), luck)) % 2 == 0

    fill_in(path, judge)
    read = list(read_people_claims(records, HEADER, path)[0])
    for found, record in zip(read, records, strict=True):
        assert found == update_claims(record, lambda one: {"supported": judge(found.id, one.text)})  # noqa: B023 - called at once
    asked = LabelerInput(
        id=records[0].id,
        prompt=records[0].input,
        reference=None,
        candidates=[DrawnCandidate(one.text) for one in records[0].claims],
    )
    assert HumanLabels(path).invoke(asked) == [one.supported for one in read[0].claims]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda rows: [row for row in rows if row[5] != "'=2/1"], "no row has the claim '=2/1' of 'p2'"),
        (lambda rows: [*rows, ["'q", *rows[1][1:]]], "'q' is in none of the records"),
        (lambda rows: [*rows, [*rows[1][:5], "'other", "yes"]], "'other' is not a claim of 'p"),
        (
            lambda rows: [*rows[:-1], [*rows[-1][:6], ""]],
            r"line \d+: supported: found ''",
        ),
    ],
)
def test_read_people_claims_refuses_sheets_that_do_not_fit_the_records(
    tmp_path: Path, change: Callable[[list[list[str]]], list[list[str]]], message: str
) -> None:
    records, path = make_records(3), tmp_path / "sheet.csv"
    write_review(records, 3, path)
    write_rows(fill_in(path, lambda *_: True), change(read_rows_of(path)))
    with pytest.raises(RecordError, match=message):
        list(read_people_claims(records, HEADER, path)[0])


def test_read_people_claims_refuses_records_of_candidates(tmp_path: Path) -> None:
    path = tmp_path / "candidates.csv"
    write_review(make_numbered_records(2), 2, path)
    fill_in(path, lambda *_: True)
    with pytest.raises(InputError, match="records with the claims of one answer are needed"):
        list(read_people_claims(make_numbered_records(2), HEADER, path)[0])


# Reports on filled sheets


def test_store_export_writes_and_reads_claim_sheets(tmp_path: Path) -> None:
    from langchain_cfc_collect import collect

    from langchain_cfc.records import read_records

    store, sheet, out = tmp_path / "claims.db", tmp_path / "sheet.csv", tmp_path / "people.jsonl"
    collect(make_examples(10), make_parts(Claiming()), store, make_silent_options())
    ran = run("store", "export", store, sheet, "--sample-for-review", "6", "--json")
    assert ran.data == {"answers": 6, "written": str(sheet)}
    fill_in(sheet, lambda name, _: name < "p5")
    assert run("store", "export", store, out, "--labels", sheet, "--json").data["records"] == 6
    read = read_records(out)
    assert {(one.id < "p5", claim.supported) for one in read.read_claims() for claim in one.claims} == {
        (True, True),
        (False, False),
    }
    assert read.provenance is not None
    assert (read.provenance.labeler or {}) == compute_fingerprint(HumanLabels(sheet))
    labelled = tmp_path / "labelled.jsonl"
    assert run("store", "export", store, labelled).code == 0
    ran = run("store", "agreement", labelled, sheet)
    assert ran.code == 0
    assert max(map(len, ran.out.splitlines())) <= 80
    shown = " ".join(ran.out.split())
    assert "people: supported people: unsupported" in shown
    assert "independent " not in shown.partition("promised of labels")[2].partition("True at least")[0]
    refused = run("store", "export", store, out, "--labels", sheet, "--sample-for-review", "6")
    assert (refused.code, "give one of them" in refused.err) == (2, True)
