"""Plugin sources of other distributions, found by their entry points."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from langchain_cfc_collect import Columns, Rows, read_config, read_examples
from langchain_cfc_collect.sources.files import open_rows

from langchain_cfc.errors import InputError, RecordError

MODULE = """
from langchain_cfc_collect import Rows
from langchain_cfc.errors import RecordError

def rows(rest):
    if rest == "gone":
        raise RecordError("shelf:gone", 0, "", "no such shelf")
    return Rows(f"shelf:{rest}, edition 2", "row", lambda: iter([(1, {"question": rest})]))

def nothing(rest):
    return [rest]
"""
ENTRIES = """[langchain_cfc.sources]
shelf = plugged_shelf:rows
nothing = plugged_shelf:nothing
broken = plugged_half:rows
"""
TOML = """
store = "facts.db"
n = 2
source = {{ path = "{path}", input = "question" }}
generator = {{ factory = "builtins:str" }}
verifier = {{ factory = "builtins:str" }}
labeler = {{ factory = "builtins:str" }}
"""


def install(folder: Path, name: str, entries: str) -> None:
    """Write the metadata of an installed distribution."""
    info = folder / f"{name.replace('-', '_')}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(entries)


@pytest.fixture
def plugged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A distribution with sources, and a folder to be in."""
    site, folder = tmp_path / "site", tmp_path / "folder"
    site.mkdir()
    folder.mkdir()
    install(site, "plugged-shelf", ENTRIES)
    (site / "plugged_shelf.py").write_text(MODULE)
    (site / "plugged_half.py").write_text("raise RuntimeError('half installed')\n")
    monkeypatch.syspath_prepend(site)
    monkeypatch.chdir(folder)
    for module in ("plugged_shelf", "plugged_half"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    return folder


@pytest.mark.parametrize(
    "named", ["questions:2024.jsonl", "shelf:questions", "./shelf:it.jsonl", "C:it.jsonl"]
)
def test_open_rows_prefers_an_existing_file_to_a_scheme(plugged: Path, named: str) -> None:
    (plugged / named).write_text('{"question": "from the file"}\n')
    if named.endswith(".jsonl"):
        (example,) = read_examples(named, Columns(input="question"))
        assert example.input == "from the file"
    else:
        with pytest.raises(RecordError, match="found the ending ''"):
            open_rows(named)


@pytest.mark.usefixtures("plugged")
@pytest.mark.parametrize(
    "named", [r"C:\data\questions.csv", "C:questions.csv", "a/b:c.csv", "A:b.csv", "x y:z.csv"]
)
def test_open_rows_treats_drives_and_paths_with_colons_as_files(named: str) -> None:
    with pytest.raises(RecordError, match=r"no such file(; there is no folder a)?$"):
        open_rows(named)


@pytest.mark.usefixtures("plugged")
@pytest.mark.parametrize(
    ("named", "words"),
    [
        ("broken:x", r"^broken:x: plugged-shelf failed with RuntimeError: half installed$"),
        ("nothing:x", r"^nothing:x: plugged-shelf returned a list; expected Rows$"),
        ("gone:x", r"^gone:x: no such file, and no source gone: found .*broken, .*nothing, .*shelf"),
        ("shelf:gone", r"^shelf:gone: no such shelf$"),
        ("https://a.org/q.csv", r"^https://a.org/q.csv: no such file; if it is a URL, download it first$"),
    ],
)
def test_open_rows_explains_what_a_plugin_cannot_open(named: str, words: str) -> None:
    with pytest.raises((InputError, RecordError), match=words):
        open_rows(named)


def test_config_keeps_the_source_scheme_and_records_the_opened_name(plugged: Path, tmp_path: Path) -> None:
    config = tmp_path / "collect.toml"
    config.write_text(TOML.format(path="shelf:a//b"))
    read = read_config(config)
    assert read.source.path == "shelf:a//b"
    assert isinstance(read.source.rows, Rows)
    assert read.record_settings()["source"] == "shelf:a//b, edition 2"
    config.write_text(TOML.format(path="questions.csv"))
    assert read_config(config).source.path == str(tmp_path / "questions.csv")
    assert "source" not in read_config(config).record_settings()
    # A file beside the configuration is found from anywhere else.
    (tmp_path / "shelf:it.jsonl").write_text("")
    config.write_text(TOML.format(path="shelf:it.jsonl"))
    assert plugged != tmp_path
    assert read_config(config).source.path == str(tmp_path / "shelf:it.jsonl")
