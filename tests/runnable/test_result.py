"""`CFCResult` is plain data: it is written, read, copied and sent without loss, and explains itself."""

from __future__ import annotations

import copy
import json
import pickle
import re
from collections.abc import Callable
from typing import get_args

import numpy as np
import pytest
from pydantic import BaseModel, ValidationError

from langchain_cfc import CalibrationArtifact, CFCResult, FeatureMap
from langchain_cfc.candidates import CandidateBatch
from langchain_cfc.decision import Reason
from langchain_cfc.guarantee import PaperPAC
from tests.factories import make_artifact, make_chain
from tests.fakes import N, ScriptedModel, answer_of, topic_of

REASONS = {
    "answered": ("an easy", ("lima|0.3", "quito|0.9", "lima|0.1", "bogota|0.8")),
    "only_blank_answers": ("an easy", (" |0.8", " |0.9", " |0.85", " |0.8")),
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
    """Someone else's model that holds a result, as the state of a graph does."""

    result: CFCResult


@each_reason
def test_result_json_is_strict_and_round_trips(result: CFCResult) -> None:
    assert CFCResult.model_validate_json(result.model_dump_json()) == result
    assert CFCResult.model_validate(result.model_dump()) == result
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
def test_threshold_round_trips_through_json_exactly(result: CFCResult, threshold: float) -> None:
    changed = result.model_copy(update={"threshold": threshold})
    assert changed.model_dump()["threshold"] == threshold
    assert CFCResult.model_validate_json(changed.model_dump_json()).threshold == threshold


@each_reason
@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])  # noqa: S301 - our own
def test_copied_and_pickled_results_are_equal(
    result: CFCResult, copied: Callable[[CFCResult], CFCResult]
) -> None:
    assert copied(result) == result
    assert copied(result).explain() == result.explain()


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])  # noqa: S301 - our own
@pytest.mark.parametrize("used", [False, True])
def test_copied_and_pickled_artifacts_serve_alike(
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
def test_result_and_its_candidates_are_frozen(result: CFCResult) -> None:
    with pytest.raises(ValidationError, match="frozen"):
        result.abstained = not result.abstained
    with pytest.raises(ValidationError, match="frozen"):
        result.candidates[0].text = "lima"


@pytest.mark.parametrize("result", ["answered"], indirect=True)
def test_result_refuses_unknown_fields(result: CFCResult) -> None:
    with pytest.raises(ValidationError, match="certified"):
        CFCResult.model_validate({**result.model_dump(), "certified": True})


@pytest.mark.parametrize("result", ["answered"], indirect=True)
def test_explain_describes_an_answer(result: CFCResult) -> None:
    assert result.explain_reason() == ("2 of the 4 answers say this; all passed.")
    assert result.explain().startswith(
        f"{result.explain_reason()} Its topic: easy. {result.guarantee.sentence} Nothing is promised about "
        "one answer by itself."
    )


@pytest.mark.parametrize("result", ["only_blank_answers"], indirect=True)
def test_explain_reason_describes_an_abstention(result: CFCResult) -> None:
    assert result.explain_reason() == (
        "No answer, because all that the model answered is blank, refused or not judged."
    )


def test_best_candidate_alone_is_answered_and_explained() -> None:
    texts = ("lima|0.8", "quito|0.9", "lima|0.85", "bogota|0.8")
    chain = make_chain(make_artifact(), generator=ScriptedModel(texts=texts), answer=answer_of)
    result = chain.invoke("x")
    assert (result.abstained, result.reason) == (False, "answered")
    assert (result.answers, result.best, result.to_message("?").text) == (("lima",), "lima", "lima")
    # The earliest of lowest score, and its text is shown like that of any accepted candidate.
    assert [one.accepted for one in result.candidates] == [True, False, False, False]
    assert [one.text for one in result.candidates] == ["lima|0.8", None, None, None]
    assert result.threshold == pytest.approx(0.75)
    assert result.explain_reason() == (
        "2 of the 4 answers say this; none passed the check, and this is the best one."
    )


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("lima|0.1", "The only answer passed the check."),
        (
            "lima|0.9",
            "The only answer did not pass the check.",
        ),
        (" |0.1", "No answer, because all that the model answered is blank, refused or not judged."),
    ],
)
def test_explain_reason_speaks_of_a_single_answer_in_the_singular(said: str, expected: str) -> None:
    chain = make_chain(make_artifact(n=1), generator=lambda _: said, answer=answer_of)
    assert chain.invoke("x").explain_reason() == expected


