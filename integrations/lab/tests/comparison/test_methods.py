from __future__ import annotations

import math
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from langchain_cfc_lab.methods import (
    OUR_DEFAULT_METHODS,
    Method,
    Split,
    ThresholdMethod,
    TopK,
    get_methods,
    list_outside_methods,
    list_paper_methods,
    make_our_method,
)

from integrations.lab.tests.comparison.worlds import (
    draw_world,
    make_split_by_hand,
)
from langchain_cfc.candidates import CandidateBatch, LabelledBatch
from langchain_cfc.errors import AttainabilityWarning, InputError, OrientationWarning
from langchain_cfc.support.arrays import BoolArray, FloatArray, IntArray
from tests.lengths import mostly_long, repetitions

pytestmark = [
    # Small calibration sets with hopeless prompts are the point here.
    pytest.mark.filterwarnings(f"ignore::{kind.__module__}.{kind.__name__}")
    for kind in (AttainabilityWarning, OrientationWarning)
]

EVERY = [*OUR_DEFAULT_METHODS, *(one.name for one in (*list_paper_methods(), *list_outside_methods()))]


def get_method(name: str) -> Method:
    (method,) = get_methods([name])
    return method


# The paper's conventions, by hand --------------------------------------------------------------------------


def compute_order_statistic(success: FloatArray, level: Fraction) -> float:
    """The paper's threshold: the value of rank ceil((N + 1) tau), cut to [0, 1]; 1 beyond the last."""
    rank = math.ceil((len(success) + 1) * (1 - level))
    return 1.0 if rank > len(success) else min(max(sorted(success.tolist())[rank - 1], 0.0), 1.0)


def compute_success_score(scores: FloatArray, correct: BoolArray) -> float:
    """S, and 1 without a correct candidate."""
    return min([float(one) for one, right in zip(scores, correct, strict=True) if right], default=1.0)


def take_prefix(scores: FloatArray, accepted: list[int]) -> list[int]:
    """Accepted candidates up to the one of lowest score, the earliest of several."""
    if not accepted:
        return []
    best = min(accepted, key=lambda slot: (scores[slot], slot))
    return [slot for slot in accepted if slot <= best]


