"""The drift benchmark and the page that it writes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from langchain_cfc_monitor.sequential_tests import DriftTest
from scipy import stats

from benchmarks.drift import calibrate_split, main, make_observations, make_page, make_shifts
from langchain_cfc.demo import load_recording
from langchain_cfc.records import tabulate


@pytest.mark.long
def test_drift_benchmark_finds_drift_and_not_its_control(tmp_path: Path) -> None:
    main(["--streams", "3", "--page", str(tmp_path / "page.md")])
    text = (tmp_path / "page.md").read_text(encoding="utf-8")
    rows = {line.split(" | ")[0]: line.split(" | ") for line in text.splitlines() if " | " in line}
    control, weaker = rows["| nothing (control)"], rows["| a weaker model under the same name"]
    # At level 0.01: three streams without drift raise an alarm with probability 0.03 at most.
    assert control[1:4] == ["0%", "0%", "not found"]
    assert weaker[1] == "100%"
    assert 0 < int(weaker[3]) < 150


def test_shipped_drift_page_has_the_benchmarks_heading() -> None:
    shipped = Path("benchmarks/DRIFT.md").read_text(encoding="utf-8")
    first, *_ = make_page([], 100).splitlines()
    assert shipped.startswith(first)
    with pytest.raises(SystemExit):
        main(["--streams", "many"])


def test_monitoring_page_states_the_figures_of_the_drift_page() -> None:
    said = Path("docs/monitoring.md").read_text(encoding="utf-8")
    shipped = Path("benchmarks/DRIFT.md").read_text(encoding="utf-8").splitlines()
    rows = {line.split(" | ")[0]: line.split(" | ") for line in shipped if " | " in line}
    weaker, stricter, harder = (
        rows[f"| {name}"]
        for name in (
            "a weaker model under the same name",
            "a verifier that gives the square root of its scores",
            "hard topics five times as frequent",
        )
    )
    assert f"is found after {weaker[3]} results without a label, and after {weaker[4]} with all" in said
    assert f"its scores after {stricter[3]}. " in said.replace("\n", " ")
    assert f"needs {weaker[5]} and {stricter[5]}: " in said
    assert f"within {harder[6].split()[0]} results, where that test needs {harder[5]}, " in said


@pytest.mark.long
def test_drift_test_of_whole_artifacts_keeps_its_false_alarm_rate() -> None:
    """All tests of an artifact together, thresholds and soft weightings included, on real scores.

    Prompts of one pool in random order are exchangeable, whatever they are. Of streams with calibration
    prompts of their own at most a share `level` ever alarms; the bound is exceeded by chance with 1e-6.
    """
    source, level, streams = tabulate(load_recording()), 0.2, 40
    swapped = make_shifts()["a weaker model under the same name"]
    alarms = {"same": 0, "other": 0}
    for seed in range(streams):
        artifact = calibrate_split(source, 1000 + seed)
        luck = np.random.default_rng(seed)
        rows = luck.permutation(artifact.calibration.split.list_rows(source)["test"])[:150]
        for name, served in (("same", source.take(rows)), ("other", swapped(source.take(rows), luck))):
            drift = DriftTest.start(artifact, 0.0)
            for one, _ in make_observations(artifact, served, 0):
                drift = drift.update(one)
            alarms[name] += bool((drift.wealth.peak >= np.log(len(drift.tests) / level)).any())
    assert alarms["same"] <= stats.binom.isf(1e-6, streams, level)
    # The negative control: answers of another model.
    assert alarms["other"] == streams
