from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction

import numpy as np
import pytest
from langchain_cfc_lab.compare import compare, compute_spread
from langchain_cfc_lab.comparison_report import Spread
from langchain_cfc_lab.methods import MethodOutput
from langchain_cfc_lab.metrics import (
    FIGURES,
    Groups,
    Outcomes,
    compute_figures,
    make_groups,
    make_property_groups,
)
from scipy import stats

from integrations.lab.tests.comparison.worlds import compute_mean, draw_world, make_comparison
from langchain_cfc.candidates import CandidateBatch, LabelledBatch
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
    shares = [compute_share([covered[row] for row in group]) for group in in_group]
    return {
        "coverage": compute_share(covered),
        "kept_promise": compute_share(kept),
        "not_certifiable_rate": compute_share([bool(one) for one in made.sets.not_certifiable]),
        "abstention_rate": compute_share([size == 0 for size in sizes]),
        "mean_set_size": compute_mean(sizes),
        "mean_distinct_answers": compute_mean([float(one) for one in distinct]),
        "worst_group_coverage": min((one for one in shares if not math.isnan(one)), default=NAN),
        "selective_accuracy": compute_share([right[row] for row in rows if sizes[row]]),
        "mean_candidates_drawn": compute_mean(made.drawn.astype(float)),
    }


# One split does not know which group is worst on average.
OF_A_SPLIT = set(FIGURES) - {"worst_group_kept_promise"}


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
            plain = [one[name] for one in expected]
            assert np.allclose(found[name], plain, rtol=0, atol=1e-12, equal_nan=True), name
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


FALSE_ALARM = 1e-6


# The interval ----------------------------------------------------------------------------------------------


def test_compute_spread_interval_equals_a_calculation_by_hand() -> None:
    # s^2 = 4/3 of 0, 2, 2, 0; Student's 0.975-quantile with 3 degrees of freedom is 3.182446305284263.
    found = compute_spread(np.array([0.0, 2.0, 2.0, 0.0]), 0.25)
    assert found is not None
    assert (found.mean, found.sd, found.splits) == (1.0, 1.0, 4)
    half = 3.182446305284263 * math.sqrt((1 / 4 + 0.25) * 4 / 3)
    assert found.interval == pytest.approx((1.0 - half, 1.0 + half), abs=1e-12)


def test_compute_spread_omits_undefined_splits() -> None:
    with_gaps = compute_spread(np.array([NAN, 0.0, 2.0, NAN, 2.0, 0.0]), 0.25)
    assert with_gaps == compute_spread(np.array([0.0, 2.0, 2.0, 0.0]), 0.25)
    assert compute_spread(np.array([NAN, NAN]), 1.0) is None
    assert compute_spread(np.array([]), 1.0) is None


# What it covers --------------------------------------------------------------------------------------------
# Independent pools of 100 prompts, two candidates each; with probability 0.8 a prompt has a correct one. Of R
# pools, the number whose interval holds the truth is binomial; "at least 90 %" is refuted where a number as
# small as the one seen has probability below 1e-6 for 90 %. It resolves 80 % for sure.
POOLS, SPLITS, ATTAINABLE = 300, 10, 0.8


def draw_pool(rng: np.random.Generator, size: int = 100) -> LabelledBatch:
    correct = np.zeros((size, 2), np.bool_)
    correct[np.arange(size), rng.integers(0, 2, size)] = rng.random(size) < ATTAINABLE
    scores = rng.random((size, 2))
    topics = [{"topic": "ab"[one]} for one in rng.integers(0, 2, size).tolist()]
    ids = [f"{one:x}" for one in rng.integers(2**63, size=size).tolist()]
    return LabelledBatch.from_arrays(
        ids, scores, correct, np.where(correct, "right", "wrong").tolist(), metadata=topics
    )


def is_contradiction(hits: int) -> bool:
    """Whether so few hits contradict 90 %."""
    return bool(stats.binom.cdf(hits, POOLS, 0.9) < FALSE_ALARM)


def hits(found: Sequence[Spread], truth: float, interval: Callable[[Spread], tuple[float, float]]) -> int:
    return sum(low <= truth <= high for low, high in map(interval, found))


def compute_naive_interval(one: Spread) -> tuple[float, float]:
    half = 1.96 * one.sd / math.sqrt(one.splits - 1)
    return one.mean - half, one.mean + half


