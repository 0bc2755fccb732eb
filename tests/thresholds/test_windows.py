"""Windows around the fit: what they answer is the full data's answer; what they cannot prove they refuse."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from langchain_cfc import calibrate
from langchain_cfc.demo import load_recording
from langchain_cfc.errors import InputError, OutsideCertifiedRegionError, ThresholdError
from langchain_cfc.records import tabulate
from langchain_cfc.support.arrays import FloatArray
from langchain_cfc.thresholds import ConditionalThreshold, Thresholds, _windows
from langchain_cfc.thresholds._locality import Centre, Neighbourhood
from langchain_cfc.thresholds._rows import Columns, Rows
from langchain_cfc.thresholds._simplex import Fit, QuantileSimplex, Solution, Unbounded, Vertex
from langchain_cfc.thresholds._warm_start import fit_base_regression
from langchain_cfc.thresholds._windows import Answer, PlainWindows
from langchain_cfc.thresholds.state import ConditionalState
from tests.lengths import LONG, mostly_long, repetitions

from .oracles import compute_order_statistic, solve_dual_programme

TAU = Fraction(9, 10)
SIZE = 4_000
Sample = tuple[FloatArray, FloatArray]


def continuous(rng: np.random.Generator, size: int) -> Sample:
    t = rng.random(size)
    features = np.stack([np.ones(size), t, t**2, rng.normal(size=size)], axis=1)
    return features, 0.5 * t + 0.5 * rng.random(size)


def with_hopeless(rng: np.random.Generator, size: int) -> Sample:
    features, scores = continuous(rng, size)
    return features, np.where(rng.random(size) < 0.07, 2.0, scores)


def tied_scores(rng: np.random.Generator, size: int) -> Sample:
    features, scores = continuous(rng, size)
    return features, np.round(scores, 1)


def tied_rows(rng: np.random.Generator, size: int) -> Sample:
    features, scores = continuous(rng, size)
    return np.round(features, 1), np.round(scores, 1)


def grouped(rng: np.random.Generator, size: int) -> Sample:
    return np.eye(5)[rng.choice(5, size, p=[0.5, 0.3, 0.15, 0.048, 0.002])], rng.random(size)


def overlapping(rng: np.random.Generator, size: int) -> Sample:
    a, b = rng.integers(0, 3, size), rng.integers(0, 4, size)
    return np.hstack([np.eye(3)[a], np.eye(4)[b]]), rng.integers(0, 1001, size) / 1000


def hats(rng: np.random.Generator, size: int) -> Sample:
    t, knots = rng.beta(1.0, 3.0, size), np.linspace(0.0, 1.0, 6)
    features = np.stack([np.interp(t, knots, row) for row in np.eye(6)], axis=1)
    return features, np.where(rng.random(size) < 0.05 + 0.2 * t, 2.0, rng.random(size))


def heavy_tails(rng: np.random.Generator, size: int) -> Sample:
    features = np.exp(2.0 * rng.normal(size=(size, 3)))
    return features, rng.random(size)


def scores_on_the_fit(rng: np.random.Generator, size: int) -> Sample:
    """More rows lie on the fit than any window holds, and no two are equal."""
    m = rng.random(size)
    return np.stack([np.ones(size), m], axis=1), np.where(rng.random(size) < 0.95, m, rng.random(size))


def hats_on_an_atom(rng: np.random.Generator, size: int) -> Sample:
    """The fit lies on an atom of the scores over a part of the features only: thousands of rows on it."""
    t, knots = rng.random(size), np.linspace(0.0, 1.0, 5)
    features = np.stack([np.interp(t, knots, row) for row in np.eye(5)], axis=1)
    scores = np.where(rng.random(size) < 0.995 - 0.3 * t, 0.0, rng.random(size) * (0.3 + 0.7 * t))
    return features, np.where(rng.random(size) < 0.02 * t, 2.0, scores)


def many_groups(rng: np.random.Generator, size: int) -> Sample:
    """More groups than a window has rows for, and some of them just about reach the cap."""
    group = rng.integers(0, 60, size)
    return np.eye(60)[group], np.where(rng.random(size) < group / 500, 2.0, rng.random(size))


KINDS = [
    continuous,
    with_hopeless,
    tied_scores,
    tied_rows,
    grouped,
    overlapping,
    hats,
    heavy_tails,
    scores_on_the_fit,
    hats_on_an_atom,
    many_groups,
]
# Kinds with so many rows on the fit, or near it, that all of them may be needed.
GROWING = [tied_rows, hats, scores_on_the_fit, hats_on_an_atom, many_groups]
Kind = Callable[[np.random.Generator, int], Sample]


def make_queries(kind: Kind, rng: np.random.Generator, features: FloatArray) -> FloatArray:
    """Calibration prompts, new ones, and some far from both."""
    fresh, _ = kind(rng, 60)
    far = features[:20] * rng.choice([-3.0, 5.0, 40.0], (20, 1))
    return np.vstack([features[:60], fresh, far])


def build_neighbourhood(
    features: FloatArray, scores: FloatArray, keep: int
) -> tuple[Columns, Rows, Neighbourhood]:
    """Chosen columns, all rows in them, and so many rows next to the fit."""
    columns, root = Columns.choose(features)
    rows = Rows.with_unit_weights(columns.reduce(features)[0], scores)
    return columns, rows, Neighbourhood.build(rows, fit_base_regression(rows, TAU), root, keep)


def fit_narrow_window(features: FloatArray, scores: FloatArray, keep: int) -> ConditionalThreshold:
    """The rule fitted with only so many rows kept, whatever prompts need."""
    columns, _, near = build_neighbourhood(features, scores, keep)
    return replace(ConditionalThreshold("0.1"), _state=ConditionalState(columns, None, near, TAU))


def assert_same_where_known(found: Thresholds, expected: Thresholds) -> None:
    """Where a threshold is given it is the expected one, infinite ones included."""
    known = ~found.outside
    assert not expected.outside.any()
    np.testing.assert_array_equal(np.isinf(found.values[known]), np.isinf(expected.values[known]))
    finite = known & np.isfinite(expected.values)
    np.testing.assert_allclose(found.values[finite], expected.values[finite], rtol=1e-10, atol=1e-10)


@mostly_long("keep", [1, 64, 300, 1024], quick=2)
@mostly_long("kind", KINDS, quick=3)
def test_window_gives_the_threshold_of_the_full_data_or_none(kind: Kind, keep: int) -> None:
    rng = np.random.default_rng(1)
    features, scores = kind(rng, SIZE)
    queries = make_queries(kind, rng, features)[:: 1 if LONG else 3]
    everything = ConditionalThreshold("0.1", window=None).fit(features, scores).solve(queries)
    found = fit_narrow_window(features, scores, keep).solve(queries)
    assert np.isinf(found.values[found.outside]).all()
    assert_same_where_known(found, everything)


@mostly_long("kind", KINDS, quick=4)
def test_window_refuses_no_ordinary_prompt(kind: Kind) -> None:
    """Seen before: up to 66 % refused where scores have atoms, and groups of 100 refused as a whole."""
    rng = np.random.default_rng(2)
    features, scores = kind(rng, SIZE)
    rule = ConditionalThreshold("0.1").fit(features, scores)
    seen = repetitions(300, share=0.3)
    found = rule.solve(np.vstack([features[:seen], kind(rng, seen)[0]]))
    assert not found.outside.any()


@mostly_long("kind", KINDS, quick=3)
def test_conditional_threshold_of_large_data_agrees_with_highs(kind: Kind) -> None:
    rng = np.random.default_rng(3)
    features, scores = kind(rng, SIZE)
    queries = kind(rng, repetitions(4, share=0.25))[0]
    found = ConditionalThreshold("0.1").fit(features, scores).thresholds(queries)
    expected = np.array([solve_dual_programme(features, scores, "0.1", phi) for phi in queries])
    expected = np.where(expected >= 2.0 - 1e-9, np.inf, expected)
    np.testing.assert_allclose(found, expected, rtol=1e-7, atol=1e-7)


def test_window_without_its_radius_gives_wrong_thresholds() -> None:
    """The negative control: a window that believes itself is wrong where the certified one refuses."""
    rng = np.random.default_rng(4)
    features, scores = continuous(rng, SIZE)
    queries = 2.0 * features[:60]
    everything = ConditionalThreshold("0.1", window=None).fit(features, scores).solve(queries).values
    columns, _, near = build_neighbourhood(features, scores, 16)
    certain = PlainWindows(near, TAU)
    trusting = PlainWindows(replace(near, radius=np.inf), TAU)
    refused = wrong = 0
    for phi, exact in zip(columns.reduce(queries)[0], everything, strict=True):
        careful, careless = certain.find(phi), trusting.find(phi)
        refused += careful is None
        value = careless.compute_value(phi)[0] if isinstance(careless, Fit) else np.inf
        wrong += careful is None and not np.isclose(min(value, 2.0), min(exact, 2.0), rtol=1e-6)
    assert refused > 30
    assert wrong > 30


def test_thresholds_outside_the_certified_region_raise_a_typed_error() -> None:
    features, scores = continuous(np.random.default_rng(5), SIZE)
    rule = ConditionalThreshold("0.1", window=64).fit(features, scores)
    queries = np.vstack([features[:3], np.array([[1.0, 0.0, 0.0, 40.0]])])
    solved = rule.solve(queries)
    assert solved.outside.tolist() == [False, False, False, True]
    assert solved.values[3] == np.inf
    assert rule.thresholds(queries[:3]).tolist() == solved.values[:3].tolist()
    with pytest.raises(OutsideCertifiedRegionError, match="window=None") as refusal:
        rule.thresholds(queries)
    assert refusal.value.rows == [3]
    with pytest.raises(OutsideCertifiedRegionError):
        rule.threshold(queries[3])


@pytest.mark.parametrize("window", [0, -1, True])
def test_conditional_threshold_refuses_an_invalid_window(window: int) -> None:
    with pytest.raises(InputError, match="window"):
        ConditionalThreshold("0.1", window=window)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in GROWING])
def test_window_state_does_not_grow_with_the_calibration_data(kind: Kind) -> None:
    def numbers(size: int) -> int:
        rule = ConditionalThreshold("0.1", window=200).fit(*kind(np.random.default_rng(6), size))
        return sum(array.size for array in rule.get_state_data().values())

    assert numbers(20_000) <= 1.1 * numbers(2_000) + 250


def test_window_keeps_all_rows_only_of_the_group_at_the_cap() -> None:
    """One group whose own prompt moves its fit to the cap needs all of its rows, the others a few each."""
    rng = np.random.default_rng(18)
    group = np.repeat(np.arange(40), 500)
    scores = rng.random(20_000)
    # (N_g + 1) tau is just above 400.
    scores[group == 7] = np.where(np.arange(500) < 100, 2.0, rng.random(500))
    features = np.eye(40)[group]
    rule = ConditionalThreshold("0.2").fit(features, scores)
    kept = rule.get_state_data()["features"].sum(axis=0)
    assert kept[7] > 350
    assert kept[np.arange(40) != 7].max() < 100
    assert np.isinf(rule.thresholds(np.eye(40))).tolist() == [group == 7 for group in range(40)]


def test_window_none_keeps_the_full_data() -> None:
    features, scores = continuous(np.random.default_rng(7), SIZE)
    state = ConditionalThreshold("0.1", window=None).fit(features, scores).get_state_data()
    assert len(state["success_scores"]) == SIZE
    assert state["radius"].size == 0


@mostly_long("kind", KINDS, quick=4)
def test_window_threshold_does_not_depend_on_earlier_calls(kind: Kind) -> None:
    rng = np.random.default_rng(8)
    features, scores = kind(rng, SIZE)
    rule = ConditionalThreshold("0.1", window=300)
    fitted = rule.fit(features, scores)
    queries = make_queries(kind, rng, features)
    together = fitted.solve(queries)
    state = fitted.get_state_data()
    backwards = rule.restore(state)
    for row in range(len(queries) - 1, -1, -1 if LONG else -10):
        alone = backwards.solve(queries[row : row + 1])
        assert alone.values[0] == together.values[row]
        assert alone.outside[0] == together.outside[row]
        if not together.outside[row]:
            assert rule.restore(state).threshold(queries[row]) == together.values[row]


def test_concurrent_threads_get_the_thresholds_of_one() -> None:
    rng = np.random.default_rng(9)
    features, scores = continuous(rng, SIZE)
    rule = ConditionalThreshold("0.1").fit(features, scores)
    queries = continuous(rng, 400)[0]
    expected = rule.restore(rule.get_state_data()).thresholds(queries)
    wrong: list[int] = []

    def ask(seed: int) -> None:
        for row in np.random.default_rng(seed).permutation(len(queries)):
            same = rule.threshold(queries[row]) == expected[row]
            wrong.extend([] if same else [int(row)])

    threads = [threading.Thread(target=ask, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_window_cache_is_bounded_without_changing_thresholds(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(10)
    features, scores = continuous(rng, SIZE)
    queries = continuous(rng, 300)[0]
    rule = ConditionalThreshold("0.1").fit(features, scores)
    free = rule.thresholds(queries)
    monkeypatch.setattr(_windows, "CACHE_SIZE", 3)
    bounded = rule.restore(rule.get_state_data())
    assert bounded.thresholds(queries).tolist() == free.tolist()
    assert isinstance(bounded.fitted.windows, PlainWindows)
    assert max(len(vertices._bases) for vertices in bounded.fitted.windows._vertices.values()) == 3
    assert bounded.fitted.windows._find_by_bytes.cache_info().currsize <= 3


def test_no_row_changes_sides_within_its_distance() -> None:
    """The inequality behind the radius, and that it is sharp: some row does change just beyond."""
    rng = np.random.default_rng(11)
    features, scores = continuous(rng, 500)
    root = np.linalg.qr(features, mode="r") / np.sqrt(500)
    rows = Rows.with_unit_weights(features, scores)
    centre = Centre(Solution.solve(features[:4], scores[:4]).beta, root)
    distances = centre.compute_distances(rows)
    before = scores - features @ centre.beta
    changed = 0
    for row in np.argsort(distances)[4:104]:
        # The worst direction for this row: along W^-1 x.
        direction = np.linalg.solve(root.T @ root, features[row]) * np.sign(before[row])
        direction /= np.linalg.norm(root @ direction)
        for way in (0.999, 1.001):
            after = scores[row] - features[row] @ (centre.beta + way * distances[row] * direction)
            crossed = bool(np.sign(after) != np.sign(before[row]))
            assert not (crossed and way < 1.0)
            changed += crossed
    assert changed == 100


def test_group_too_small_to_certify_is_infinite_and_not_outside() -> None:
    rng = np.random.default_rng(12)
    codes = np.repeat(np.arange(3), [3_000, 2_000, 5])
    features, scores = np.eye(3)[codes], rng.random(len(codes))
    rule = ConditionalThreshold("0.1").fit(features, scores)
    solved = rule.solve(np.eye(3))
    assert not solved.outside.any()
    assert solved.values.tolist() == [
        compute_order_statistic(scores[codes == group], "0.1") for group in range(3)
    ]
    assert solved.values[2] == np.inf


def test_unbounded_descent_in_a_window_proves_nothing() -> None:
    rng = np.random.default_rng(13)
    features, scores = continuous(rng, SIZE)
    _, rows, near = build_neighbourhood(features, scores, 64)
    window = PlainWindows(near, TAU)._get_window(0)
    phi = 20.0 * rows.features[0]
    found = window.regression.minimise(phi)
    assert isinstance(found, Unbounded)
    assert not window.proves(found, phi)
    assert isinstance(QuantileSimplex(rows, TAU).minimise(phi), Fit)


def test_prompt_outside_the_region_is_infinite_if_half_its_weight_is() -> None:
    """The fit at the prompt never falls as its weight grows, so a bound at less than full weight suffices."""
    rng = np.random.default_rng(15)
    features, scores = continuous(rng, SIZE)
    rule = fit_narrow_window(features, scores, 16)
    everything = ConditionalThreshold("0.1", window=None).fit(features, scores)
    certain = rule.fitted.windows
    settled = 0
    for factor in (2.0, 3.0, 5.0):
        for phi in factor * features[:40]:
            reduced = rule.fitted.columns.reduce_one(phi)
            assert reduced is not None
            if certain.find(reduced) is not None:
                continue
            lowest, exact = certain.bound_below(reduced, reduced), everything.threshold(phi)
            assert lowest <= exact + 1e-9
            assert rule.solve([phi]).outside[0] == (lowest < 2.0)
            settled += lowest >= 2.0
    assert settled > 40


def test_window_keeps_equal_rows_as_one_with_their_weight() -> None:
    rng = np.random.default_rng(14)
    features, scores = tied_rows(rng, 30_000)
    features = features[:, :2]
    state = ConditionalThreshold("0.1", window=None).fit(features, scores).get_state_data()
    distinct = len(np.unique(np.column_stack([features, scores]), axis=0))
    assert len(state["success_scores"]) == distinct < 300
    assert state["weights"].sum() == 30_000
    # So a window holds all of them, even if there are more equal rows than it has room for.
    assert ConditionalThreshold("0.1", window=300).fit(features, scores).get_state_data()["radius"].size == 0


def test_window_that_fails_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Numerical trouble in a small window is left to larger ones; if all fail, nothing is made up."""
    rng = np.random.default_rng(16)
    features, scores = continuous(rng, SIZE)
    queries = features[:5]
    rule = ConditionalThreshold("0.1", window=300).fit(features, scores)
    expected = rule.thresholds(queries)
    original = QuantileSimplex.minimise
    broken = {64}

    def failing(simplex: QuantileSimplex, phi: FloatArray, start: Vertex | None = None) -> Fit | Unbounded:
        if len(simplex._s) in broken and phi.any():
            msg = "trouble"
            raise ThresholdError(msg)
        return original(simplex, phi, start)

    monkeypatch.setattr(QuantileSimplex, "minimise", failing)
    np.testing.assert_allclose(rule.restore(rule.get_state_data()).thresholds(queries), expected, atol=1e-12)
    broken |= {256, 300}
    assert rule.restore(rule.get_state_data()).solve(queries).outside.all()
    everything = ConditionalThreshold("0.1", window=None).fit(features[:200], scores[:200])
    broken |= {200}
    with pytest.raises(ThresholdError, match="trouble"):
        everything.threshold(queries[0])


