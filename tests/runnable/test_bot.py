"""Bots: an artifact's certified policy answers or abstains, and the promise is fixed before the draw."""

from __future__ import annotations

import asyncio
import copy
import json
import pickle
from typing import Any

import pytest
from langchain_core.language_models import FakeListChatModel
from langchain_core.messages import AIMessage, HumanMessage

from langchain_cfc import CalibrationArtifact, CFCChatModel, CFCResult, CFCRunnable
from langchain_cfc._internal.normalisation import NORMALISATION
from langchain_cfc.artifact import Attempt, CertifiedPolicy, TradeOff
from langchain_cfc.errors import FingerprintError, InputError
from langchain_cfc.guarantee import (
    AnswerPolicy,
    CertifiedAnswers,
    CertifiedShare,
    CoverageCertificate,
    WrongRateCertificate,
)
from tests.calls import Invoke
from tests.factories import make_artifact, make_chain
from tests.fakes import TEXTS, N, ScriptedModel, answer_of

# At the threshold 0.75: two answers, of which one is given by two candidates.
TWO_ANSWERS = ("lima|0.1", "quito|0.3", "lima|0.9", "bogota|0.8")
# One answer of one candidate, and one of two candidates of which one is accepted.
NO_AGREEMENT = ("lima|0.1", "quito|0.9", "bogota|0.9", "santiago|0.8")
AGREEMENT = ("lima|0.1", "lima|0.9", "bogota|0.9", "santiago|0.8")
# A set of two answers, whose best two candidates agree on.
TWO_AGREED = ("lima|0.1", "lima|0.2", "quito|0.3", "bogota|0.9")
BLANK = (" |0.9",) * 4


def with_policy(artifact: CalibrationArtifact, alpha: str, **policy: Any) -> CalibrationArtifact:
    """The artifact with a policy as if it had been certified on 90 prompts."""
    changed = {"certification_size": 90, "normalised": NORMALISATION}
    facts = artifact.calibration.model_copy(update=changed)
    artifact = artifact.model_copy(update={"calibration": facts})
    answers = AnswerPolicy(**policy)
    same: dict[str, Any] = {
        "delta": "0.1",
        "attempt": 1,
        "prompts": 90,
        "records_digest": "sha256:r",
        "artifact_digest": artifact.frozen_digest,
    }
    shares = tuple(
        CertifiedShare(
            name=weighting.name,
            words=weighting.words,
            prompts=90,
            kept=80,
            kept_at_least=0.7,
            covered=70,
            coverage_at_least=0.6,
        )
        for weighting in artifact.feature_map.list_guaranteed_weights()
    )
    coverage = [
        CoverageCertificate(
            **same,
            alpha=held,
            level=0.004,
            shares=shares,
            mean_set_size=1.5,
            mean_set_size_at_most=float(artifact.n),
        )
        for held in artifact.alphas
    ]
    certificate = WrongRateCertificate(
        **same,
        alpha=alpha,
        level=0.07,
        max_wrong_rate="0.05",
        policy=answers,
        groups=(
            CertifiedAnswers(name="1", words="all prompts", prompts=90, answered=70, wrong=0, certified=True),
        ),
        policies_tested=1,
    )
    compared = TradeOff(alpha=alpha, policy=answers, answered=70, wrong=0, wrong_rate_at_most=0.2)
    stored = CertifiedPolicy(certificate=certificate, coverage=coverage, curve=[compared])
    attempt = Attempt(kind="certificate", prompts="", records="r", settings="s", number=1, certified=True)
    made = artifact.model_copy(update={"policy": stored, "attempts": [attempt]})
    return CalibrationArtifact.model_validate(made.model_dump())


@pytest.fixture(scope="module")
def bot() -> CalibrationArtifact:
    """Sets at alpha = 0.25, threshold 0.75, are answered if two of four agree; 0.5 is held as well."""
    artifact = make_artifact(alpha=["0.25", "0.5"], extracted=True)
    return with_policy(artifact, "0.25", max_answers=1, min_agreement=2)


def make_bot(artifact: CalibrationArtifact, texts: tuple[str, ...] = TEXTS, **fields: Any) -> CFCRunnable:
    named = {} if artifact.policy is None or "alpha" in fields else {"max_wrong_rate": "0.05"}
    parts = {"generator": ScriptedModel(texts=texts), "answer": answer_of}
    return make_chain(artifact, **{**parts, **named, **fields})


