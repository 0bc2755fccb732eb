from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from langchain_cfc_lab.compare import compare
from langchain_cfc_lab.methods import MethodOutput
from langchain_cfc_lab.metrics import (
    FIGURES,
    Groups,
    Outcomes,
    compute_figures,
    make_groups,
    make_property_groups,
)

from integrations.lab.tests.comparison.worlds import compute_mean, draw_world, make_comparison
from langchain_cfc.candidates import CandidateBatch
from langchain_cfc.decision import AnswerSets
from langchain_cfc.errors import InputError
from langchain_cfc.features import FeatureMap, precompute_statistics
from langchain_cfc.features.statistics import STATISTICS
from langchain_cfc.set_rules import AcceptAll
from langchain_cfc.support.arrays import BoolArray, FloatArray, IntArray

NAN = math.nan


def make_groups_of(member: FloatArray) -> Groups:
    names = tuple(f"g{place}" for place in range(member.shape[1]))
    return Groups("group(g)", names, names, member)


def make_output(
    draws: CandidateBatch,
    accepted: BoolArray,
    flagged: BoolArray,
    thresholds: FloatArray | None = None,
    drawn: IntArray | None = None,
) -> MethodOutput:
    everything = np.full(len(draws), draws.n)
    return MethodOutput(
        AnswerSets(draws, accepted, flagged), thresholds, everything if drawn is None else drawn
    )


# Every figure by its definition ----------------------------------------------------------------------------


def compute_share(numbers: list[bool]) -> float:
    return float(Fraction(sum(numbers), len(numbers))) if numbers else NAN


def find_smallest(numbers: list[float]) -> float:
    return min((one for one in numbers if not math.isnan(one)), default=NAN)


def compute_figures_plainly(made: MethodOutput, correct: BoolArray, member: FloatArray) -> dict[str, float]:
    """The figures of one run, prompt by prompt."""
    draws = made.sets.draws
    sizes: list[float] = []
    distinct: list[int] = []
    covered, kept, right = ([] for _ in range(3))  # type: list[bool], list[bool], list[bool]
    for row in range(len(draws)):
        inside = [slot for slot in range(draws.n) if made.sets.accepted[row, slot]]
        codes = range(draws.n) if draws.answer_codes is None else draws.answer_codes[row].tolist()
        sizes.append(len(inside))
        distinct.append(len({codes[slot] for slot in inside}))
        covered.append(any(correct[row, slot] for slot in inside))
        kept.append(covered[-1] or bool(made.sets.not_certifiable[row]))
        best = min(inside, key=lambda slot: (draws.scores[row, slot], slot), default=None)
        right.append(best is not None and bool(correct[row, best]))
    rows = range(len(draws))
    in_group = [[row for row in rows if member[row, g]] for g in range(member.shape[1])]
    return {
        "coverage": compute_share(covered),
        "kept_promise": compute_share(kept),
        "not_certifiable_rate": compute_share([bool(one) for one in made.sets.not_certifiable]),
        "abstention_rate": compute_share([size == 0 for size in sizes]),
        "mean_set_size": compute_mean(sizes),
        "mean_distinct_answers": compute_mean([float(one) for one in distinct]),
        "worst_group_coverage": find_smallest(
            [compute_share([covered[row] for row in group]) for group in in_group]
        ),
        "selective_accuracy": compute_share([right[row] for row in rows if sizes[row]]),
        "mean_candidates_drawn": compute_mean(made.drawn.astype(float)),
    }


# One split does not know which group is worst on average.
OF_A_SPLIT = set(FIGURES) - {"worst_group_kept_promise"}


def assert_close(found: FloatArray, expected: list[float]) -> None:
    assert np.allclose(found, expected, rtol=0, atol=1e-12, equal_nan=True), (found, expected)


