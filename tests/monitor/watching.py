"""Helpers that tests of the monitor share."""

from __future__ import annotations

from pathlib import Path

from langchain_cfc import PromptRecord
from langchain_cfc.demo import load_recording
from langchain_cfc.records import Records, read_records, write_records
from tests.cli import running
from tests.cli.running import Ran

ROOT = Path(__file__).parents[2]
WEAKER = ROOT / "examples" / "escalation" / "cheap.jsonl.gz"


def truths(record: PromptRecord) -> list[bool | None]:
    return [one.correct for one in record.candidates]


def run(*arguments: str | Path) -> Ran:
    return running.run("monitor", *arguments)


def write_swapped_records(folder: Path) -> Records:
    """What a weaker model answered, under the name of the one that was calibrated."""
    write_records(folder / "swapped.jsonl", read_records(WEAKER), load_recording().provenance)
    return read_records(folder / "swapped.jsonl")
