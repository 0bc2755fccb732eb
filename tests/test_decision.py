from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from langchain_cfc import Candidate, FeatureMap, PromptRecord, calibrate
from langchain_cfc.artifact import CalibrationArtifact
from langchain_cfc.candidates import CandidateBatch
from langchain_cfc.decision import decide
from langchain_cfc.errors import AttainabilityWarning, FeatureError, InputError
from langchain_cfc.records import tabulate
from tests.factories import leave_sets_empty, set_window
from tests.lengths import mostly_long, repetitions

FEATURES = [
    "1",
    "group(topic)",
    "mean_score^4",
    "hat(mean_score, 4) + group(topic) + entropy^2 + bins(meta(year), 3) + hard(max_score, top_share, 0.7)",
]

pytestmark = pytest.mark.filterwarnings(
    # Small groups whose prompts are flagged are wanted here.
    f"ignore::{AttainabilityWarning.__module__}.{AttainabilityWarning.__name__}"
)


def make_records(
    seed: int, size: int, *, n: int = 5, right: float = 0.6, decimals: int | None = None
) -> list[PromptRecord]:
    """Prompts with topics and years; answers of one text have one label."""
    rng = np.random.default_rng(seed)
    scores, answers = rng.random((size, n)), rng.integers(0, 4, (size, n))
    if decimals is not None:
        scores = scores.round(decimals)
    labels = rng.random((size, 4)) < right
    return [
        PromptRecord(
            id=f"p{row}",
            input=f"p{row}",
            metadata={"topic": "abc"[row % 3], "year": int(rng.integers(0, 9))},
            candidates=tuple(
                Candidate(
                    text="x" * int(answers[row, slot] + 1),
                    score=float(scores[row, slot]),
                    correct=bool(labels[row, answers[row, slot]]),
                )
                for slot in range(n)
            ),
        )
        for row in range(size)
    ]


def make_artifact(features: str = "1", **options: Any) -> CalibrationArtifact:
    settings = {"alpha": ["0.2", "0.4"], "fit_fraction": 0.3, "allow_unattainable": True, **options}
    return calibrate(make_records(0, 120), features=features, **settings)


@mostly_long("set_rule", ["all", "best_prefix", "rank", "unique(all)"], quick=2)
@pytest.mark.parametrize("features", FEATURES)
def test_decide_gives_a_prompt_alone_the_same_bits_as_among_others(features: str, set_rule: str) -> None:
    artifact = make_artifact(features, set_rule=set_rule)
    draws = tabulate(make_records(1, repetitions(40, share=0.4), decimals=2)).draws
    for marginal in (False, True):
        together = decide(artifact, draws, "0.2", marginal=marginal)
        assert together.accepted.any()
        for row in range(len(draws)):
            alone = decide(artifact, draws.take(np.array([row])), "0.2", marginal=marginal)
            assert alone.features[0].tobytes() == together.features[row].tobytes()
            assert alone.thresholds[0].tobytes() == together.thresholds[row].tobytes()
            assert alone.levels[0].tobytes() == together.levels[row].tobytes()
            assert (alone.accepted[0] == together.accepted[row]).all()
            assert alone.not_certifiable[0] == together.not_certifiable[row]
            assert alone.find_reason(0) == together.find_reason(row)


def test_decide_does_not_depend_on_the_order_of_prompts() -> None:
    artifact = make_artifact(FEATURES[-1])
    draws = tabulate(make_records(1, 60)).draws
    order = np.random.default_rng(0).permutation(60)
    one, other = decide(artifact, draws, "0.2"), decide(artifact, draws.take(order), "0.2")
    assert one.thresholds[order].tobytes() == other.thresholds.tobytes()
    assert (one.accepted[order] == other.accepted).all()