@pytest.mark.parametrize("answers", [True, False])
def test_compute_figures_equals_plain_loops_for_every_figure(answers: bool) -> None:
    rng = np.random.default_rng(1)
    seen: dict[str, set[float]] = {name: set() for name in OF_A_SPLIT}
    for number in range(60):
        n = int(rng.choice([1, 2, 5, 40]))
        size = int(rng.choice([1, 7, 150]))
        labelled = draw_world(number, size, n, decimals=1)
        draws = labelled.draws
        if answers:
            codes = np.array([rng.integers(0, slot + 1) for slot in range(n)])
            codes = np.array([one if codes[one] == one else slot for slot, one in enumerate(codes)])
            draws = CandidateBatch(draws.scores, np.tile(codes, (size, 1)), None, draws.metadata)
        else:
            draws = CandidateBatch(draws.scores, None, None, draws.metadata)
        member = np.eye(5)[rng.integers(0, 3 if number % 2 else 5, size)]
        runs = []
        for likely in (0.0, rng.random(), 1.0):
            flagged = rng.random(size) < rng.choice([0.0, 0.3, 1.0])
            accepted = (rng.random((size, n)) < likely) & ~flagged[:, np.newaxis]
            runs.append(make_output(draws, accepted, flagged, drawn=rng.integers(0, n + 1, size)))
        correct = labelled.correct
        found = compute_figures(Outcomes.from_outputs(runs, correct, AcceptAll()), make_groups_of(member))
        assert set(found) == OF_A_SPLIT
        expected = [compute_figures_plainly(made, correct, member) for made in runs]
        for name in found:
            assert found[name].shape == (3,)
            assert_close(found[name], [one[name] for one in expected])
            seen[name].update(one[name] for one in expected)
    # Each takes many values, and the one that need not be defined is both.
    assert min(map(len, seen.values())) > 15
    assert any(math.isnan(one) for one in seen["selective_accuracy"])


@pytest.mark.parametrize(
    "text", ["bins(mean_score, 5)", "bins(entropy, 3)", "group(topic)", "hard(entropy, max_score, 0.8)"]
)
def test_make_groups_divides_prompts_as_the_features_do(text: str) -> None:
    draws = precompute_statistics(draw_world(1, 300).draws)
    some = draws.take(np.arange(0, 300, 3))
    groups = make_groups(text, some, draws)
    assert np.array_equal(groups.member, FeatureMap.parse(text).fit(some).transform(draws))
    assert (groups.member.sum(axis=1) == 1.0).all()
    assert len(groups.names) == len(groups.words) == len(set(groups.names)) == groups.member.shape[1]
    assert len(set(groups.words)) == len(groups.words)
    # The same names and words wherever the cut-offs were learned.
    other = make_groups(text, draws.take(np.arange(1, 300, 3)), draws)
    assert (other.names, other.words) == (groups.names, groups.words)
    if text.startswith(("bins(mean", "hard(")):  # entropies take few values
        assert not np.array_equal(other.member, groups.member)


@pytest.mark.parametrize(
    "text",
    [
        "1",
        "mean_score",
        "mean_score^2",
        "hat(mean_score, 5)",
        "group(topic) + 1",
        "bins(mean_score, 2) + group(topic)",
    ],
)
def test_make_groups_refuses_terms_that_do_not_divide_prompts(text: str) -> None:
    draws = draw_world(3, 60).draws
    with pytest.raises(InputError, match="groups must be one term that splits prompts") as caught:
        make_groups(text, draws, draws)
    assert repr(text) in str(caught.value)
    with pytest.raises(InputError, match="groups must be one term"):
        compare(draw_world(3, 60), groups=text, splits=1, methods=["marginal"])


def test_hard_groups_are_cut_on_development_prompts_and_bins_on_all() -> None:
    labelled = draw_world(4, 300)
    for text in ("hard(max_score, 0.8)", "bins(max_score, 3)"):
        comparison = make_comparison(labelled, ["marginal"], group_text=text)
        draws, told_apart = comparison.pool.draws, 0
        for number in range(6):
            rows = comparison.make_plan(number).list_rows(comparison.pool.labelled)
            development = np.sort(np.concatenate([rows["fit"], rows["calibration"]]))
            by_part = {
                name: make_groups(text, fitted_on, draws).take(rows["test"]).sizes.tolist()
                for name, fitted_on in (("development", draws.take(development)), ("all", draws))
            }
            found = comparison.measure_split(number).group_sizes.tolist()
            assert found == by_part["development" if text.startswith("hard") else "all"]
            told_apart += by_part["development"] != by_part["all"]
        assert told_apart > 1


# Properties ------------------------------------------------------------------------------------------------


def test_property_groups_are_bins_of_statistics_and_categories() -> None:
    draws = precompute_statistics(draw_world(5, 300).draws)
    texts = [groups.text for groups in make_property_groups(draws)]
    assert texts == [f"bins({name}, 5)" for name in STATISTICS if f"bins({name}, 5)" in texts] + [
        "group(topic)",
        "group(even)",
    ]
    # Statistics that almost never vary are left out, the others are not.
    for name in STATISTICS:
        values = np.sort(draws.precomputed[name])
        varies = len({*values[[60, 120, 180, 240]].tolist()} - {values[0]}) > 0
        assert (f"bins({name}, 5)" in texts) == varies
    assert make_property_groups(draw_world(5, 300).draws)[0].text == "group(topic)"  # nothing measured
