"""Every figure of the evaluation report, worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest
from scipy import stats

from langchain_cfc import FeatureMap, PromptRecord, calibrate, evaluate
from langchain_cfc.artifact import CalibrationArtifact
from langchain_cfc.candidates import CandidateBatch
from langchain_cfc.errors import AttainabilityWarning, InputError, OrientationWarning
from langchain_cfc.evaluation import EvaluationReport
from tests.evaluation.fields import GROUP_FIELDS, METHOD_FIELDS, REPORT_FIELDS
from tests.evaluation.prompts import make_prompt, make_prompts
from tests.factories import leave_sets_empty


def compute_interval(successes: float, size: float, confidence: float) -> tuple[Any, Any]:
    """Clopper and Pearson's bounds as quantiles of beta distributions."""
    tail = (1 - confidence) / 2
    low = stats.beta.ppf(tail, successes, size - successes + 1) if successes > 0 else 0.0
    high = stats.beta.ppf(1 - tail, successes + 1, size - successes) if successes < size else 1.0
    return pytest.approx(low), pytest.approx(high)


@pytest.fixture(autouse=True)
def sets_follow_thresholds(monkeypatch: pytest.MonkeyPatch) -> None:
    """The figures worked out by hand count empty sets."""
    leave_sets_empty(monkeypatch)


@pytest.fixture
def artifact() -> CalibrationArtifact:
    """Thresholds at alpha = 1/2 that can be read off.

    0.4 for topic a (the second of three), 0.8 for b (the first of one), none for c (its only prompt is
    hopeless); 0.6 for all (the third of five).
    """
    topics = FeatureMap.parse("group(topic)").fit(
        CandidateBatch.from_arrays([[0.5]] * 3, metadata=[{"topic": topic} for topic in "abc"])
    )
    success = [("a", 0.2), ("a", 0.4), ("a", 0.6), ("b", 0.8), ("c", None)]
    records = [
        make_prompt(
            f"q{row}", topic, (score or 0.5, "x", score is not None), (1.0, "y", False), (1.0, "z", False)
        )
        for row, (topic, score) in enumerate(success)
    ]
    with pytest.warns(AttainabilityWarning, match="topic: c "):
        return calibrate(records, alpha="0.5", features=topics)


@pytest.fixture
def tested() -> list[PromptRecord]:
    """Six prompts; beside each what is returned at 0.4 (a), 0.8 (b) and nothing (c), and at 0.6."""
    return [
        # 0.1 and 0.3, one answer, covered; the same at 0.6
        make_prompt("t0", "a", (0.1, "x", True), (0.3, "x", True), (0.9, "y", False)),
        # 0.2 and 0.4, two answers, missed; all three at 0.6, covered
        make_prompt("t1", "a", (0.5, "x", True), (0.2, "y", False), (0.4, "z", False)),
        # nothing, missed; the same at 0.6
        make_prompt("t2", "a", (0.7, "x", True), (0.65, "y", False), (0.9, "z", False)),
        # all (0.8 is reached), two answers, covered; 0.1 at 0.6, covered
        make_prompt("t3", "b", (0.8, "x", True), (0.8, "y", False), (0.1, "x", True)),
        # flagged; 0.1 and 0.6 at 0.6, two answers, covered
        make_prompt("t4", "c", (0.1, "x", True), (0.6, "y", False), (0.61, "z", False)),
        # flagged, and without a correct candidate; 0.3 at 0.6, missed
        make_prompt("t5", "c", (0.3, "x", False), (0.7, "y", False), (0.8, "z", False)),
    ]


