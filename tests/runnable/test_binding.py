"""Serving refuses parts that were not calibrated, and states which parts could not be compared."""

from __future__ import annotations

import warnings
from contextlib import nullcontext
from typing import Any

import pytest
from langchain_core.runnables import RunnableLambda

from langchain_cfc import CalibrationArtifact, CFCRunnable, FeatureMap
from langchain_cfc.artifact import tabulate_held_out
from langchain_cfc.candidates import CandidateBatch
from langchain_cfc.errors import FingerprintError, FingerprintWarning, InputError
from langchain_cfc.guarantee import PaperPAC
from langchain_cfc.labelers import extract_choice, extract_number
from langchain_cfc.records import Provenance
from langchain_cfc.sampling import DrawnCandidate
from langchain_cfc.sampling.fingerprints import compute_fingerprint
from langchain_cfc.verifiers import normalise_answer
from tests.factories import make_artifact, make_chain, make_records
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


def make_bound(**settings: Any) -> CalibrationArtifact:
    fields = {"generator": GENERATOR, "verifier": VERIFIER, **settings.pop("stated", {})}
    return make_artifact(provenance=Provenance(n=N, **fields), **settings)


def make_model(**changes: Any) -> NamedModel:
    stated = {key: value for key, value in {**GENERATOR, **changes}.items() if value is not None}
    return NamedModel(texts=TEXTS, fingerprint=stated)


def make_matching(artifact: CalibrationArtifact, **fields: Any) -> CFCRunnable:
    return make_chain(
        artifact, **{"generator": make_model(), "verifier": NamedVerifier(**VERIFIER), **fields}
    )