@pytest.mark.long
@pytest.mark.parametrize("test_fraction", [0.5, 0.3])
def test_intervals_contain_the_truth_as_often_as_stated(test_fraction: float) -> None:
    rng = np.random.default_rng(7)
    found: dict[str, list[Spread]] = {}
    for number in range(POOLS):
        report = compare(
            draw_pool(rng),
            alpha="0.4",
            methods=["marginal"],
            features="1",
            groups="group(topic)",
            splits=SPLITS,
            seed=number,
            test_fraction=test_fraction,
        )
        marginal = report.methods["marginal"].figures
        for name in ("mean_set_size", "selective_accuracy", "kept_promise"):
            found.setdefault(name, []).append(marginal[name])
    # The truths are means over all pools, whose own error is a seventeenth of what intervals have to allow
    # for.
    truth = {name: float(np.mean([one.mean for one in several])) for name, several in found.items()}
    counts = {
        name: hits(several, truth[name], lambda one: one.interval or (0.0, 1.0))
        for name, several in found.items()
    }
    assert not {name: count for name, count in counts.items() if is_contradiction(count)}
    # The control. What a method is calibrated for is left out: in one pool, shares kept on test prompts make
    # up for those kept in calibration, so that splits differ more than pools do.
    for name in ("mean_set_size", "selective_accuracy"):
        assert is_contradiction(hits(found[name], truth[name], compute_naive_interval)), name
        assert hits(found[name], truth[name], compute_naive_interval) < 0.7 * POOLS


# From splits to a report -----------------------------------------------------------------------------------


def test_report_holds_means_over_the_splits_that_define_them() -> None:
    """Of so few prompts, one or both splits test none of a group, or answer none."""
    methods, alphas, groups = ["marginal", "TopK"], ("0.1", "0.2"), "bins(mean_score, 5)"
    labelled = draw_world(1, 12)
    comparison = make_comparison(labelled, methods, alphas=alphas, features="1", group_text=groups)
    seen = [comparison.measure_split(number) for number in range(2)]
    report = compare(labelled, alpha=alphas, methods=methods, features="1", groups=groups, splits=2)

    def spread(values: Sequence[float], *, share: bool = False) -> Spread | None:
        return compute_spread(np.array(values), 1.0, share=share)

    sizes = np.array([one.group_sizes for one in seen])
    tested = np.flatnonzero(sizes.any(axis=0)).tolist()
    assert len(tested) < sizes.shape[1]
    assert (sizes[:, tested] == 0).any()
    undefined = set()
    for place, level in enumerate(report.sweep):
        assert (level.alpha, level.n_candidates) == (float(alphas[place]), 4)
        assert level.n_calibration == round(np.mean([one.calibrated for one in seen]))
        assert level.attainable_coverage == pytest.approx(np.mean([one.attainable for one in seen]))
        for number, (name, method) in enumerate(level.methods.items()):
            run = 2 * number + place
            for figure in set(FIGURES) - {"worst_group_kept_promise"}:
                values = [one.figures[figure][run] for one in seen]
                undefined.add(sum(map(math.isnan, values)))
                share = not figure.startswith("mean_")
                assert method.figures.get(figure) == spread(values, share=share), figure
                if figure in type(method).model_fields:
                    assert getattr(method, figure) == method.figures[figure].mean
            assert method.coverage_ci == method.figures["coverage"].interval
            assert [group.n for group in method.groups] == sizes.mean(axis=0)[tested].tolist()
            for column, group in zip(tested, method.groups, strict=True):
                assert ("threshold" in group.figures) == (name == "marginal")
                assert group.coverage == group.figures["coverage"].mean
                for figure, one in group.figures.items():
                    values = [it.groups[figure][run, column] for it in seen]
                    assert one == spread(values, share=not figure.startswith("mean_"))
            worst = min(method.groups, key=lambda group: group.kept_promise)
            assert method.figures["worst_group_kept_promise"] == worst.figures["kept_promise"]
            # Of every property, the group that is worst on average, and not in any one split.
            kept, first = np.array([one.properties[run] for one in seen]), 0
            for groups_of in comparison.properties:
                columns = kept[:, first : first + len(groups_of.names)]
                first += len(groups_of.names)
                means = np.array([compute_mean(column[~np.isnan(column)]) for column in columns.T])
                name_of = (
                    groups_of.text if "bins" not in groups_of.text else groups_of.text[5:].partition(",")[0]
                )
                gap = method.gaps[name_of]
                assert gap.group == groups_of.words[int(np.nanargmin(means))]
                assert gap.shortfall == spread(
                    (level.target_coverage - columns[:, np.nanargmin(means)]).tolist()
                )
    assert undefined == {0, 1, 2}
