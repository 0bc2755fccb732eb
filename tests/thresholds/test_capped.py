"""The short cut for prompts at which the fit without them lies on the cap: it changes no threshold."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Iterator

import numpy as np
import pytest

from langchain_cfc.support.arrays import FloatArray
from langchain_cfc.thresholds import ConditionalThreshold, Thresholds
from langchain_cfc.thresholds._simplex import Vertex
from langchain_cfc.thresholds._windows import Answer, PlainWindows
from tests.lengths import LONG, repetitions

CAP = 2.0
SHARES = (0.0, 0.15, 0.35, 0.6, 1.0)


class World:
    """Prompts of which a share, larger where a feature is, has no correct candidate."""

    def __init__(self, kind: str, share: float, alpha: str, size: int = 90, asked: int = 25) -> None:
        rng = np.random.default_rng(zlib.crc32(f"{kind} {share} {alpha}".encode()))
        t = rng.random(size + asked)
        if kind == "groups":
            x = np.eye(4)[rng.integers(0, 4, size + asked)]
            t = x @ np.arange(4) / 3
        elif kind == "hats":
            x = np.stack([np.interp(t, np.linspace(0, 1, 4), row) for row in np.eye(4)], axis=1)
        elif kind == "line":
            x = np.stack([np.ones(size + asked), t], axis=1)
        else:
            x = rng.normal(size=(size + asked, 3))
            x[:, 0] = 1.0
            t = x[:, 1] / 4 + 0.5
        scores = np.where(rng.random(size) < 2 * share * t[:size], CAP, rng.random(size).round(2))
        self.features, self.scores = x[:size], scores
        self.asked = np.concatenate([x[size:], x[:3], 3.0 * x[:2]])
        self.uniforms = rng.uniform(0.001, 0.999, len(self.asked))


KINDS = ("groups", "hats", "line", "gaussian")


def list_worlds() -> Iterator[tuple[World, str]]:
    """Worlds of every kind, share and level, in the quick tier every seventh."""
    every = itertools.product(KINDS, SHARES, ("0.1", "0.4"))
    for kind, share, alpha in itertools.islice(every, 0, None, 1 if LONG else 7):
        yield World(kind, share, alpha), alpha


def are_same(together: Thresholds, alone: list[Thresholds]) -> bool:
    return all(
        np.array_equal(getattr(together, name), np.concatenate([getattr(one, name) for one in alone]))
        for name in ("values", "errors", "outside")
    )


@pytest.mark.parametrize("window", [pytest.param(None, marks=pytest.mark.long), 30])
@pytest.mark.parametrize("ridge", [pytest.param(0.0, marks=pytest.mark.long), 1e-3])
def test_solve_in_a_batch_equals_solve_for_each_prompt_alone(ridge: float, window: int | None) -> None:
    flagged = finite = 0
    for world, alpha in list_worlds():
        rule = ConditionalThreshold(alpha, CAP, ridge=ridge, window=window).fit(world.features, world.scores)
        together = rule.solve(world.asked)
        rows = range(len(world.asked))
        assert are_same(together, [rule.solve(world.asked[[row]]) for row in rows])
        # Asked one at a time, prompts do not take the short cut.
        for row in rows:
            if not together.outside[row]:
                assert rule.threshold(world.asked[row]) == together.values[row]
        flagged += int(np.isposinf(together.values).sum())
        finite += int(np.isfinite(together.values).sum())
    assert min(flagged, finite) > repetitions(200, share=0.2)


@pytest.mark.parametrize("ridge", [0.0, 1e-3])
def test_randomised_solve_in_a_batch_equals_solve_for_each_prompt_alone(ridge: float) -> None:
    kinds: dict[str, int] = {"up": 0, "down": 0, "finite": 0}
    for world, alpha in list_worlds():
        rule = ConditionalThreshold(alpha, CAP, ridge=ridge, window=None).fit(world.features, world.scores)
        together = rule.solve(world.asked, uniforms=world.uniforms)
        rows = range(len(world.asked))
        assert are_same(
            together, [rule.solve(world.asked[[row]], uniforms=world.uniforms[[row]]) for row in rows]
        )
        # Never above those that are not randomised, and never falling with the uniform.
        plain = rule.solve(world.asked)
        higher = rule.solve(world.asked, uniforms=np.sqrt(world.uniforms))
        slack = plain.errors + together.errors + higher.errors + 1e-9
        assert (together.values <= plain.values + slack).all()
        assert (together.values <= higher.values + slack).all()
        kinds["up"] += int(np.isposinf(together.values).sum())
        kinds["down"] += int(np.isneginf(together.values).sum())
        kinds["finite"] += int(np.isfinite(together.values).sum())
    assert min(kinds["up"], kinds["finite"]) > repetitions(200, share=0.2)


def solve_without_short_cut(
    rule: ConditionalThreshold, asked: FloatArray, monkeypatch: pytest.MonkeyPatch
) -> Thresholds:
    """The answers without the short cut."""
    with monkeypatch.context() as patch:
        patch.setattr(
            ConditionalThreshold,
            "_find_surely_capped",
            lambda _self, _windows, reduced: np.zeros(len(reduced), np.bool_),
        )
        return rule.solve(asked)


@pytest.mark.parametrize("kind", KINDS)
def test_capped_short_cut_changes_no_threshold_and_saves_fits(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    searches: list[bytes] = []
    solve = PlainWindows._solve

    def counted(self: PlainWindows, number: int, phi: FloatArray, start: Vertex | None) -> Answer:
        searches.extend([phi.tobytes()] if number == 0 else [])
        return solve(self, number, phi, start)

    monkeypatch.setattr(PlainWindows, "_solve", counted)
    saved = {}
    shares_and_levels = itertools.product(SHARES, ("0.1", "0.4"))
    for share, alpha in itertools.islice(shares_and_levels, 0, None, 1 if LONG else 3):
        world = World(kind, share, alpha)

        def fitted() -> ConditionalThreshold:
            # Answers are cached, so each way starts with a new rule.
            return ConditionalThreshold(alpha, CAP, window=None).fit(world.features, world.scores)  # noqa: B023

        searches.clear()
        with_it = fitted().solve(world.asked)
        few = len(searches)
        searches.clear()
        plain = solve_without_short_cut(fitted(), world.asked, monkeypatch)
        assert are_same(with_it, [plain])
        saved[share, alpha] = len(searches) - few
        # The control: prompts below the cap are never answered by the short cut.
        rule = fitted()
        reduced, _ = rule.fitted.reduce(world.asked)
        capped = rule._find_surely_capped(rule.fitted.windows, reduced)
        assert np.isposinf(with_it.values[capped]).all()
        if share == 0.0:
            assert np.isfinite(with_it.values).sum() > 20
            assert saved[share, alpha] <= 2
    # Asking for the base fit may take one search more than sharing saves.
    assert min(saved.values()) >= -1
    if kind != "groups":  # equal prompts share an answer anyway
        assert max(saved.values()) > 1


def test_capped_short_cut_does_not_apply_to_a_fit_below_the_cap() -> None:
    # Success scores are 0.5 but for one prompt in ten, whose target is out of reach at no group.
    features = np.eye(2)[np.arange(100) % 2]
    scores = np.where(np.arange(100) < 10, CAP, 0.5)
    rule = ConditionalThreshold("0.2", CAP, window=None).fit(features, scores)
    found = rule.solve(features)
    assert found.values.tolist() == [0.5] * 100
    (windows,) = [rule.fitted.windows]
    assert not rule._find_surely_capped(windows, np.eye(2)).any()
    # One group on the cap, the other below it.
    scores = np.where((np.arange(100) % 2 == 1) & (np.arange(100) < 40), CAP, 0.5)
    rule = ConditionalThreshold("0.2", CAP, window=None).fit(features, scores)
    assert rule.solve(np.eye(2)).values.tolist() == [0.5, np.inf]
    assert rule._find_surely_capped(rule.fitted.windows, np.eye(2)).tolist() == [False, True]
    # On the cap by the prompt's own weight alone, the short cut leaves it to the regression.
    scores = np.r_[np.full(80, 0.5), np.full(20, CAP)]
    rule = ConditionalThreshold("0.2", CAP, window=None).fit(np.ones((100, 1)), scores)
    assert rule.solve(np.ones((3, 1))).values.tolist() == [np.inf] * 3


def test_solve_of_no_prompts_returns_no_thresholds() -> None:
    rule = ConditionalThreshold("0.2", CAP, window=None).fit(np.ones((9, 1)), np.full(9, CAP))
    assert rule.solve(np.empty((0, 1))).values.shape == (0,)
    assert rule.solve(np.empty((0, 1)), uniforms=[]).values.shape == (0,)
