"""Which targets are attainable with given records, whatever the threshold rule."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from fractions import Fraction

import numpy as np
import pytest

from langchain_cfc import Candidate, PromptRecord, calibrate
from langchain_cfc.calibration.checks import compute_smallest_alpha, compute_smallest_size, is_attainable
from langchain_cfc.decision import decide
from langchain_cfc.errors import AttainabilityWarning, UnattainableTargetError
from langchain_cfc.records import tabulate
from langchain_cfc.thresholds import GroupedThreshold


def list_sizes(largest: int) -> Iterator[tuple[int, int]]:
    """Every number of prompts and of those with a success score below the cap."""
    return ((size, reached) for size in range(1, largest + 1) for reached in range(size + 1))


def has_finite_threshold(alpha: str, size: int, reached: int) -> bool:
    """Whether the marginal rule itself finds a threshold below the cap."""
    scores = [0.5] * reached + [2.0] * (size - reached)
    return math.isfinite(GroupedThreshold(alpha).fit([[1.0]] * size, scores).threshold([1.0]))


@pytest.mark.parametrize("alpha", ["0.05", "0.1", "0.3", "0.5"])
def test_is_attainable_exactly_where_the_marginal_rule_is_finite(alpha: str) -> None:
    answers = {(size, reached): is_attainable(alpha, size, reached) for size, reached in list_sizes(30)}
    assert answers == {
        (size, reached): has_finite_threshold(alpha, size, reached) for size, reached in list_sizes(30)
    }
    assert set(answers.values()) == {True, False}


def test_smallest_alpha_is_attainable_and_anything_below_is_not() -> None:
    for size, reached in list_sizes(40):
        alpha = round(10_000 * compute_smallest_alpha(size, reached))
        if alpha < 10_000:
            assert is_attainable(f"{alpha / 10_000:.4f}", size, reached)
        if alpha > 1:
            assert not is_attainable(f"{(alpha - 1) / 10_000:.4f}", size, reached)


@pytest.mark.parametrize("alpha", ["0.05", "0.1", "0.2", "0.3", "0.5"])
def test_smallest_size_equals_a_search_over_every_size(alpha: str) -> None:
    tau = 1 - Fraction(alpha)
    for size, reached in list_sizes(25):
        share = Fraction(reached, size)
        tried = (one for one in range(1, 1000) if math.ceil((one + 1) * tau) <= math.floor(share * one))
        assert compute_smallest_size(alpha, share) == (next(tried) if share > tau else None)


def test_smallest_size_reads_a_decimal_share_as_written() -> None:
    # As a binary number, 0.7 is a little less than seven tenths.
    assert compute_smallest_size("0.38", 0.7) == compute_smallest_size("0.38", Fraction(7, 10)) == 10
    assert compute_smallest_size("0.38", Fraction(0.7)) != 10


def make_some_hopeless(size: int, hopeless: int, topics: tuple[str, ...] = ("all",)) -> list[PromptRecord]:
    """Prompts of one candidate each, of which the first `hopeless` are wrong."""
    return [
        PromptRecord(
            id=f"p{row}",
            input=f"p{row}",
            metadata={"topic": topics[row % len(topics)]},
            candidates=(Candidate(text="?", score=row / size, correct=row >= hopeless),),
        )
        for row in range(size)
    ]


def test_calibrate_refuses_an_unattainable_target_and_says_what_would_do() -> None:
    # 17 of 20 can be covered. Smallest alpha: 1 - 17 / 21 = 0.19048. At alpha = 0.18 and this share (0.85):
    # the smallest size is the first N with ceil(0.82 (N + 1)) <= floor(0.85 N).
    tried = (
        n for n in range(1, 99) if math.ceil((n + 1) * Fraction("0.82")) <= math.floor(n * Fraction("0.85"))
    )
    needed = next(tried)
    with pytest.raises(UnattainableTargetError) as caught:
        calibrate(make_some_hopeless(20, 3), alpha="0.18", features="1")
    message = str(caught.value)
    assert "alpha = 0.18 is out of reach: the promise can be kept for 17 of 20" in message
    assert "attainable coverage 0.850" in message
    assert f"add questions (at least {needed})" in message
    assert message.endswith("alpha=0.1905, or allow_unattainable=True")
    assert calibrate(make_some_hopeless(20, 3), alpha="0.1905", features="1").alphas == ("0.1905",)
    # The size that is named suffices: so many prompts with that share.
    calibrate(
        make_some_hopeless(needed, needed - math.floor(needed * Fraction("0.85"))), alpha="0.18", features="1"
    )


def test_calibrate_says_if_no_number_of_prompts_is_enough() -> None:
    with pytest.raises(UnattainableTargetError, match="Draw more answers, improve the model, or"):
        calibrate(make_some_hopeless(20, 3), alpha="0.15", features="1")


def test_calibrate_refuses_by_the_strictest_of_several_levels() -> None:
    with pytest.raises(UnattainableTargetError, match=r"alpha = 0\.1 is out of reach"):
        calibrate(make_some_hopeless(20, 3), alpha=["0.3", "0.1"], features="1")


@pytest.mark.parametrize("delta", [None, "0.05"])
def test_allow_unattainable_flags_every_prompt(delta: str | None) -> None:
    artifact = calibrate(
        make_some_hopeless(20, 3), alpha="0.1", features="1", delta=delta, allow_unattainable=True
    )
    decisions = decide(artifact, tabulate(make_some_hopeless(5, 0)).draws)
    assert decisions.not_certifiable.all()
    assert not decisions.accepted.any()


def make_half_hopeless_topic() -> list[PromptRecord]:
    """80 prompts; every fourth is of topic `b`, and half of these have no correct candidate."""
    return [
        PromptRecord(
            id=f"p{row}",
            input=f"p{row}",
            metadata={"topic": "b" if row % 4 == 0 else "a"},
            candidates=(Candidate(text="?", score=row / 80, correct=row % 8 != 0),),
        )
        for row in range(80)
    ]


def test_calibrate_warns_of_an_unattainable_group_by_name() -> None:
    with pytest.warns(AttainabilityWarning) as caught:
        artifact = calibrate(make_half_hopeless_topic(), alpha="0.3", features="group(topic)")
    message = str(caught[0].message)
    group = artifact.calibration.groups[2]
    named = f"topic: b (smallest alpha {group.smallest_alpha:.3f})"
    assert len(caught) == 1
    assert caught[0].filename == __file__  # the caller of `calibrate` is shown
    assert f"1 guaranteed group(s), whose prompts will often be flagged. The worst is {named}" in message
    assert group.name == "group(topic)=b"
    assert "topic: a" not in message
    # The warning is correct: these prompts are flagged, and no others.
    asked = tabulate(make_half_hopeless_topic())
    flagged = decide(artifact, asked.draws).not_certifiable
    assert [entries["topic"] == "b" for entries in asked.draws.metadata] == flagged.tolist()


def test_smallest_alpha_of_a_group_is_where_its_threshold_is_finite() -> None:
    artifact = calibrate(make_half_hopeless_topic(), alpha="0.9", features="group(topic)")
    group = artifact.calibration.groups[2]
    b = next(row for row, one in enumerate(make_half_hopeless_topic()) if one.metadata["topic"] == "b")
    draws = tabulate(make_half_hopeless_topic()).draws.take(np.array([b]))
    for step, flagged in ((-1e-4, True), (1e-4, False)):
        alpha = f"{group.smallest_alpha + step:.6f}"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", AttainabilityWarning)
            near = calibrate(make_half_hopeless_topic(), alpha=alpha, features="group(topic)")
        assert decide(near, draws).not_certifiable.tolist() == [flagged]


def test_calibration_facts_report_attainable_coverage_of_every_weighting() -> None:
    # With a map that was fitted before, all twelve prompts calibrate: topic `x` has 2 of 6 hopeless, `y` 1 of
    # 6.
    records = make_some_hopeless(12, 3, ("x", "y"))
    fitted = calibrate(
        make_some_hopeless(40, 0, ("x", "y")), alpha="0.5", features="group(topic)"
    ).feature_map
    facts = calibrate(records, alpha="0.5", features=fitted).calibration
    assert facts.attainable_coverage == 9 / 12
    found = [(group.name, group.size, group.attainable, group.smallest_alpha) for group in facts.groups]
    assert found == [
        ("1", 12.0, 9 / 12, 1 - 9 / 13),
        ("group(topic)=x", 6.0, 4 / 6, 1 - 4 / 7),
        ("group(topic)=y", 6.0, 5 / 6, 1 - 5 / 7),
    ]
    assert facts.groups[1].words == "prompts whose topic is 'x'"