def test_matching_fingerprints_give_binding_matched_without_warning() -> None:
    artifact = make_bound()
    guarantee = make_matching(artifact).invoke("x").guarantee
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
def test_chain_refuses_another_generator(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(FingerprintError, match=f"the generator is not the one .*{said}"):
        make_matching(make_bound(), generator=make_model(**changes))


@pytest.mark.parametrize(
    ("calibrated", "served"),
    [
        ("llama3.2", "llama3.2:latest"),
        ("deepseek/deepseek-r1:free", "deepseek/deepseek-r1"),
        ("eu.anthropic.claude-3-haiku-20240307-v1:0", "us.anthropic.claude-3-haiku-20240307-v1:0"),
        ("models/gemini-2.5-pro", "gemini-2.5-pro"),
        ("azure/gpt-4o", "gpt-4o"),
    ],
)
def test_other_names_of_one_model_match_and_other_models_do_not(calibrated: str, served: str) -> None:
    artifact = make_bound(stated={"generator": {**GENERATOR, "model": calibrated}})
    assert (
        make_matching(artifact, generator=make_model(model=served)).invoke("x").guarantee.binding == "matched"
    )
    for other in (f"{served}-mini", f"someone/{served}", f"{served}:1b"):
        with pytest.raises(FingerprintError, match="model is"):
            make_matching(artifact, generator=make_model(model=other))


def test_chain_refuses_another_verifier() -> None:
    with pytest.raises(FingerprintError, match=r"the verifier is not the one .*id is 'other'"):
        make_matching(make_bound(), verifier=NamedVerifier(id="other"))


def test_generator_id_is_compared_with_the_calibrated_id() -> None:
    artifact = make_bound(stated={"generator": {"id": "mine"}})
    plain = ScriptedModel(texts=TEXTS)
    found = make_matching(artifact, generator=plain, generator_id="mine").invoke("x")
    assert found.guarantee.binding == "matched"
    with pytest.raises(FingerprintError, match="id is 'another', in calibration it was 'mine'"):
        make_matching(artifact, generator=plain, generator_id="another")


def test_parts_without_fingerprints_warn_and_give_binding_unverified() -> None:
    with pytest.warns(
        FingerprintWarning, match="cannot verify that generator and verifier are those"
    ) as caught:
        chain = make_chain(make_bound())
    # The way out is part of the message.
    assert "generator_id='my-model', verifier_id='my-judge'" in str(caught[0].message)
    guarantee = chain.invoke("x").guarantee
    assert guarantee.binding == "unverified"
    assert any("assumed to be the ones calibrated" in assumption for assumption in guarantee.assumptions)


def test_generator_id_and_verifier_id_suffice_for_binding_matched() -> None:
    chain = make_chain(make_bound(), generator_id="my-model", verifier_id="my-judge")
    assert chain.invoke("x").guarantee.binding == "matched"


def test_fingerprint_warning_names_only_the_part_without_fingerprint() -> None:
    with pytest.warns(FingerprintWarning, match="cannot verify that verifier are") as caught:
        make_matching(make_bound(), verifier=verify)
    assert "generator_id" not in str(caught[0].message)


def test_records_without_fingerprints_give_binding_unverified() -> None:
    artifact = make_bound(stated={"generator": None, "verifier": None})
    with pytest.warns(FingerprintWarning, match="generator and verifier"):
        chain = make_matching(artifact)
    assert chain.invoke("x").guarantee.binding == "unverified"


def test_artifact_without_provenance_gives_binding_unbound(artifact: CalibrationArtifact) -> None:
    result = make_matching(artifact).invoke("x")
    assert result.guarantee.binding == "unbound"
    assert any("unbound" in assumption for assumption in result.guarantee.assumptions)
    assert "unbound" in result.explain()


def test_changed_model_version_warns_and_stays_matched() -> None:
    with pytest.warns(FingerprintWarning, match="now reports version 'b', in calibration it was 'a'"):
        chain = make_matching(make_bound(), generator=make_model(model_version="b"))
    result = chain.invoke("x")
    assert not result.abstained
    assert result.guarantee.binding == "matched"


def test_function_in_the_generator_is_unverified_unless_generator_id_is_given() -> None:
    """A function may do anything to prompt or candidate, whatever id the model in the chain has."""
    for generator in (
        RunnableLambda(lambda prompt: prompt) | make_model(),
        make_model() | RunnableLambda(lambda message: message.text),
    ):
        with pytest.warns(
            FingerprintWarning, match=r"parts that cannot be compared \(a function without a name"
        ):
            chain = make_matching(make_bound(), generator=generator)
        assert chain.invoke("x").guarantee.binding == "unverified"
        vouched = make_matching(make_bound(), generator=generator, generator_id="my-model")
        assert vouched.invoke("x").guarantee.binding == "matched"


def fit_distinct_answers() -> FeatureMap:
    # Fitted on 1 to 5 answers; the calibration prompts have 4.
    draws = CandidateBatch.from_arrays([[0.5] * 5] * 2, answers=[["a"] * 5, ["a", "b", "c", "d", "e"]])
    return FeatureMap.parse("distinct_answers").fit(draws)


@pytest.mark.parametrize("settings", [{"set_rule": "unique(all)"}, {"features": fit_distinct_answers()}])
def test_answer_extractor_must_match_where_distinct_answers_matter(settings: dict[str, Any]) -> None:
    with_answer = make_bound(**settings, stated={"answer": ANSWER}, extracted=True)
    assert (
        make_matching(with_answer, answer=NamedExtractor(**ANSWER)).invoke("x").guarantee.binding == "matched"
    )
    with pytest.raises(FingerprintError, match=r"was calibrated with the answer extractor .*first-word"):
        make_matching(with_answer)
    with pytest.raises(FingerprintError, match=r"the answer is not the one .*id is 'other'"):
        make_matching(with_answer, answer=NamedExtractor(id="other"))
    with pytest.warns(FingerprintWarning, match="cannot verify that answer are"):
        assert make_matching(with_answer, answer=answer_of).invoke("x").guarantee.binding == "unverified"
    given = make_matching(with_answer, answer=answer_of, answer_id="first-word")
    assert given.invoke("x").guarantee.binding == "matched"
    with pytest.raises(FingerprintError, match="was calibrated without an answer extractor"):
        make_matching(make_bound(**settings), answer=answer_of)


@pytest.mark.parametrize("extractor", [extract_number, extract_choice, normalise_answer])
def test_extractor_of_another_version_is_refused_even_under_the_same_id(extractor: Any) -> None:
    known = compute_fingerprint(extractor, "mine")
    (version,) = known.keys() & {"reads", "normalised"}
    settings = {"set_rule": "unique(all)", "extracted": True}
    same = make_bound(**settings, stated={"answer": known})
    assert make_matching(same, answer=extractor, answer_id="mine").guarantee.binding == "matched"
    older = make_bound(**settings, stated={"answer": {**known, version: "0"}})
    with pytest.raises(FingerprintError, match=f"the answer is not the one .* {version} is"):
        make_matching(older, answer=extractor, answer_id="mine")


def test_artifact_of_another_normal_form_is_refused_where_answers_are_compared() -> None:
    for settings, is_refused in (({"set_rule": "unique(all)"}, True), ({}, False)):
        artifact = make_bound(**settings)
        older = artifact.model_copy(
            update={"calibration": artifact.calibration.model_copy(update={"normalised": "answers-0"})}
        )
        with pytest.raises(FingerprintError, match="answers-0") if is_refused else nullcontext():
            make_matching(older)
        with pytest.raises(InputError, match="answers-0") if is_refused else nullcontext():
            tabulate_held_out(older, make_records("other"))


@pytest.mark.parametrize("settings", [{"set_rule": "unique(all)"}, {"features": fit_distinct_answers()}])
def test_chain_refuses_missing_extractor_when_records_hold_answers(settings: dict[str, Any]) -> None:
    """Records with answers and no word of an extractor: serving raw texts would be another method."""
    for artifact in (make_artifact(**settings, extracted=True), make_bound(**settings, extracted=True)):
        with pytest.raises(FingerprintError, match="use the same"):
            make_matching(artifact)
    unbound = make_matching(make_artifact(**settings, extracted=True), answer=answer_of)
    assert unbound.invoke("x").guarantee.binding == "unbound"


def test_answer_extractor_is_compared_even_where_only_scores_matter() -> None:
    """The answers shown are the promised set, so who extracts them matters there as well."""
    stated = make_bound(stated={"answer": ANSWER}, extracted=True)
    with pytest.raises(FingerprintError, match=r"the answer is not the one"):
        make_matching(stated, answer=answer_of, answer_id="other")
    for artifact, fields in ((make_bound(), {"answer": answer_of}), (stated, {})):
        with pytest.warns(FingerprintWarning, match="cannot verify that answer are"):
            chain = make_matching(artifact, **fields)
        assert chain.invoke("x").guarantee.binding == "unverified"


@pytest.mark.parametrize(
    ("recorded", "setting", "given", "advised"),
    [
        ({"id": "mine"}, "tools_digest", None, "pass generator_id='mine'"),
        # The records describe the model without tools or this setting, so no id settles it.
        ({"id": "mine", "model": "m-1"}, "tools_digest", "mine", "An id does not settle this for generator"),
        ({"id": "mine", "model": "m-1"}, "seed", None, "An id does not settle this for generator"),
        ({"model": "m-1"}, "seed", "mine", "The records hold no id to compare with"),
    ],
)
def test_warning_advises_an_id_exactly_if_it_gives_binding_matched(
    recorded: dict[str, Any], setting: str, given: str | None, advised: str
) -> None:
    model = NamedModel(texts=TEXTS, fingerprint={"model": "m-1", setting: "changed"})
    artifact = make_bound(stated={"generator": recorded})
    with pytest.warns(FingerprintWarning, match="cannot verify that generator are") as caught:
        make_matching(artifact, generator=model, generator_id=given)
    known = ("pass generator_id=", "hold no id", "An id does not settle")
    (message,) = (str(one.message) for one in caught)
    assert advised in message
    assert sum(one in message for one in known) == 1


def test_setting_not_stated_while_serving_gives_binding_unverified() -> None:
    artifact = make_bound(stated={"generator": {"model": "m", "temperature": 0.0}})
    generator = NamedModel(texts=TEXTS, fingerprint={"model": "m"})
    with pytest.warns(FingerprintWarning, match="cannot verify that generator are"):
        chain = make_matching(artifact, generator=generator)
    assert chain.invoke("x").guarantee.binding == "unverified"


def test_model_copy_compares_fingerprints_again() -> None:
    """What was compared once must be what serves: another artifact brings its own promise."""
    chain = make_matching(make_bound())
    other = make_bound(pac=PaperPAC(ridge=0.1))
    copied = chain.model_copy(update={"artifact": other})
    assert copied.invoke("x").guarantee.kind == "heuristic"
    assert copied.invoke("x").guarantee.artifact_digest == other.digest
    with pytest.raises(FingerprintError):
        chain.model_copy(update={"generator": make_model(id="other")})


def test_fingerprint_warning_comes_once_and_not_per_call() -> None:
    with pytest.warns(FingerprintWarning):
        chain = make_chain(make_bound())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        chain.batch(["x"] * 3)
    assert caught == []
