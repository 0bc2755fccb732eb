"""Serving refuses what was not calibrated, and says where nothing could be compared."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
from langchain_core.runnables import RunnableLambda

from langchain_cfc import CalibrationArtifact, CFCRunnable, FeatureMap
from langchain_cfc.candidates import CandidateBatch
from langchain_cfc.errors import FingerprintError, FingerprintWarning
from langchain_cfc.records import Provenance
from langchain_cfc.sampling import DrawnCandidate
from tests.factories import make_artifact, make_chain
from tests.fakes import TEXTS, N, ScriptedModel, answer_of, verify

GENERATOR = {"id": "my-model", "model": "m-1", "temperature": 0.7, "model_version": "a"}
VERIFIER = {"id": "my-judge"}
ANSWER = {"id": "first-word"}


class NamedModel(ScriptedModel):
    """A model that says what it is."""

    fingerprint: dict[str, Any]


class NamedVerifier:
    """A verifier that says what it is."""

    def __init__(self, **fingerprint: Any) -> None:
        self.fingerprint = fingerprint

    def __call__(self, prompt: Any, candidates: list[DrawnCandidate]) -> list[float]:
        return verify(prompt, candidates)


class NamedExtractor:
    """An extractor that says what it is."""

    def __init__(self, **fingerprint: Any) -> None:
        self.fingerprint = fingerprint

    def __call__(self, text: str) -> str:
        return answer_of(text)


def bound_artifact(**settings: Any) -> CalibrationArtifact:
    fields = {"generator": GENERATOR, "verifier": VERIFIER, **settings.pop("stated", {})}
    return make_artifact(provenance=Provenance(n=N, **fields), **settings)


def model(**changes: Any) -> NamedModel:
    stated = {key: value for key, value in {**GENERATOR, **changes}.items() if value is not None}
    return NamedModel(texts=TEXTS, fingerprint=stated)


def matching(artifact: CalibrationArtifact, **fields: Any) -> CFCRunnable:
    return make_chain(artifact, **{"generator": model(), "verifier": NamedVerifier(**VERIFIER), **fields})


def test_what_matches_serves_without_a_word_and_the_guarantee_says_so() -> None:
    artifact = bound_artifact()
    guarantee = matching(artifact).invoke("x").guarantee
    assert (guarantee.binding, guarantee.artifact_digest) == ("matched", artifact.digest)
    assert any("fingerprints match" in assumption for assumption in guarantee.assumptions)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"id": "other"}, "id is 'other', in calibration it was 'my-model'"),
        ({"model": "m-2"}, "model is 'm-2', in calibration it was 'm-1'"),
        ({"temperature": 0.0}, "temperature is 0.0, in calibration it was 0.7"),
    ],
)
def test_another_generator_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(FingerprintError, match=f"the generator is not the one .*{said}"):
        matching(bound_artifact(), generator=model(**changes))


def test_another_verifier_is_refused() -> None:
    with pytest.raises(FingerprintError, match=r"the verifier is not the one .*id is 'other'"):
        matching(bound_artifact(), verifier=NamedVerifier(id="other"))


def test_an_id_given_by_the_user_is_compared_like_any_other() -> None:
    artifact = bound_artifact(stated={"generator": {"id": "mine"}})
    plain = ScriptedModel(texts=TEXTS)
    found = matching(artifact, generator=plain, generator_id="mine").invoke("x")
    assert found.guarantee.binding == "matched"
    with pytest.raises(FingerprintError, match="id is 'another', in calibration it was 'mine'"):
        matching(artifact, generator=plain, generator_id="another")


def test_nothing_to_compare_warns_and_the_guarantee_says_so() -> None:
    with pytest.warns(
        FingerprintWarning, match="cannot verify that generator and verifier are those"
    ) as caught:
        chain = make_chain(bound_artifact())
    # The way out is part of the message.
    assert "generator_id='my-model', verifier_id='my-judge'" in str(caught[0].message)
    guarantee = chain.invoke("x").guarantee
    assert guarantee.binding == "unverified"
    assert any("assumed to be the ones calibrated" in assumption for assumption in guarantee.assumptions)


def test_ids_alone_are_enough_to_match() -> None:
    chain = make_chain(bound_artifact(), generator_id="my-model", verifier_id="my-judge")
    assert chain.invoke("x").guarantee.binding == "matched"


def test_only_the_part_that_says_nothing_is_named() -> None:
    with pytest.warns(FingerprintWarning, match="cannot verify that verifier are") as caught:
        matching(bound_artifact(), verifier=verify)
    assert "generator_id" not in str(caught[0].message)


def test_records_that_named_nothing_leave_it_unverified() -> None:
    artifact = bound_artifact(stated={"generator": None, "verifier": None})
    with pytest.warns(FingerprintWarning, match="generator and verifier"):
        chain = matching(artifact)
    assert chain.invoke("x").guarantee.binding == "unverified"


def test_an_unbound_artifact_serves_and_every_guarantee_says_unbound(artifact: CalibrationArtifact) -> None:
    result = matching(artifact).invoke("x")
    assert result.guarantee.binding == "unbound"
    assert any("unbound" in assumption for assumption in result.guarantee.assumptions)
    assert "unbound" in result.explain()


def test_another_version_of_the_served_model_warns_and_serves() -> None:
    with pytest.warns(FingerprintWarning, match="now reports version 'b', in calibration it was 'a'"):
        chain = matching(bound_artifact(), generator=model(model_version="b"))
    result = chain.invoke("x")
    assert not result.abstained
    assert result.guarantee.binding == "matched"


def test_a_function_around_the_model_is_unverified_until_an_id_vouches_for_it() -> None:
    """A function may do anything to prompt or candidate, whatever id the model in the chain has."""
    for generator in (
        RunnableLambda(lambda prompt: prompt) | model(),
        model() | RunnableLambda(lambda message: message.text),
    ):
        with pytest.warns(FingerprintWarning, match=r"parts that cannot be compared \(RunnableLambda"):
            chain = matching(bound_artifact(), generator=generator)
        assert chain.invoke("x").guarantee.binding == "unverified"
        vouched = matching(bound_artifact(), generator=generator, generator_id="my-model")
        assert vouched.invoke("x").guarantee.binding == "matched"


def distinct_answers() -> FeatureMap:
    # Fitted on 1 to 5 answers; the calibration prompts have 4.
    draws = CandidateBatch.of([[0.5] * 5] * 2, answers=[["a"] * 5, ["a", "b", "c", "d", "e"]])
    return FeatureMap.parse("distinct_answers").fit(draws)


@pytest.mark.parametrize("settings", [{"set_rule": "unique(all)"}, {"features": distinct_answers()}])
def test_extractors_must_fit_where_distinct_answers_matter(settings: dict[str, Any]) -> None:
    with_answer = bound_artifact(**settings, stated={"answer": ANSWER}, extracted=True)
    assert matching(with_answer, answer=NamedExtractor(**ANSWER)).invoke("x").guarantee.binding == "matched"
    with pytest.raises(FingerprintError, match=r"was calibrated with the answer extractor .*first-word"):
        matching(with_answer)
    with pytest.raises(FingerprintError, match=r"the answer is not the one .*id is 'other'"):
        matching(with_answer, answer=NamedExtractor(id="other"))
    with pytest.warns(FingerprintWarning, match="cannot verify that answer are"):
        assert matching(with_answer, answer=answer_of).invoke("x").guarantee.binding == "unverified"
    given = matching(with_answer, answer=answer_of, answer_id="first-word")
    assert given.invoke("x").guarantee.binding == "matched"
    with pytest.raises(FingerprintError, match="was calibrated without an answer extractor"):
        matching(bound_artifact(**settings), answer=answer_of)


@pytest.mark.parametrize("settings", [{"set_rule": "unique(all)"}, {"features": distinct_answers()}])
def test_recorded_answers_need_an_extractor_whether_or_not_a_header_names_it(
    settings: dict[str, Any],
) -> None:
    """Records with answers and no word of an extractor: serving raw texts would be another method."""
    for artifact in (make_artifact(**settings, extracted=True), bound_artifact(**settings, extracted=True)):
        with pytest.raises(FingerprintError, match="pass that extractor as answer="):
            matching(artifact)
    unbound = matching(make_artifact(**settings, extracted=True), answer=answer_of)
    assert unbound.invoke("x").guarantee.binding == "unbound"


def test_where_only_scores_matter_another_extractor_is_refused_and_an_unknown_one_unverified() -> None:
    """The answers shown are the promised set, so who extracts them matters there as well."""
    stated = bound_artifact(stated={"answer": ANSWER}, extracted=True)
    with pytest.raises(FingerprintError, match=r"the answer is not the one"):
        matching(stated, answer=answer_of, answer_id="other")
    for artifact, fields in ((bound_artifact(), {"answer": answer_of}), (stated, {})):
        with pytest.warns(FingerprintWarning, match="cannot verify that answer are"):
            chain = matching(artifact, **fields)
        assert chain.invoke("x").guarantee.binding == "unverified"


def test_what_was_calibrated_but_is_not_stated_when_serving_leaves_it_unverified() -> None:
    artifact = bound_artifact(stated={"generator": {"model": "m", "temperature": 0.0}})
    generator = NamedModel(texts=TEXTS, fingerprint={"model": "m"})
    with pytest.warns(FingerprintWarning, match="cannot verify that generator are"):
        chain = matching(artifact, generator=generator)
    assert chain.invoke("x").guarantee.binding == "unverified"


def test_a_copy_is_checked_like_a_new_one() -> None:
    """What was compared once must be what serves: another artifact brings its own promise."""
    chain = matching(bound_artifact())
    other = bound_artifact(threshold_rule="learned")
    copied = chain.model_copy(update={"artifact": other})
    assert copied.invoke("x").guarantee.kind == "heuristic"
    assert copied.invoke("x").guarantee.artifact_digest == other.digest
    with pytest.raises(FingerprintError):
        chain.model_copy(update={"generator": model(id="other")})


def test_a_chain_that_warns_does_so_once_and_not_per_call() -> None:
    with pytest.warns(FingerprintWarning):
        chain = make_chain(bound_artifact())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        chain.batch(["x"] * 3)
    assert caught == []
