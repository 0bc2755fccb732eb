"""`HumanLabels`: labels that people wrote down, rows without one, and what spreadsheet programs change."""

from __future__ import annotations

from pathlib import Path

import pytest
from langchain_cfc_collect import HumanLabels
from langchain_cfc_collect.human import format_value, read_sheet

from langchain_cfc.errors import InputError, LabelerError, RecordError
from langchain_cfc.execution import run_flow
from langchain_cfc.labelers import CandidateLabeling, LabelerInput
from langchain_cfc.sampling import DrawnCandidate
from tests.calls import Invoke
from tests.factories import labeler_input


def write_file(folder: Path, name: str, content: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def make_input(name: str, *texts: str) -> LabelerInput:
    return LabelerInput(
        id=name, prompt="?", reference=None, candidates=[DrawnCandidate(text) for text in texts]
    )


CSV = """\
id,text,correct,by
peru,Lima,Yes,Ann
peru,"Quito, ""the high""
or so",0,
chile,,false,
chile,Lima,NO,
"""


def test_human_labels_are_found_by_id_and_text(tmp_path: Path, invoke: Invoke) -> None:
    labeler = HumanLabels(write_file(tmp_path, "a.csv", CSV))
    assert invoke(labeler, make_input("peru", 'Quito, "the high"\nor so', "Lima")) == [False, True]
    assert invoke(labeler, make_input("chile", "", "Lima", "")) == [False, False, False]
    assert "4 by id and text" in repr(labeler)
    drawn = make_input("peru", "", "Lima", "It is Lima")  # an extractor finds one answer in the last two
    found = run_flow(CandidateLabeling(labeler).label_candidates(drawn, ["", "LIMA", "LIMA"], {}))
    assert found == [False, True, True]


def test_human_labels_names_a_missing_label(tmp_path: Path, invoke: Invoke) -> None:
    labeler = HumanLabels(write_file(tmp_path, "all.csv", CSV))
    with pytest.raises(LabelerError, match=r"no label for id 'peru', text ' Lima' in all.csv: add a line"):
        invoke(labeler, make_input("peru", "Lima ", " Lima"))
    with pytest.raises(LabelerError, match="no label for id 'bolivia', text 'Lima'"):
        invoke(labeler, make_input("bolivia", "Lima"))
    rows = "id,input,text,correct\nperu,Which town?,Lima,yes\n"
    # Another row of this id with the right input does not hide it.
    for number, more in enumerate(("", "peru,?,Quito,no\n")):
        other = HumanLabels(write_file(tmp_path, f"{number}.csv", rows + more))
        with pytest.raises(LabelerError, match=r"line 2: input: 'Which town\?' is not the input of 'peru'"):
            invoke(other, make_input("peru", "Lima"))
    with pytest.raises(LabelerError, match="prompts by id, but this prompt came without one"):
        invoke(labeler, labeler_input(None, "Lima"))


def test_human_labels_accepts_repeated_but_not_contradictory_lines(tmp_path: Path) -> None:
    twice = f"{CSV}peru,Lima,true,\n"
    assert HumanLabels(write_file(tmp_path, "a.csv", twice)).invoke(make_input("peru", "Lima")) == [True]
    with pytest.raises(RecordError, match=r"b.csv, line 7: correct: found false, but the same candidate"):
        HumanLabels(write_file(tmp_path, "b.csv", f"{CSV}peru,Lima,false,\n"))


@pytest.mark.parametrize(
    ("name", "content", "line", "field", "problem"),
    [
        ("a.csv", "id,text,correct\n", 0, "", "it holds no labels"),
        ("a.csv", "id,text,correct\na,x,maybe\n", 2, "correct", "found 'maybe'"),
        ("a.csv", "id,text,correct\na,x,\n", 2, "correct", "found ''"),
        ("a.csv", "id,text,correct\na,x\n", 2, "", "cells; expected 3, as in the header"),
        ("a.csv", "id,text\na,x\n", 2, "correct", "no such column"),
        ("a.csv", "Review by Ann,,\nid,text,correct\na,x,1\n", 2, "id", "no such column"),
        ("a.csv", "id,text,correct,Correct \na,x,1,0\n", 2, "correct", "found two columns"),
        ("a.csv", 'id,text,correct\na,"x"y,1\n', 2, "", "not CSV"),
    ],
)
def test_human_labels_refuses_bad_lines_by_line_and_field(
    tmp_path: Path, name: str, content: str, *, line: int, field: str, problem: str
) -> None:
    with pytest.raises(RecordError) as caught:
        HumanLabels(write_file(tmp_path, name, content))
    assert (caught.value.source, caught.value.line, caught.value.field) == (str(tmp_path / name), line, field)
    assert problem in caught.value.problem


def test_human_labels_refuses_other_files(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"expected a .csv or .tsv"):
        HumanLabels(write_file(tmp_path, "a.txt", CSV))
    with pytest.raises(InputError, match="no such file"):
        HumanLabels(tmp_path / "none.csv")


def test_human_labels_fingerprint_depends_on_the_content(tmp_path: Path) -> None:
    first, again = (HumanLabels(write_file(tmp_path, name, CSV)) for name in ("a.csv", "b.csv"))
    other = HumanLabels(write_file(tmp_path, "c.csv", CSV.replace("Yes", "No")))
    assert first.fingerprint == again.fingerprint != other.fingerprint
    assert first.fingerprint["id"] == "human-labels"


def test_read_sheet_accepts_empty_labels_only_if_partly(tmp_path: Path) -> None:
    path = write_file(tmp_path, "a.csv", "id,text,correct\na,x,yes\na,y,\na,z,  \n")
    sheet = read_sheet(path, partly=True)
    assert [row.correct for row in sheet.rows.values()] == [True, None, None]
    with pytest.raises(RecordError, match="correct: found"):
        HumanLabels(path)


@pytest.mark.parametrize(
    "label", ["да", "EVET", "ναι", "TOSI", "はい", "“Richtig”", "Ｙｅｓ\n", "=TRUE()", "1,00"]
)
def test_read_sheet_reads_labels_of_many_languages(tmp_path: Path, label: str) -> None:
    sheet = read_sheet(write_file(tmp_path, "a.csv", f'"sep=;"\nid;text;correct\na;x;"{label}"\n'))
    assert sheet.rows["a", "x"].correct is True


@pytest.mark.parametrize("content", ["a,x,\na,x,no\n", "a,x,no\na,x,\n", "a,x,no\na,x,no\na,x,\n"])
def test_read_sheet_fills_an_empty_label_from_the_same_candidate(tmp_path: Path, content: str) -> None:
    sheet = read_sheet(write_file(tmp_path, "a.csv", f"id,text,correct\n{content}"), partly=True)
    assert [row.correct for row in sheet.rows.values()] == [False]


def test_read_sheet_refuses_invalid_labels_even_if_partly(tmp_path: Path) -> None:
    path = write_file(tmp_path, "a.csv", "id,text,correct\na,x,\na,y,maybe\n")
    with pytest.raises(RecordError, match=r"a.csv, line 3: correct: found 'maybe'"):
        read_sheet(path, partly=True)
    path = write_file(tmp_path, "b.csv", "id,text,correct\na,x,yes\na,x,\na,x,no\n")
    with pytest.raises(RecordError, match=r"b.csv, line 4: correct: found false, but the same candidate"):
        read_sheet(path, partly=True)


def test_human_labels_reads_quote_marks_of_spreadsheets(tmp_path: Path) -> None:
    content = "'id,'text,correct\n'007,'=1,yes\n007,=2,no\n'8,''tis,no\n'1.0,'a,yes\n2.0,'a,no\n"
    people = HumanLabels(write_file(tmp_path, "a.csv", content))
    assert people.invoke(make_input("007", "=1", "=2")) == [True, False]
    assert people.invoke(make_input("8", "'tis")) == [False]
    # An id that lost its mark may be one that the program took for a decimal.
    assert [*people.invoke(make_input("1.0", "a")), *people.invoke(make_input("2", "a"))] == [True, False]
    # Without a mark on the column, an apostrophe is part of the text.
    plain = HumanLabels(write_file(tmp_path, "b.csv", "id,text,correct\na,'tis,yes\n"))
    assert plain.invoke(make_input("a", "'tis")) == [True]


def test_human_labels_treats_all_line_ends_alike(tmp_path: Path) -> None:
    path = write_file(tmp_path, "a.csv", 'id,text,correct\na,"1\r\n2",yes\n')
    assert HumanLabels(path).invoke(make_input("a", "1\n2", "1\r\n2", "1\r2")) == [True] * 3
    assert format_value("1\r\n2\r3\n\r") == "1\n2\n3"
    assert format_value({"b": "\r", "a": 1}) == '{"a":1,"b":"\\r"}'


# What other programs write is in the table of docs/records.md, which `sources/test_read_table.py` tries.
@pytest.mark.parametrize("name", ["Sa\u0303o Paulo", "S\u00e3o Paulo "])
def test_human_labels_reads_accents_of_their_own_and_spaces_at_the_end(tmp_path: Path, name: str) -> None:
    content = f"id,text,correct\na,{name},yes \na,Rio,no.\n"
    labeler = HumanLabels(write_file(tmp_path, "a.csv", content))
    assert labeler.invoke(make_input("a", "S\u00e3o Paulo", "Rio")) == [True, False]


TYPED = [
    ('"Lima"', "\u201cLima\u201d"),
    ("it's 5-7...", "it\u2019s 5\u20137\u2026"),
    ("caf\u00e9 \u00abx\u00bb", "caf\u00e9\u00a0\u201ex\u201c"),
]


def quote(text: str) -> bytes:
    """Return a cell as a spreadsheet program writes it on Windows."""
    doubled = text.replace('"', '""')
    return f'"{doubled}"'.encode("cp1252")


@pytest.mark.parametrize(("drawn", "written"), TYPED)
def test_typographic_marks_of_programs_do_not_lose_a_label(tmp_path: Path, drawn: str, written: str) -> None:
    content = b"id;text;correct\r\n1.0;" + quote(written) + b";ja\r\n;;\r\n"
    labeler = HumanLabels(write_file(tmp_path, "a.csv", content))
    assert labeler.invoke(make_input("1", drawn)) == [True]
    with pytest.raises(LabelerError, match="no label"):
        labeler.invoke(make_input("1", f"{drawn}!"))
    path = write_file(tmp_path, "b.csv", content + b"1;" + quote(drawn) + b";no\r\n")
    with pytest.raises(RecordError, match="line 4: correct: found false, but the same candidate"):
        HumanLabels(path)