def test_search_from_a_shared_vertex_that_fails_is_restarted(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(17)
    features, scores = continuous(rng, SIZE)
    queries = continuous(rng, 100)[0]
    rule = ConditionalThreshold("0.1").fit(features, scores)
    expected = rule.thresholds(queries)
    original = QuantileSimplex.minimise
    failures: list[int] = []

    def failing(simplex: QuantileSimplex, phi: FloatArray, start: Vertex | None = None) -> Fit | Unbounded:
        if start is not None:
            failures.append(1)
            msg = "trouble"
            raise ThresholdError(msg)
        return original(simplex, phi)

    monkeypatch.setattr(QuantileSimplex, "minimise", failing)
    assert rule.restore(rule.get_state_data()).thresholds(queries).tolist() == expected.tolist()
    assert failures


@pytest.mark.filterwarnings("ignore::langchain_cfc.errors.AttainabilityWarning")
def test_most_prompts_on_edges_are_answered_without_a_search(monkeypatch: pytest.MonkeyPatch) -> None:
    # Groups on the recording: alpha N_g is whole for some, and the smallest window holds one row of others.
    table = tabulate(load_recording())
    made = calibrate(
        table,
        alpha="0.3",
        features="hat(mean_score, 5) + group(topic)",
        test_fraction=0.4,
        allow_unattainable=True,
    )
    rows = made.calibration.split.list_rows(table)["test"]
    features = made.feature_map.transform(table.take(rows).draws, allow_unknown=True)
    searches = []
    original = PlainWindows._solve

    def counted(self: PlainWindows, number: int, phi: FloatArray, start: Vertex | None) -> Answer:
        searches.append(number)
        return original(self, number, phi, start)

    for phi in features[:100]:
        made.solve(phi[np.newaxis])
    monkeypatch.setattr(PlainWindows, "_solve", counted)
    for phi in features[100:300]:
        made.solve(phi[np.newaxis])
    assert len(searches) < 100
