from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from langchain_cfc.candidates import CandidateBatch, LabelledBatch
from langchain_cfc.errors import InputError
from langchain_cfc.set_rules import parse_set_rule, select_candidates
from langchain_cfc.thresholds import ConditionalThreshold, Thresholds
from tests.lengths import mostly_long

BASES = ["all", "best_prefix", "rank"]
RULES = [*BASES, *(f"unique({base})" for base in BASES)]
CAP = 2.0


@st.composite
def draw_prompts(draw: st.DrawFn) -> LabelledBatch:
    """Prompts whose labels agree within each answer, with ties and repeated answers."""
    size, n = draw(st.integers(1, 6)), draw(st.integers(1, 7))
    grid = st.sampled_from([0.0, 0.1, 0.2, 0.30000000000000004, 0.5, 0.7, 1.0])
    scores = draw(st.lists(st.lists(grid, min_size=n, max_size=n), min_size=size, max_size=size))
    answers = draw(
        st.lists(st.lists(st.sampled_from("abcd"), min_size=n, max_size=n), min_size=size, max_size=size)
    )
    right = draw(st.lists(st.sets(st.sampled_from("abcd")), min_size=size, max_size=size))
    correct = np.array([[a in ok for a in row] for row, ok in zip(answers, right, strict=True)])
    return LabelledBatch(
        CandidateBatch.from_arrays(scores, answers), correct, tuple(map(str, range(size))), (None,) * size
    )


def make_thresholds(threshold: float, size: int, error: float = 0.0) -> Thresholds:
    return Thresholds.apply_cap(np.full(size, threshold), np.full(size, error), np.inf)


@mostly_long("rule", RULES, quick=4)
@settings(derandomize=True)
@given(labelled=draw_prompts(), low=st.floats(-0.5, 1.5), high=st.floats(-0.5, 1.5))
def test_set_rule_sets_are_nested_in_the_threshold(
    rule: str, labelled: LabelledBatch, low: float, high: float
) -> None:
    levels = parse_set_rule(rule).compute_levels(labelled.draws)
    low, high = min(low, high), max(low, high)
    small, large = (
        select_candidates(levels, make_thresholds(low, len(labelled))),
        select_candidates(levels, make_thresholds(high, len(labelled))),
    )
    assert (small <= large).all()


@mostly_long("rule", RULES, quick=4)
@settings(derandomize=True)
@given(
    labelled=draw_prompts(), threshold=st.one_of(st.floats(-0.5, 1.99), st.sampled_from([0.0, 0.1, 0.5, 1.0]))
)
def test_set_covers_exactly_if_the_success_score_is_reached(
    rule: str, labelled: LabelledBatch, threshold: float
) -> None:
    set_rule = parse_set_rule(rule)
    success = set_rule.compute_success_scores(labelled, CAP)
    inside = select_candidates(
        set_rule.compute_levels(labelled.draws), make_thresholds(threshold, len(labelled))
    )
    assert ((inside & labelled.correct).any(axis=1) == (success <= threshold)).all()


@settings(derandomize=True)
@given(labelled=draw_prompts())
def test_unique_returns_each_distinct_answer_once(labelled: LabelledBatch) -> None:
    codes = labelled.draws.answer_codes
    assert codes is not None
    for base in ("all", "best_prefix", "rank"):
        one = select_candidates(
            parse_set_rule(f"unique({base})").compute_levels(labelled.draws),
            make_thresholds(0.5, len(labelled)),
        )
        every = select_candidates(
            parse_set_rule(base).compute_levels(labelled.draws), make_thresholds(0.5, len(labelled))
        )
        for row in range(len(labelled)):
            entries = codes[row][one[row]]
            assert len(set(entries)) == len(entries)
            assert set(entries) == set(codes[row][every[row]])


def test_set_rule_levels_equal_a_calculation_by_hand() -> None:
    draws = CandidateBatch.from_arrays([[0.4, 0.2, 0.3, 0.2]], [["a", "b", "a", "c"]])
    inf = np.inf
    expected = {
        "all": [0.4, 0.2, 0.3, 0.2],
        "best_prefix": [0.4, 0.2, inf, inf],
        "rank": [1.0, 0.25, 0.75, 0.5],
        "unique(all)": [inf, 0.2, 0.3, 0.2],
        "unique(best_prefix)": [0.4, 0.2, inf, inf],
        "unique(rank)": [inf, 0.25, 0.75, 0.5],
    }
    for rule, levels in expected.items():
        assert parse_set_rule(rule).compute_levels(draws).tolist() == [levels], rule


def test_success_score_without_a_correct_candidate_is_the_cap() -> None:
    labelled = LabelledBatch(
        CandidateBatch.from_arrays([[0.4, 1.0], [0.4, 1.0]]),
        np.array([[False, False], [False, True]]),
        ("a", "b"),
        (None, None),
    )
    assert parse_set_rule("all").compute_success_scores(labelled, CAP).tolist() == [2.0, 1.0]


