from __future__ import annotations

from pathlib import Path

import pytest
from langchain_cfc_lab.report import write_report

from integrations.lab.tests.report.cases import Case, make_case, make_prompt
from langchain_cfc.errors import InputError


@pytest.fixture(scope="module")
def small() -> Case:
    """An artifact whose page is drawn at once."""
    prompts = [make_prompt(f"{k}", (k / 100, "yes", True), (0.9, "no", False)) for k in range(50)]
    return make_case(prompts, features="1")


def test_write_report_overwrites_reports_only(small: Case, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    write_report(path, artifact=small.artifact, evaluation=small.evaluation, title="first")
    first = path.read_text()
    write_report(path, artifact=small.artifact, evaluation=small.evaluation, title="second")
    second = path.read_text()
    assert "<title>first</title>" in first
    assert "<title>second</title>" in second
    for content in ("", "<!DOCTYPE html><html></html>", '{"id": "a record"}', first[1024:]):
        path.write_text(content)
        with pytest.raises(InputError, match="exists and is not a report; it will not be overwritten"):
            write_report(path, artifact=small.artifact, evaluation=small.evaluation)
        assert path.read_text() == content


def test_write_report_keeps_the_old_page_on_failure(small: Case, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    write_report(path, artifact=small.artifact, evaluation=small.evaluation)
    before = path.read_bytes()
    with pytest.raises(InputError, match="a report needs"):
        write_report(path, artifact=small.artifact)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]
