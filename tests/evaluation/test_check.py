"""`is_contradicted`: when results contradict the guarantee."""

from __future__ import annotations

import pytest
from scipy import stats

from langchain_cfc import calibrate, evaluate
from langchain_cfc.certificates import certify
from langchain_cfc.errors import InputError
from langchain_cfc.evaluation.measuring import FALSE_ALARM, is_contradicted
from langchain_cfc.guarantee import PaperPAC
from langchain_cfc.thresholds import compute_conformal_rank, compute_tau
from tests.evaluation.prompts import make_prompts
from tests.lengths import repetitions


@pytest.mark.parametrize("tests", [1, 5])
@pytest.mark.parametrize(
    ("alpha", "size", "tested"), [("0.1", 100, 50), ("0.1", 1000, 500), ("0.3", 20, 200), ("0.3", 100, 100)]
)
def test_is_contradicted_alarms_as_often_as_the_false_alarm_rate_allows(
    alpha: str, size: int, tested: int, tests: int
) -> None:
    # Covered test prompts are BetaBinomial(m, k, N + 1 - k): the counts that alarm are the lowest ones, their
    # probability is below the rate, and one more count would reach it. At 56 of 100, round-off must not add
    # one.
    rank = compute_conformal_rank(size, compute_tau(alpha))
    law = stats.betabinom(tested, rank, size + 1 - rank)
    alarms = [is_contradicted(alpha, size, tested, count / tested, tests) for count in range(tested + 1)]
    lowest = sum(alarms)
    assert 0 < lowest < tested
    assert alarms == [True] * lowest + [False] * (tested + 1 - lowest)
    assert law.cdf(lowest - 1) < FALSE_ALARM / tests <= law.cdf(lowest)


def test_is_contradicted_is_false_without_certifiable_or_tested_prompts() -> None:
    assert not is_contradicted("0.1", 8, 100, 0.0, 1)  # rank 9 of 8
    assert is_contradicted("0.1", 9, 100, 0.0, 1)
    assert not is_contradicted("0.1", 100, 0.9, 0.0, 1)


def test_evaluate_reports_a_worse_model_overall_and_by_group() -> None:
    artifact = calibrate(make_prompts(0, 400, right=0.9), alpha="0.1", features="group(topic)")
    assert evaluate(artifact, make_prompts(1, 300, prefix="same", right=0.9)).contradicted == []
    worse = evaluate(artifact, make_prompts(2, 300, prefix="worse", right=0.5))
    assert worse.contradicted == ["1", "group(topic)=a", "group(topic)=b"]
    half = [
        *make_prompts(3, 300, prefix="x", right=0.9, topics="a"),
        *make_prompts(4, 150, prefix="y", right=0.4, topics="b"),
    ]
    assert "group(topic)=b" in evaluate(artifact, half).contradicted
    assert "group(topic)=a" not in evaluate(artifact, half).contradicted


def test_sound_rule_is_contradicted_at_most_at_the_false_alarm_rate() -> None:
    # Three weightings share 2.5 %: alarms in independent rounds are at most Binomial(rounds, 0.025), which
    # exceeds the limit with probability below 1e-6.
    rounds = repetitions(200, share=0.15)
    limit = int(stats.binom(rounds, FALSE_ALARM).isf(1e-6))
    everyone = make_prompts(0, rounds * 90, right=0.9)
    alarms = 0
    for start in range(0, len(everyone), 90):
        block = everyone[start : start + 90]
        artifact = calibrate(block[:60], alpha="0.2", features="group(topic)")
        alarms += bool(evaluate(artifact, block[60:]).contradicted)
    assert stats.binom(rounds, FALSE_ALARM).sf(limit) < 1e-6
    assert alarms <= limit < rounds / 4


def test_evaluate_contradicts_a_certificate_on_worse_prompts() -> None:
    # With a ridge CFC-PAC promises nothing; its certificate does.
    pac = PaperPAC(ridge=0.001)
    artifact = calibrate(make_prompts(0, 300, right=0.9), alpha="0.1", features="group(topic)", pac=pac)
    certified = certify(artifact, make_prompts(1, 300, prefix="held", right=0.9))
    worse = make_prompts(2, 300, prefix="worse", right=0.5)
    assert evaluate(artifact, worse).contradicted == []
    assert evaluate(certified, worse).contradicted == ["1"]
    assert evaluate(certified, make_prompts(3, 300, prefix="alike", right=0.9)).contradicted == []


def test_evaluate_contradicts_bot_mode_that_is_wrong_too_often() -> None:
    bot = calibrate(make_prompts(0, 600, right=0.9), alpha="0.3", features="1", max_wrong_rate="0.3")
    (alike,) = evaluate(bot, make_prompts(3, 300, prefix="alike", right=0.9)).answers
    (worse,) = evaluate(bot, make_prompts(2, 300, prefix="worse", right=0.3)).answers
    assert not alike.contradicted
    assert worse.contradicted
    assert worse.wrong_rate == worse.wrong / worse.answered > 0.3
    assert worse.wrong_rate_ci[0] < worse.wrong_rate < worse.wrong_rate_ci[1]
    assert worse.answered_rate == worse.answered / 300


def test_evaluate_compares_no_threshold_with_itself() -> None:
    new = make_prompts(3, 100, prefix="new", right=0.9)
    everyone = evaluate(calibrate(make_prompts(0, 300, right=0.9), alpha="0.3", features="1"), new)
    assert (list(everyone.methods), everyone.guarantee) == (["conditional"], "conditional")
    grouped = calibrate(make_prompts(0, 300, right=0.9), alpha="0.3", features="group(topic)")
    assert list(evaluate(grouped, new).methods) == ["conditional", "marginal"]


def test_evaluate_measures_only_the_answers_of_a_bot_alone() -> None:
    bot = calibrate(make_prompts(0, 600, right=0.9), max_wrong_rate=["0.2", "0.3"])
    new = make_prompts(3, 300, prefix="new", right=0.9)
    report = evaluate(bot, new)
    assert (report.methods, report.contradicted, report.guarantee) == ({}, [], "certified")
    assert (report.alpha, report.target_coverage) == (report.answers[0].max_wrong_rate, 1 - report.alpha)
    beside = calibrate(make_prompts(0, 600, right=0.9), alpha="0.3", max_wrong_rate=["0.2", "0.3"])
    assert evaluate(beside, new).answers == report.answers
    with pytest.raises(InputError, match="calibrated without alpha"):
        evaluate(bot, new, alpha="0.2")
