"""The page of a monitor and its curves."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
from langchain_cfc_monitor import CFCMonitor, Label
from langchain_cfc_monitor.evidence import MAX_POINTS, Curve
from langchain_cfc_monitor.page import write_page

from integrations.monitor.tests.watching import run
from langchain_cfc import CalibrationArtifact, calibrate
from langchain_cfc.certificates import certify
from langchain_cfc.demo import demo_chain, load_recording
from langchain_cfc.errors import InputError


@pytest.fixture(scope="module")
def artifact() -> CalibrationArtifact:
    made = calibrate(load_recording(), alpha="0.4", features="mean_score", test_fraction=0.4)
    return certify(made, load_recording())


@pytest.fixture(scope="module")
def alarming_store(artifact: CalibrationArtifact, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store whose results are all alike, and whose labels say that nothing was right."""
    store = tmp_path_factory.mktemp("loud") / "monitor.db"
    chain = demo_chain(artifact)
    result = chain.invoke(next(iter(load_recording())).input)
    with CFCMonitor(artifact, store) as monitor:
        names = [monitor.record(result) for _ in range(120)]
        monitor.label(*(Label(name, [False] * artifact.n) for name in names))
    return store


def test_curve_keeps_few_points_and_the_last_ones() -> None:
    curve = Curve()
    for number in range(1, 5001):
        curve = curve.update(np.array([number / 10.0]), float(number))
    assert MAX_POINTS / 2 <= len(curve.points) <= MAX_POINTS
    assert curve.outcomes == 5000
    assert curve.points[-1][0] > 5000 - curve.step
    assert all(logs == [outcomes / 10.0] and at == outcomes for outcomes, at, logs in curve.points)
    assert {later[0] - one[0] for one, later in zip(curve.points, curve.points[1:], strict=False)} == {
        curve.step
    }
    restored = Curve(**json.loads(json.dumps(vars(curve))))
    assert list(map(tuple, restored.points)) == list(map(tuple, curve.points))


def test_monitor_curves_show_the_tests_with_most_evidence(
    artifact: CalibrationArtifact, alarming_store: Path
) -> None:
    with CFCMonitor(artifact, alarming_store) as monitor:
        curves, status = monitor.read_curves(2), monitor.read_status()
    assert [one.test.kind for one in curves] == ["drift", "drift", "kept", "kept"]
    for curve in curves:
        assert curve.test in status.tests
        peak = max(log for _, log in curve.points)
        assert peak == pytest.approx(math.log(curve.test.evidence), abs=1e-3)
        assert curve.points[-1][0] == 120


def test_monitor_page_shows_alarms_and_steps_and_loads_nothing(
    artifact: CalibrationArtifact, alarming_store: Path, tmp_path: Path
) -> None:
    saved, written = tmp_path / "artifact.json", tmp_path / "monitor.html"
    artifact.save(saved)
    ran = run("status", saved, alarming_store, "--report", written)
    assert (ran.code, ran.err) == (1, "")
    assert f"page written to {written}" in " ".join(ran.out.split())
    html = written.read_text(encoding="utf-8")
    assert '<div class="verdict bad">' in html
    assert "tests alarm." in html
    steps = re.findall(r"<h3>(.*?)</h3>", html[html.index('class="steps"') :])
    assert steps[:2] == ["Stop relying on the promise", "Find what changed, and label"]
    assert html.count("<figure") == html.count("<svg") == 2
    assert "default-src 'none'" in html
    assert not re.search(r'(?:src|href)="(?!#)', html)


def test_monitor_page_without_alarms_does_not_claim_that_all_is_well(
    artifact: CalibrationArtifact, tmp_path: Path
) -> None:
    with CFCMonitor(artifact, tmp_path / "monitor.db") as monitor:
        write_page(tmp_path / "page.html", monitor.read_status(), [])
        assert "No test alarms." not in (tmp_path / "page.html").read_text(encoding="utf-8")
        monitor.record(demo_chain(artifact).invoke(next(iter(load_recording())).input))
        status = monitor.read_status()
        write_page(tmp_path / "page.html", status, [])
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "No test alarms." in text
    assert "This does not prove that neither happened." in text
    assert "<figure" not in text
    (tmp_path / "notes.txt").write_text("mine", encoding="utf-8")
    with pytest.raises(InputError, match="is not a report"):
        write_page(tmp_path / "notes.txt", status, [])