@pytest.mark.parametrize("result", ["not_certifiable"], indirect=True)
def test_explain_describes_a_flagged_prompt(result: CFCResult) -> None:
    text = result.explain()
    assert text.startswith(
        "No answer, because nothing can be promised for a question like this: the calibration had "
    )
    for part in ("Its topic: hopeless.", "75 %"):
        assert part in text
    assert "inf" not in text


@pytest.mark.parametrize(
    ("texts", "counted"),
    [
        (("lima|0.1", "lima|0.9", "lima|0.9", "lima|0.9"), "All 4 answers agree; the best one passed."),
        (
            ("lima|0.1", "lima|0.9", "lima|0.9", "quito|0.9"),
            "3 of the 4 answers say this; the best one passed.",
        ),
        (
            ("lima|0.3", "quito|0.2", "lima|0.1", "bogota|0.8"),
            "3 of the 4 answers passed the check; 2 of them are different.",
        ),
    ],
    ids=["all agree", "one answer", "different answers"],
)
def test_explain_reason_counts_agreeing_candidates_or_answers(
    by_topics: CalibrationArtifact, texts: tuple[str, ...], counted: str
) -> None:
    chain = make_chain(by_topics, generator=ScriptedModel(texts=texts), metadata=topic_of, answer=answer_of)
    assert chain.invoke("an easy").explain_reason() == counted


# The scores of a prompt place it in a fifth of the prompts that fitted the map, whose scores fill [0, 1].
@pytest.mark.parametrize("feature", ["hat(mean_score, 5)", "bins(max_score, 5)", "hat(min_score, 10)"])
@pytest.mark.parametrize(
    ("score", "words"),
    [
        (0.0, "a very easy question"),
        (0.3, "an easy question"),
        (0.5, "a question of medium difficulty"),
        (0.7, "a hard question"),
        (1.0, "a very hard question"),
    ],
)
def test_explain_describes_score_features_as_difficulty(feature: str, score: float, words: str) -> None:
    features = fit_scores(feature)
    assert explain_scores(features, score).startswith(f"It counts as {words}. ")
    # The opposite end is called otherwise.
    assert explain_scores(features, 1.0 - score).startswith(f"It counts as {words}. ") == (score == 0.5)


def test_explain_describes_the_hard_feature_as_hard_or_easy() -> None:
    features = fit_scores("hard(mean_score, 0.8)")
    assert explain_scores(features, 0.9).startswith("It counts as a hard question. ")
    assert explain_scores(features, 0.3).startswith("It counts as an easy question. ")


@pytest.mark.parametrize("feature", ["mean_score^2", "hat(std_score, 3)", "bins(mean_length, 3)"])
def test_explain_omits_features_without_words(feature: str) -> None:
    draws = CandidateBatch.from_arrays(
        [[rank / 10, 0.5, 0.5, 0.5] for rank in range(10)],
        [["a" * (rank + 1)] * N for rank in range(10)],
    )
    features = FeatureMap.parse(feature).fit(draws)
    text = explain_features(features, draws.take(np.array([9])))
    assert "It counts as" not in text
    assert not re.search(r"[(\[_=]|score", text)


def fit_scores(feature: str) -> FeatureMap:
    """A map fitted on 41 prompts, each with equal scores, which are spaced evenly from 0 to 1."""
    return FeatureMap.parse(feature).fit(CandidateBatch.from_arrays([[rank / 40] * N for rank in range(41)]))


def explain_scores(features: FeatureMap, score: float) -> str:
    """Return the text after the reason in the explanation of a prompt whose candidates have this score."""
    return explain_features(features, CandidateBatch.from_arrays([[score] * N]))


def explain_features(features: FeatureMap, draws: CandidateBatch) -> str:
    """Return the text after the reason in the explanation of a prompt with the features of a map."""
    values = dict(zip(features.names, features.transform(draws)[0].tolist(), strict=True))
    result = make_chain().invoke("x").model_copy(update={"features": values})
    return result.explain().removeprefix(result.explain_reason()).strip()


def test_explain_states_no_guarantee_without_a_theorem() -> None:
    result = make_chain(make_artifact(pac=PaperPAC(ridge=0.001))).invoke("x")
    assert result.guarantee.kind == "heuristic"
    assert "No guarantee" in result.explain()
    assert "at least" not in result.explain()


@pytest.mark.parametrize("result", ["not_certifiable"], indirect=True)
def test_explain_reason_differs_for_every_reason(result: CFCResult) -> None:
    reasons = [one for one in get_args(Reason) if one != "answered"]
    said = {result.model_copy(update={"reason": one}).explain_reason() for one in reasons}
    assert len(said) == len(reasons) >= 5
    assert all(one.startswith("No answer, because ") for one in said)
