"""The monitor refuses artifacts of claims."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from langchain_cfc_monitor import CFCMonitor

from langchain_cfc import calibrate
from langchain_cfc.errors import InputError
from tests.claims.worlds import make_answers


def test_monitor_refuses_an_artifact_of_claims(tmp_path: Path) -> None:
    artifact = calibrate(make_answers(np.random.default_rng(1), 600), unit="claims", at_most=1, alpha=0.2)
    with pytest.raises(InputError, match="watches answer sets"):
        CFCMonitor(artifact, tmp_path / "monitor.db")