def test_evaluate_report_equals_figures_worked_out_by_hand(
    artifact: CalibrationArtifact, tested: list[PromptRecord]
) -> None:
    report = evaluate(artifact, tested)
    assert (report.alpha, report.target_coverage) == (0.5, 0.5)
    assert (report.n_calibration, report.n_test, report.n_candidates) == (5, 6, 3)
    assert report.attainable_coverage == 5 / 6
    assert report.artifact_digest == artifact.digest
    assert report.test_prompts.startswith("all records")
    assert list(report.methods) == ["conditional", "marginal"]

    own = report.methods["conditional"]
    assert own.coverage == pytest.approx(2 / 6)
    assert own.kept_promise == pytest.approx(4 / 6)  # the two flagged ones count as kept
    assert own.not_certifiable_rate == pytest.approx(2 / 6)
    assert own.abstention_rate == pytest.approx(3 / 6)  # and as abstained on
    assert own.mean_set_size == pytest.approx((2 + 2 + 0 + 3) / 6)
    assert own.mean_distinct_answers == pytest.approx((1 + 2 + 0 + 2) / 6)
    for found, count in (
        (own.coverage_ci, 2),
        (own.kept_promise_ci, 4),
        (own.not_certifiable_ci, 2),
        (own.abstention_ci, 3),
    ):
        assert found == compute_interval(count, 6, 0.95)

    marginal = report.methods["marginal"]
    assert marginal.coverage == marginal.kept_promise == pytest.approx(4 / 6)
    assert marginal.not_certifiable_rate == 0.0
    assert marginal.abstention_rate == pytest.approx(1 / 6)
    assert marginal.mean_set_size == pytest.approx((2 + 3 + 0 + 1 + 2 + 1) / 6)
    assert marginal.mean_distinct_answers == pytest.approx((1 + 3 + 0 + 1 + 2 + 1) / 6)


def test_evaluate_groups_equal_figures_worked_out_by_hand(
    artifact: CalibrationArtifact, tested: list[PromptRecord]
) -> None:
    methods = evaluate(artifact, tested).methods
    names = [f"group(topic)={topic}" for topic in "abc"]
    expected = {
        # by method: n, coverage, kept promise, flagged, mean set size
        "conditional": [(3, 1 / 3, 1 / 3, 0, 4 / 3), (1, 1, 1, 0, 3), (2, 0, 1, 1, 0)],
        "marginal": [(3, 2 / 3, 2 / 3, 0, 5 / 3), (1, 1, 1, 0, 1), (2, 1 / 2, 1 / 2, 0, 3 / 2)],
    }
    for method, figures in expected.items():
        groups = methods[method].groups
        assert [group.name for group in groups] == names
        assert groups[0].words == "prompts whose topic is 'a'"
        for group, (n, coverage, kept, flagged, size) in zip(groups, figures, strict=True):
            assert group.n == n
            assert group.coverage == pytest.approx(coverage)
            assert group.kept_promise == pytest.approx(kept)
            assert group.not_certifiable_rate == pytest.approx(flagged)
            assert group.mean_set_size == pytest.approx(size)
            # Three intervals that hold together with 95 %.
            assert group.kept_promise_ci == compute_interval(kept * n, n, 1 - 0.05 / 3)


def test_evaluate_leaves_out_groups_without_test_prompts(
    artifact: CalibrationArtifact, tested: list[PromptRecord]
) -> None:
    own = evaluate(artifact, tested[:4]).methods["conditional"]
    assert [group.name for group in own.groups] == ["group(topic)=a", "group(topic)=b"]
    assert own.groups[0].kept_promise_ci == compute_interval(1, 3, 1 - 0.05 / 2)


@pytest.mark.filterwarnings(
    # The wrong candidate enters every set first.
    f"ignore::{OrientationWarning.__module__}.{OrientationWarning.__name__}"
)
def test_evaluate_weighs_prompts_of_soft_groups() -> None:
    # Knots 0 and 1 on metadata t, so that the weights are 1 - t and t. All calibration prompts succeed at
    # 0.5.
    def at(name: str, t: float, score: float) -> PromptRecord:
        return make_prompt(name, "a", (score, "x", True), (0.2, "y", False)).model_copy(
            update={"metadata": {"t": t}}
        )

    hats = FeatureMap.parse("hat(meta(t), 2)").fit(
        CandidateBatch.from_arrays([[0.5]] * 2, metadata=[{"t": 0.0}, {"t": 1.0}])
    )
    artifact = calibrate([at(f"q{row}", row % 5 / 4, 0.5) for row in range(60)], alpha="0.5", features=hats)
    # Covered, missed, covered; t = 1.5 lies beyond the last knot and counts as 1.
    report = evaluate(artifact, [at("t0", 0.0, 0.5), at("t1", 0.25, 0.6), at("t2", 1.5, 0.1)])
    own = report.methods["conditional"]
    low, high = own.groups
    assert (low.n, high.n) == (1 + 0.75, 0.25 + 1)
    assert low.coverage == low.kept_promise == pytest.approx(1 / 1.75)
    assert high.coverage == high.kept_promise == pytest.approx(1 / 1.25)
    assert low.mean_set_size == pytest.approx((2 * 1 + 1 * 0.75) / 1.75)
    assert high.mean_set_size == pytest.approx((1 * 0.25 + 2 * 1) / 1.25)
    # Kish's effective size: squared sum of the weights over the sum of their squares.
    effective = 1.75**2 / (1 + 0.75**2)
    assert low.kept_promise_ci == compute_interval(effective / 1.75, effective, 1 - 0.05 / 2)
    assert own.coverage == pytest.approx(2 / 3)


