"""`langchain-cfc compare`: tables in 80 columns, JSON, figures and the page."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from importlib.resources import files
from pathlib import Path

import pytest

from tests.cli.running import Ran, run

RECORDING = Path(str(files("langchain_cfc") / "demo" / "facts.jsonl.gz"))


def run_compare(*options: str | Path) -> Ran:
    return run("compare", RECORDING, "--splits", "2", "--jobs", "1", "--alpha", "0.3", *options)


def test_compare_prints_every_method_in_80_columns() -> None:
    ran = run_compare("--alpha", "0.4")
    assert ran.code == 0, ran.err
    assert max(map(len, ran.out.splitlines())) <= 80
    for needed in ("conditional", "marginal", "TopK", "CFC-PAC-FULL", "sampling", "back-off", "worst group"):
        assert needed in ran.out, needed
    assert "points below target" in ran.out
    assert "…" not in ran.out


@pytest.mark.long
def test_compare_writes_figures_and_report(tmp_path: Path) -> None:
    page, folder = tmp_path / "page.html", tmp_path / "figures"
    ran = run_compare(
        "--report", page, "--figures", folder, "--method", "conditional", "--method", "marginal"
    )
    assert ran.code == 0, ran.err
    assert str(page) in "".join(ran.out.split())
    assert page.read_text(encoding="utf-8").lower().startswith("<!doctype html>")
    drawn = sorted(folder.glob("*.svg"))
    assert len(drawn) >= 10
    for one in drawn:
        ET.fromstring(one.read_text(encoding="utf-8"))  # noqa: S314 - written above
        assert one.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
