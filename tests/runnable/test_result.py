"""`CFCResult` is plain data: it is written, read, copied and sent without loss, and explains itself."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Callable

import pytest
from pydantic import BaseModel, ValidationError

from langchain_cfc import CalibrationArtifact, CFCResult
from tests.factories import make_artifact, make_chain
from tests.fakes import ScriptedModel, answer_of, topic_of

REASONS = {
    "answered": ("an easy", ("lima|0.3", "quito|0.9", "lima|0.1", "bogota|0.8")),
    "no_candidate_accepted": ("an easy", ("lima|0.8", "quito|0.9", "lima|0.85", "bogota|0.8")),
    "not_certifiable": ("a hopeless", ("lima|0.3", "quito|0.9", "lima|0.1", "bogota|0.8")),
}


@pytest.fixture
def result(request: pytest.FixtureRequest, by_topics: CalibrationArtifact) -> CFCResult:
    """A result of the reason that a test is parametrised with."""
    prompt, texts = REASONS[request.param]
    chain = make_chain(by_topics, generator=ScriptedModel(texts=texts), metadata=topic_of, answer=answer_of)
    return chain.invoke(prompt)


each_reason = pytest.mark.parametrize("result", REASONS, indirect=True)


class Envelope(BaseModel):
    """Somebody else's model that holds a result, as the state of a graph does."""

    result: CFCResult


@each_reason
def test_it_comes_back_from_json_as_it_was(result: CFCResult) -> None:
    assert CFCResult.model_validate_json(result.model_dump_json()) == result
    assert CFCResult.model_validate(result.model_dump()) == result


@each_reason
def test_its_json_is_strict(result: CFCResult) -> None:
    for text in (
        result.model_dump_json(),
        json.dumps(result.model_dump(mode="json"), allow_nan=False),
        Envelope(result=result).model_dump_json(),
    ):
        json.loads(text, parse_constant=pytest.fail)
    assert CFCResult.model_validate(result.model_dump(mode="json")) == result
    envelope = Envelope(result=result)
    assert Envelope.model_validate_json(envelope.model_dump_json()) == envelope


@pytest.mark.parametrize("threshold", [float("inf"), float("-inf"), -3.5, 1e-300, 0.1 + 0.2])
@pytest.mark.parametrize("result", ["answered"], indirect=True)
def test_thresholds_keep_every_bit(result: CFCResult, threshold: float) -> None:
    changed = result.model_copy(update={"threshold": threshold})
    assert changed.model_dump()["threshold"] == threshold
    assert CFCResult.model_validate_json(changed.model_dump_json()).threshold == threshold


@each_reason
@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])  # noqa: S301 - our own
def test_it_survives_copies_and_pickle(result: CFCResult, copied: Callable[[CFCResult], CFCResult]) -> None:
    assert copied(result) == result
    assert copied(result).explain() == result.explain()


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])  # noqa: S301 - our own
@pytest.mark.parametrize("used", [False, True])
def test_an_artifact_survives_copies_and_pickle(
    copied: Callable[[CalibrationArtifact], CalibrationArtifact], used: bool
) -> None:
    artifact = make_artifact(alpha=["0.25", "0.5"])
    before = make_chain(artifact, alpha=0.25).invoke("x") if used else None
    again = copied(artifact)
    assert again == artifact
    assert again.digest == artifact.digest
    assert make_chain(again, alpha=0.25).invoke("x") == (
        before or make_chain(artifact, alpha=0.25).invoke("x")
    )


@each_reason
def test_it_cannot_be_changed(result: CFCResult) -> None:
    with pytest.raises(ValidationError, match="frozen"):
        result.abstained = not result.abstained
    with pytest.raises(ValidationError, match="frozen"):
        result.candidates[0].text = "lima"


@pytest.mark.parametrize("result", ["answered"], indirect=True)
def test_unknown_fields_are_refused(result: CFCResult) -> None:
    with pytest.raises(ValidationError, match="certified"):
        CFCResult.model_validate({**result.model_dump(), "certified": True})


@pytest.mark.parametrize("result", ["answered"], indirect=True)
def test_the_explanation_of_an_answer(result: CFCResult) -> None:
    text = result.explain()
    assert text.startswith("Answered with 1 answer ")
    for part in ("threshold 0.75", "0.1", "group(topic)=easy", "75 %"):
        assert part in text


@pytest.mark.parametrize("result", ["no_candidate_accepted"], indirect=True)
def test_the_explanation_of_a_low_threshold(result: CFCResult) -> None:
    text = result.explain()
    assert text.startswith("Abstained: all 4 scores lie above the threshold 0.75")
    assert "the lowest was 0.8" in text


def test_the_explanation_of_the_best_candidate_alone() -> None:
    _, texts = REASONS["no_candidate_accepted"]
    chain = make_chain(
        make_artifact(never_empty=True), generator=ScriptedModel(texts=texts), answer=answer_of
    )
    result = chain.invoke("x")
    assert (result.abstained, result.reason) == (False, "answered")
    assert (result.answers, result.best, result.to_message("?").text) == (("lima",), "lima", "lima")
    # The earliest of lowest score, and its text is shown like that of any accepted candidate.
    assert [one.accepted for one in result.candidates] == [True, False, False, False]
    assert [one.text for one in result.candidates] == ["lima|0.8", None, None, None]
    assert result.threshold == pytest.approx(0.75)
    assert result.explain().startswith(
        "Answered with the best candidate alone, because sets are never empty: all 4 scores lie above the "
        "threshold 0.75; the lowest was 0.8"
    )


@pytest.mark.parametrize("result", ["not_certifiable"], indirect=True)
def test_the_explanation_of_a_flag(result: CFCResult) -> None:
    text = result.explain()
    assert text.startswith("Abstained")
    for part in ("no set made of 4 candidates can be certified", "group(topic)=hopeless", "75 %"):
        assert part in text
    assert "threshold inf" not in text


def test_several_answers_are_explained_as_several(by_topics: CalibrationArtifact) -> None:
    texts = ("lima|0.3", "quito|0.2", "lima|0.1", "bogota|0.8")
    chain = make_chain(by_topics, generator=ScriptedModel(texts=texts), metadata=topic_of, answer=answer_of)
    assert chain.invoke("an easy").explain().startswith("Answered with 2 distinct answers ")


def test_a_rule_without_a_theorem_is_explained_as_heuristic() -> None:
    result = make_chain(make_artifact(threshold_rule="learned")).invoke("x")
    assert result.guarantee.kind == "heuristic"
    assert "No guarantee" in result.explain()
    assert "at least" not in result.explain()


def test_the_marginal_rule_promises_an_average_only() -> None:
    result = make_chain(make_artifact(threshold_rule="marginal")).invoke("x")
    assert result.guarantee.kind == "marginal"
    assert [weighting.kind for weighting in result.guarantee.weightings] == ["constant"]
    assert "guaranteed groups" not in result.explain()
