"""The benchmarks run on this checkout, and their figures follow from their measurements."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import TypeAdapter
from scipy.stats import binom

ROOT = Path(__file__).parent.parent


@pytest.mark.long
def test_thresholds_benchmark_of_one_size_writes_its_results(tmp_path: Path) -> None:
    found = tmp_path / "results.json"
    command = [sys.executable, "benchmarks/thresholds.py", "--json", str(found), "--only", "sizes"]
    command += ["--kinds", "groups", "--dimensions", "3", "--sizes", "1000", "--runs", "1"]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert "Calibration, groups" in ran.stdout
    sys.path.insert(0, str(ROOT))
    try:
        from benchmarks.lib.threshold_results import Results
        from benchmarks.lib.threshold_tables import list_targets
    finally:
        sys.path.remove(str(ROOT))
    results = Results.model_validate_json(found.read_text(encoding="utf-8"))
    [cell] = results.cells
    assert cell.ours.differ_restored == 0
    assert cell.ours.batch_agreement is not None
    assert cell.ours.batch_agreement.largest == 0.0
    verdicts = {target.name: target.verdict for target in list_targets(results)}
    assert verdicts["artifact of one level, d = 3"] == "met"
    assert verdicts["largest difference from HiGHS"] == "not measured"


def run_serving_benchmark(tmp_path: Path, *parts: str) -> tuple[str, str]:
    """The findings of a quick run of `serving.py`, as JSON and as a page."""
    found, page = tmp_path / "found.json", tmp_path / "page.md"
    command = [sys.executable, "benchmarks/serving.py", "--quick", "--json", str(found), "--page", str(page)]
    ran = subprocess.run([*command, "--only", *parts], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return found.read_text(encoding="utf-8"), page.read_text(encoding="utf-8")


@pytest.mark.long
def test_serving_benchmark_of_overhead_times_every_row(tmp_path: Path) -> None:
    found, page = run_serving_benchmark(tmp_path, "overhead")
    from benchmarks.lib.serving_results import ServingResults, list_targets

    served = ServingResults.model_validate_json(found)
    rows = [(row.way, row.distinct) for row in served.overhead]
    assert rows == [("invoke", 20), ("ainvoke", 20), ("invoke", 4), ("ainvoke", 4)]
    for row in served.overhead:
        assert row.ratio.low <= row.ratio.median <= row.ratio.high
    verdicts = {target.name: target.verdict for target in list_targets(served)}
    assert verdicts["`invoke` over by hand, in memory"] in {"met", "not met"}
    assert verdicts["one prompt over HTTP, over draw + verify"] == "not measured"
    assert "## Overhead in memory" in page
    assert "## Imports" not in page
    assert str(ROOT) not in page


@pytest.mark.long
def test_serving_benchmark_of_waves_takes_the_time_of_every_wave(tmp_path: Path) -> None:
    found, page = run_serving_benchmark(tmp_path, "waves")
    from benchmarks.lib.serving_results import ServingResults

    rows = ServingResults.model_validate_json(found).waves
    assert len({(row.way, row.draws, row.seconds) for row in rows}) == len(rows) == 8
    waves = {"below(0.001, rounds=5+5+5+5)": 4, "below(0.001, at_most=20)": 20}
    for row in rows:
        # A wave left out, or draws of two waves at once, would be faster than the model is.
        assert min(row.ratio.seconds, row.ratio.other) >= waves[row.draws] * row.seconds
    assert "## Waves of a draw rule" in page


@pytest.mark.long
def test_serving_benchmark_of_arithmetic_times_parts_below_the_whole(tmp_path: Path) -> None:
    found, _ = run_serving_benchmark(tmp_path, "arithmetic")
    from benchmarks.lib.serving_results import ServingResults

    cases = ServingResults.model_validate_json(found).arithmetic
    assert [case.d for case in cases] == [1, 2, 5, 14]
    for case in cases:
        # Of the same calls, so that no other process can turn it round.
        assert 0.0 < case.after.p50 < case.whole.p50
        assert 0.0 < case.plain.p50 < case.whole_plain.p50
        assert case.decide.count == case.again.count == case.after.count == 20


@pytest.mark.long
def test_serving_benchmark_of_claims_adds_at_least_the_split(tmp_path: Path) -> None:
    found, page = run_serving_benchmark(tmp_path, "claims")
    from benchmarks.lib.serving_results import ServingResults

    rows = ServingResults.model_validate_json(found).claims
    assert [row.sentences for row in rows] == [5, 30]
    for row in rows:
        assert 0.0 < row.split.p50 < row.added < row.ratio.seconds
    assert "## Claims of a long answer" in page


@pytest.mark.long
def test_serving_benchmark_over_http_counts_requests(tmp_path: Path) -> None:
    found, _ = run_serving_benchmark(tmp_path, "http")
    from benchmarks.lib.serving_results import ServingResults

    served = ServingResults.model_validate_json(found)
    assert len(served.http) == 4
    for row in served.http:
        # Nothing is faster than the server; less would mean that something was not asked.
        assert min(row.ours.low, row.by_hand.low) >= 1.0
    for count in served.requests:
        assert count.drawn == count.judged_by_hand == 20
        assert count.distinct <= count.judged <= 20


@pytest.mark.long
def test_soak_benchmark_prints_what_it_found() -> None:
    command = [sys.executable, "benchmarks/soak.py", "--invocations", "96", "--concurrency", "16"]
    ran = subprocess.run([*command, "--rounds", "2"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "nothing was violated" in ran.stdout
    assert "requests, clients and server" in ran.stdout
    assert str(ROOT) not in ran.stdout


@pytest.mark.long
def test_bot_benchmark_compares_mode_baseline_and_control() -> None:
    command = [sys.executable, "benchmarks/bot.py", "--splits", "1", "--rates", "0.3"]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    rows = [line.split() for line in ran.stdout.splitlines() if line.strip().startswith("0.3")]
    assert [row[-4] for row in rows] == 2 * ["mode", "baseline", "control"]
    assert all(float(row[-3]) == 1.0 and 0.5 < float(row[-2]) <= 1.0 for row in rows)


@pytest.mark.long
def test_adaptive_benchmark_flags_fewer_prompts() -> None:
    recording = "langchain_cfc/demo/facts.jsonl.gz:0.1"
    command = [sys.executable, "benchmarks/adaptive.py", recording, "--splits", "2"]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    lines = [line.split() for line in ran.stdout.splitlines()]
    rows = {
        line[0]: [float(one) for one in line[1:5]] for line in lines if line[:1] in (["fixed"], ["adaptive"])
    }
    assert rows["fixed"][0] == 0.9 > rows["adaptive"][0]  # stated
    assert rows["adaptive"][3] < rows["fixed"][3]  # flagged


@pytest.mark.long
def test_draws_benchmark_shows_fewer_draws() -> None:
    recording = "langchain_cfc/demo/facts.jsonl.gz:0.4"
    command = [sys.executable, "benchmarks/draws.py", recording, "--splits", "1"]
    environment = {**os.environ, "COLUMNS": "120"}
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, env=environment)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    rows = {
        line.partition(")")[0].strip(): line.partition(")")[2].split() for line in ran.stdout.splitlines()
    }
    assert float(rows["fixed(10"][0]) == 10.0 > float(rows["lead(3, at_most=10"][0]) > 3.0
    assert float(rows["lead(1, at_most=10"][0]) == 1.0


@pytest.mark.parametrize("rounds", [6, 9, 40, 400])
def test_ratio_interval_is_that_of_the_sign_test(rounds: int) -> None:
    from benchmarks.lib.timing import Ratio

    ratio = Ratio.of([2.0 * number for number in range(1, rounds + 1)], [2.0] * rounds)
    assert ratio.median == (rounds + 1) / 2
    # The ratios are 1, 2, ..., so that the lower end is a rank: the largest with at most 1 in 20 outside.
    rank = round(ratio.low)
    assert ratio.high == rounds + 1 - rank
    assert 2 * binom.cdf(rank - 1, rounds, 0.5) <= 0.05 < 2 * binom.cdf(rank, rounds, 0.5)


def test_ratio_refuses_too_few_rounds() -> None:
    from benchmarks.lib.timing import Ratio

    with pytest.raises(ValueError, match="5 rounds give no interval"):
        Ratio.of([1.0] * 5, [1.0] * 5)


@pytest.mark.long
def test_people_benchmark_writes_its_page(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    command = [sys.executable, "benchmarks/people.py", "--sequences", "5", "--page", str(page)]
    assert subprocess.run(command, cwd=ROOT, check=False).returncode == 0
    shipped = (ROOT / "benchmarks" / "PEOPLE.md").read_text(encoding="utf-8").splitlines()
    written = page.read_text(encoding="utf-8").splitlines()
    assert (len(written), written[0]) == (len(shipped), shipped[0])


def test_find_worse_names_ratios_far_above_the_tracked_one() -> None:
    from benchmarks.gate import TRACKED_FILE, find_worse
    from benchmarks.lib.timing import Ratio

    tracked = TypeAdapter(dict[str, Ratio]).validate_json(TRACKED_FILE.read_bytes())
    name = next(iter(tracked))

    def slow_down(factor: float) -> dict[str, Ratio]:
        one = tracked[name]
        slower = {"median": factor * one.high, "low": factor * one.high, "high": factor * one.high}
        return {**tracked, name: one.model_copy(update=slower)}

    assert find_worse(tracked, tracked) == []
    assert find_worse(slow_down(1.19), tracked) == []
    assert find_worse(slow_down(1.21), tracked) == [name]
    with pytest.raises(ValueError, match="other ratios"):
        find_worse({name: tracked[name]}, tracked)
