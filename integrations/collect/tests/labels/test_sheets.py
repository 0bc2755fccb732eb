"""`read_sheet`: rows without a label, and what spreadsheet programs change."""

from __future__ import annotations

from pathlib import Path

import pytest
from langchain_cfc_collect import HumanLabels
from langchain_cfc_collect.human import format_value, read_sheet

from integrations.collect.tests.labels.test_human import make_input, write_file
from langchain_cfc.errors import RecordError

PARTLY = [
    ("a.csv", "id,text,correct\na,x,yes\na,y,\na,z,  \n"),
    ("a.csv", "id,text\na,x\na,y\na,z\n"),
    ("a.jsonl", '{"id": "a", "text": "x", "correct": true}\n{"id": "a", "text": "y", "correct": null}\n'),
    ("a.jsonl", '{"id": "a", "text": "y"}\n'),
]


@pytest.mark.parametrize(("name", "content"), PARTLY)
def test_read_sheet_accepts_empty_labels_only_if_partly(tmp_path: Path, name: str, content: str) -> None:
    path = write_file(tmp_path, name, content)
    sheet = read_sheet(path, partly=True)
    assert sheet.rows["a", "y"].correct is None
    assert ("a", "x") not in sheet.rows or sheet.rows["a", "x"].correct in {True, None}
    with pytest.raises(RecordError, match="correct: found"):
        HumanLabels(path)


@pytest.mark.parametrize("content", ["a,x,\na,x,no\n", "a,x,no\na,x,\n", "a,x,no\na,x,no\na,x,\n"])
def test_read_sheet_fills_an_empty_label_from_the_same_candidate(tmp_path: Path, content: str) -> None:
    sheet = read_sheet(write_file(tmp_path, "a.csv", f"id,text,correct\n{content}"), partly=True)
    assert [row.correct for row in sheet.rows.values()] == [False]


def test_read_sheet_refuses_invalid_labels_even_if_partly(tmp_path: Path) -> None:
    path = write_file(tmp_path, "a.csv", "id,text,correct\na,x,\na,y,maybe\n")
    with pytest.raises(RecordError, match=r"a.csv, line 3: correct: found 'maybe'"):
        read_sheet(path, partly=True)
    path = write_file(tmp_path, "b.csv", "id,text,correct\na,x,yes\na,x,\na,x,no\n")
    with pytest.raises(
        RecordError, match=r"b.csv, line 4: correct: found false, but the same candidate has the other label"
    ):
        read_sheet(path, partly=True)


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_human_labels_reads_separators_and_quote_marks_of_spreadsheets(
    tmp_path: Path, delimiter: str
) -> None:
    lines = ["'id|'text|correct", "'007|'=1|yes", "007|=2|no", "'8|''tis|no"]
    content = "\r\n".join(line.replace("|", delimiter) for line in lines)
    people = HumanLabels(write_file(tmp_path, "a.csv", content))
    assert people.invoke(make_input("007", "=1", "=2")) == [True, False]
    assert people.invoke(make_input("8", "'tis")) == [False]
    # Without a mark on the column, an apostrophe is part of the text.
    plain = HumanLabels(write_file(tmp_path, "b.csv", "id,text,correct\na,'tis,yes\n"))
    assert plain.invoke(make_input("a", "'tis")) == [True]


def test_human_labels_treats_all_line_ends_alike(tmp_path: Path) -> None:
    for number, end in enumerate(("\n", "\r\n", "\r")):
        path = write_file(tmp_path, f"{number}.csv", f'id,text,correct\na,"1{end}2",yes\n')
        assert HumanLabels(path).invoke(make_input("a", "1\n2", "1\r\n2", "1\r2")) == [True] * 3
    assert format_value("1\r\n2\r3\n\r") == "1\n2\n3"
    assert format_value({"b": "\r", "a": 1}) == '{"a":1,"b":"\\r"}'


SPREADSHEET_FILES = {
    "UTF-16": "id,text,correct\na,S\u00e3o Paulo,yes\na,Rio,no\n".encode("utf-16"),
    "Windows-1252": "id,text,correct\na,S\u00e3o Paulo,yes\na,Rio,no\n".encode("cp1252"),
    "accents of their own": "id,text,correct\na,Sa\u0303o Paulo,yes\na,Rio,no\n".encode(),
    "spaces at the end": "id,text,correct\na,S\u00e3o Paulo ,yes \na,Rio,no.\n".encode(),
    "German": "id;text;correct\na;S\u00e3o Paulo;WAHR\na;Rio;FALSCH\n".encode(),
    "letters": "ID,Text,Correct\na,S\u00e3o Paulo,Y\na,Rio,N\n".encode(),
    "ticks": "id,text,correct\na,S\u00e3o Paulo,\u2713\na,Rio,\u2717\n".encode(),
    "blank rows": "id,text,correct\na,S\u00e3o Paulo,yes\n,,\na,Rio,no\n,,\n".encode(),
}


@pytest.mark.parametrize("content", SPREADSHEET_FILES.values(), ids=SPREADSHEET_FILES)
def test_human_labels_reads_what_spreadsheet_programs_write(tmp_path: Path, content: bytes) -> None:
    labeler = HumanLabels(write_file(tmp_path, "a.csv", content))
    assert labeler.invoke(make_input("a", "S\u00e3o Paulo", "Rio")) == [True, False]


def test_human_labels_finds_whole_number_ids_that_became_decimals(tmp_path: Path) -> None:
    labeler = HumanLabels(write_file(tmp_path, "a.csv", "id,text,correct\n1.0,Lima,1.0\n"))
    assert labeler.invoke(make_input("1", "Lima")) == [True]


@pytest.mark.parametrize("word", ["x", "maybe", "50 %", "ja?", "2"])
def test_human_labels_refuses_words_of_two_meanings(tmp_path: Path, word: str) -> None:
    with pytest.raises(RecordError, match="expected true or false"):
        HumanLabels(write_file(tmp_path, "a.csv", f"id,text,correct\na,Lima,{word}\n"))
