"""Policies that answer or abstain: how often is the certified wrong-answer rate exceeded, and what is left of
the promise about sets?

Every repetition draws fresh prompts, calibrates, certifies, saves and loads. The wrong-answer rate of the
policy is then not estimated but a finite sum over all kinds of prompts (see `laws`), or a formula. A refusal
is no failure: nothing is promised.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from langchain_cfc import FeatureMap, calibrate, certificates
from langchain_cfc.artifact import CalibrationArtifact
from langchain_cfc.candidates import CandidateBatch, LabelledBatch
from langchain_cfc.certificates import certify_policy
from langchain_cfc.decision import decide
from langchain_cfc.errors import UnattainableTargetError
from langchain_cfc.guarantee import AnswerPolicy
from tests.factories import find_delta, plan_first_test, reload_artifact
from tests.guarantees.promises import compute_log_wealth
from tests.lengths import repetitions

from .laws import (
    ALARM,
    ROUND_OFF,
    Outcome,
    Reloaded,
    World,
    draw_ids,
    has_broken_bound,
    is_same_as_served,
    is_too_often,
    serve_prompts,
)

pytestmark = pytest.mark.filterwarnings("ignore::langchain_cfc.errors.AttainabilityWarning")


@pytest.fixture(scope="module")
def world() -> World:
    """Scores tell little, and all tiers are alike: near the rate asked for there are many policies."""
    return World((0.5, 0.5, 0.5, 0.5), told=1.2)


def get_policy(artifact: CalibrationArtifact) -> tuple[str, AnswerPolicy]:
    certificate = artifact.certified_policy.certificate
    return certificate.alpha, certificate.policy


def compute_wrong_rate(seen: Outcome, weights: Any = None) -> float:
    """The share of answered prompts that get a wrong best answer; 0.0 where nothing is answered."""
    answered = seen.decisions.answered
    share = seen.mean(answered, weights)
    return seen.mean(seen.wrong & answered, weights) / share if share > 0.0 else 0.0


def exceeds_rate(world: World, artifact: CalibrationArtifact, rate: str) -> bool:
    """Whether the true wrong-answer rate is above the certified one, overall or in any certified group."""
    seen = world.truth(artifact, *get_policy(artifact))
    named = {one.name: one for one in artifact.feature_map.list_guaranteed_weights()}
    return any(
        compute_wrong_rate(seen, named[group.name].compute_values(seen.decisions.features))
        > float(rate) + ROUND_OFF
        for group in artifact.certified_policy.certificate.groups
        if group.certified
    )


def list_policies(n: int) -> Iterator[AnswerPolicy]:
    for most in (None, *range(1, n)):
        for agreement in range(1, n + 1):
            yield AnswerPolicy(max_answers=most, min_agreement=agreement)


# The certified wrong-answer rate --------------------------------------------------------------------------
# It is exceeded in at most delta = 0.1 of all repetitions. 150 of them refute delta from 41 failures on
# (0.27). The features are many for 50 calibration prompts, so that policies look better there than they are.
# At a rate of 0.3 hardly any policy is good enough, which is where mistakes would show; at 0.5 most are.
LEVELS = ("0.1", "0.2", "0.3", "0.5")
FEATURES = "hat(mean_score, 12) + hat(std_score, 8)"
DELTA = "0.1"
SURE: dict[str, Any] = {"delta": find_delta(DELTA)}


def calibrate_bot(
    records: LabelledBatch, features: FeatureMap, rate: str, delta: str = DELTA, **options: Any
) -> CalibrationArtifact | None:
    """None where the rate is refused."""
    try:
        return calibrate(
            records,
            alpha=LEVELS,
            features=features,
            max_wrong_rate=rate,
            delta=find_delta(delta),
            certification_fraction=0.5,
            allow_unattainable=True,
            **options,
        )
    except UnattainableTargetError:
        return None


@pytest.mark.long
@pytest.mark.parametrize(("rate", "least"), [("0.3", 0.02), ("0.5", 0.5)])
def test_certified_wrong_rate_is_rarely_exceeded(rate: str, least: float, world: World) -> None:
    rng = np.random.default_rng(1)
    features = FeatureMap.parse(FEATURES).fit(world.everything.draws)
    tried, failures, answering, sets_failed = repetitions(150), 0, 0, 0
    for _ in range(tried):
        made = calibrate_bot(world.sample(rng, 100), features, rate)
        if made is None:
            continue
        artifact = reload_artifact(made)
        failures += exceeds_rate(world, artifact, rate)
        # What the same prompts certify about the sets of every level that they chose among, all together.
        sets_failed += any(
            has_broken_bound(one, world.truth(artifact, one.alpha), artifact)
            for one in artifact.certified_policy.coverage
        )
        answering += 1
        if answering <= 3:
            test = world.sample(rng, 20)
            alpha, policy = get_policy(artifact)
            decisions = decide(artifact, test.draws, alpha, policy=policy)
            assert is_same_as_served(decisions, serve_prompts(artifact, test, max_wrong_rate=rate))
    assert not is_too_often(failures, tried, float(DELTA))
    assert not is_too_often(sets_failed, tried, float(DELTA))
    assert answering > least * tried


@pytest.mark.long
def test_untested_and_in_sample_policies_exceed_the_wrong_rate(
    world: World,
) -> None:
    # The controls of the test above: no sequence of tests, and the same tests, exact p-values and all, on the
    # prompts that the thresholds were fitted to.
    rng = np.random.default_rng(2)
    features = FeatureMap.parse(FEATURES).fit(world.everything.draws)
    tried, rate = repetitions(100), "0.3"
    looking_good = in_sample = 0
    for _ in range(tried):
        records = world.sample(rng, 100)
        artifact = calibrate(
            records, alpha=LEVELS, features=features, certification_fraction=0.5, allow_unattainable=True
        )
        rows = artifact.calibration.split.list_rows(records)
        used, held_out = records.take(rows["calibration"]), records.take(rows["certification"])
        looking_good += best_looking_exceeds(world, artifact, held_out, float(rate))
        try:
            again = certify_policy(
                artifact, used, plan_first_test(used), max_wrong_rate=rate, delta=find_delta(DELTA)
            )
        except UnattainableTargetError:
            continue
        in_sample += exceeds_rate(world, again, rate)  # loading it would refuse it
    assert is_too_often(looking_good, tried, float(DELTA))
    assert is_too_often(in_sample, tried, float(DELTA))


def best_looking_exceeds(
    world: World, artifact: CalibrationArtifact, held_out: LabelledBatch, rate: float
) -> bool:
    """Control: of all policies whose wrong answers on the third split are few enough, the most helpful."""
    found: list[tuple[int, str, AnswerPolicy]] = []
    for alpha in artifact.alphas:
        every_set = decide(artifact, held_out.draws, alpha)
        for policy in list_policies(artifact.n):
            decisions = replace(every_set, policy=policy)
            right = held_out.correct[np.arange(len(held_out)), decisions.best]
            answered = int(decisions.answered.sum())
            if answered and (decisions.answered & ~right).sum() <= rate * answered:
                found.append((answered, alpha, policy))
    if not found:
        return False
    _, alpha, policy = max(found, key=lambda one: one[0])
    return compute_wrong_rate(world.truth(artifact, alpha, policy)) > rate + ROUND_OFF


# All three groups and all prompts together: half of delta = 0.05 goes to the groups. Of 250 repetitions 37
# failures refute it. With the share of wrong answers itself in place of its p-value, as a control, some group
# fails far more often.
@pytest.mark.long
def test_certified_wrong_rate_is_rarely_exceeded_in_any_group(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(3)
    tiers = World((0.55, 0.5, 0.5, 0.45), told=1.2)
    features = FeatureMap.parse("group(tier)").fit(tiers.everything.draws)
    rate, delta = "0.3", "0.05"

    def failures(tried: int, through_a_file: Reloaded) -> int:
        made = (
            calibrate_bot(tiers.sample(rng, 400), features, rate, delta, wrong_rate_groups=True)
            for _ in range(tried)
        )
        artifacts = [through_a_file(one) for one in made if one is not None]
        groups = [one.certified_policy.certificate.groups[1:] for one in artifacts]
        assert any(group.certified for some in groups for group in some)
        return sum(exceeds_rate(tiers, one, rate) for one in artifacts)

    tried = repetitions(250)
    assert not is_too_often(failures(tried, reload_artifact), tried, float(delta))
    monkeypatch.setattr(certificates.policies, "binomial_p_value", compare_plain_share)
    # Loading these would refuse them.
    assert is_too_often(failures(tried, lambda made: made), tried, float(delta))


def compare_plain_share(wrong: int, answered: int, rate: float) -> float:
    """A p-value that is none: 0 where the share does not exceed the rate."""
    return float(wrong > rate * answered)


# The promise about sets -----------------------------------------------------------------------------------
# Two candidates, each correct with probability 1 - score, and never the same answer: the looser the threshold
# the more often the best answer is wrong. Whether a policy passes thus depends on the threshold, and so on
# the calibration set: those with strict thresholds pass, and their sets cover too little. The promise on
# average over calibration sets is one over all of them, for a level fixed beforehand, whether or not a policy
# is found; over those where one is found it is lost, although no certification prompt was used twice. What
# holds with confidence for the very artifact survives any choice among artifacts, and so does what the
# certification prompts certify about the sets. With Z = coverage - tau
# counted as 0 where no policy is found, 800 repetitions resolve x = 0.012.
LEVEL, TAU = "0.3", 0.7
ONE = CandidateBatch.from_arrays([[0.5, 0.5]], [["a", "b"]])


def draw_telling_prompts(rng: np.random.Generator, size: int) -> LabelledBatch:
    scores = rng.random((size, 2))
    correct = rng.random((size, 2)) < 1.0 - scores
    return LabelledBatch.from_arrays(draw_ids(rng, size), scores, correct, [["a", "b"]] * size)


def compute_kept_share(artifact: CalibrationArtifact) -> float:
    """The probability that a threshold t covers or flags: 1 - (1 - (t - t^2 / 2))^2 below the cap."""
    threshold = float(decide(artifact, ONE).thresholds[0])
    t = min(max(threshold, 0.0), 1.0)
    return 1.0 if threshold == np.inf else 1.0 - (1.0 - (t - t * t / 2.0)) ** 2


@pytest.mark.long
def test_set_promise_survives_a_policy_only_with_confidence() -> None:
    rng = np.random.default_rng(3)
    tried = repetitions(800)
    before, where_found, after = [], [], []
    failures = {True: 0, False: 0}
    certified_too_much = shares_too_large = 0
    for _ in range(tried):
        calibration, certification = draw_telling_prompts(rng, 49), draw_telling_prompts(rng, 1000)
        for confident in failures:
            artifact = calibrate(
                calibration,
                alpha=LEVEL,
                features="1",
                allow_unattainable=True,
                **(SURE if confident else {}),
            )
            gap = compute_kept_share(reload_artifact(artifact)) - TAU
            try:
                served = certify_policy(
                    artifact,
                    calibration,
                    plan_first_test(certification),
                    max_wrong_rate="0.3",
                    delta=find_delta(DELTA),
                )
            except UnattainableTargetError:
                found = False
            else:
                found = True
                failures[confident] += compute_kept_share(served) < TAU - ROUND_OFF
            if not confident and found:
                # What bot mode says of its sets instead; and, as a control, the share that was seen.
                seen = served.certified_policy.coverage[0].shares[0]
                certified_too_much += seen.kept_at_least > compute_kept_share(served) + ROUND_OFF
                shares_too_large += seen.kept / seen.prompts > compute_kept_share(served) + ROUND_OFF
            if not confident:
                before.append(gap)
                where_found.append(gap if found else 0.0)
                # Sets of more than one answer withheld.
                test = draw_telling_prompts(rng, 20)
                decisions = decide(reload_artifact(artifact), test.draws, policy=AnswerPolicy(max_answers=1))
                shown = decisions.accepted & decisions.answered[:, np.newaxis] & test.correct
                after.append(float(np.mean(shown.any(axis=1) | decisions.not_certifiable)) - TAU)
    assert compute_log_wealth(before, 1.0 - TAU) < ALARM
    assert compute_log_wealth(where_found, 1.0 - TAU) > 2 * ALARM
    assert compute_log_wealth(after, 1.0 - TAU) > 2 * ALARM
    assert not is_too_often(failures[True], tried, float(DELTA))
    assert is_too_often(failures[False], tried, float(DELTA))
    assert not is_too_often(certified_too_much, tried, float(DELTA))
    assert is_too_often(shares_too_large, tried, float(DELTA))