@pytest.mark.parametrize(
    ("texts", "reason", "best"),
    [
        (TEXTS, "answered", "lima"),
        (AGREEMENT, "answered", "lima"),
        (TWO_ANSWERS, "too_many_answers", None),
        (TWO_AGREED, "too_many_answers", None),
        (NO_AGREEMENT, "too_little_agreement", None),
        (BLANK, "only_blank_answers", None),
    ],
)
def test_bot_answers_or_abstains_by_its_certified_policy(
    texts: tuple[str, ...], reason: str, best: str | None, *, bot: CalibrationArtifact, invoke: Invoke
) -> None:
    result = invoke(make_bot(bot, texts), "where?")
    assert (result.reason, result.best, result.abstained) == (reason, best, best is None)
    assert result.answers == (() if best is None else (best,))
    # Whatever is withheld, the set is listed; for answer sets it is the answer.
    plain = invoke(make_bot(bot, texts, alpha="0.25"), "where?")
    assert [one.accepted for one in plain.candidates] == [one.accepted for one in result.candidates]
    assert plain.reason == ("only_blank_answers" if texts is BLANK else "answered")


def test_bot_serves_the_level_of_its_certificate(bot: CalibrationArtifact) -> None:
    # Between the thresholds of the two levels, 0.5 and 0.75.
    texts = ("lima|0.6", "lima|0.7", "quito|0.9", "bogota|0.9")
    assert make_bot(bot, texts).invoke("x").best == "lima"
    assert make_bot(bot, texts).guarantee.alpha == "0.25"
    assert [one.accepted for one in make_bot(bot, texts, alpha="0.5").invoke("x").candidates].count(True) == 1


def test_bot_does_not_answer_flagged_prompts(by_topics: CalibrationArtifact) -> None:
    artifact = with_policy(by_topics, "0.25", max_answers=1)
    described = {"metadata": lambda text: {"topic": str(text).rpartition(" ")[2]}}
    chain = make_chain(artifact, max_wrong_rate="0.05", **described)
    assert chain.invoke("a hopeless").reason == "not_certifiable"
    assert chain.invoke("an easy").reason == "too_many_answers"


def test_bot_result_carries_coverage_and_wrong_answer_promises(bot: CalibrationArtifact) -> None:
    for texts in (TEXTS, NO_AGREEMENT, BLANK):
        chain = make_bot(bot, texts)
        result = chain.invoke("x")
        promise = result.guarantee
        assert promise == chain.guarantee == bot.make_bot_guarantee("unbound")
        assert promise.wrong_answers == bot.certified_policy.certificate
        # A promise on average does not survive that a policy was found; what is certified does.
        assert (promise.kind, promise.weightings) == ("certified", ())
        assert promise.certificate == bot.certified_policy.coverage[0]
        counted = " This also counts sets that are withheld."
        assert promise.sentence == bot.certified_policy.coverage[0].sentence + counted
        assert promise.failure_probability == 0.1
        assert any("before labels choose a level or a policy" in one for one in promise.not_promised)
        assert not any(
            "how often an answered prompt gets a wrong answer" in one for one in promise.not_promised
        )
        assert any("withheld" in one for one in promise.not_promised)
        assert CFCResult.model_validate_json(result.model_dump_json()) == result
        # End users of a bot read how often it is wrong and answers, and nothing about sets.
        assert "at most 5 % get a wrong best answer" in result.explain()
        assert "of 90 questions with known answers 70 were answered" in result.explain()
        assert promise.sentence not in result.explain()
    # Answer sets have one promise, which does not speak of answers.
    plain = make_bot(bot, alpha="0.25").invoke("x")
    assert plain.guarantee.wrong_answers is None
    assert any(
        "how often an answered prompt gets a wrong answer" in one for one in plain.guarantee.not_promised
    )
    assert "wrong best answer" not in plain.explain()


def test_policy_that_withholds_nothing_adds_no_exclusion() -> None:
    artifact = with_policy(make_artifact(), "0.25")
    promise = make_chain(artifact, max_wrong_rate="0.05").invoke("x").guarantee
    assert promise.wrong_answers is not None
    assert not any("withheld" in one for one in [promise.sentence, *promise.not_promised])
    assert not artifact.needs_answers


def by_field(bot: CalibrationArtifact, **promise: Any) -> Any:
    return make_chain(bot, generator=ScriptedModel(texts=TEXTS), answer=answer_of, **promise).invoke("x")


def by_call(bot: CalibrationArtifact, **promise: Any) -> Any:
    return make_bot(bot).invoke("x", **promise)


def by_acall(bot: CalibrationArtifact, **promise: Any) -> Any:
    return asyncio.run(make_bot(bot).ainvoke("x", **promise))


def by_binding(bot: CalibrationArtifact, **promise: Any) -> Any:
    return make_bot(bot).bind(**promise).invoke("x")


def by_batch(bot: CalibrationArtifact, **promise: Any) -> Any:
    return make_bot(bot).batch(["x"], **promise)[0]