def test_decide_answers_every_prompt_that_is_not_flagged() -> None:
    # Two candidates; on topic c most prompts are hopeless, on the others hardly any.
    known = [one for one in make_records(0, 180, n=2, right=0.95) if one.metadata["topic"] != "c"]
    known += [one for one in make_records(1, 180, n=2, right=0.2) if one.metadata["topic"] == "c"]
    artifact = calibrate(known, alpha="0.4", features="group(topic)")
    asked = tabulate(make_records(2, 200, n=2)).draws
    decisions = decide(artifact, asked)
    reasons = [decisions.find_reason(row) for row in range(200)]
    assert set(reasons) == {"answered", "not_certifiable"}
    for row, reason in enumerate(reasons):
        assert decisions.accepted[row].any() == (reason == "answered")
        assert np.isinf(decisions.thresholds[row]) == (reason == "not_certifiable")
        assert (asked.metadata[row]["topic"] == "c") == (reason == "not_certifiable")


@pytest.mark.parametrize("set_rule", ["all", "best_prefix", "unique(all)"])
@pytest.mark.parametrize("marginal", [False, True])
def test_decide_only_adds_the_best_candidate_to_empty_sets(
    set_rule: str, marginal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = [one for one in make_records(0, 240, n=3, decimals=1) if one.metadata["topic"] != "c"]
    known += [one for one in make_records(1, 120, n=3, right=0.2, decimals=1) if one.metadata["topic"] == "c"]
    filled = calibrate(known, alpha="0.5", features="mean_score + group(topic)", set_rule=set_rule)
    asked = tabulate(make_records(2, 300, n=3, decimals=1)).draws
    # Far out a threshold lies below zero, so that even levels of 0 are above it.
    asked = replace(asked, scores=np.where(np.arange(300)[:, None] < 100, asked.scores / 10, asked.scores))
    found = decide(filled, asked, marginal=marginal)
    leave_sets_empty(monkeypatch)
    plain = decide(filled, asked, marginal=marginal)
    assert found.thresholds.tobytes() == plain.thresholds.tobytes()
    assert found.not_certifiable.tolist() == plain.not_certifiable.tolist()
    added = found.accepted & ~plain.accepted
    for row in range(300):
        empty = not plain.accepted[row].any() and not plain.not_certifiable[row]
        best = min(range(3), key=lambda slot: (asked.scores[row, slot], slot))
        assert np.flatnonzero(added[row]).tolist() == ([best] if empty else [])
        assert not (plain.accepted & ~found.accepted)[row].any()
        if empty:
            assert found.find_reason(row) == "answered"
            assert (found.best[row], found.list_best_first(row).tolist()) == (best, [best])
    assert marginal or plain.not_certifiable.any()
    assert added.any()


def test_never_empty_sets_are_nested_over_levels() -> None:
    artifact = calibrate(make_records(0, 300), alpha=["0.2", "0.5", "0.8"], features=FEATURES[-1])
    draws = tabulate(make_records(1, 150)).draws
    strict, middle, loose = (decide(artifact, draws, alpha) for alpha in artifact.alphas)
    for larger, smaller in ((strict, middle), (middle, loose)):
        kept = smaller.accepted & ~larger.accepted
        assert not kept[~larger.not_certifiable].any()
    # Some of the sets are the best candidate alone, by which they are not empty.
    assert (loose.levels.min(axis=1) > loose.thresholds).sum() > 10


def test_flagged_prompts_have_empty_sets_under_every_set_rule() -> None:
    for set_rule in ("all", "best_prefix", "rank", "unique(rank)"):
        artifact = calibrate(
            make_records(0, 3), alpha="0.05", features="1", set_rule=set_rule, allow_unattainable=True
        )
        decisions = decide(artifact, tabulate(make_records(1, 10)).draws)
        assert decisions.not_certifiable.all()
        assert not decisions.accepted.any()
        # Without the flag all of them would be in the set: their levels are below the threshold.
        assert (decisions.levels.min(axis=1) <= decisions.thresholds).all()


def make_correct_records(scores: list[float]) -> list[PromptRecord]:
    """Prompts of one candidate that is right, with the scores given."""
    return [
        PromptRecord(
            id=f"p{row}", input=f"p{row}", candidates=(Candidate(text="x", score=score, correct=True),)
        )
        for row, score in enumerate(scores)
    ]


def test_decide_accepts_a_score_equal_to_the_threshold(monkeypatch: pytest.MonkeyPatch) -> None:
    leave_sets_empty(monkeypatch)
    # An order statistic has no round-off, so that not even a neighbour of it is let in.
    known = make_correct_records([row / 10 for row in range(1, 10)])
    artifact = calibrate(known, alpha="0.4", features="1")
    above, below = (float(np.nextafter(0.6, end)) for end in (1.0, 0.0))
    decisions = decide(artifact, CandidateBatch.from_arrays([[0.6], [above], [below]]), marginal=True)
    assert decisions.thresholds.tolist() == [0.6] * 3  # the sixth of nine
    assert decisions.accepted.ravel().tolist() == [True, False, True]


def test_decide_accepts_scores_within_round_off_of_the_threshold(monkeypatch: pytest.MonkeyPatch) -> None:
    leave_sets_empty(monkeypatch)
    # The success score is the feature itself, so that every prompt lies on the fit: with exact arithmetic all
    # are accepted, with a plain comparison of floats those whose threshold was rounded down are lost.
    rng = np.random.default_rng(0)
    features = FeatureMap.parse("hat(min_score, 5)").fit(CandidateBatch.from_arrays(rng.random((50, 1))))
    artifact = calibrate(make_correct_records(rng.random(60).tolist()), alpha="0.2", features=features)
    decisions = decide(artifact, CandidateBatch.from_arrays(rng.random((300, 1))))
    plain = decisions.levels <= decisions.thresholds[:, None]
    assert (~plain).sum() > 10
    assert decisions.accepted.all()


def test_decide_accepts_none_below_and_all_above_every_score(monkeypatch: pytest.MonkeyPatch) -> None:
    # Success scores 3 t - 1, known for t from 0.35 to 0.65; beyond, the threshold follows the line out of [0,
    # 1].
    known = [
        PromptRecord(
            id=f"p{row}",
            input=f"p{row}",
            metadata={"t": float(t)},
            candidates=(Candidate(text="x", score=float(3 * t - 1), correct=True),),
        )
        for row, t in enumerate(np.linspace(0.35, 0.65, 60))
    ]
    line = FeatureMap.parse("meta(t)").fit(
        CandidateBatch.from_arrays([[0.5]] * 2, metadata=[{"t": 0.0}, {"t": 1.0}])
    )
    artifact = calibrate(known, alpha="0.5", features=line)
    asked = CandidateBatch.from_arrays([[0.0], [1.0], [0.0]], metadata=[{"t": 0.2}, {"t": 0.8}, {"t": 1.0}])
    decisions = decide(artifact, asked)
    assert decisions.thresholds[:2] == pytest.approx([-0.4, 1.4])
    assert [decisions.find_reason(row) for row in range(3)] == ["answered", "answered", "not_certifiable"]
    # At t = 1 the line reaches the cap, up to round-off.
    assert np.isinf(decisions.thresholds[2])
    leave_sets_empty(monkeypatch)
    assert decide(artifact, asked).accepted.tolist() == [[False], [True], [False]]


def test_best_first_orders_by_score_with_ties_in_draw_order() -> None:
    known = [
        one.model_copy(update={"candidates": one.candidates * 5}) for one in make_correct_records([0.8] * 9)
    ]
    artifact = calibrate(known, alpha="0.2", features="1")
    scores = np.array([[0.5, 0.2, 0.9, 0.2, 0.0], [0.8, 0.8, 0.1, 0.8, 0.81], [0.9] * 5])
    decisions = decide(artifact, CandidateBatch.from_arrays(scores))
    listed = [decisions.list_best_first(row).tolist() for row in range(3)]
    assert listed == [[4, 1, 3, 0], [2, 0, 1, 3], [0]]
    # So many ties that a sort which need not keep their order does not.
    many = [
        one.model_copy(update={"candidates": one.candidates * 90}) for one in make_correct_records([0.8] * 9)
    ]
    ties = np.tile([[0.3, 0.1, 0.2]], 30)
    slots = decide(
        calibrate(many, alpha="0.2", features="1"), CandidateBatch.from_arrays(ties)
    ).list_best_first(0)
    assert slots.tolist() == [*range(1, 90, 3), *range(2, 90, 3), *range(0, 90, 3)]


def test_reason_of_a_bot_names_blank_answers_before_the_cut() -> None:
    known = [
        one.model_copy(update={"candidates": one.candidates * 4}) for one in make_correct_records([0.8] * 9)
    ]
    artifact = calibrate(known, alpha="0.2", features="1", set_rule="all")
    rows: list[tuple[str, list[float], list[str]]] = [
        ("answered", [0.1] * 4, ["a", "a", "b", "b"]),
        ("answered", [0.4] * 4, ["a", "b", "c", "d"]),
        ("only_blank_answers", [0.9] * 4, [" "] * 4),
        ("mean_score_too_high", [0.1, 0.2, 0.9, 0.9], ["a", "b", "a", "d"]),
    ]
    draws = CandidateBatch.from_arrays([scores for _, scores, _ in rows], [answers for *_, answers in rows])
    decisions = decide(artifact, draws, cut=0.4)
    assert [decisions.find_reason(row) for row in range(len(rows))] == [reason for reason, *_ in rows]


def test_decide_refuses_another_number_of_candidates() -> None:
    with pytest.raises(InputError, match="calibrated with n = 5 candidates per prompt, got 2"):
        decide(make_artifact(), CandidateBatch.from_arrays([[0.5, 0.5]]), "0.2")


def test_decide_requires_a_calibrated_level() -> None:
    draws = CandidateBatch.from_arrays([[0.5] * 5])
    with pytest.raises(InputError, match="several promises"):
        decide(make_artifact(), draws)
    with pytest.raises(InputError, match="not calibrated at alpha"):
        decide(make_artifact(), draws, 0.3)


def test_decide_requires_the_metadata_and_answers_of_the_features() -> None:
    with pytest.raises(FeatureError, match="no metadata 'topic'"):
        decide(make_artifact("group(topic)"), CandidateBatch.from_arrays([[0.5] * 5]), "0.2")
    with pytest.raises(FeatureError, match="need the candidates' answers"):
        decide(make_artifact("entropy"), CandidateBatch.from_arrays([[0.5] * 5]), "0.2")


def test_decide_with_marginal_gives_all_prompts_one_threshold() -> None:
    artifact = make_artifact(FEATURES[-1])
    draws = tabulate(make_records(1, 50)).draws
    marginal = decide(artifact, draws, "0.4", marginal=True)
    assert len(set(marginal.thresholds)) == 1
    assert len(set(decide(artifact, draws, "0.4").thresholds)) > 10


def test_decide_flags_prompts_that_the_prompts_kept_do_not_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    # 600 prompts along a line with noise; 64 are kept, and those say nothing of a prompt far out.
    rng = np.random.default_rng(2)
    records = [
        PromptRecord(
            id=f"p{row}",
            input=f"p{row}",
            metadata={"t": float(t)},
            candidates=(Candidate(text="x", score=float(0.5 + 0.01 * t * rng.random()), correct=True),),
        )
        for row, t in enumerate(rng.random(600))
    ]
    # The map was fitted on a range that the calibration prompts fill a small part of.
    line = FeatureMap.parse("meta(t)").fit(
        CandidateBatch.from_arrays([[0.5]] * 2, metadata=[{"t": -40.0}, {"t": 1.0}])
    )
    asked = CandidateBatch.from_arrays([[0.5]] * 2, metadata=[{"t": 0.5}, {"t": -10.0}])
    set_window(monkeypatch, 16)
    few = decide(calibrate(records, alpha="0.2", features=line), asked)
    set_window(monkeypatch, None)
    everything = decide(calibrate(records, alpha="0.2", features=line), asked)
    assert few.find_reason(0) == everything.find_reason(0) == "answered"
    assert few.find_reason(1) == "not_certifiable"
    assert everything.find_reason(1) != "not_certifiable"
