"""Bots: a certified cut answers or abstains, and the promise is fixed before the draw."""

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
from langchain_cfc.artifact import Attempt, CertifiedBot, TradeOff
from langchain_cfc.errors import InputError
from langchain_cfc.guarantee import CertifiedAnswers, WrongRateCertificate
from tests.calls import Invoke
from tests.factories import make_artifact, make_chain
from tests.fakes import TEXTS, ScriptedModel, answer_of

CUT = 0.6
# Mean scores of 0.675 and 0.9, above the cut; that of `TEXTS` is 0.525.
HARD = ("lima|0.1", "quito|0.9", "bogota|0.9", "santiago|0.8")
NONE_ACCEPTED = ("a|0.9", "b|0.9", "c|0.8", "d|1.0")


def with_bot(artifact: CalibrationArtifact, cut: float = CUT) -> CalibrationArtifact:
    """The artifact with a cut as if it had been certified on 90 prompts."""
    everyone = CertifiedAnswers(
        name="1", words="all prompts", prompts=90, answered=70, wrong=0, certified=True
    )
    certificate = WrongRateCertificate(
        alpha="0.05",
        delta="0.1",
        attempt=1,
        level=0.08,
        prompts=90,
        records_digest="sha256:r",
        artifact_digest=artifact.frozen_digest,
        max_wrong_rate="0.05",
        max_mean_score=cut,
        groups=(everyone,),
    )
    every = TradeOff(max_mean_score=1.0, answered=90, wrong=20, wrong_rate_at_most=0.4)
    stored = CertifiedBot(certificates=[certificate], curve=[every], delta="0.1")
    attempt = Attempt(kind="certificate", prompts="", records="r", settings="s", number=1, certified=True)
    made = artifact.model_copy(update={"bot": stored, "attempts": [attempt]})
    return CalibrationArtifact.model_validate(made.model_dump())


@pytest.fixture(scope="module")
def bot() -> CalibrationArtifact:
    """A bot beside sets at alpha = 0.25, threshold 0.75, and at alpha = 0.5."""
    return with_bot(make_artifact(alpha=["0.25", "0.5"], extracted=True))


def make_bot(artifact: CalibrationArtifact, texts: tuple[str, ...] = TEXTS, **fields: Any) -> CFCRunnable:
    named = {} if artifact.bot is None or "alpha" in fields else {"max_wrong_rate": "0.05"}
    parts = {"generator": ScriptedModel(texts=texts), "answer": answer_of}
    return make_chain(artifact, **{**parts, **named, **fields})


@pytest.mark.parametrize(
    ("texts", "reason", "best"),
    [
        (TEXTS, "answered", "lima"),
        (HARD, "mean_score_too_high", None),
        (NONE_ACCEPTED, "mean_score_too_high", None),
        (("", " ", "", ""), "only_blank_answers", None),
    ],
)
def test_bot_answers_or_abstains_by_its_cut(
    texts: tuple[str, ...], reason: str, best: str | None, *, bot: CalibrationArtifact, invoke: Invoke
) -> None:
    result = invoke(make_bot(bot, texts, answer=lambda text: text.partition("|")[0].strip()), "where?")
    assert (result.reason, result.best, result.abstained) == (reason, best, best is None)
    assert result.answers == (() if best is None else (best,))


def test_bot_answers_with_the_best_candidate_regardless_of_thresholds(bot: CalibrationArtifact) -> None:
    # Below both thresholds, 0.75 and 0.5, and below neither: the cut alone decides.
    easy = ("lima|0.1", "quito|0.2", "lima|0.3", "bogota|0.1")
    sets = make_bot(bot, easy, alpha="0.5").invoke("x")
    assert sets.answers == ("lima", "bogota", "quito")
    assert make_bot(bot, easy).invoke("x").answers == ("lima",)
    assert make_bot(with_bot(bot, cut=0.9), NONE_ACCEPTED, answer=answer_of).invoke("x").best == "c"


def test_bot_answers_flagged_prompts_and_unknown_categories(by_topics: CalibrationArtifact) -> None:
    described = {"metadata": lambda text: {"topic": str(text).rpartition(" ")[2]}}
    artifact = with_bot(by_topics)
    chain = make_chain(artifact, **described, max_wrong_rate="0.05")
    for prompt in ("a hopeless", "an easy", "an unknown"):
        result = chain.invoke(prompt)
        assert (result.reason, result.unknown_categories) == ("answered", ())
    # Control: a set is not certifiable there.
    assert make_chain(artifact, **described, alpha="0.25").invoke("a hopeless").reason == "not_certifiable"