def by_stream(bot: CalibrationArtifact, **promise: Any) -> Any:
    (result,) = make_bot(bot).stream("x", **promise)
    return result


def by_copy(bot: CalibrationArtifact, **promise: Any) -> Any:
    named = {"alpha": None, "max_wrong_rate": None, **promise}
    return make_bot(bot).model_copy(update=named).invoke("x")


def by_fallback(bot: CalibrationArtifact, **promise: Any) -> Any:
    return make_bot(bot).or_else(str.upper).invoke("x", **promise)


def by_chat_model(bot: CalibrationArtifact, **promise: Any) -> Any:
    model = CFCChatModel(chain=make_bot(bot), full_result=True)
    return CFCResult.model_validate(model.invoke("x", **promise).response_metadata["cfc"])


WAYS = [by_field, by_call, by_acall, by_binding, by_batch, by_stream, by_copy, by_fallback, by_chat_model]


@pytest.mark.parametrize("way", WAYS)
def test_call_serves_the_promise_that_it_names(way: Any, bot: CalibrationArtifact) -> None:
    sets, other, rate = way(bot, alpha="0.25"), way(bot, alpha=0.5), way(bot, max_wrong_rate=0.05)
    assert [one.guarantee.alpha for one in (sets, other, rate)] == ["0.25", "0.5", "0.25"]
    assert sets.guarantee == bot.make_guarantee("0.25", "unbound")
    assert other.guarantee == bot.make_guarantee("0.5", "unbound")
    assert rate.guarantee == bot.make_bot_guarantee("unbound")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("promise", "problem"),
    [
        ({"alpha": "0.123"}, "not calibrated at alpha = 0.123"),
        ({"max_wrong_rate": "0.1"}, "max_wrong_rate = 0.1 is not certified"),
        ({"alpha": "0.25", "max_wrong_rate": "0.05"}, "two promises"),
    ],
    ids=str,
)
def test_call_refuses_a_promise_not_held(
    way: Any, promise: dict[str, Any], problem: str, bot: CalibrationArtifact
) -> None:
    with pytest.raises(InputError, match=problem):
        way(bot, **promise)


def test_only_promise_of_an_artifact_is_served(bot: CalibrationArtifact) -> None:
    policy = bot.certified_policy
    # Levels that were not asked for are no promises.
    one_rate = bot.model_copy(update={"policy": policy.model_copy(update={"level_chosen": True})})
    parts = {"generator": ScriptedModel(texts=TEXTS), "answer": answer_of}
    assert make_chain(one_rate, **parts).invoke("x").guarantee.wrong_answers == policy.certificate
    with pytest.raises(InputError, match="calibrated without alpha"):
        make_chain(one_rate, alpha="0.25", **parts)
    with pytest.raises(InputError, match="holds several promises") as refused:
        make_chain(bot, **parts)
    assert "(max_wrong_rate=0.05, alpha=0.25, alpha=0.5)" in str(refused.value)
    assert "CFCRunnable(..., max_wrong_rate=0.05)" in str(refused.value)


def test_bot_draws_nothing_for_a_refused_promise(bot: CalibrationArtifact) -> None:
    model = ScriptedModel(texts=TEXTS)
    chain = make_bot(bot, generator=model)
    for name in ("alpha", "max_wrong_rate"):
        with pytest.raises(InputError):
            chain.bind(**{name: "0.3"}).invoke("x")
    assert model.drawn == []


@pytest.mark.parametrize("fields", [{"max_answers": 1}, {"min_agreement": 1}], ids=str)
def test_bot_refuses_max_answers_and_min_agreement(fields: dict[str, Any], bot: CalibrationArtifact) -> None:
    with pytest.raises(InputError, match="leave max_answers and min_agreement out"):
        make_bot(bot, **fields)
    # Answer sets of the same artifact take them, unless a call names the certified rate.
    chain = make_bot(bot, **fields, alpha="0.25")
    assert chain.invoke("x").guarantee.wrong_answers is None
    with pytest.raises(InputError, match="leave max_answers and min_agreement out"):
        chain.invoke("x", max_wrong_rate="0.05")


def test_rate_is_refused_by_an_artifact_without_certified_policy(artifact: CalibrationArtifact) -> None:
    with pytest.raises(InputError, match=r"no certified policy: calibrate with max_wrong_rate"):
        make_chain(artifact, max_wrong_rate="0.05")
    with pytest.raises(InputError, match="no certified policy"):
        artifact.make_bot_guarantee()


