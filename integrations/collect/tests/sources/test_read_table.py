"""The table "What is read" in docs/records.md says what files of questions and sheets really do."""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterable, Sequence
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from langchain_cfc_collect import Columns, HumanLabels, read_examples

from integrations.collect.tests.sources.writing import write, write_parquet
from langchain_cfc.errors import CFCError
from langchain_cfc.labelers import LabelerInput
from langchain_cfc.sampling import DrawnCandidate

PAGE = Path(__file__).resolve().parents[4] / "docs" / "records.md"
SECTION = PAGE.read_text(encoding="utf-8").partition("### What is read")[2]
TABLE: dict[str, tuple[str, str]] = {
    row: (questions.strip(), sheets.strip())
    for row, questions, sheets in re.findall(
        r"^\| (.+?) \|(.*?)\|(.*?)\|$",
        SECTION,
        re.MULTILINE,
    )
    if row not in {"in the file", "---"}
}
PLAIN = "id,q,text,correct\n1,Peru?,Lima,yes\n"
LONG = "x" * 140_000
PARQUET = [{"q": Decimal("1.50"), "text": datetime.fromisoformat("2026-01-02T03:04:00")}]
# For each row of the table: names and contents of files, and the question and answer that they hold.
Case = tuple[str, str | bytes, str, str]
CASES: list[tuple[str, Sequence[Case]]] = [
    (
        "in any letter case",
        [
            ("a.CSV", PLAIN, "Peru?", "Lima"),
            ("a.Tsv", PLAIN.replace(",", "\t"), "Peru?", "Lima"),
        ],
    ),
    (
        "gzip",
        [
            ("a.JSONL", '{"id": "1", "q": "Peru?", "text": "Lima", "correct": true}\n', "Peru?", "Lima"),
            ("a.ndjson", '{"id": "1", "q": "Peru?", "text": "Lima", "correct": true}', "Peru?", "Lima"),
            ("a.json", '[{"id": "1", "q": "Peru?", "text": "Lima", "correct": true}]', "Peru?", "Lima"),
            ("a.csv.gz", gzip.compress(PLAIN.encode()), "Peru?", "Lima"),
        ],
    ),
    (
        "vertical bars",
        [("a.csv", PLAIN.replace(",", one), "Peru?", "Lima") for one in ",;\t|"]
        + [("a.csv", "sep=;\r\n" + PLAIN.replace(",", ";"), "Peru?", "Lima")],
    ),
    (
        "UTF-8, and",
        [("a.csv", PLAIN.encode(one), "Peru?", "Lima") for one in ("utf-8", "utf-8-sig", "utf-16")],
    ),
    ("UTF-32", [("a.csv", PLAIN.encode(one), "", "") for one in ("utf-16-le", "utf-16-be", "utf-32")]),
    ("Windows-1252", [("a.csv", PLAIN.replace("u?", "\u00fa?").encode("cp1252"), "Per\u00fa?", "Lima")]),
    (
        "old Macs",
        [("a.csv", PLAIN.replace("\n", one), "Peru?", "Lima") for one in ("\n", "\r\n", "\r")]
        + [("a.csv", f"{PLAIN[:-1]}{one}2,Chile?,Santiago,no\n", "Peru?", "Lima") for one in ("\r", "\r\n")]
        + [("a.csv", PLAIN.replace("Lima", '"Li\nma"'), "Peru?", "Li\nma")],
    ),
    (
        "blank rows",
        [
            ("a.csv", "\n" + PLAIN + ",,,\n", "Peru?", "Lima"),
            ("a.csv", "id,q,text,correct,\n1,Peru?,Lima,yes,\n", "Peru?", "Lima"),
            ("a.csv", PLAIN.replace("Lima", LONG), "Peru?", LONG),
        ],
    ),
    (
        "numbers, decimals",
        [("a.csv", PLAIN.replace("Lima", one), "Peru?", one) for one in ("007", "1.50", "2026-01-02 03:04")],
    ),
    ("times in Parquet", []),  # a test of its own
    (
        "too few",
        [("a.csv", PLAIN + one, "", "") for one in ("2,Chile?,x\n", "2,Chile?,x,no,1\n", '2,"Chile?,x,no\n')],
    ),
    ("a blank question", [("a.csv", "id,q,text,correct\n1, ,Lima,\n", "", "")]),
    (
        "a tick",
        [
            ("a.csv", PLAIN.replace("yes", one), "Peru?", "Lima")
            for one in ("Y", "1.0", "WAHR", "ja", "\u2713", "TRUE", "oui")
        ],
    ),
    ("`maybe`", [("a.csv", PLAIN.replace("yes", one), "Peru?", "Lima") for one in ("x", "maybe", "?")]),
    (
        "header `Correct`",
        [
            ("a.csv", PLAIN.replace("correct", "Correct"), "Peru?", "Lima"),
            ("a.csv", PLAIN.replace("\n1,", "\n1.0,"), "Peru?", "Lima"),
            ("a.csv", PLAIN.replace("Lima", "\u201cLima\u201d"), "Peru?", '"Lima"'),
        ],
    ),
    ("not in the records", [("a.csv", PLAIN.replace("Lima", "01-Feb"), "Peru?", "1/2")]),
]


def list_cases() -> Iterable[Any]:
    for words, cases in CASES:
        (row,) = (one for one in TABLE if words in one)
        yield from (pytest.param(row, one, id=f"{words} {number}") for number, one in enumerate(cases))


def test_every_row_of_the_table_is_compared() -> None:
    found = [row for row in TABLE for words, _ in CASES if words in row]
    assert found == list(TABLE)


@pytest.mark.parametrize(("row", "case"), list(list_cases()))
def test_file_is_read_or_refused_as_the_table_says(tmp_path: Path, row: str, case: Case) -> None:
    name, content, question, text = case
    path = write(tmp_path / name, content)
    questions, sheets = TABLE[row]
    columns = Columns(input="q", reference="text")
    if questions == "refused":
        with pytest.raises(CFCError, match=rf"{re.escape(name)}(, line|:)(.|\n)*(line )?\d"):
            list(read_examples(path, columns))
    elif questions:
        example, *_ = read_examples(path, columns)
        assert (example.input, example.reference) == (question, text)
    if sheets == "refused":
        with pytest.raises(CFCError, match=re.escape(name)):
            HumanLabels(path).invoke(make_input(text))
    else:
        assert HumanLabels(path).invoke(make_input(text)) == [True]


def make_input(text: str) -> LabelerInput:
    return LabelerInput(id="1", prompt="?", reference=None, candidates=[DrawnCandidate(text)])


def test_decimals_and_times_of_parquet_are_read_as_the_table_says(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "a.parquet", PARQUET)
    (example,) = read_examples(path, Columns(input="text", reference="q"))
    assert (example.input, example.reference) == ("2026-01-02T03:04:00", 1.5)
    with pytest.raises(CFCError, match=r"a\.parquet .* expected a \.csv or \.tsv"):
        HumanLabels(path)
