"""Bots: a cut on the mean score, certified with all labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import reduce
from itertools import takewhile
from operator import add
from typing import Any, Literal

import numpy as np
import pytest
from scipy import stats

from langchain_cfc import CalibrationArtifact, calibrate
from langchain_cfc.calibration.config import CalibrationConfig
from langchain_cfc.candidates import LabelledBatch
from langchain_cfc.certificates import certify_mean_score
from langchain_cfc.decision import compute_bot_scores, decide
from langchain_cfc.errors import AttainabilityWarning, InputError, UnattainableTargetError
from langchain_cfc.records import Provenance, tabulate
from tests.certificates.prompts import make_replay_chain, prompts
from tests.factories import plan_first_test, reload_artifact
from tests.lengths import mostly_long, repetitions

KNOWN = prompts(0, 600)
# The first test on labels has 80 % of delta.
RATE, DELTA, LEVEL = "0.05", "0.125", 0.1

pytestmark = pytest.mark.filterwarnings("ignore::langchain_cfc.errors.AttainabilityWarning")


@pytest.fixture(scope="module")
def bot() -> CalibrationArtifact:
    return calibrate(KNOWN, max_wrong_rate=RATE, delta=DELTA)


@pytest.fixture(scope="module")
def grouped_bot() -> CalibrationArtifact:
    return calibrate(
        KNOWN, features="group(topic)", max_wrong_rate="0.2", delta=DELTA, wrong_rate_groups=True
    )


@pytest.fixture(scope="module")
def table() -> LabelledBatch:
    return tabulate(KNOWN)


def add_in_order(scores: Sequence[float]) -> float:
    """Add scores from the smallest on, rounding each sum as NumPy does; from 3.12 on `sum` is more exact."""
    return reduce(add, sorted(scores))


def count_below(table: LabelledBatch, cut: float) -> tuple[int, int]:
    """Answers and wrong ones below a cut, by loops over plain numbers."""
    answered = wrong = 0
    for scores, correct in zip(table.draws.scores.tolist(), table.correct.tolist(), strict=True):
        if add_in_order(scores) / len(scores) <= cut:
            answered += 1
            wrong += not correct[scores.index(min(scores))]
    return answered, wrong


def find_last_size(means: Sequence[float], wrong: Sequence[bool], rate: float, delta: float) -> int:
    """How many prompts the last cut that passes answers, from all cuts that divide no ties; 0 for none."""
    size, zeros = len(wrong), sum(one == 0.0 for one in means)

    def run(sizes: Sequence[int], level: float) -> tuple[list[int], bool]:
        tested = [max(sizes[0], zeros), *(one for one in sizes if one > max(sizes[0], zeros))]
        passed = list(
            takewhile(lambda one: bool(stats.binom.cdf(sum(wrong[:one]), one, rate) <= level), tested)
        )
        return passed, passed == tested

    def list_sizes(level: float) -> list[int]:
        growing = [
            next((m for m in range(k + 1, size + 1) if stats.binom.cdf(k, m, rate) <= level), size + 1)
            for k in range(9)
        ]
        last = max((m for m in growing if m <= size), default=size + 1)
        return sorted(one for one in {*growing, *range(last, size + 1)} if one <= size)

    second, early = -(-size * 2 // 5), list_sizes(0.8 * delta)
    if early and early[0] < second:
        late = [second, *(one for one in early if one > second)]
        early = [one for one in early if one < second]
        passed, is_won = run(early, 0.8 * delta) if zeros <= second else ([], True)
        more, _ = run(late, delta if is_won else 0.2 * delta)
    else:
        alone = list_sizes(delta)
        passed, more = (run(alone, delta)[0] if alone else []), []
    return max({0, *passed, *more} & {0, size, *(k for k in range(1, size) if means[k - 1] < means[k])})


@mostly_long("rate", ["0.02", "0.05", "0.1", "0.2"], quick=2)
def test_mean_score_cut_equals_an_independent_computation(rate: str) -> None:
    known = prompts(3, repetitions(900, share=0.5), decimals=12)
    table = tabulate(known)
    means = [add_in_order(one) for one in table.draws.scores.tolist()]
    order = np.argsort(means, kind="stable")
    best = table.draws.scores.argmin(axis=1)
    wrong = ~table.correct[np.arange(len(table)), best][order]
    expected = find_last_size(sorted(means), wrong.tolist(), float(rate), LEVEL)
    if expected == 0:
        with pytest.raises(UnattainableTargetError, match="is not certified"):
            calibrate(known, max_wrong_rate=rate, delta=DELTA)
        return
    made = calibrate(known, max_wrong_rate=rate, delta=DELTA)
    certificate = made.certified_bot.certificates[0]
    everyone = certificate.groups[0]
    assert (everyone.answered, everyone.wrong) == (expected, wrong[:expected].sum())
    assert certificate.max_mean_score is not None
    assert count_below(table, certificate.max_mean_score) == (everyone.answered, everyone.wrong)


def test_mean_score_bot_uses_all_labels_and_certifies_no_sets(
    bot: CalibrationArtifact, table: LabelledBatch
) -> None:
    certificate, facts = bot.certified_bot.certificates[0], bot.calibration
    assert certificate.prompts == facts.size == len(KNOWN)
    # Nothing is fitted for sets that were not asked for.
    assert (bot.levels, bot.arrays, facts.fit_size, bot.feature_map.text) == ([], {}, 0, "1")
    split = calibrate(KNOWN, max_wrong_rate=RATE, delta=DELTA, fit_fraction=0.3)
    assert split.calibration.fit_size > 0
    assert split.certified_bot.certificates[0].prompts == len(KNOWN)
    assert len(bot.certified_bot.curve) > 10
    everyone = certificate.groups[0]
    counted = [(one.max_mean_score, one.answered, one.wrong) for one in bot.certified_bot.curve]
    for cut, answered, wrong in [*counted, (certificate.max_mean_score, everyone.answered, everyone.wrong)]:
        assert cut is not None
        assert (answered, wrong) == count_below(table, cut)
    loaded = reload_artifact(bot)
    assert (loaded, loaded.digest) == (bot, bot.digest)
    # Labels that made the scores, or scores that fixed the groups, do not certify.
    groups = calibrate(
        KNOWN, features="bins(mean_score, 2)", max_wrong_rate="0.2", delta=DELTA, wrong_rate_groups=True
    )
    assert groups.certified_bot.certificates[0].prompts == groups.calibration.size
    assert groups.calibration.fit_size > 0


def test_mean_score_bot_prefers_more_certified_groups(
    table: LabelledBatch, grouped_bot: CalibrationArtifact
) -> None:
    # All answers of the easier half are right; of the harder half those about the sea, a third, are wrong.
    size = len(table)
    scores = np.repeat((np.arange(size) + 0.5)[:, np.newaxis] / size, 4, axis=1)
    wrong = np.array([one["topic"] == "sea" for one in table.draws.metadata]) & (np.arange(size) >= size // 2)
    correct = np.repeat(~wrong[:, np.newaxis], 4, axis=1)
    sea = replace(table, correct=correct, draws=replace(table.draws, scores=scores, precomputed={}))
    made = certify_mean_score(
        grouped_bot, plan_first_test(sea), max_wrong_rates=["0.2"], delta=DELTA, by_group=True
    )
    everyone, *groups = made.certified_bot.certificates[0].groups
    assert [one.certified for one in groups] == [True] * 3
    last = groups[-1]
    assert everyone.answered < size
    assert stats.binom.cdf(last.wrong, last.answered, 0.2) <= 0.05 / 3
    assert stats.binom.cdf(last.wrong + 1, last.answered + 1, 0.2) > 0.05 / 3
    # Control: without groups all prompts are answered, as a sixth of them is wrong.
    alone = certify_mean_score(grouped_bot, plan_first_test(sea), max_wrong_rates=["0.2"], delta=DELTA)
    assert alone.certified_bot.certificates[0].groups[0].answered == size


def test_mean_score_bot_refuses_blank_answers_alone(table: LabelledBatch, bot: CalibrationArtifact) -> None:
    draws = replace(table.draws, lengths=np.zeros_like(table.draws.scores, dtype=np.int64))
    blank = plan_first_test(replace(table, draws=draws))
    with pytest.raises(UnattainableTargetError, match="is not certified"):
        certify_mean_score(bot, blank, max_wrong_rates=[RATE], delta=DELTA)


def test_mean_score_bot_with_groups_gives_half_of_delta_to_all(
    table: LabelledBatch, grouped_bot: CalibrationArtifact
) -> None:
    # Twelve prompts of a group certify nothing, so that the size depends on all 36 alone.
    few = table.take(np.arange(36))
    made = certify_mean_score(
        grouped_bot, plan_first_test(few), max_wrong_rates=["0.05"], delta="0.95", by_group=True
    )
    everyone, *groups = made.certified_bot.certificates[0].groups
    assert not any(group.certified for group in groups)
    assert stats.binom.cdf(everyone.wrong, everyone.answered, 0.05) <= 0.38
    # Control: a wrong answer more would be too many at half of it, and not at the whole.
    assert 0.38 < stats.binom.cdf(everyone.wrong + 1, len(few), 0.05) <= 0.76


def test_mean_score_cut_never_divides_equal_scores(table: LabelledBatch, bot: CalibrationArtifact) -> None:
    # Of the mean scores two are left. The lower one is that of 400 prompts, nearly all answered rightly.
    scores = np.where(np.arange(len(table)) < 400, 0.25, 0.75)[:, np.newaxis] * np.ones((1, 4))
    correct = np.ones_like(table.correct)
    correct[400:] = False
    tied = replace(table, correct=correct, draws=replace(table.draws, scores=scores, precomputed={}))
    made = certify_mean_score(bot, plan_first_test(tied), max_wrong_rates=["0.1"], delta=DELTA)
    everyone = made.certified_bot.certificates[0].groups[0]
    assert (everyone.answered, everyone.wrong) == (400, 0)
    # Control: one more wrong answer than a tie of few prompts can bear, and there is no cut at all.
    with pytest.raises(UnattainableTargetError):
        certify_mean_score(
            bot, plan_first_test(replace(tied, correct=~correct)), max_wrong_rates=["0.1"], delta=DELTA
        )


@mostly_long("rate", ["0.05", "0.1", "0.2", "0.3"], quick=2)
@pytest.mark.parametrize("lowest", [0.0, 0.1])
def test_mean_score_cuts_between_ties_equal_an_independent_computation(
    table: LabelledBatch, bot: CalibrationArtifact, rate: str, lowest: float
) -> None:
    rng = np.random.default_rng(round(100 * float(rate)))
    found = set()
    for _ in range(repetitions(60, share=0.25)):
        size = int(rng.integers(40, len(table)))
        means = np.sort(lowest + np.round(rng.beta(0.4, 1.0, size) * 8) / 10)
        wrong = rng.random(size) < float(rate) * (0.2 + 1.5 * means)
        some = table.take(np.arange(size))
        correct = np.ones_like(some.correct) & ~wrong[:, np.newaxis]
        tied = replace(
            some,
            correct=correct,
            draws=replace(some.draws, scores=np.repeat(means[:, np.newaxis], 4, 1), precomputed={}),
        )
        # Labels must not depend on the order of ties, which is one by hash.
        ranked = np.lexsort((bot.calibration.split.draw_uniforms("tie", list(some.ids)), means))
        expected = find_last_size(means.tolist(), wrong[ranked].tolist(), float(rate), LEVEL)
        found.add(expected)
        if expected == 0:
            with pytest.raises(UnattainableTargetError, match="is not certified"):
                certify_mean_score(bot, plan_first_test(tied), max_wrong_rates=[rate], delta=DELTA)
            continue
        certificate = certify_mean_score(
            bot, plan_first_test(tied), max_wrong_rates=[rate], delta=DELTA
        ).certified_bot.certificates[0]
        everyone, cut = certificate.groups[0], certificate.max_mean_score
        assert (everyone.answered, everyone.wrong) == (expected, wrong[ranked][:expected].sum())
        # The bot answers whatever is below the next mean score; of those with 0 alone, 0.
        if expected == size:
            assert cut == 1.0
        elif means[expected - 1] == 0.0:
            assert cut == 0.0
        else:
            assert cut == np.nextafter(means[expected], 0.0)
    assert len(found) > 5  # control: there was something to find


def test_mean_score_bot_answers_unanimous_prompts_together(
    table: LabelledBatch, bot: CalibrationArtifact
) -> None:
    # 60 of 100 prompts have the same mean score, and 3 of these are wrong, the first in the random order of
    # ties among them. If it is 0, a rate of 0.2 is certified for all of them at once.
    few = table.take(np.arange(100))
    ranked = np.argsort(bot.calibration.split.draw_uniforms("tie", list(few.ids))[:60])
    correct = np.zeros_like(few.correct)
    correct[ranked[3:]] = True

    def certify(score: float) -> CalibrationArtifact:
        scores = np.where(np.arange(100) < 60, score, 0.6)[:, np.newaxis] * np.ones((1, 4))
        tied = replace(few, correct=correct, draws=replace(few.draws, scores=scores, precomputed={}))
        return certify_mean_score(bot, plan_first_test(tied), max_wrong_rates=["0.2"], delta=DELTA)

    certificate = certify(0.0).certified_bot.certificates[0]
    assert (certificate.groups[0].answered, certificate.groups[0].wrong) == (60, 3)
    assert certificate.max_mean_score == 0.0
    # Control: of other mean scores the first few are tested alone.
    with pytest.raises(UnattainableTargetError):
        certify(0.1)


def test_rate_may_be_refused_beside_a_smaller_certified_one(
    table: LabelledBatch, bot: CalibrationArtifact
) -> None:
    # Ties leave cuts behind 78, 84 and 85 prompts alone. At a rate of 0.1 no test answers 78.
    row = np.arange(85)
    few = table.take(row)
    scores = np.select([row < 78, row < 84], [0.1, 0.3], 0.9)[:, np.newaxis] * np.ones((1, 4))
    correct = np.ones_like(few.correct) & (row < 78)[:, np.newaxis]
    tied = replace(few, correct=correct, draws=replace(few.draws, scores=scores, precomputed={}))
    made = certify_mean_score(
        bot, plan_first_test(tied), max_wrong_rates=["0.05", "0.1"], delta=DELTA
    ).certified_bot
    assert [one.max_wrong_rate for one in made.certificates] == ["0.05"]
    assert made.certificates[0].groups[0].answered == 78
    assert "0.1 wrong answers is not certified" in made.refused["0.1"]


def test_mean_score_refusal_prints_nothing_from_labels(
    table: LabelledBatch, bot: CalibrationArtifact
) -> None:
    def refuse(labelled: LabelledBatch, rate: str) -> str:
        with pytest.raises(UnattainableTargetError) as caught:
            certify_mean_score(bot, plan_first_test(labelled), max_wrong_rates=[rate], delta=DELTA)
        return str(caught.value)

    few = table.take(np.arange(20))
    assert "50 answered questions if none are wrong" in refuse(few, "0.05")
    said = {refuse(replace(table, correct=table.correct & (table.ids[0] == one)), "0.05") for one in "ab"}
    # One wrong answer in eleven, and all of them, read the same.
    order = np.argsort(table.draws.scores.mean(axis=1), kind="stable")
    correct = np.ones_like(table.correct)
    correct[order[::11]] = False
    said.add(refuse(replace(table, correct=correct), "0.05"))
    assert len(said) == 1


@pytest.mark.parametrize("tied", [0.1, 0.6])
def test_mean_score_refusal_names_scores_that_do_not_tell_prompts_apart(
    table: LabelledBatch, bot: CalibrationArtifact, tied: float
) -> None:
    """As with the agreement of few draws: most prompts share the smallest score."""
    means = table.draws.scores.mean(axis=1, keepdims=True)
    scores = table.draws.scores * (means > np.quantile(means, tied))
    coarse = replace(table, draws=replace(table.draws, scores=scores))
    wrong = plan_first_test(replace(coarse, correct=np.zeros_like(table.correct)))
    with pytest.raises(UnattainableTargetError) as caught:
        certify_mean_score(bot, wrong, max_wrong_rates=["0.1"], delta=DELTA)
    assert ("share the best score" in str(caught.value)) == (tied > 0.25)
    # With a draw rule and agreement scores, the rule is the cause.
    provenance = Provenance(n=4, verifier={"method": "self-consistency", "agreement": "equal"})
    short = bot.model_copy(update={"draws": "fixed(4)", "provenance": provenance})
    with pytest.raises(UnattainableTargetError) as caught:
        certify_mean_score(short, wrong, max_wrong_rates=["0.1"], delta=DELTA)
    assert ("calibrate with draws=None" in str(caught.value)) == (tied > 0.25)


@pytest.mark.parametrize("order", ["C", "F"])
def test_mean_score_cut_and_decisions_depend_on_no_order_of_candidates(
    table: LabelledBatch, bot: CalibrationArtifact, order: Literal["C", "F"]
) -> None:
    # Sums of these scores in another order often differ in the last bit (control).
    columns = np.array([2, 0, 3, 1])
    scores, correct = table.draws.scores, table.correct
    assert (scores.sum(axis=1) != scores[:, columns].sum(axis=1)).any()
    draws = replace(table.draws, scores=scores[:, columns].copy(order=order), precomputed={})
    moved = replace(table, draws=draws, correct=correct[:, columns].copy(order=order))
    first, second = (
        certify_mean_score(bot, plan_first_test(one), max_wrong_rates=[RATE], delta=DELTA).certified_bot
        for one in (table, moved)
    )
    assert [one.max_mean_score for one in first.certificates] == [
        one.max_mean_score for one in second.certificates
    ]
    assert first.curve == second.curve
    np.testing.assert_array_equal(compute_bot_scores(bot, table.draws), compute_bot_scores(bot, draws))
    cut = first.certificates[0].max_mean_score
    before, after = (decide(bot, one, cut=cut).answered for one in (table.draws, draws))
    np.testing.assert_array_equal(before, after)


def test_each_of_several_rates_has_its_part_of_the_level(
    table: LabelledBatch, bot: CalibrationArtifact
) -> None:
    right = plan_first_test(replace(table, correct=np.ones_like(table.correct)).take(np.arange(46)))
    # 0.95^46 = 0.094 is below the level 0.1, and above a third of it.
    made = certify_mean_score(bot, right, max_wrong_rates=["0.05"], delta=DELTA).certified_bot
    assert made.certificates[0].level == pytest.approx(LEVEL)
    both = certify_mean_score(bot, right, max_wrong_rates=["0.05", "0.1", "0.2"], delta=DELTA).certified_bot
    assert [one.level for one in both.certificates] == [pytest.approx(LEVEL / 3)] * 2
    test = "First test on these labels, wrong with probability at most 3.33 % (all tests together: 12.5 %)."
    assert test in both.certificates[0].sentence
    assert list(both.refused) == ["0.05"]


def test_mean_score_bot_certifies_several_rates() -> None:
    rates = ["0.2", "0.0001", "0.05", "0.1"]
    made = reload_artifact(calibrate(KNOWN, features="1", max_wrong_rate=rates, delta=DELTA))
    certified = made.certified_bot
    assert certified.rates == ("0.0001", "0.05", "0.1", "0.2")
    assert [one.max_wrong_rate for one in certified.certificates] == ["0.05", "0.1", "0.2"]
    assert "0.0001 wrong answers is not certified: it takes about" in certified.refused["0.0001"]
    for one in certified.certificates:
        # Each of the four rates is tested as if it were alone at a quarter of delta.
        alone = calibrate(KNOWN, features="1", max_wrong_rate=one.max_wrong_rate, delta=str(float(DELTA) / 4))
        certificate = alone.certified_bot.certificates[0]
        assert (certificate.max_mean_score, certificate.groups) == (one.max_mean_score, one.groups)
        assert certified.find_certificate(float(one.max_wrong_rate)) == one
    with pytest.raises(InputError, match=r"is not certified: A rate of 0\.0001 wrong answers is"):
        certified.find_certificate("0.0001")
    with pytest.raises(InputError, match="it was not requested"):
        certified.find_certificate("0.3")


def test_artifact_refuses_forged_certificates_of_several_rates() -> None:
    made = calibrate(KNOWN, features="1", max_wrong_rate=["0.05", "0.1"], delta=DELTA)
    certified = made.certified_bot
    low = certified.certificates[0]

    def forge(**changes: object) -> None:
        content = made.model_copy(update={"bot": certified.model_copy(update=changes)})
        CalibrationArtifact.model_validate(content.model_dump(mode="json"), strict=False)

    forge()  # control: nothing is changed
    for changes, said in (
        ({"certificates": [low, low]}, "different rates, ascending"),
        ({"refused": {"0.1": "no"}}, "none of them refused"),
    ):
        with pytest.raises(ValueError, match=said):
            forge(**changes)


def test_mean_score_bot_ignores_flags_and_thresholds(table: LabelledBatch, bot: CalibrationArtifact) -> None:
    strict = calibrate(KNOWN, alpha="0.02", features="group(topic)", allow_unattainable=True)
    flagged = decide(strict, table.draws).not_certifiable
    assert flagged.any()  # control: sets are flagged there
    cut = bot.certified_bot.certificates[0].max_mean_score
    seen = [decide(one, table.draws, cut=cut) for one in (strict, bot)]
    np.testing.assert_array_equal(seen[0].answered, seen[1].answered)
    np.testing.assert_array_equal(seen[0].best, table.draws.scores.argmin(axis=1))
    assert not seen[0].not_certifiable.any()
    assert (seen[0].answered & flagged).any()


def test_bot_chain_serves_the_counted_decisions_and_states_them(bot: CalibrationArtifact) -> None:
    certificate = bot.certified_bot.certificates[0]
    everyone = certificate.groups[0]
    asked = KNOWN[:80]
    expected = decide(bot, tabulate(asked).draws, cut=certificate.cut)
    chain = make_replay_chain(bot, asked)
    results = [chain.invoke(one.input) for one in asked]
    assert [one.reason for one in results] == [expected.find_reason(row) for row in range(len(asked))]
    assert {one.reason for one in results} == {"answered", "mean_score_too_high"}
    for one in results:
        assert len(one.answers) == (not one.abstained)
        assert one.guarantee.kind == "certified"
        assert one.guarantee.wrong_answers == certificate
        assert f"answered {everyone.answered} of " in one.explain()
        assert f" calibration questions, {everyone.wrong} wrongly" in one.explain()
        assert "reliable" in one.explain_reason()
        assert one.threshold is None
    # Nothing is promised about sets of which no level was asked for.
    for ask in (
        bot.make_guarantee,
        lambda: bot.make_guarantee("0.1"),
        lambda: decide(bot, tabulate(asked).draws),
    ):
        with pytest.raises(InputError, match="calibrated without alpha"):
            ask()
    # Control: an artifact that was made without bot mode promises its sets.
    assert calibrate(KNOWN, alpha="0.3", features="group(topic)").make_guarantee("0.3").kind == "conditional"


@pytest.mark.parametrize("alphas", [["0.3"], ["0.2", "0.5"]])
def test_bot_and_sets_side_by_side_are_each_as_alone(alphas: list[str]) -> None:
    options: dict[str, Any] = {"features": "group(topic)", "seed": 2}
    rates = ["0.05", "0.1"]
    both = reload_artifact(
        calibrate(KNOWN, alpha=alphas, max_wrong_rate=rates, delta=DELTA, wrong_rate_groups=True, **options)
    )
    sets = calibrate(KNOWN, alpha=alphas, **options)
    alone = calibrate(KNOWN, max_wrong_rate=rates, delta=DELTA, wrong_rate_groups=True, **options)
    assert [one.max_mean_score for one in both.certified_bot.certificates] == [
        one.max_mean_score for one in alone.certified_bot.certificates
    ]
    assert both.certified_bot.curve == alone.certified_bot.curve
    assert both.attempts == [
        one.model_copy(update={"settings": both.attempts[0].settings}) for one in alone.attempts
    ]
    assert [one.rule for one in both.levels] == [one.rule for one in sets.levels]
    for alpha in alphas:
        promise = both.make_guarantee(alpha)
        assert promise.kind == "conditional"
        digest = {"artifact_digest": promise.artifact_digest}
        assert sets.make_guarantee(alpha).model_copy(update=digest) == promise
    assert [tuple(one) for one in both.promises] == [
        *(("max_wrong_rate", rate) for rate in rates),
        *(("alpha", alpha) for alpha in alphas),
    ]


def test_refused_rate_beside_sets_leaves_the_sets() -> None:
    hopeless = [
        one.model_copy(
            update={
                "candidates": tuple(each.model_copy(update={"correct": False}) for each in one.candidates)
            }
        )
        if row % 2
        else one
        for row, one in enumerate(KNOWN)
    ]
    sets: dict[str, Any] = {"alpha": "0.4", "features": "group(topic)", "allow_unattainable": True}
    with pytest.warns(AttainabilityWarning, match="0.001 wrong answers is not certified"):
        made = calibrate(hopeless, max_wrong_rate=["0.001", "0.002"], **sets)
    assert reload_artifact(made) == made
    assert (made.certified_bot.certificates, made.certified_bot.curve) == ([], [])
    assert list(made.certified_bot.refused) == ["0.001", "0.002"]
    assert [tuple(one) for one in made.promises] == [("alpha", "0.4")]
    assert made.make_guarantee().kind == "conditional"
    assert [one.certified for one in made.attempts] == [False]
    assert CalibrationConfig.from_artifact(made).wrong_rates == ("0.001", "0.002")
    # The next attempt on these labels is the second one; without sets the same rates are refused.
    with pytest.raises(UnattainableTargetError, match="This was test 2 on these labels"):
        calibrate(hopeless, max_wrong_rate=["0.001", "0.002"], after=made)
