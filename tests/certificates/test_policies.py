"""Policies that answer or abstain, and what is certified about their answers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy import stats

from langchain_cfc import CalibrationArtifact, Candidate, PromptRecord, calibrate
from langchain_cfc.artifact import TradeOff
from langchain_cfc.candidates import CandidateBatch, LabelledBatch
from langchain_cfc.certificates import certify, certify_policy
from langchain_cfc.certificates.coverage import compute_outcomes, compute_records_digest
from langchain_cfc.certificates.policies import _list_policies
from langchain_cfc.decision import decide
from langchain_cfc.demo import load_recording
from langchain_cfc.demo.replay import make_replay_parts
from langchain_cfc.errors import CalibrationError, InputError, UnattainableTargetError
from langchain_cfc.guarantee import AnswerPolicy, WrongRateCertificate
from langchain_cfc.records import tabulate
from langchain_cfc.runnable import CFCRunnable
from tests.certificates.prompts import make_replay_chain
from tests.factories import plan_first_test, reload_artifact
from tests.lengths import LONG, mostly_long, repetitions

from .prompts import TOPICS, prompts, take_part

KNOWN = prompts(0, 900, decimals=1)
FEWER = KNOWN[:450]
ALPHAS = ["0.1", "0.15", "0.2", "0.3"]

pytestmark = pytest.mark.filterwarnings("ignore::langchain_cfc.errors.AttainabilityWarning")


@pytest.fixture(scope="module")
def frozen() -> CalibrationArtifact:
    """An artifact of several levels without a policy, whose third split is untouched."""
    return calibrate(
        KNOWN, alpha=ALPHAS, features="group(topic)", certification_fraction=0.4, allow_unattainable=True
    )


@pytest.fixture(scope="module")
def bot() -> CalibrationArtifact:
    """An artifact with a policy, certified by calibration itself."""
    return calibrate(
        KNOWN, features="group(topic)", max_wrong_rate=0.10, delta="0.10", certification_fraction=0.3
    )


@pytest.fixture(scope="module")
def tuning(frozen: CalibrationArtifact) -> LabelledBatch:
    return take_part(frozen, KNOWN, "calibration")


@pytest.fixture(scope="module")
def tests(frozen: CalibrationArtifact) -> LabelledBatch:
    return take_part(frozen, KNOWN, "certification")


def get_curve(artifact: CalibrationArtifact) -> list[TradeOff]:
    assert artifact.policy is not None
    return artifact.policy.curve


def get_certificate(artifact: CalibrationArtifact) -> WrongRateCertificate:
    return artifact.certified_policy.certificate


def compute_plainly(
    artifact: CalibrationArtifact, labelled: LabelledBatch, alpha: str, policy: AnswerPolicy
) -> list[tuple[bool, bool]]:
    """Whether each prompt is answered, and wrongly, by loops over plain numbers."""
    solved = artifact.solve(artifact.feature_map.transform(labelled.draws), alpha)
    codes = labelled.draws.answer_codes
    assert codes is not None
    found = []
    for row in range(len(labelled)):
        threshold = float(solved.values[row])
        reach = threshold + float(solved.errors[row])
        scores, answers = labelled.draws.scores[row].tolist(), codes[row].tolist()
        inside = [slot for slot, score in enumerate(scores) if threshold < math.inf and score <= reach]
        if not inside and threshold < math.inf:
            inside = [scores.index(min(scores))]
        if not inside:
            found.append((False, False))
            continue
        best = min(inside, key=lambda slot: (scores[slot], slot))
        few = policy.max_answers is None or len({answers[slot] for slot in inside}) <= policy.max_answers
        agreed = sum(answer == answers[best] for answer in answers) >= policy.min_agreement
        certain = policy.max_mean_score is None or float(np.mean(scores)) <= policy.max_mean_score
        answered = few and agreed and certain
        found.append((answered, answered and not labelled.correct[row, best]))
    return found


def count_answers(found: Sequence[tuple[bool, bool]]) -> tuple[int, int]:
    return sum(answered for answered, _ in found), sum(wrong for _, wrong in found)


def sort_by_tuning(
    artifact: CalibrationArtifact, tuning: LabelledBatch, curve: Sequence[TradeOff]
) -> list[TradeOff]:
    """The policies in the order of their tests: each answers more tuning prompts than those before."""
    return sorted(
        curve, key=lambda one: count_answers(compute_plainly(artifact, tuning, one.alpha, one.policy))[0]
    )


@mostly_long("rate", ["0.05", "0.1", "0.2"], quick=1)
def test_certify_policy_equals_an_independent_computation(
    rate: str, frozen: CalibrationArtifact, tuning: LabelledBatch, tests: LabelledBatch
) -> None:
    artifact = certify_policy(frozen, tuning, plan_first_test(tests), max_wrong_rate=rate, delta="0.125")
    curve, certificate = get_curve(artifact), get_certificate(artifact)
    assert len({(one.alpha, one.policy) for one in curve}) == len(curve) > 2
    assert [one.answered for one in curve] == sorted(one.answered for one in curve)
    for one in curve:
        answered, wrong = count_answers(compute_plainly(frozen, tests, one.alpha, one.policy))
        assert (one.answered, one.wrong) == (answered, wrong)
        # All bounds of the curve hold together: delta is divided by their number.
        test = stats.binomtest(wrong, answered, alternative="less")
        bound = test.proportion_ci(1 - 0.1 / len(curve), method="exact").high
        assert one.wrong_rate_at_most == pytest.approx(float(bound), abs=1e-7)
        assert one.wrong_rate_at_most > test.proportion_ci(0.9, method="exact").high + 1e-4
    chain = sort_by_tuning(frozen, tuning, curve)
    p_values = [stats.binom.cdf(one.wrong, one.answered, float(rate)) for one in chain]
    passed = next(
        (place for place, p in enumerate(p_values) if p > 0.09), len(chain)
    )  # the sets have a tenth of the level
    assert passed > 0
    chosen = chain[passed - 1]
    (everyone,) = certificate.groups
    assert (certificate.alpha, certificate.policy) == (chosen.alpha, chosen.policy)
    assert (everyone.answered, everyone.wrong) == (chosen.answered, chosen.wrong)
    assert (everyone.name, everyone.prompts, everyone.certified) == ("1", len(tests), True)
    assert certificate.policies_tested == min(passed + 1, len(chain))
    assert (certificate.max_wrong_rate, certificate.delta, certificate.prompts) == (rate, "0.125", len(tests))
    assert certificate.records_digest == compute_records_digest(tests)
    assert certificate.artifact_digest == frozen.frozen_digest


def test_independent_policy_computation_notices_other_rules(
    frozen: CalibrationArtifact, tests: LabelledBatch
) -> None:
    # Scores of one decimal tie often: the last of the best, or agreement within the set, are other policies.
    found = decide(frozen, tests.draws, "0.15")
    scores = np.where(found.accepted, tests.draws.scores, np.inf)
    last = 3 - scores[:, ::-1].argmin(axis=1)
    wrong_of_last = ~tests.correct[np.arange(len(tests)), last] & found.accepted.any(axis=1)
    _, wrong = count_answers(compute_plainly(frozen, tests, "0.15", AnswerPolicy()))
    assert wrong_of_last.sum() != wrong
    codes = tests.draws.answer_codes
    assert codes is not None
    same = codes == np.take_along_axis(codes, found.best[:, np.newaxis], axis=1)
    within = ((same & found.accepted).sum(axis=1) >= 3) & found.accepted.any(axis=1)
    answered, _ = count_answers(compute_plainly(frozen, tests, "0.15", AnswerPolicy(min_agreement=3)))
    assert within.sum() < answered


@pytest.mark.parametrize(
    "policy",
    [AnswerPolicy(), AnswerPolicy(max_answers=1), AnswerPolicy(max_answers=2, min_agreement=3)],
    ids=["every set", "one answer", "two answers of three"],
)
@pytest.mark.parametrize("alpha", ALPHAS)
def test_compute_outcomes_equals_plain_loops(
    alpha: str, policy: AnswerPolicy, frozen: CalibrationArtifact, tests: LabelledBatch
) -> None:
    seen = compute_outcomes(frozen, tests, alpha, policy)
    answered = seen.decisions.answered
    plain = compute_plainly(frozen, tests, alpha, policy)
    assert list(zip(answered.tolist(), (answered & seen.wrong).tolist(), strict=True)) == plain
    assert sum(answered) > 0
    # An empty set does not count as a wrong answer, whatever the first candidate is.
    empty = ~seen.decisions.accepted.any(axis=1)
    assert (empty == seen.decisions.not_certifiable).all()
    assert not seen.wrong[empty].any()
    # From the outcomes under one policy follow those under another.
    assert compute_outcomes(frozen, tests, alpha).answered_under(policy).tolist() == answered.tolist()


@pytest.mark.parametrize("set_rule", ["all", "unique(all)", "best_prefix"])
def test_policy_decides_each_prompt_alone_as_in_a_batch(set_rule: str, tests: LabelledBatch) -> None:
    artifact = calibrate(KNOWN, alpha="0.15", features="mean_score + group(topic)", set_rule=set_rule)
    policy = AnswerPolicy(max_answers=2, min_agreement=2)
    together = decide(artifact, tests.draws, policy=policy)
    reasons = [together.find_reason(row) for row in range(len(tests))]
    assert {"answered", "too_little_agreement"} <= set(reasons)
    for row in range(0, len(tests), 1 if LONG else 4):
        alone = decide(artifact, tests.draws.take(np.array([row])), policy=policy)
        assert alone.find_reason(0) == reasons[row]
        assert alone.answered[0] == together.answered[row] == (reasons[row] == "answered")
        assert alone.best[0] == together.best[row]
        assert alone.agreement[0] == together.agreement[row]
        assert alone.distinct_answers[0] == together.distinct_answers[row]
    # A policy withholds sets without changing them.
    every = decide(artifact, tests.draws)
    np.testing.assert_array_equal(every.accepted, together.accepted)
    assert every.answered.sum() > together.answered.sum()


def test_policy_on_agreement_needs_answers(frozen: CalibrationArtifact) -> None:
    draws = CandidateBatch.from_arrays([[0.1] * 4], metadata=[{"topic": "art"}])
    with pytest.raises(InputError, match="agreement needs the candidates' answers"):
        _ = decide(frozen, draws, "0.2", policy=AnswerPolicy(min_agreement=2)).answered
    # The number of accepted candidates bounds the number of distinct answers.
    assert not decide(frozen, draws, "0.2", policy=AnswerPolicy(max_answers=3)).answered[0]
    assert decide(frozen, draws, "0.2", policy=AnswerPolicy(max_answers=4)).answered[0]


def permute_labels(labelled: LabelledBatch, seed: int) -> LabelledBatch:
    """The same prompts with the labels of others."""
    order = np.random.default_rng(seed).permutation(len(labelled))
    return replace(labelled, correct=labelled.correct[order])


def test_policies_tested_do_not_depend_on_certification_labels(
    frozen: CalibrationArtifact, tuning: LabelledBatch, tests: LabelledBatch
) -> None:
    def run(tune: LabelledBatch, test: LabelledBatch, rate: str) -> list[TradeOff]:
        return get_curve(
            certify_policy(frozen, tune, plan_first_test(test), max_wrong_rate=rate, delta="0.1")
        )

    def tested(curve: list[TradeOff]) -> list[tuple[str, AnswerPolicy, int]]:
        return [(one.alpha, one.policy, one.answered) for one in curve]

    def wrongs(curve: list[TradeOff]) -> list[int]:
        return [one.wrong for one in curve]

    everything_right = replace(tests, correct=np.ones_like(tests.correct))
    for rate in ("0.1", "0.6"):
        first = run(tuning, tests, rate)
        assert tested(run(tuning, everything_right, rate)) == tested(first)
    for seed in range(repetitions(3, share=1 / 3)):
        other = run(tuning, permute_labels(tests, seed), "0.6")
        assert tested(other) == tested(first)
        assert wrongs(other) != wrongs(first)  # the labels did change something
    # The labels of the tuning prompts do influence which policies are tested.
    assert tested(run(permute_labels(tuning, 0), tests, "0.6")) != tested(first)


def test_list_policies_offers_quarters_of_candidates_and_tenths_of_prompts() -> None:
    known = prompts(3, 1_000, n=8, decimals=12)
    artifact = calibrate(known, alpha="0.2", features="1", allow_unattainable=True)
    tuning = take_part(artifact, known, "calibration")
    offered = [one.policy for one in _list_policies(artifact, "0.2", tuning)]
    assert {one.min_agreement for one in offered} == {1, 2, 4, 6, 8}
    assert {one.max_answers for one in offered} == {1, 2, 3, 5, None}
    cuts = sorted({one.max_mean_score for one in offered if one.max_mean_score is not None})
    means = tuning.draws.scores.mean(axis=1)
    shares = [float((means <= cut).mean()) for cut in cuts]
    assert shares == pytest.approx([step / 10 for step in range(1, 10)], abs=2 / len(means))


def test_policy_tests_stop_at_the_first_failure(
    frozen: CalibrationArtifact, tuning: LabelledBatch, tests: LabelledBatch
) -> None:
    rate, delta, level = 0.1, 0.125, 0.09
    right = replace(tests, correct=np.ones_like(tests.correct))
    start = certify_policy(frozen, tuning, plan_first_test(right), max_wrong_rate=str(rate), delta=str(delta))
    chain = sort_by_tuning(frozen, tuning, get_curve(start))
    assert get_certificate(start).policies_tested == len(chain)
    answered = [np.array(compute_plainly(frozen, tests, one.alpha, one.policy))[:, 0] for one in chain]
    found = 0
    for place in range(1, len(chain) - 1):
        # Wrong is what this one answers and none before; everything else is right.
        added = answered[place] & ~np.any(answered[:place], axis=0)
        labelled = replace(right, correct=np.where(added[:, np.newaxis], np.False_, right.correct))
        p = [stats.binom.cdf(int((added & one).sum()), int(one.sum()), rate) for one in answered]
        first = next((step for step, value in enumerate(p) if value > level), len(p))
        again = any(value <= level for value in p[first:])
        if first == len(p) or not again:
            continue
        if found and not LONG:
            break
        found += 1
        artifact = certify_policy(
            frozen, tuning, plan_first_test(labelled), max_wrong_rate=str(rate), delta=str(delta)
        )
        certificate = get_certificate(artifact)
        assert certificate.policies_tested == first + 1
        served = chain[first - 1]
        assert (certificate.alpha, certificate.policy) == (served.alpha, served.policy)
    assert found  # there was a later policy that would have passed


def test_policy_groups_have_half_of_delta_and_their_own_sequences(
    frozen: CalibrationArtifact, tuning: LabelledBatch, tests: LabelledBatch
) -> None:
    # On the sea nothing is answered rightly; elsewhere all is.
    sea = np.array([one["topic"] == "sea" for one in tests.draws.metadata])
    lost = np.flatnonzero(sea)[::2]
    correct = np.ones_like(tests.correct)
    correct[lost] = False
    labelled = replace(tests, correct=correct)
    artifact = certify_policy(
        frozen, tuning, plan_first_test(labelled), max_wrong_rate="0.3", delta="0.1", by_group=True
    )
    certificate = get_certificate(artifact)
    everyone, *groups = certificate.groups
    assert [group.name for group in groups] == [f"group(topic)={topic}" for topic in TOPICS]
    assert [group.certified for group in groups] == [True, True, False]
    plain = np.array(compute_plainly(frozen, labelled, certificate.alpha, certificate.policy))
    chain = sort_by_tuning(frozen, tuning, get_curve(artifact))
    topics = np.array([one["topic"] for one in labelled.draws.metadata])
    members = {f"group(topic)={topic}": topics == topic for topic in TOPICS}
    members["1"] = np.ones(len(labelled), dtype=np.bool_)
    outcomes = [np.array(compute_plainly(frozen, labelled, one.alpha, one.policy)) for one in chain]
    reached = {}
    for group in certificate.groups:
        inside = members[group.name]
        assert group.prompts == inside.sum()
        assert (group.answered, group.wrong) == tuple(plain[inside].sum(axis=0))
        p_values = []
        for one in outcomes:
            counts = one[inside].sum(axis=0)
            p_values.append(stats.binom.cdf(counts[1], counts[0], 0.3) if counts[0] else 1.0)
        allowed = 0.036 if group is everyone else 0.036 / 3
        reached[group.name] = next((place for place, p in enumerate(p_values) if p > allowed), len(chain))
    place = next(
        place
        for place, one in enumerate(chain)
        if (one.alpha, one.policy) == (certificate.alpha, certificate.policy)
    )
    assert {group.name: group.certified for group in certificate.groups} == {
        name: place < count for name, count in reached.items()
    }
    # Of the policies certified over all prompts it is the one with most groups, and then with most answers.
    held = [sum(step < count for count in reached.values()) for step in range(reached["1"])]
    assert (held[place], place) == max((count, step) for step, count in enumerate(held))
    # Without groups all of delta is for all prompts, and nothing is said about any other.
    alone = get_certificate(
        certify_policy(frozen, tuning, plan_first_test(labelled), max_wrong_rate="0.3", delta="0.1")
    )
    assert [group.name for group in alone.groups] == ["1"]


def test_policy_halves_delta_if_groups_are_certified() -> None:
    # The rate has 72 % of delta = 0.07, that is 0.0504. One policy, 29 answered and none wrong: 0.9^29 =
    # 0.047 is below it and above half of it.
    known = [
        PromptRecord(
            id=f"k{row}",
            input=f"k{row}",
            metadata={"topic": "ab"[row % 2]},
            candidates=(Candidate(text="x", score=0.5, correct=True),),
        )
        for row in range(200)
    ]
    artifact = calibrate(known, alpha="0.5", features="group(topic)")
    tuning = tabulate(known)
    for size, groups, passes in ((29, False, True), (28, False, False), (29, True, False), (36, True, True)):
        test = tuning.take(np.arange(size))
        options: dict[str, Any] = {"max_wrong_rate": "0.1", "delta": "0.07", "by_group": groups}
        if not passes:
            with pytest.raises(UnattainableTargetError):
                certify_policy(artifact, tuning, plan_first_test(test), **options)
            continue
        assert (
            get_certificate(certify_policy(artifact, tuning, plan_first_test(test), **options))
            .groups[0]
            .certified
        )
    # The other half is for two groups: 42 prompts in each do, since 0.9^42 = 0.012, and 41 do not.
    for size, certified in ((82, [True, False, False]), (84, [True, True, True])):
        options = {"max_wrong_rate": "0.1", "delta": "0.07", "by_group": True}
        made = certify_policy(artifact, tuning, plan_first_test(tuning.take(np.arange(size))), **options)
        assert [group.certified for group in get_certificate(made).groups] == certified


def test_policy_refusal_prints_nothing_from_certification_labels(
    frozen: CalibrationArtifact, tuning: LabelledBatch, tests: LabelledBatch
) -> None:
    few = tests.take(np.arange(20))
    said = set()
    for correct in (few.correct, np.zeros_like(few.correct), np.ones_like(few.correct)):
        attempt = plan_first_test(replace(few, correct=correct))
        with pytest.raises(UnattainableTargetError, match="is not certified") as caught:
            certify_policy(frozen, tuning, attempt, max_wrong_rate="0.1", delta="0.05")
        said.add(str(caught.value))
        assert caught.value.attempts == attempt.end(certified=False)
    assert len(said) == 1
    # Control: figures of the calibration prompts, which do not certify, are printed.
    other = replace(tuning, correct=np.zeros_like(tuning.correct))
    with pytest.raises(UnattainableTargetError) as caught:
        certify_policy(frozen, other, plan_first_test(few), max_wrong_rate="0.1", delta="0.05")
    assert str(caught.value) not in said


Counts = dict[tuple[str, str], tuple[int, int]]


def make_two_policies(
    tuned: Counts, tested: Counts
) -> tuple[CalibrationArtifact, LabelledBatch, LabelledBatch]:
    """Prompts whose sets hold one answer or two; of each kind and topic so many are right and wrong."""
    known = [
        PromptRecord(
            id=f"k{row}",
            input=f"k{row}",
            metadata={"topic": "ab"[row % 2]},
            candidates=(Candidate(text="x", score=0.5, correct=True),) * 2,
        )
        for row in range(40)
    ]
    artifact = calibrate(known, alpha="0.5", features="group(topic)")

    def labelled(name: str, counts: Counts) -> LabelledBatch:
        rows = [
            (kind, topic, row < right)
            for (kind, topic), (right, wrong) in counts.items()
            for row in range(right + wrong)
        ]
        return LabelledBatch.from_arrays(
            [f"{name}{row}" for row in range(len(rows))],
            [[0.5, 0.5]] * len(rows),
            [[good, good] for _, _, good in rows],
            [["a", "a" if kind == "one" else "b"] for kind, _, _ in rows],
            metadata=[{"topic": topic} for _, topic, _ in rows],
        )

    return artifact, labelled("t", tuned), labelled("c", tested)


def test_policy_with_most_certified_groups_is_chosen() -> None:
    # All of one answer are right. Of two answers topic b has too many wrong ones, over all prompts not.
    counts: Counts = {("one", "a"): (100, 0), ("one", "b"): (100, 0), ("two", "a"): (100, 0)}
    counts["two", "b"] = (60, 40)
    artifact, tuning, tests = make_two_policies(counts, counts)
    options: dict[str, Any] = {"max_wrong_rate": "0.2", "delta": "0.05"}
    alone = get_certificate(certify_policy(artifact, tuning, plan_first_test(tests), **options))
    assert (alone.policy, alone.groups[0].answered) == (AnswerPolicy(), 400)
    groups = get_certificate(
        certify_policy(artifact, tuning, plan_first_test(tests), by_group=True, **options)
    )
    assert (groups.policy, groups.groups[0].answered) == (AnswerPolicy(max_answers=1), 200)
    assert [group.certified for group in groups.groups] == [True, True, True]


def test_policy_after_a_failed_one_is_not_certified_by_more_prompts() -> None:
    # Tuning likes sets of one answer best. On the certification prompts those are the ones that go wrong, and
    # since their test comes first, nothing certifies the policy behind it, however good it is.
    tuned: Counts = {("one", "a"): (300, 0), ("two", "b"): (100, 30)}
    artifact, tuning, tests = make_two_policies(tuned, {("one", "a"): (18, 4), ("two", "b"): (65, 0)})
    for times in (1, 10, 100):
        again = tests.take(np.tile(np.arange(len(tests)), times))
        with pytest.raises(UnattainableTargetError):
            certify_policy(artifact, tuning, plan_first_test(again), max_wrong_rate="0.1", delta="0.01")
    # By itself it passes: 4 of 87 wrong answers are few enough, if there are ten times as many prompts.
    assert stats.binom.cdf(40, 870, 0.1) <= 0.01


def test_policy_error_says_if_no_prompt_is_answered() -> None:
    artifact = calibrate(KNOWN[:40], alpha="0.05", features="1", allow_unattainable=True)
    tuning = tabulate(prompts(3, 30))
    with pytest.raises(UnattainableTargetError, match=r"no prompt is answered at any level \(0.05\)"):
        certify_policy(artifact, tuning, plan_first_test(tuning), max_wrong_rate="0.1", delta="0.05")


def test_calibrate_bot_with_too_few_prompts_names_a_remedy() -> None:
    options: dict[str, Any] = {"features": "group(topic)", "max_wrong_rate": "0.2"}
    with pytest.raises(CalibrationError, match="is empty"):
        calibrate(FEWER, certification_fraction=0.0, **options)
    with pytest.raises(UnattainableTargetError, match=r"needs about this many answered prompts: \d+ if none"):
        calibrate(FEWER, certification_fraction=0.01, **options)
    assert calibrate(FEWER, **options).policy


def test_calibrate_bot_stores_policy_level_and_groups(bot: CalibrationArtifact) -> None:
    artifact = bot
    certificate = get_certificate(artifact)
    tests = take_part(artifact, KNOWN, "certification")
    assert (certificate.max_wrong_rate, certificate.delta) == ("0.1", "0.1")
    assert certificate.records_digest == compute_records_digest(tests)
    assert certificate.artifact_digest == artifact.frozen_digest != artifact.digest
    # No level was asked for, so only the policy's is kept; levels that are asked for are all kept.
    assert artifact.alphas == (certificate.alpha,)
    assert calibrate(FEWER, alpha=ALPHAS, features="group(topic)", max_wrong_rate="0.1").alphas == (*ALPHAS,)
    loaded = reload_artifact(artifact)
    assert (loaded, loaded.digest) == (artifact, artifact.digest)
    groups = calibrate(
        FEWER,
        features="group(topic)",
        max_wrong_rate="0.2",
        delta="0.1",
        wrong_rate_groups=True,
        certification_fraction=0.3,
    )
    assert [group.name for group in get_certificate(groups).groups] == [
        "1",
        *(f"group(topic)={topic}" for topic in TOPICS),
    ]
    fresh = certify(artifact, prompts(5, 200), alpha=certificate.alpha)
    assert fresh.certificates[0].artifact_digest == certificate.artifact_digest
    assert fresh.policy == artifact.policy


def test_artifact_needs_answers_if_its_policy_uses_them(
    frozen: CalibrationArtifact, tuning: LabelledBatch, tests: LabelledBatch
) -> None:
    assert not frozen.needs_answers
    artifact = certify_policy(frozen, tuning, plan_first_test(tests), max_wrong_rate="0.1", delta="0.1")
    assert artifact.policy is not None
    for policy, needed in (
        (AnswerPolicy(), False),
        (AnswerPolicy(max_mean_score=0.5), False),
        (AnswerPolicy(max_answers=1), True),
        (AnswerPolicy(min_agreement=2), True),
    ):
        certificate = get_certificate(artifact).model_copy(update={"policy": policy})
        changed = artifact.policy.model_copy(update={"certificate": certificate})
        assert artifact.model_copy(update={"policy": changed}).needs_answers is needed


def test_calibrate_bot_refuses_answers_on_some_candidates_only() -> None:
    some, *others = KNOWN[0].candidates
    extracted = some.model_copy(update={"answer": "x"})
    first = KNOWN[0].model_copy(update={"candidates": (extracted, *others)})
    with pytest.raises(InputError, match="only some candidates have an extracted `answer`"):
        calibrate([first, *KNOWN[1:]], alpha="0.5", max_wrong_rate="0.1", features="group(topic)")


def test_policy_tests_a_level_without_the_others(
    frozen: CalibrationArtifact, tuning: LabelledBatch, tests: LabelledBatch
) -> None:
    artifact = certify_policy(
        frozen, tuning, plan_first_test(tests), max_wrong_rate="0.1", delta="0.1", keep_levels=False
    )
    for one in get_curve(artifact):
        (level,) = (level for level in frozen.levels if level.alpha == one.alpha)
        alone = frozen.with_levels([level])
        assert (one.answered, one.wrong) == count_answers(
            compute_plainly(alone, tests, one.alpha, one.policy)
        )
    certificate = get_certificate(artifact)
    assert artifact.alphas == (certificate.alpha,)
    assert certificate.artifact_digest == artifact.frozen_digest != frozen.digest
    held = artifact.model_copy(update={"attempts": list(plan_first_test(tests).end(certified=True).attempts)})
    assert CalibrationArtifact.model_validate(held.model_dump()) == held


def test_bot_chain_answers_exactly_the_counted_prompts(bot: CalibrationArtifact) -> None:
    artifact = reload_artifact(bot)
    certificate = get_certificate(artifact)
    split = artifact.calibration.split
    asked = [one for one in KNOWN if split.find_part(one.id, None) == "certification"]
    chain = make_replay_chain(artifact, asked)
    results = [chain.invoke(one.input) for one in asked]
    seen = compute_outcomes(artifact, tabulate(asked), certificate.alpha, certificate.policy)
    assert [not one.abstained for one in results] == seen.decisions.answered.tolist()
    assert [one.reason for one in results] == [seen.decisions.find_reason(row) for row in range(len(asked))]
    wrong = [one.best is not None and one.best != "right" for one in results]
    assert wrong == (seen.wrong & seen.decisions.answered).tolist()
    everyone = certificate.groups[0]
    assert (sum(not one.abstained for one in results), sum(wrong)) == (everyone.answered, everyone.wrong)
    # Control: without the policy more prompts are answered.
    every = make_replay_chain(artifact.model_copy(update={"policy": None}), asked)
    more = [every.invoke(one.input) for one in asked]
    assert sum(not one.abstained for one in more) > everyone.answered


@pytest.mark.long
def test_bot_chain_on_the_recording_answers_the_counted_prompts() -> None:
    source = load_recording()
    records = list(source)
    artifact = calibrate(
        records,
        features="mean_score + group(topic)",
        set_rule="unique(all)",
        max_wrong_rate="0.15",
        delta="0.1",
        certification_fraction=0.3,
        provenance=source.provenance,
    )
    certificate = get_certificate(artifact)
    split = artifact.calibration.split
    asked = [one for one in records if split.find_part(one.id, one.cluster) == "certification"]
    chain = CFCRunnable(artifact=artifact, **make_replay_parts(source))
    answered = wrong = 0
    for record in asked:
        result = chain.invoke(record.input)
        right = {one.answer_key for one in record.candidates if one.correct}
        answered += not result.abstained
        wrong += result.best is not None and result.best not in right
    everyone = certificate.groups[0]
    assert (everyone.prompts, everyone.answered, everyone.wrong) == (len(asked), answered, wrong)
    assert 0 < answered < len(asked)
    assert stats.binom.cdf(wrong, answered, 0.15) <= 0.1
    assert chain.guarantee.wrong_answers == certificate
