"""A monitor's store holds no text that was not answered."""

from __future__ import annotations

from pathlib import Path

import pytest
from langchain_cfc_monitor import CFCMonitor

from tests.runnable.test_withheld import CASES, MARK


@pytest.mark.parametrize("name", CASES)
def test_store_of_a_monitor_holds_no_withheld_text(name: str, tmp_path: Path) -> None:
    reason, make = CASES[name]
    for shown in (False, True):
        folder = tmp_path / str(shown)
        folder.mkdir()
        chain = make(show_rejected=True) if shown else make()
        result = chain.invoke("x")
        assert result.reason == reason
        with CFCMonitor(chain.artifact, folder / "monitor.db") as monitor:
            monitor.record(result)
        assert not any(MARK.encode() in path.read_bytes() for path in folder.iterdir())
