"""Review sheets of claims, and labels that people gave to all claims of a store."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from langchain_cfc_collect import HumanLabels, Store, collect
from langchain_cfc_collect.review import CLAIM_COLUMNS, write_review

from integrations.collect.tests.claiming import Claiming, make_examples, make_parts
from integrations.collect.tests.filling import fill_in, read_rows_of
from integrations.collect.tests.sharing import make_silent_options
from langchain_cfc.records import ClaimsRecord
from langchain_cfc.sampling.fingerprints import compute_fingerprint
from tests.cli.running import run
from tests.factories import make_answer


def make_record(name: str, *texts: str, supported: bool = False, cluster: str | None = None) -> ClaimsRecord:
    """An answer that is a line for each claim."""
    claims = ((text, 0.5, supported) for text in texts)
    return make_answer(name, *claims, input=f"Tell me about {name}.", reference="x", cluster=cluster)


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


def test_claim_sheets_of_a_store_are_compared_and_become_its_labels(tmp_path: Path) -> None:
    store, sheet, out = tmp_path / "claims.db", tmp_path / "sheet.csv", tmp_path / "claims.jsonl"
    examples, parts = make_examples(10), make_parts(Claiming())
    collect(examples, parts, store, make_silent_options())
    assert run("store", "export", store, out).code == 0
    ran = run("store", "export", store, sheet, "--sample-for-review", "8", "--json")
    assert ran.data == {"answers": 8, "written": str(sheet)}
    fill_in(sheet, lambda name, _: name < "p5")
    ran = run("store", "agreement", out, sheet)
    assert ran.code == 0
    assert max(map(len, ran.out.splitlines())) <= 80
    assert "unsupported ones labelled supported" in " ".join(ran.out.split())
    people = replace(parts, labeler=HumanLabels(sheet))
    assert collect(examples, people, store, make_silent_options(relabel=True)).complete
    with Store(store) as opened:
        read, labeler = list(opened.read_claims()), opened.read_provenance().labeler
    assert {(one.id < "p5", claim.supported) for one in read for claim in one.claims} == {
        (True, True),
        (False, False),
    }
    assert labeler == compute_fingerprint(HumanLabels(sheet))