def test_promises_side_by_side_are_those_of_each_alone(bot: CalibrationArtifact) -> None:
    for texts in (TEXTS, HARD, NONE_ACCEPTED):
        chain = make_bot(bot, texts)
        result = chain.invoke("x")
        promise = result.guarantee
        assert promise == chain.guarantee == bot.make_guarantee(binding="unbound", max_wrong_rate="0.05")
        assert promise.wrong_answers == bot.certified_bot.certificates[0]
        assert (promise.kind, promise.weightings, promise.certificate) == ("certified", (), None)
        assert promise.failure_probability == 0.1
        assert promise.sentence == promise.wrong_answers.sentence
        assert not any("set" in one.split() for one in promise.not_promised)
        assert CFCResult.model_validate_json(result.model_dump_json()) == result
        # End users of a bot read how often it is wrong and answers, and nothing about sets.
        assert "at most 5 % get a wrong answer" in result.explain()
        assert "It answered 70 of 90 calibration questions" in result.explain()
    # Answer sets have the promise that they have without a bot, which does not speak of answers.
    plain = make_bot(bot, alpha="0.25").invoke("x")
    alone = make_artifact(alpha=["0.25", "0.5"], extracted=True).make_guarantee("0.25", "unbound")
    assert plain.guarantee.model_copy(update={"artifact_digest": alone.artifact_digest}) == alone
    assert plain.guarantee.kind == "conditional"
    assert "get a wrong answer" not in plain.explain()


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
    assert [one.guarantee.alpha for one in (sets, other, rate)] == ["0.25", "0.5", "0.05"]
    assert sets.guarantee == bot.make_guarantee("0.25", "unbound")
    assert other.guarantee == bot.make_guarantee("0.5", "unbound")
    assert rate.guarantee == bot.make_guarantee(binding="unbound", max_wrong_rate="0.05")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("promise", "problem"),
    [
        ({"alpha": "0.123"}, "not calibrated at alpha = 0.123"),
        ({"max_wrong_rate": "0.1"}, "max_wrong_rate = 0.1 is not certified"),
        ({"alpha": "0.25", "max_wrong_rate": "0.05"}, "different promises"),
    ],
    ids=str,
)
def test_call_refuses_a_promise_not_held(
    way: Any, promise: dict[str, Any], problem: str, bot: CalibrationArtifact
) -> None:
    with pytest.raises(InputError, match=problem):
        way(bot, **promise)


def test_only_promise_of_an_artifact_is_served(bot: CalibrationArtifact) -> None:

    bare = make_artifact(alpha="0.25", extracted=True).model_copy(update={"levels": [], "arrays": {}})
    one_rate = with_bot(bare)
    parts = {"generator": ScriptedModel(texts=TEXTS), "answer": answer_of}
    assert (
        make_chain(one_rate, **parts).invoke("x").guarantee.wrong_answers
        == one_rate.certified_bot.certificates[0]
    )
    with pytest.raises(InputError, match="calibrated without alpha"):
        make_chain(one_rate, alpha="0.25", **parts)
    with pytest.raises(InputError, match="holds several promises") as refused:
        make_chain(bot, **parts)
    assert "(max_wrong_rate=0.05, alpha=0.25, alpha=0.5)" in str(refused.value)
    assert "such as max_wrong_rate=0.05" in str(refused.value)


def test_bot_draws_nothing_for_a_refused_promise(bot: CalibrationArtifact) -> None:
    model = ScriptedModel(texts=TEXTS)
    chain = make_bot(bot, generator=model)
    for name in ("alpha", "max_wrong_rate"):
        with pytest.raises(InputError):
            chain.bind(**{name: "0.3"}).invoke("x")
    assert model.drawn == []


def test_rate_is_refused_by_an_artifact_without_a_certified_rate(artifact: CalibrationArtifact) -> None:
    with pytest.raises(InputError, match="calibrate with max_wrong_rate"):
        make_chain(artifact, max_wrong_rate="0.05")
    with pytest.raises(InputError, match="no certified rate"):
        artifact.make_guarantee(max_wrong_rate="0.05")


def test_refused_rate_beside_sets_is_refused_by_name(bot: CalibrationArtifact) -> None:
    nothing = bot.certified_bot.model_copy(
        update={"certificates": [], "curve": [], "refused": {"0.05": "too many are wrong."}}
    )
    artifact = CalibrationArtifact.model_validate(bot.model_copy(update={"bot": nothing}).model_dump())
    assert make_bot(artifact, alpha="0.25").invoke("x").best == "lima"
    with pytest.raises(InputError, match="too many are wrong"):
        artifact.make_guarantee(max_wrong_rate="0.05")
    with pytest.raises(InputError, match="too many are wrong"):
        make_bot(artifact)


def test_as_answer_of_a_bot_states_the_wrong_rate(bot: CalibrationArtifact, invoke: Any) -> None:
    message = invoke(make_bot(bot).as_answer(), "x")
    assert isinstance(message, AIMessage)
    assert message.text == "lima"
    said = message.response_metadata["cfc"]
    assert said["guarantee"]["wrong_answers"] == {"max_wrong_rate": "0.05"}
    json.dumps(said, allow_nan=False)
    withheld = invoke(make_bot(bot, HARD).as_answer(abstain_message="No idea."), "x")
    assert withheld.text == "No idea."
    assert withheld.response_metadata["cfc"]["reason"] == "mean_score_too_high"
    assert "lima" not in withheld.model_dump_json()


def test_chat_model_of_a_bot_answers_or_abstains(bot: CalibrationArtifact, invoke: Any) -> None:
    answered = invoke(CFCChatModel(chain=make_bot(bot)), [HumanMessage("x")])
    assert answered.text == "lima"
    assert answered.response_metadata["cfc"]["guarantee"]["alpha"] == "0.05"
    wrong_answers = make_bot(bot).guarantee.wrong_answers
    assert wrong_answers is not None
    assert wrong_answers.alpha == "0.05"
    withheld = invoke(CFCChatModel(chain=make_bot(bot, HARD)), [HumanMessage("x")])
    assert withheld.response_metadata["cfc"]["reason"] == "mean_score_too_high"
    assert "lima" not in withheld.text


def test_or_else_is_asked_where_the_bot_abstains(bot: CalibrationArtifact, invoke: Any) -> None:
    asked: list[Any] = []

    def person(prompt: Any) -> str:
        asked.append(prompt)
        return "a person"

    assert invoke(make_bot(bot).or_else(person), "x").best == "lima"
    assert asked == []
    assert invoke(make_bot(bot, HARD).or_else(person), "x") == "a person"
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