def test_bot_requires_the_answer_extractor_of_calibration(bot: CalibrationArtifact) -> None:
    with pytest.raises(FingerprintError, match="use that extractor"):
        make_bot(bot, answer=None)
    # Its records had no extractor, so that serving must have none.
    texts = with_policy(make_artifact(), "0.25", max_answers=1)
    with pytest.raises(FingerprintError, match="leave answer="):
        make_bot(texts)
    assert make_chain(texts, max_wrong_rate="0.05").invoke("x").reason == "too_many_answers"


def test_as_answer_of_a_bot_states_the_wrong_rate(bot: CalibrationArtifact, invoke: Any) -> None:
    message = invoke(make_bot(bot).as_answer(), "x")
    assert isinstance(message, AIMessage)
    assert message.text == "lima"
    said = message.response_metadata["cfc"]
    assert said["guarantee"]["wrong_answers"] == {"max_wrong_rate": "0.05"}
    json.dumps(said, allow_nan=False)
    withheld = invoke(make_bot(bot, NO_AGREEMENT).as_answer(abstain_message="No idea."), "x")
    assert withheld.text == "No idea."
    assert withheld.response_metadata["cfc"]["reason"] == "too_little_agreement"
    assert "lima" not in withheld.model_dump_json()


def test_chat_model_of_a_bot_answers_or_abstains(bot: CalibrationArtifact, invoke: Any) -> None:
    answered = invoke(CFCChatModel(chain=make_bot(bot)), [HumanMessage("x")])
    assert answered.text == "lima"
    assert answered.response_metadata["cfc"]["guarantee"]["alpha"] == "0.25"
    wrong_answers = make_bot(bot).find_guarantee(answered).wrong_answers
    assert wrong_answers is not None
    assert wrong_answers.alpha == "0.25"
    withheld = invoke(CFCChatModel(chain=make_bot(bot, TWO_ANSWERS)), [HumanMessage("x")])
    assert withheld.response_metadata["cfc"]["reason"] == "too_many_answers"
    assert "lima" not in withheld.text


def test_or_else_is_asked_where_the_bot_policy_abstains(bot: CalibrationArtifact, invoke: Any) -> None:
    asked: list[Any] = []

    def person(prompt: Any) -> str:
        asked.append(prompt)
        return "a person"

    assert invoke(make_bot(bot).or_else(person), "x").best == "lima"
    assert asked == []
    assert invoke(make_bot(bot, NO_AGREEMENT).or_else(person), "x") == "a person"
    assert asked == ["x"]


def test_copied_and_pickled_bots_stay_bots(bot: CalibrationArtifact) -> None:
    chain = make_bot(bot, generator=FakeListChatModel(responses=["lima|0.1"]))
    copies = (
        copy.copy(chain),
        copy.deepcopy(chain),
        pickle.loads(pickle.dumps(chain)),  # noqa: S301 - its own
        chain.model_copy(deep=True),
    )
    for one in copies:
        assert isinstance(one, CFCRunnable)
        assert one.invoke("x") == chain.invoke("x")
        assert one.guarantee.wrong_answers is not None


@pytest.mark.parametrize(
    ("least", "texts", "reason"),
    [
        (1, NO_AGREEMENT, "answered"),
        (2, NO_AGREEMENT, "too_little_agreement"),
        (2, AGREEMENT, "answered"),
        (3, AGREEMENT, "too_little_agreement"),
        (4, ("lima|0.1",) * N, "answered"),
    ],
)
def test_min_agreement_counts_accepted_and_rejected_candidates(
    least: int, texts: tuple[str, ...], reason: str, artifact: CalibrationArtifact
) -> None:
    chain = make_bot(artifact, texts, min_agreement=least)
    assert chain.invoke("x").reason == reason


def test_min_agreement_counts_agreement_with_the_best_answer(artifact: CalibrationArtifact) -> None:
    # The most frequent answer is another than the best.
    texts = ("lima|0.1", "quito|0.2", "quito|0.3", "quito|0.9")
    result = make_bot(artifact, texts, min_agreement=2).invoke("x")
    assert (result.reason, result.answers, result.best) == ("too_little_agreement", (), None)
    assert "too few of the 4 answers that the model gave agree with the best one" in result.explain()
    assert [one.accepted for one in result.candidates] == [True, True, True, False]


def test_guarantee_states_what_min_agreement_excludes() -> None:
    plain = make_chain().guarantee
    stated = make_chain(min_agreement=2).guarantee
    (added,) = set(stated.not_promised) - set(plain.not_promised)
    assert "Only sets whose best answer at least 2 candidates agree on are answered" in added
    assert stated.wrong_answers is None
    assert make_chain(min_agreement=1).guarantee == plain


def test_chain_refuses_min_agreement_above_the_number_of_candidates() -> None:
    assert make_chain(min_agreement=N).invoke("x").abstained
    with pytest.raises(InputError, match="min_agreement"):
        make_chain(min_agreement=N + 1)