def test_evaluation_report_has_its_documented_fields(
    artifact: CalibrationArtifact, tested: list[PromptRecord]
) -> None:
    report = evaluate(artifact, tested)
    data = report.model_dump()
    assert set(data) >= REPORT_FIELDS
    for method in ("conditional", "marginal"):
        assert set(data["methods"][method]) >= METHOD_FIELDS
        for group in data["methods"][method]["groups"]:
            assert set(group) >= GROUP_FIELDS
    assert EvaluationReport.model_validate_json(report.model_dump_json()) == report


def test_evaluate_uses_the_requested_alpha() -> None:
    artifact = calibrate(make_prompts(0, 100), alpha=["0.2", "0.4"], features="1")
    tests = make_prompts(1, 50, prefix="t")
    strict, loose = (evaluate(artifact, tests, alpha=alpha) for alpha in (0.2, "0.40"))
    assert (strict.target_coverage, loose.target_coverage) == (0.8, 0.6)
    assert strict.methods["conditional"].coverage > loose.methods["conditional"].coverage
    with pytest.raises(InputError, match="several promises"):
        evaluate(artifact, tests)
    with pytest.raises(InputError, match="not calibrated at alpha"):
        evaluate(artifact, tests, alpha=0.3)


def test_evaluate_counts_distinct_answers_once_per_prompt() -> None:
    # The threshold is 0.9, so that all three candidates of two answers are returned, or one of each answer.
    wide = [
        make_prompt(f"q{row}", "a", (0.9, "x", True), (1.0, "y", False), (1.0, "z", False))
        for row in range(9)
    ]
    tests = [
        make_prompt(f"t{row}", "a", (0.5, "x", True), (0.6, "y", False), (0.7, "x", True)) for row in range(9)
    ]
    for rule, size in (("all", 3.0), ("unique(all)", 2.0)):
        artifact = calibrate(wide, alpha="0.2", features="1", set_rule=rule)
        own = evaluate(artifact, tests).methods["conditional"]
        assert (own.mean_set_size, own.mean_distinct_answers) == (size, 2.0)


def test_evaluate_flags_and_counts_unknown_categories(
    artifact: CalibrationArtifact, tested: list[PromptRecord]
) -> None:
    stranger = make_prompt("t", "moons", *[(0.5, "x", True)] * 3)
    report = evaluate(artifact, [stranger])
    own = report.methods["conditional"]
    assert (own.not_certifiable_rate, own.kept_promise) == (1.0, 1.0)
    assert own.groups == []
    mixed = evaluate(artifact, [*tested, stranger])
    assert mixed.n_test == len(tested) + 1
    assert mixed.methods["conditional"].groups == evaluate(artifact, tested).methods["conditional"].groups


def test_evaluate_cuts_extra_candidates_and_refuses_too_few(
    artifact: CalibrationArtifact, tested: list[PromptRecord]
) -> None:
    longer = [one.model_copy(update={"candidates": one.candidates + one.candidates[:1]}) for one in tested]
    assert evaluate(artifact, longer) == evaluate(artifact, tested)
    shorter = [one.model_copy(update={"candidates": one.candidates[:2]}) for one in tested]
    with pytest.raises(InputError, match="n is 3; expected at least 1 and at most 2"):
        evaluate(artifact, shorter)
