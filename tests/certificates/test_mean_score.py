"""Bot mode that ignores sets: a cut on the mean score, certified with the labels of the calibration split."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from langchain_cfc import CalibrationArtifact, calibrate
from langchain_cfc.candidates import LabelledBatch
from langchain_cfc.certificates import certify_mean_score
from langchain_cfc.decision import decide
from langchain_cfc.errors import AttainabilityWarning, CalibrationError, UnattainableTargetError
from langchain_cfc.guarantee import AnswerPolicy
from langchain_cfc.records import tabulate
from tests.certificates.prompts import make_replay_chain, prompts
from tests.factories import reload_artifact

KNOWN = prompts(0, 600)
RATE, DELTA = "0.05", "0.1"

pytestmark = pytest.mark.filterwarnings(
    f"ignore::{AttainabilityWarning.__module__}.{AttainabilityWarning.__name__}"
)


@pytest.fixture(scope="module")
def bot() -> CalibrationArtifact:
    return calibrate(KNOWN, features="group(topic)", max_wrong_rate=RATE, delta=DELTA)


def take_part(bot: CalibrationArtifact, part: str) -> LabelledBatch:
    split = bot.calibration.split
    return tabulate([one for one in KNOWN if split.part(one.id, one.cluster) == part])


@pytest.fixture(scope="module")
def ordering(bot: CalibrationArtifact) -> LabelledBatch:
    return take_part(bot, "fit")


@pytest.fixture(scope="module")
def table(bot: CalibrationArtifact) -> LabelledBatch:
    return take_part(bot, "calibration")


def count_below(table: LabelledBatch, cut: float) -> tuple[int, int]:
    """Answers and wrong ones below a cut, by loops over plain numbers."""
    answered = wrong = 0
    for scores, correct in zip(table.draws.scores.tolist(), table.correct.tolist(), strict=True):
        if sum(sorted(scores)) / len(scores) <= cut:
            answered += 1
            wrong += not correct[scores.index(min(scores))]
    return answered, wrong


def find_last_cut(ordering: LabelledBatch, table: LabelledBatch, rate: float, delta: float) -> float | None:
    """The last cut before the first that fails its test, from the first on that is expected to pass it."""
    passed, wanted = None, 2.0 * math.log(delta) / math.log(1 - rate)
    for cut in np.arange(1, 101) / 100:
        if passed is None and count_below(ordering, cut)[0] * len(table) < wanted * len(ordering):
            continue
        answered, wrong = count_below(table, cut)
        if stats.binom.cdf(wrong, answered, rate) > delta:
            break
        passed = float(cut)
    return passed


def test_the_certified_cut_is_that_of_an_independent_computation(
    bot: CalibrationArtifact, ordering: LabelledBatch, table: LabelledBatch
) -> None:
    certificate = bot.certified_policy.certificate
    expected = find_last_cut(ordering, table, float(RATE), float(DELTA))
    assert expected is not None
    assert expected < 1.0
    assert certificate.policy == AnswerPolicy(max_mean_score=expected, ignores_sets=True)
    everyone = certificate.groups[0]
    assert (everyone.prompts, everyone.answered, everyone.wrong) == (
        len(table),
        *count_below(table, expected),
    )
    # All labels but those of the fit split certify, and nothing is stated about the sets.
    assert len(ordering) + len(table) == len(KNOWN)
    assert bot.calibration.certification_size == 0
    assert bot.certified_policy.coverage == []
    for point in bot.certified_policy.curve:
        assert point.policy.max_mean_score is not None
        assert (point.answered, point.wrong) == count_below(table, point.policy.max_mean_score)
    loaded = reload_artifact(bot)
    assert (loaded, loaded.digest) == (bot, bot.digest)


def test_no_label_and_no_certification_prompt_chooses_what_is_tested(
    bot: CalibrationArtifact, ordering: LabelledBatch, table: LabelledBatch
) -> None:
    def find_start(first: LabelledBatch, labelled: LabelledBatch) -> float:
        made = certify_mean_score(bot, first, labelled, max_wrong_rate=RATE, delta=DELTA)
        cuts = [one.policy.max_mean_score for one in made.certified_policy.curve]
        return min(cut for cut in cuts if cut is not None)

    right = replace(table, correct=np.ones_like(table.correct))
    start = find_start(ordering, right)
    assert find_start(replace(ordering, correct=~ordering.correct), right) == start
    assert find_start(ordering, right.take(np.arange(len(right) - 1))) == start
    # Controls: scores of the ordering prompts do choose the start, and labels what is certified.
    easy = ordering.take(np.argsort(ordering.draws.scores.mean(axis=1))[: 2 * len(ordering) // 3])
    assert find_start(easy, right) < start
    wrong = replace(table, correct=~right.correct)
    with pytest.raises(UnattainableTargetError, match=r"mean score of at most .*may also look at agreement"):
        certify_mean_score(bot, ordering, wrong, max_wrong_rate="0.1", delta=DELTA)
    with pytest.raises(CalibrationError, match="the fit split is empty"):
        certify_mean_score(bot, ordering.take(np.arange(0)), right, max_wrong_rate=RATE, delta=DELTA)


def test_certification_prompts_unlike_those_of_the_fit_split_are_refused(
    bot: CalibrationArtifact, table: LabelledBatch
) -> None:
    order = np.argsort(table.draws.scores.mean(axis=1))
    easy, hard = table.take(order[:200]), table.take(order[200:])
    for few in (hard, hard.take(np.arange(30))):
        with pytest.raises(UnattainableTargetError, match=r"answers 0 of .*bring more records"):
            certify_mean_score(bot, easy, few, max_wrong_rate="0.4", delta=DELTA)


def test_flags_and_thresholds_play_no_role(table: LabelledBatch, bot: CalibrationArtifact) -> None:
    strict = calibrate(KNOWN, alpha="0.02", features="group(topic)", allow_unattainable=True)
    flagged = decide(strict, table.draws).not_certifiable
    assert flagged.any()  # control: sets are flagged there
    policy = bot.certified_policy.certificate.policy
    seen = [decide(one, table.draws, one.alphas[0], policy=policy) for one in (strict, bot)]
    np.testing.assert_array_equal(seen[0].answered, seen[1].answered)
    np.testing.assert_array_equal(seen[0].best, table.draws.scores.argmin(axis=1))
    assert not seen[0].not_certifiable.any()
    assert (seen[0].answered & flagged).any()


def test_the_bot_serves_what_was_counted_and_says_so(bot: CalibrationArtifact) -> None:
    certificate = bot.certified_policy.certificate
    asked = KNOWN[:80]
    expected = decide(bot, tabulate(asked).draws, certificate.alpha, policy=certificate.policy)
    chain = make_replay_chain(bot, asked, bot=True)
    results = [chain.invoke(one.input, {"max_concurrency": 1}) for one in asked]
    assert [one.reason for one in results] == [expected.reason(row) for row in range(len(asked))]
    assert {one.reason for one in results} == {"answered", "mean_score_too_high"}
    for one in results:
        assert len(one.answers) == (not one.abstained)
        assert one.guarantee.kind == "certified"
        assert one.guarantee.wrong_answers == certificate
        assert certificate.sentence() in one.explain()
        assert "reliable" in one.explain_reason()
    # Without bot mode nothing is promised: the labels have been spent.
    assert bot.guarantee(bot.alphas[0]).kind == "heuristic"
    # Control: an artifact that was made without bot mode promises its sets.
    assert calibrate(KNOWN, alpha="0.3", features="group(topic)").guarantee("0.3").kind == "conditional"


def test_a_policy_on_sets_is_written_as_before() -> None:
    assert AnswerPolicy(max_answers=2).model_dump() == {"max_answers": 2, "min_agreement": 1}
    assert AnswerPolicy.model_validate({"max_answers": None, "min_agreement": 3}).min_agreement == 3
    assert "ignores_sets" in AnswerPolicy(ignores_sets=True).model_dump()