def compute_thresholds_by_bin(split: Split, level: Fraction) -> FloatArray:
    """Two bins of the mean score cut in the middle of the development prompts, a threshold in each."""
    labelled, rows = split.pool.labelled, split.development
    # In the order and with the rounding of the library: sorted sums.
    means = np.array([np.add.accumulate(np.sort(row))[-1] / len(row) for row in labelled.draws.scores])
    cut = np.sort(means[rows])[len(rows) // 2]
    success = np.array(
        [compute_success_score(*pair) for pair in zip(labelled.draws.scores, labelled.correct, strict=True)]
    )
    by_bin = [
        compute_order_statistic(success[[row for row in rows if (means[row] >= cut) == side]], level)
        for side in (0, 1)
    ]
    return np.array([by_bin[int(means[row] >= cut)] for row in split.test])


def make_sets_at(split: Split, thresholds: FloatArray, *, cut: bool) -> BoolArray:
    found = np.zeros((len(split.test), split.pool.draws.n), dtype=np.bool_)
    for place, (row, threshold) in enumerate(zip(split.test, thresholds, strict=True)):
        scores = split.pool.draws.scores[row]
        accepted = [slot for slot, score in enumerate(scores) if score <= threshold]
        found[place, take_prefix(scores, accepted) if cut else accepted] = True
    return found


@mostly_long("decimals", [1, 9], quick=1)
def test_paper_methods_equal_a_calculation_by_hand(decimals: int) -> None:
    rng = np.random.default_rng(decimals)
    everything = ours_differs = cut_short = 0
    worlds = repetitions(60, share=0.4)
    for number in range(worlds):
        size = int(rng.integers(12, 60))
        labelled = draw_world(number, size + 20, 3, decimals=decimals, hopeless=(0.1, 0.3, 0.5))
        order = rng.permutation(size + 20)
        split = make_split_by_hand(
            labelled,
            order[: size // 4],
            order[size // 4 : size],
            order[size:],
            features="bins(mean_score, 2)",
        )
        alpha = ("0.07", "0.13", "0.29", "0.41")[number % 4]
        level, eps = Fraction(Decimal(alpha)), Fraction(math.sqrt(math.log(1.0 / 0.9) / size))
        success = np.array(
            [
                compute_success_score(labelled.draws.scores[row], labelled.correct[row])
                for row in split.development
            ]
        )
        one = np.full(20, compute_order_statistic(success, level))
        left = max(level - eps, Fraction(0))
        expected = {
            "ICP": (one, False),
            "CFC-FULL": (compute_thresholds_by_bin(split, level), False),
            "CFC": (compute_thresholds_by_bin(split, level), True),
            "CFC-PAC-FULL": (compute_thresholds_by_bin(split, left) if left else np.ones(20), False),
            "CFC-PAC": (compute_thresholds_by_bin(split, left) if left else np.ones(20), True),
        }
        for name, (thresholds, cut) in expected.items():
            made = get_method(name).make_sets(split, alpha)
            assert made.thresholds is not None
            assert made.thresholds.tolist() == thresholds.tolist(), name
            assert made.sets.accepted.tolist() == make_sets_at(split, thresholds, cut=cut).tolist(), name
            assert not made.sets.not_certifiable.any()
            assert made.drawn.tolist() == [3] * 20
            everything += bool((thresholds == 1.0).any())
            cut_short += bool(
                cut and not np.array_equal(made.sets.accepted, make_sets_at(split, thresholds, cut=False))
            )
        # The control: our convention gives other thresholds.
        mine = get_method("conditional").make_sets(split, alpha)
        ours_differs += not np.array_equal(
            mine.sets.accepted, make_sets_at(split, expected["CFC-FULL"][0], cut=False)
        )
    assert everything > worlds / 2
    assert cut_short > worlds
    assert ours_differs > worlds * 5 / 6


def test_learnt_cp_is_the_quantile_of_development_prompts() -> None:
    # Of N success scores the fit of a constant is the value of rank ceil(N tau) where N tau is not whole; the
    # conformal rank is the next one here.
    for number in range(20):
        labelled = draw_world(number, 33 + 10, 2, hopeless=(0.3, 0.4, 0.5))
        split = make_split_by_hand(labelled, range(10), range(10, 33), range(33, 43))
        made = get_method("Learnt CP").make_sets(split, "0.3")
        success = [
            compute_success_score(labelled.draws.scores[row], labelled.correct[row]) for row in range(33)
        ]
        assert made.thresholds is not None
        assert np.allclose(made.thresholds, sorted(success)[math.ceil(33 * 0.7) - 1], rtol=0, atol=1e-12)
        assert not made.sets.not_certifiable.any()


# TopK, by hand ---------------------------------------------------------------------------------------------


def find_best_k(scores: FloatArray, k: int) -> set[int]:
    return set(sorted(range(len(scores)), key=lambda slot: (scores[slot], slot))[:k])


def choose_k(split: Split, grid: list[int], tau: Fraction, *, reaching: bool) -> int:
    """K by its definition, ties to the smaller one."""
    labelled, rows = split.pool.labelled, split.development.tolist()
    coverage = {
        k: Fraction(
            sum(
                any(labelled.correct[row, slot] for slot in find_best_k(labelled.draws.scores[row], k))
                for row in rows
            ),
            len(rows),
        )
        for k in grid
    }
    if reaching:
        return next((k for k in grid if coverage[k] >= tau), grid[-1])
    return min(grid, key=lambda k: (abs(coverage[k] - tau), k))


@pytest.mark.parametrize("reaching", [True, False])
def test_top_k_equals_a_calculation_by_hand(reaching: bool) -> None:
    rng = np.random.default_rng(5)
    seen, unreachable = set(), 0
    worlds = repetitions(120, share=0.4)
    for number in range(worlds):
        n = int(rng.integers(1, 9))
        # 37 development prompts: no coverage is exactly between two others at these levels.
        labelled = draw_world(number, 37 + 12, n, decimals=int(rng.choice([1, 9])), hopeless=(0.0, 0.2, 0.3))
        split = make_split_by_hand(labelled, range(7), range(7, 37), range(37, 49))
        grid = None if number % 2 else (2, 4, 6, 8, 50)
        usable = [k for k in grid or range(1, n + 1) if k <= n]
        method = TopK("top", "", "", "paper", reaching, grid)
        alpha = ("0.05", "0.1", "0.25", "0.45")[number % 4]
        tau = 1 - Fraction(Decimal(alpha))
        if not usable:
            with pytest.raises(InputError, match=f"the records hold {n} candidates a prompt"):
                method.make_sets(split, alpha)
            continue
        k = choose_k(split, usable, tau, reaching=reaching)
        unreachable += split.pool.attainable[split.development].mean() < tau
        seen.add(k)
        made = method.make_sets(split, alpha)
        assert made.thresholds is None
        assert not made.sets.not_certifiable.any()
        for place, row in enumerate(split.test):
            expected = find_best_k(labelled.draws.scores[row], k)
            assert set(np.flatnonzero(made.sets.accepted[place])) == expected
    assert len(seen) > 5
    assert unreachable > worlds / 6


# What no method may look at --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", EVERY)
def test_methods_ignore_labels_of_test_prompts(name: str) -> None:
    labelled = draw_world(8, 240, 5, decimals=2)
    rows = range(40), range(40, 160), range(160, 240)
    correct = labelled.correct.copy()
    correct[160:] = ~correct[160:]
    flipped = replace(labelled, correct=correct)
    for features in ("hat(mean_score, 4)", "group(topic)"):
        before, after = (
            get_method(name).make_sets(make_split_by_hand(one, *rows, features=features), "0.2")
            for one in (labelled, flipped)
        )
        assert np.array_equal(before.sets.accepted, after.sets.accepted)
        assert np.array_equal(before.sets.not_certifiable, after.sets.not_certifiable)
        assert np.array_equal(before.drawn, after.drawn)
    # The control: labels of calibration prompts do.
    correct = labelled.correct.copy()
    correct[:160] = ~correct[:160]
    changed = get_method(name).make_sets(
        make_split_by_hand(replace(labelled, correct=correct), *rows, features=features), "0.2"
    )
    moved = changed.sets.accepted != before.sets.accepted
    assert (moved | (changed.sets.not_certifiable != before.sets.not_certifiable)[:, np.newaxis]).any()


# Those from elsewhere --------------------------------------------------------------------------------------


def list_orders(labelled: LabelledBatch) -> list[IntArray]:
    """Its own order, and one in which easy and hard prompts alternate."""
    score = labelled.draws.scores.mean(axis=1)
    easy, hard = np.array_split(np.argsort(score), 2)
    return [np.arange(len(labelled)), np.stack([easy, hard], axis=1).ravel()]


def test_sampling_method_divides_prompts_independently_of_order() -> None:
    # With rows in turn easy and hard, rows 0, 2, 4, ... would order configurations by easy prompts alone.
    labelled = draw_world(12, 400, 4)
    shares = []
    for order in list_orders(labelled):
        pool = labelled.take(order)
        split = make_split_by_hand(pool, range(60), range(60, 300), range(300, 400))
        made = get_method("sampling").make_sets(split, "0.25")
        rule = split.cache["sampling",]
        assert rule.tested == 150
        assert np.array_equal(
            made.drawn,
            rule.make_sets(split.test_candidates.scores, split.test_candidates.answer_codes, "0.25").draws,
        )
        # The cuts are quantiles of the ordering half: of scores of all prompts, not of easy ones.
        shares.append(float((pool.draws.scores[:300] <= rule.cuts[len(rule.cuts) // 2]).mean()))
    assert all(0.4 < share < 0.65 for share in shares)
    easy = labelled.take(list_orders(labelled)[1])
    # The control: halves by place differ.
    assert float((easy.draws.scores[:300] <= np.median(easy.draws.scores[:300:2])).mean()) < 0.4


# Names -----------------------------------------------------------------------------------------------------


def test_get_methods_expands_families_and_names() -> None:
    assert [one.name for one in get_methods(["ours"])] == list(OUR_DEFAULT_METHODS)
    assert [one.family for one in get_methods(["ours", "paper", "outside"])] == ["ours"] * 6 + [
        "paper"
    ] * 8 + ["outside"]
    assert get_methods(["CFC", "paper", "CFC"])[0].name == "CFC"
    assert len(get_methods(["CFC", "paper", "CFC"])) == 8
    one = make_our_method("conditional: unique")
    assert isinstance(one, ThresholdMethod)
    assert one.set_rule == "unique(all)"
    assert get_methods([one])[0] is one
    for method in get_methods(EVERY):
        assert method.words
        assert method.promise


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ([], "at least one method is needed"),
        (
            ["TopM"],
            "unknown method 'TopM'; known are ours, paper and outside, conditional,.*TopK",
        ),
        (["conditional:best"], "unknown set rule 'best'"),
        (["conditional:"], "unknown set rule ''"),
        (["cfc"], "unknown method 'cfc'"),
        (["CFC:rank"], "unknown method 'CFC:rank'"),
        ([replace(get_method("CFC"), words="other"), "CFC"], "two methods are called 'CFC'"),
    ],
)
def test_get_methods_refuses_unknown_or_duplicate_names(names: list[str | Method], message: str) -> None:
    with pytest.raises(InputError, match=message):
        get_methods(names)


def test_methods_accept_draws_without_answers() -> None:
    full = draw_world(13, 200)
    scores_only = replace(full, draws=CandidateBatch(full.draws.scores, None, None, full.draws.metadata))
    for name in EVERY:
        split = make_split_by_hand(
            scores_only, range(40), range(40, 150), range(150, 200), features="hat(mean_score, 3)"
        )
        made = get_method(name).make_sets(split, "0.25")
        assert made.sets.distinct_answers.tolist() == made.sets.accepted.sum(axis=1).tolist()
