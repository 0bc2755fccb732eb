"""What tests of a monitor share."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from langchain_cfc import PromptRecord
from langchain_cfc.demo import recording
from langchain_cfc.records import Records, read_records, write_records

ROOT = Path(__file__).parents[2]
WEAKER = ROOT / "examples" / "escalation" / "cheap.jsonl.gz"


def truths(record: PromptRecord) -> list[bool | None]:
    return [one.correct for one in record.candidates]


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).with_name("langchain-cfc")), "monitor", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)


def swapped(folder: Path) -> Records:
    """What a weaker model answered, under the name of the one that was calibrated."""
    write_records(folder / "swapped.jsonl", read_records(WEAKER), recording().provenance)
    return read_records(folder / "swapped.jsonl")