def test_best_prefix_does_not_count_later_correct_candidates() -> None:
    labelled = LabelledBatch(
        CandidateBatch.from_arrays([[0.1, 0.9]]), np.array([[False, True]]), ("a",), (None,)
    )
    assert parse_set_rule("best_prefix").compute_success_scores(labelled, CAP).tolist() == [CAP]


@pytest.mark.parametrize(("correct", "success"), [([False, True], CAP), ([True, False], 0.1)])
def test_unique_counts_the_label_of_the_candidate_it_shows(correct: list[bool], success: float) -> None:
    """A judge may label two spellings of one answer differently; only the first of them enters a set."""
    draws = CandidateBatch.from_arrays([[0.1, 0.9]], [["Lima", "lima."]])
    labelled = LabelledBatch(draws, np.array([correct]), ("q7",), (None,))
    assert parse_set_rule("unique").compute_success_scores(labelled, CAP).tolist() == [success]


def test_unique_needs_answers() -> None:
    with pytest.raises(InputError, match="needs the candidates' answers"):
        parse_set_rule("unique").compute_levels(CandidateBatch.from_arrays([[0.1]]))


UNKNOWN = [
    "",
    "unique()",
    "unique(unique(all))",
    "at_least_one(all)",
    "unique(all",
    "topk",
    "all()",
]


@pytest.mark.parametrize("text", UNKNOWN)
def test_parse_set_rule_refuses_unknown_names_and_lists_known_ones(text: str) -> None:
    with pytest.raises(InputError, match=r"known are all, .*, best_answer and claims\(k\)"):
        parse_set_rule(text)


def test_parse_set_rule_round_trips_and_expands_bare_names() -> None:
    assert [parse_set_rule(rule).text for rule in RULES] == RULES
    assert parse_set_rule("unique").text == "unique(all)"


def measure_coverage(
    scores: np.ndarray, correct: np.ndarray, features: np.ndarray, alpha: str
) -> tuple[float, float]:
    """Coverage on the second half: with the comparison of the package, and with a plain `<=` on floats."""
    half = len(scores) // 2
    size = len(scores)
    labelled = LabelledBatch(
        CandidateBatch.from_arrays(scores), correct, tuple(map(str, range(size))), (None,) * size
    )
    rule = parse_set_rule("all")
    success = rule.compute_success_scores(labelled, CAP)
    solved = ConditionalThreshold(alpha, CAP).fit(features[:half], success[:half]).solve(features[half:])
    levels, right = rule.compute_levels(labelled.draws)[half:], correct[half:]
    inclusive = (select_candidates(levels, solved) & right).any(axis=1) | np.isinf(solved.values)
    plain = ((levels <= solved.values[:, np.newaxis]) & right).any(axis=1) | np.isinf(solved.values)
    return float(inclusive.mean()), float(plain.mean())


# 600 calibration and 600 test prompts: coverage in excess of 0.8 has a standard deviation of at most
# sqrt(0.16 / 600 + 0.16 / 601) = 0.0231 (beta-binomial law); five of them bound a false alarm below 1e-6.
SLACK = 5 * 0.0231


def test_select_candidates_includes_levels_within_round_off() -> None:
    """A feature map that holds the score itself makes thresholds equal a candidate's level, up to round-off.

    Nearly every best candidate is correct, so the exact threshold is min_score itself for most prompts. The
    plain comparison is the negative control: it loses what round-off drops.
    """
    rng = np.random.default_rng(5)
    scores = rng.uniform(0.05, 0.95, (1200, 4))
    best = scores.min(axis=1)
    correct = (scores == best[:, np.newaxis]) & (rng.random((1200, 1)) < 0.95)
    mean = scores.mean(axis=1)
    # In another basis of the same span, so that the fit's coefficients are not 0 and 1.
    features = np.stack([np.ones(1200), best, mean, mean**2], axis=1) @ rng.random((4, 4))
    inclusive, plain = measure_coverage(scores, correct, features, "0.2")
    assert inclusive >= 0.8 - SLACK
    assert plain < 0.8 - SLACK


def test_select_candidates_loses_nothing_on_a_grid_of_tenths() -> None:
    """Scores such as 3 * 0.1 and 0.3 differ in the last bit; features computed from them differ likewise."""
    rng = np.random.default_rng(6)
    scores = rng.integers(1, 10, (1200, 4)) * 0.1
    best = scores.min(axis=1)
    correct = (scores == best[:, np.newaxis]) & (rng.random((1200, 1)) < 0.95)
    mean = scores.mean(axis=1)
    # In another basis, too: in this one some processors happen to round most of the grid's numbers alike.
    features = np.stack([np.ones(1200), best, mean, mean**2], axis=1) @ rng.random((4, 4))
    inclusive, plain = measure_coverage(scores, correct, features, "0.2")
    assert inclusive >= 0.8 - SLACK
    assert inclusive - plain > 0.15  # on the very same prompts
