"""A monitor of a chain with a draw rule watches the number of draws."""

from __future__ import annotations

from pathlib import Path

import pytest
from langchain_cfc_monitor import CFCMonitor

from integrations.monitor.tests.watching import list_held_out, run
from langchain_cfc import CalibrationArtifact, CFCRunnable, calibrate
from langchain_cfc.artifact import tabulate_draws
from langchain_cfc.demo import demo_chain, load_recording
from tests.lengths import mostly_long, repetitions

DRAWS = "lead(3, at_most=10)"


@pytest.fixture(scope="module")
def stopping_artifact() -> CalibrationArtifact:
    return calibrate(
        load_recording(), alpha="0.4", features="mean_score", draws=DRAWS, test_fraction=0.4, seed=1
    )


def test_monitor_watches_the_number_of_draws(stopping_artifact: CalibrationArtifact, tmp_path: Path) -> None:
    served = list_held_out(stopping_artifact)[: repetitions(150, share=0.4)]
    chain: CFCRunnable = demo_chain(stopping_artifact)
    with CFCMonitor(stopping_artifact, tmp_path / "monitor.db") as monitor:
        results = [chain.invoke(one.input, {"callbacks": [monitor]}) for one in served]
        sizes = [len(one.candidates) for one in results]
        assert 3 <= min(sizes) < max(sizes) == 10
        status = monitor.read_status()
        assert "number of draws" in {one.what for one in status.tests}
        assert status.alarms == ()


@pytest.mark.long
@mostly_long("fewest", [3, 6], quick=1)
def test_monitor_reports_a_drift_to_more_draws_in_words(
    stopping_artifact: CalibrationArtifact, tmp_path: Path, fewest: int
) -> None:
    """Serve all held-out questions, as the control, or only those that take 6 draws or more."""
    held_out = list_held_out(stopping_artifact)
    counts = tabulate_draws(stopping_artifact, held_out).draws.counts.tolist()
    asked = [one for one, count in zip(held_out, counts, strict=True) if count >= fewest][:100]
    saved, store, page = tmp_path / "artifact.json", tmp_path / "monitor.db", tmp_path / "page.html"
    stopping_artifact.save(saved)
    chain: CFCRunnable = demo_chain(stopping_artifact)
    with CFCMonitor(stopping_artifact, store) as monitor:
        for one in asked:
            monitor.record(chain.invoke(one.input))
        tests = monitor.read_status().tests
    (whole,) = [
        one for one in tests if (one.kind, one.what, one.group) == ("drift", "number of draws", "all prompts")
    ]
    ran = run("status", saved, store, "--report", page)
    drifted = fewest == 6
    assert (ran.code, whole.alarm) == (int(drifted), drifted)
    said = "Number of draws higher"
    shares = "100 % of results took 6 draws or more (expected"
    for shown in (" ".join(ran.out.split()), page.read_text(encoding="utf-8")):
        assert (said in shown, shares in shown) == (drifted, drifted)
