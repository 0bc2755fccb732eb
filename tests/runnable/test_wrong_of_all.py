"""A bot of whose questions few get a wrong answer, in every group that is named (`max_wrong_of_all`)."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

from langchain_cfc import CalibrationArtifact, CFCChatModel, PromptRecord, calibrate, evaluate
from langchain_cfc.artifact import tabulate_draws
from langchain_cfc.certificates import certify
from langchain_cfc.certificates.recomputation import recompute_certificates
from langchain_cfc.errors import AttainabilityWarning, FeatureError, InputError, UnattainableTargetError
from langchain_cfc.runnable.answering import ABSTAIN_MESSAGE
from tests.calls import Invoke
from tests.factories import (
    change_candidates,
    fit_topics,
    make_artifact,
    make_chain,
    make_records,
    reload_artifact,
)
from tests.fakes import ScriptedModel, answer_of, topic_of
from tests.recordings import list_facts

# Mean scores 0.175 and 0.525; the best answer is lima.
SURE = ("lima|0.1", "quito|0.2", "lima|0.3", "bogota|0.1")
UNSURE = ("lima|0.1", "quito|0.9", "lima|0.3", "bogota|0.8")


def make_graded_records(topic: str = "easy", *, correct: bool = False, size: int = 39) -> list[PromptRecord]:
    """Prompts of mean scores 1/40 to 39/40: if all are wrong, at 0.25 the 30th confidence of 39 is 0.75."""
    return [
        change_candidates(record, score=rank / (size + 1), correct=correct)
        for rank, record in enumerate(make_records(topic, size), 1)
    ]


@pytest.fixture(scope="module")
def bot() -> CalibrationArtifact:
    """A bot that answers below a mean score of 0.25."""
    return reload_artifact(calibrate(make_graded_records(), max_wrong_of_all="0.25"))


@pytest.fixture(scope="module")
def by_topic() -> CalibrationArtifact:
    """A bot that answers hard questions below a mean score of 0.25, and every easy one."""
    records = [*make_graded_records("hard"), *make_graded_records("easy", correct=True)]
    made = calibrate(records, max_wrong_of_all="0.25", features=fit_topics("hard", "easy"))
    return reload_artifact(made)


def test_calibrate_takes_the_conformal_quantile_of_the_confidences_of_wrong_answers(
    bot: CalibrationArtifact,
) -> None:
    assert bot.solve(np.ones((1, 1))).values == pytest.approx([0.75])
    assert bot.promises[0] == ("max_wrong_of_all", "0.25")
    assert bot.is_bot_alone
    assert bot.bot is None
    # Right answers cost nothing: with as many of them, all wrong ones but half may be shown.
    more = [*make_graded_records(), *make_graded_records("right", correct=True)]
    half = calibrate(more, max_wrong_of_all="0.25").solve(np.ones((1, 1)))
    assert half.values == pytest.approx([(60 - 39) / 40])


@pytest.mark.parametrize(
    ("texts", "reason", "best"),
    [
        (SURE, "answered", "lima"),
        (UNSURE, "mean_score_too_high", None),
        (("", " ", "", ""), "only_blank_answers", None),
    ],
)
def test_bot_answers_below_the_threshold_of_its_mean_score(
    texts: tuple[str, ...], reason: str, best: str | None, *, bot: CalibrationArtifact, invoke: Invoke
) -> None:
    chain = make_chain(
        bot,
        generator=ScriptedModel(texts=texts),
        verifier=lambda _, drawn: [float(one.text.partition("|")[2] or 1) for one in drawn],
        answer=lambda text: text.partition("|")[0].strip(),
    )
    result = invoke(chain, "where?")
    assert (result.reason, result.best, result.abstained) == (reason, best, best is None)
    assert result.answers == (() if best is None else (best,))
    # Only what is answered is shown.
    assert [one.text for one in result.candidates if one.text] == (["lima|0.1"] if best else [])


def test_bot_never_serves_a_draft_that_is_no_answer(bot: CalibrationArtifact) -> None:
    refused = ("|0.0", "quito|0.2", "lima|0.1", "bogota|0.1")
    chain = make_chain(bot, generator=ScriptedModel(texts=refused), answer=answer_of)
    assert chain.invoke("x").best == "lima"


def test_each_group_has_its_own_cut_and_an_unknown_one_gets_no_answer(by_topic: CalibrationArtifact) -> None:
    chain = make_chain(by_topic, generator=ScriptedModel(texts=UNSURE), answer=answer_of, metadata=topic_of)
    found = {topic: chain.invoke(f"x {topic}") for topic in ("hard", "easy", "new")}
    reasons = {topic: result.reason for topic, result in found.items()}
    assert reasons == {"hard": "mean_score_too_high", "easy": "answered", "new": "not_certifiable"}
    assert found["new"].unknown_categories == ("topic",)
    assert "topic is 'new', which did not occur in the calibration" in found["new"].explain()
    assert "not look reliable enough" in found["hard"].explain()


def test_result_states_the_promise_for_all_questions(by_topic: CalibrationArtifact) -> None:
    chain = make_chain(by_topic, generator=ScriptedModel(texts=UNSURE), answer=answer_of, metadata=topic_of)
    result = chain.invoke("x easy", max_wrong_of_all=0.25)
    guarantee = result.guarantee
    assert guarantee.kind == "conditional"
    assert guarantee.claim == (
        "Of all questions asked, at most 25 % get a wrong answer, on average over calibration sets; the "
        "others get a right answer or none."
    )
    assert "over each of 2 groups" in guarantee.sentence
    assert any("share of wrong answers among those answered" in one for one in guarantee.not_promised)
    assert any("for this one artifact it may be higher" in one for one in guarantee.not_promised)
    assert "answer set" not in result.explain()
    assert guarantee.claim in result.explain()


def test_chat_model_answers_or_abstains_under_the_promise(bot: CalibrationArtifact) -> None:
    for texts, expected in ((SURE, "lima|0.1"), (UNSURE, ABSTAIN_MESSAGE)):
        model = CFCChatModel(chain=make_chain(bot, generator=ScriptedModel(texts=texts)))
        assert expected in str(model.invoke("where?").content)


@pytest.mark.parametrize(
    ("promise", "problem"),
    [
        ({"alpha": "0.25"}, "calibrated without alpha; it holds max_wrong_of_all=0.25"),
        ({"max_wrong_rate": "0.25"}, "holds no certified rate"),
        (
            {"max_wrong_of_all": "0.2"},
            "max_wrong_of_all = 0.2; it holds max_wrong_of_all=0.25",
        ),
        ({"max_wrong_of_all": "0.25", "alpha": "0.25"}, "different promises"),
    ],
    ids=str,
)
def test_chain_refuses_a_promise_not_held(
    promise: dict[str, Any], problem: str, bot: CalibrationArtifact
) -> None:
    with pytest.raises(InputError, match=problem):
        make_chain(bot, **promise)
    with pytest.raises(InputError, match=problem):
        make_chain(bot).invoke("x", **promise)
    with pytest.raises(InputError, match=problem):
        CFCChatModel(chain=make_chain(bot)).invoke("x", **promise)


def test_chain_over_sets_refuses_the_rate_of_all_questions() -> None:
    with pytest.raises(InputError, match=r"without max_wrong_of_all; it holds alpha=0\.25"):
        make_chain(make_artifact(), max_wrong_of_all=0.25)


@pytest.mark.parametrize(
    ("options", "error", "problem"),
    [
        ({"alpha": 0.25}, InputError, "Make two calls of calibrate"),
        ({"unit": "claims"}, InputError, "For claims, max_wrong_rate promises"),
        ({"set_rule": "rank"}, InputError, "leave unit, set_rule, adaptive_alpha and pac out"),
        ({"adaptive_alpha": True}, InputError, "leave unit, set_rule, adaptive_alpha and pac out"),
        ({"features": "group(source)"}, FeatureError, "has no metadata 'source'"),
        ({"max_wrong_of_all": 0.01}, UnattainableTargetError, r"max_wrong_of_all = 0\.01 is out of reach"),
        ({"max_wrong_of_all": 1}, InputError, "max_wrong_of_all must be a decimal number strictly between"),
        ({"max_wrong_of_all": []}, InputError, "at least one rate is needed"),
        (
            {"max_wrong_of_all": None, "alpha": 0.25, "set_rule": "best_answer"},
            InputError,
            "belongs to max_wrong_of_all",
        ),
    ],
    ids=str,
)
def test_calibrate_refuses_what_does_not_go_with_the_rate_of_all_questions(
    options: dict[str, Any], error: type[Exception], problem: str
) -> None:
    with pytest.raises(error, match=problem):
        calibrate(make_graded_records(), **{"max_wrong_of_all": 0.25, **options})


@pytest.mark.parametrize("features", ["hat(mean_score, 3)", "group(topic) + hard(min_score, 0.5)"])
def test_calibrate_warns_where_the_map_conditions_on_the_score_of_the_cut(features: str) -> None:
    options: dict[str, Any] = {"max_wrong_of_all": 0.25, "features": features, "fit_fraction": 0.3}
    with pytest.warns(AttainabilityWarning, match=r"far fewer questions will be answered.*group\(topic\)"):
        calibrate(make_graded_records(size=199), **options)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        calibrate(make_graded_records(size=199), max_wrong_of_all=0.25, features="group(topic)")


def test_evaluate_counts_answered_and_wrong_of_all_questions_by_group() -> None:
    records = list_facts()
    artifact = reload_artifact(
        calibrate(records, max_wrong_of_all="0.1", features="group(topic)", test_fraction=0.4, seed=1)
    )
    report = evaluate(artifact, records)
    own, table = report.methods["conditional"], tabulate_draws(artifact, records)
    test = table.take(artifact.calibration.split.list_rows(table)["test"])
    # By hand: the best candidate is the earliest of lowest score; it is answered below the topic's cut.
    best = test.draws.scores.argmin(axis=1)
    wrong = ~test.correct[np.arange(len(test)), best]
    topics = np.array([one["topic"] for one in test.draws.metadata])
    cuts = 1 - artifact.solve(artifact.feature_map.transform(test.draws)).values
    answered = test.draws.scores.mean(axis=1) < cuts - 1e-9
    assert own.mean_set_size == pytest.approx(answered.mean())
    assert 1 - own.kept_promise == pytest.approx((answered & wrong).mean())
    for group in own.groups:
        inside = topics == group.name.partition("=")[2].strip('"')
        assert 1 - group.kept_promise == pytest.approx((answered & wrong)[inside].mean())
    assert f"{100 * answered.mean():.0f} % of" in str(report)
    # One cut for all topics, beside it, breaks the promise on the hardest one.
    assert max(1 - one.kept_promise for one in report.methods["marginal"].groups) > 0.15


def test_certificate_of_the_bot_speaks_of_all_questions() -> None:
    records = list_facts()
    certified = certify(calibrate(records[::2], max_wrong_of_all="0.1"), records[1::2])
    (one,) = certified.certificates
    assert "the question is answered rightly or not at all" in one.sentence
    assert all(check.agrees for check in recompute_certificates(reload_artifact(certified)))
