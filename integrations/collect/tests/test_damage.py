"""A damaged store is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from langchain_cfc_collect.store import Store, schema

from integrations.collect.tests.damaging import (
    count_outcomes,
    flip_bits,
    make_store,
    overwrite_pages,
    read_contents,
)
from integrations.collect.tests.sharing import execute_sql, tabulate_store
from langchain_cfc.errors import StoreError
from tests.cli.running import run


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("made") / "store.db"
    make_store(path, 40)
    return path


@pytest.fixture
def path(made: Path, tmp_path: Path) -> Path:
    copy = tmp_path / "store.db"
    copy.write_bytes(made.read_bytes())
    return copy


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE prompts SET scores = replace(scores, '0.', '0.1') WHERE position = 4",
        "UPDATE prompts SET scores = 'text' WHERE position = 4",
        "UPDATE prompts SET scores = (SELECT scores FROM prompts WHERE position = 5) WHERE position = 4",
        "UPDATE prompts SET labels = scores WHERE position = 4",
        "UPDATE prompts SET labels = replace(labels, '5', '6') WHERE position = 4",
        "UPDATE prompts SET labels = x'00' WHERE position = 4",
        "UPDATE prompts SET labels = NULL WHERE position = 4",
        "UPDATE prompts SET draws = replace(draws, 'It is', 'it is') WHERE position = 4",
        "UPDATE prompts SET id = 'another' WHERE position = 4",
        "UPDATE prompts SET id = '\"another\"' WHERE position = 4",
        "UPDATE prompts SET example = replace(example, '4', '5') WHERE position = 4",
        "UPDATE prompts SET example = 'no JSON' WHERE position = 4",
        "UPDATE prompts SET stage = 2 WHERE position = 4",
        "UPDATE prompts SET stage = 'x' WHERE position = 4",
        "UPDATE facts SET value = replace(value, '\"a\"', '\"b\"') WHERE name = 'configuration'",
        "UPDATE facts SET value = replace(value, 'model-1', 'model-2') WHERE name = 'models'",
        "DELETE FROM facts WHERE name = 'models'",
        "DELETE FROM facts WHERE name = 'digest'",
        "UPDATE facts SET value = '39' WHERE name = 'prompts'",
        "DELETE FROM prompts WHERE position = 4",
        "DELETE FROM prompts WHERE position = 39",
        "DELETE FROM prompts WHERE position = 7",
    ],
)
def test_store_refuses_changed_values_that_calibration_reads(path: Path, statement: str) -> None:
    execute_sql(path, statement)
    with pytest.raises(StoreError, match=r"store\.db is damaged"), Store(path) as store:
        list(store.read_records())


@pytest.mark.parametrize(
    "statement",
    [
        # Candidates that are drawn in part, drawn, and scored; and a question that is not asked yet.
        "UPDATE draws SET slot = 2 WHERE prompt = 3",
        "UPDATE draws SET packed = substr(packed, 2) WHERE prompt = 3",
        "UPDATE prompts SET draws = replace(draws, 'It is', 'it is') WHERE position = 11",
        "UPDATE draws SET packed = (SELECT packed FROM draws WHERE prompt = 15) WHERE prompt = 11",
        "DELETE FROM draws WHERE prompt = 11 AND slot = 0",
        "UPDATE prompts SET scores = replace(scores, '0.', '0.1') WHERE position = 15",
        "UPDATE prompts SET error = x'00' WHERE position = 11",
        "UPDATE prompts SET context = x'00' WHERE position = 3",
        "UPDATE prompts SET example = replace(example, '3', '4') WHERE position = 3",
    ],
)
def test_store_refuses_changed_values_of_unfinished_prompts(path: Path, statement: str) -> None:
    with Store(path) as store:
        assert {3, 11, 15} <= {work.position for work in store.read_unfinished()}
    execute_sql(path, statement)
    with Store(path) as store, pytest.raises(StoreError, match="is damaged: the prompt 'p"):
        list(store.read_unfinished())


def test_store_check_command_finds_damage_in_a_failed_prompt(path: Path) -> None:
    assert "prompts match their digests" in run("store", "check", path).out
    assert run("store", "check", path, "--json").data["checked"]
    # Of the failed prompt 7 nothing is read otherwise.
    execute_sql(path, "UPDATE prompts SET example = replace(example, '7', '8') WHERE position = 7")
    run("store", "check", path).assert_refused("the prompt 'p7' differs from what was written")


def test_store_check_finds_damage_in_raw_messages(path: Path) -> None:
    execute_sql(path, "UPDATE draws SET packed = substr(packed, 2) WHERE prompt = 4 AND slot = 1")
    with Store(path) as store:
        assert len(tabulate_store(store).ids) == 32
        with pytest.raises(StoreError, match="the prompt 'p4' differs from what was written"):
            store.check()


def test_store_check_finds_a_damaged_index(path: Path) -> None:
    execute_sql(
        path,
        "PRAGMA writable_schema = ON",
        "CREATE INDEX by_cluster ON prompts(stage)",
        "UPDATE sqlite_master SET sql = 'CREATE INDEX by_cluster ON prompts(id)' WHERE name = 'by_cluster'",
    )
    with Store(path) as store, pytest.raises(StoreError, match="is damaged"):
        store.check()


def test_flipped_bits_in_a_store_are_refused_or_harmless(path: Path) -> None:
    found = count_outcomes(path, flip_bits(path.stat().st_size, 20, seed=3))
    assert set(found) <= {"same", "refused"}, found
    assert found["refused"] >= 4


def test_overwritten_pages_of_a_store_are_refused_or_harmless(path: Path) -> None:
    found = count_outcomes(path, overwrite_pages(path.stat().st_size, 6, seed=3))
    assert set(found) <= {"same", "refused"}, found
    assert found["refused"] >= 3


def test_control_without_digests_a_flipped_bit_is_not_noticed(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The control: of these bits some are in values that SQLite has no means to check.
    monkeypatch.setattr(schema, "_hash", lambda *_: bytes(8))
    path.unlink()
    make_store(path, 40)
    content = bytearray(path.read_bytes())
    content[content.index(b'["It is 5.",null,true]') + 8] ^= 1
    reference = read_contents(path)
    path.write_bytes(content)
    assert read_contents(path) != reference


@pytest.mark.long
def test_no_damage_to_a_large_store_goes_unnoticed(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    make_store(path, 200)
    found = count_outcomes(path, flip_bits(path.stat().st_size, 2000, seed=1))
    found += count_outcomes(path, overwrite_pages(path.stat().st_size, 200, seed=2))
    assert set(found) <= {"same", "refused"}, found
    assert found["refused"] >= 500
