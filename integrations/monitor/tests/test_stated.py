"""Labels by stated coverage, and several certified rates."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from langchain_cfc_monitor import CFCMonitor, Label
from langchain_cfc_monitor.page import write_page
from scipy import stats

from integrations.monitor.tests.watching import run, truths
from langchain_cfc import CalibrationArtifact, CFCRunnable, PromptRecord, calibrate
from langchain_cfc.demo import demo_chain, load_recording
from langchain_cfc.demo.replay import make_replay_parts


@pytest.fixture(scope="module")
def adaptive_artifact() -> CalibrationArtifact:
    """An artifact with adaptive levels."""
    return calibrate(
        load_recording(), alpha="0.1", features="mean_score", adaptive_alpha=True, test_fraction=0.4
    )


def test_monitor_counts_labels_by_stated_coverage(
    adaptive_artifact: CalibrationArtifact, served: Sequence[PromptRecord], tmp_path: Path
) -> None:
    chain, asked = demo_chain(adaptive_artifact), served[:60]
    labels: Counter[float | None] = Counter()
    kept: Counter[float | None] = Counter()
    with CFCMonitor(adaptive_artifact, tmp_path / "monitor.db") as monitor:
        for one in asked:
            result = chain.invoke(one.input)
            monitor.record(result, one.id)
            labels[result.stated_coverage] += 1
            covered = any(
                it.accepted and right for it, right in zip(result.candidates, truths(one), strict=True)
            )
            kept[result.stated_coverage] += covered or result.reason == "not_certifiable"
        assert monitor.read_status().stated == ()
        monitor.label(*(Label(one.id, truths(one)) for one in asked[:30]))
        monitor.read_status()
    # The counts are stored, and the rest is added by another process.
    with CFCMonitor(adaptive_artifact, tmp_path / "monitor.db") as monitor:
        monitor.label(*(Label(one.id, truths(one)) for one in asked[30:]))
        status = monitor.read_status()
        write_page(tmp_path / "page.html", status, [])
    assert len(labels) > 3
    assert {one.stated_coverage: one.labels for one in status.stated} == labels
    assert {one.stated_coverage: one.kept for one in status.stated} == +kept
    coverages = [one.stated_coverage for one in status.stated]
    assert coverages == sorted(coverages, reverse=True)
    for level in status.stated:
        test = stats.binomtest(level.kept, level.labels)
        expected = test.proportion_ci(1.0 - 0.05 / len(status.stated), method="wilson")
        assert level.kept_ci == pytest.approx((expected.low, expected.high), abs=1e-9)
    adaptive_artifact.save(tmp_path / "adaptive.json")
    shown = run("status", tmp_path / "adaptive.json", tmp_path / "monitor.db").out
    assert "Stated and kept coverage" in shown
    assert "How often promises were kept" in (tmp_path / "page.html").read_text()


@pytest.mark.long
def test_monitor_watches_each_certified_rate_separately(tmp_path: Path) -> None:
    """Answers at the strict rate are all right, those at the loose one all wrong: the loose one alarms."""
    source = load_recording()
    bot = calibrate(source, max_wrong_rate=["0.3", "0.4"], features="1")
    with CFCMonitor(bot, tmp_path / "monitor.db") as monitor:
        for rate, right in (("0.3", True), ("0.4", False)):
            chain = CFCRunnable(artifact=bot, max_wrong_rate=rate, **make_replay_parts(source))
            for one in list(source)[:120]:
                result = chain.invoke(one.input)
                name = monitor.record(result)
                if not result.abstained:
                    monitor.label(Label(name, right))
        found = {one.what: one for one in monitor.read_status().tests if one.kind == "right"}
    strict = found["the rate of right answers (at most 30 % wrong)"]
    loose = found["the rate of right answers (at most 40 % wrong)"]
    assert (strict.certified, loose.certified) == (0.7, 0.6)
    assert (strict.seen, loose.seen) == (1.0, 0.0)
    assert 0 < strict.outcomes <= loose.outcomes
    assert (strict.alarm, loose.alarm) == (False, True)
