"""Each benchmark runs on this checkout, and its figures follow from its measurements."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from scipy.stats import binom

from benchmarks.gate import find_worse, read_tracked
from benchmarks.lib.measuring import Ratio

ROOT = Path(__file__).parent.parent


def run_benchmark(script: str, *arguments: str) -> str:
    """What a script prints, which must end well and name no folder of this machine."""
    command = [sys.executable, f"benchmarks/{script}.py", *arguments]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert str(ROOT) not in ran.stdout
    return ran.stdout


def list_rows(printed: str, first: str) -> list[list[str]]:
    """The last words of the lines that begin so."""
    return [
        line.strip().removeprefix(first).split()
        for line in printed.splitlines()
        if line.strip().startswith(first)
    ]


@pytest.mark.long
def test_thresholds_benchmark_finds_no_wrong_answer_of_ours() -> None:
    options = ("--quick", "--kinds", "groups", "--dimensions", "3", "--sizes", "1000", "--peers", "highspy")
    printed = run_benchmark("thresholds", *options)
    assert "Ours: wrong 0 of 1,2" in printed  # of 1,200 small ones and some at N = 1,000
    judged = list_rows(printed, "tied groups ")
    assert [row[:4] for row in judged] == [[size, "0", "of", "100"] for size in ("199", "200")]


def test_threshold_score_counts_wrong_infinite_and_missing_answers() -> None:
    from benchmarks.thresholds import Score

    score = Score()
    # The cap is 2, from which on nothing is certified.
    score.add([0.5, 0.5, 2.0, 1.0, None, 0.1], [0.5 + 1e-9, 0.6, float("inf"), 2.5, 0.4, None])
    assert (score.compared, score.wrong, score.missing) == (5, 2, 1)
    assert score.largest == pytest.approx(0.1)
    assert str(score) == "2 of 5, 1 missing"


@pytest.mark.long
@pytest.mark.parametrize("part", ["overhead", "waves", "arithmetic", "claims", "imports", "http"])
def test_serving_benchmark_prints_every_row_of_a_part(part: str) -> None:
    rows = {"overhead": 4, "waves": 8, "arithmetic": 4, "claims": 2, "imports": 2, "http": 4}
    printed = run_benchmark("serving", "--quick", "--only", part)
    assert len(printed.strip().splitlines()) == 4 + rows[part]  # below the versions, a title and headings
    if part == "http":
        assert list_rows(printed, "judgements, 4 of 20 answers distinct") == [["4", "20"]]


@pytest.mark.long
def test_serving_benchmark_counts_more_calls_with_comprehensions() -> None:
    printed = run_benchmark("serving", "--quick", "--only", "calls")
    rows = list_rows(printed, "invoke of a bot, n = 10") + list_rows(printed, "calibrate, 400 records ")
    counts = [(int(row[0]), int(row[1])) for row in rows]
    assert len(counts) == 2
    assert all(0 < functions < frames for functions, frames in counts)


def test_count_calls_counts_our_functions_and_no_others() -> None:
    # A fresh process, because the script limits the threads of BLAS before NumPy is imported.
    program = """
import json
from benchmarks.serving import count_calls
from langchain_cfc.labelers.matching import normalise_answer

counts = [count_calls(lambda: [len("a"), sorted([2, 1])]), count_calls(lambda: normalise_answer("A b"))]
print(json.dumps(counts))
"""
    command = [sys.executable, "-c", program]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    nothing, one = json.loads(ran.stdout)
    assert nothing == [0, 0]
    assert 1 <= one[0] <= one[1]


@pytest.mark.long
def test_scale_benchmark_compares_with_a_bare_parse() -> None:
    command = [sys.executable, "-m", "benchmarks.scale", "--quick", "--rounds", "6", "--only", "lines"]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    [row] = list_rows(ran.stdout, "JSON Lines over a bare parse")
    assert row[:3] == ["1,000", "x", "10"]


@pytest.mark.long
def test_soak_benchmark_finds_nothing_violated() -> None:
    printed = run_benchmark("soak", "--invocations", "96", "--concurrency", "16", "--rounds", "2")
    assert "nothing was violated" in printed
    assert "requests, clients and server" in printed


@pytest.mark.long
def test_bot_benchmark_compares_mode_baseline_and_control() -> None:
    rows = list_rows(run_benchmark("bot", "--splits", "1", "--rates", "0.3"), "0.3")
    assert [row[-4] for row in rows] == 2 * ["mode", "baseline", "control"]
    assert all(float(row[-3]) == 1.0 and 0.5 < float(row[-2]) <= 1.0 for row in rows)


@pytest.mark.parametrize("rounds", [6, 9, 40, 400])
def test_ratio_interval_is_that_of_the_sign_test(rounds: int) -> None:
    ratio = Ratio.of([2.0 * number for number in range(1, rounds + 1)], [2.0] * rounds)
    assert ratio.median == (rounds + 1) / 2
    # The ratios are 1, 2, ..., so that the lower end is a rank: the largest with at most 1 in 20 outside.
    rank = round(ratio.low)
    assert ratio.high == rounds + 1 - rank
    assert 2 * binom.cdf(rank - 1, rounds, 0.5) <= 0.05 < 2 * binom.cdf(rank, rounds, 0.5)


def test_ratio_refuses_too_few_rounds() -> None:
    with pytest.raises(ValueError, match="5 rounds give no interval"):
        Ratio.of([1.0] * 5, [1.0] * 5)


def test_find_worse_names_ratios_far_above_the_tracked_one() -> None:
    tracked = read_tracked()
    name = next(iter(tracked))

    def slow_down(factor: float) -> dict[str, Ratio]:
        slower = factor * tracked[name].high
        return {**tracked, name: replace(tracked[name], median=slower, low=slower, high=slower)}

    assert find_worse(tracked, tracked) == []
    assert find_worse(slow_down(1.19), tracked) == []
    assert find_worse(slow_down(1.21), tracked) == [name]
    with pytest.raises(ValueError, match="other ratios"):
        find_worse({name: tracked[name]}, tracked)
