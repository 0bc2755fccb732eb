from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from langchain_cfc import Candidate, Guarantee, PromptRecord, calibrate
from langchain_cfc.artifact import CalibrationArtifact
from langchain_cfc.certificates import certify
from langchain_cfc.errors import AttainabilityWarning
from langchain_cfc.guarantee import (
    Binding,
    CertifiedAnswers,
    CertifiedShare,
    CoverageCertificate,
    PaperPAC,
    WrongRateCertificate,
    format_bound,
    state_event,
)
from langchain_cfc.records import Provenance, tabulate

BINDINGS: tuple[Binding, ...] = ("unchecked", "matched", "unverified", "unbound")
INDEPENDENT = "Questions are independent and identically distributed"
ON_AVERAGE = "The probability is over calibration sets as well as questions"

pytestmark = pytest.mark.filterwarnings(
    f"ignore::{AttainabilityWarning.__module__}.{AttainabilityWarning.__name__}"
)


def make_records(size: int = 80, clusters: int | None = None) -> list[PromptRecord]:
    rng = np.random.default_rng(0)
    return [
        PromptRecord(
            id=f"p{row}",
            input=f"p{row}",
            metadata={"topic": ("capital", "river")[row % 2]},
            cluster=f"c{row % clusters}" if clusters else None,
            candidates=tuple(
                Candidate(text=str(slot), score=float(rng.random()), correct=bool(rng.random() < 0.9))
                for slot in range(3)
            ),
        )
        for row in range(size)
    ]


def make_artifact(features: str = "group(topic)", **options: Any) -> CalibrationArtifact:
    return calibrate(make_records(), **{"alpha": "0.2", "features": features, **options})


def has(sentences: tuple[str, ...], words: str) -> bool:
    return any(words in one for one in sentences)


@pytest.mark.parametrize(
    ("options", "scope"),
    [
        ({"features": "1"}, "on average over all."),
        ({}, "on average over all, over each of 2 groups, and over any mix of them."),
        (
            {"features": "hat(mean_score, 3) + group(topic)", "fit_fraction": 0.3},
            "on average over all, over easy as well as hard ones, over each of 2 groups, and over any mix",
        ),
    ],
)
def test_guarantee_sentence_states_claim_then_scope(options: dict[str, Any], scope: str) -> None:
    found = make_artifact(**options).make_guarantee()
    assert found.claim == (
        "With probability at least 80 %, the answer set holds a correct answer, or the question is flagged "
        "as not certifiable."
    )
    size = found.calibration_size
    assert found.sentence.startswith(
        f"{found.claim} It holds for new questions like the {size} calibrated on"
    )
    assert scope in found.sentence
    assert "hat(" not in found.sentence
    assert "alpha" not in found.sentence


@pytest.mark.parametrize(
    ("options", "alpha", "percent"),
    [
        ({}, "0.45", "55 %"),
        ({}, "0.0005", "99.95 %"),
        ({"pac": PaperPAC(ridge=0.1)}, "0.45", "55 %"),
        ({"pac": PaperPAC(ridge=0.1)}, "0.055", "94.5 %"),
    ],
)
def test_guarantee_claim_shows_the_target_without_rounding(
    options: dict[str, Any], alpha: str, percent: str
) -> None:
    artifact = make_artifact(alpha=alpha, allow_unattainable=True, **options)
    assert f" {percent}" in artifact.make_guarantee().claim


def test_state_event_counts_unsupported_claims() -> None:
    assert state_event("claims(1)") == "at most 1 unsupported claim is left in the answer"
    assert "answer set" in state_event("all")


def test_assumptions_end_with_a_text_per_binding() -> None:
    texts = {one: make_artifact().make_guarantee(binding=one).assumptions for one in BINDINGS}
    assert len({text[-1] for text in texts.values()}) == len(BINDINGS)
    assert len({text[:-1] for text in texts.values()}) == 1
    assert "assumed" not in texts["matched"][-1]
    assert "assumed" in texts["unverified"][-1]
    assert "unbound" in texts["unbound"][-1]


def test_guarantee_binding_is_unbound_without_provenance() -> None:
    assert make_artifact().make_guarantee().binding == "unbound"
    bound = make_artifact(provenance=Provenance(n=3, generator={"id": "g"}))
    assert bound.make_guarantee().binding == "unchecked"
    assert bound.make_guarantee(binding="matched").binding == "matched"


@pytest.mark.parametrize(
    "features", ["group(topic)", "mean_score^2 + group(topic)", "hat(mean_score, 4)", "1"]
)
def test_guarantee_weightings_are_those_of_the_feature_map(features: str) -> None:
    artifact = make_artifact(features)
    named = artifact.feature_map.list_guaranteed_weights()
    assert [(one.name, one.words) for one in artifact.make_guarantee().weightings] == [
        (one.name, one.words) for one in named
    ]
    x = artifact.feature_map.transform(tabulate(make_records()).draws)
    assert min(one.compute_values(x).min() for one in named) >= -1e-9


def test_guarantee_holds_everything_that_it_depends_on() -> None:
    artifact = make_artifact(alpha=["0.1", "0.25"], set_rule="rank")
    found = artifact.make_guarantee(0.25)
    assert (found.kind, found.alpha, found.target_coverage) == ("conditional", "0.25", 0.75)
    assert found.set_rule == "rank"
    assert found.calibration_size == artifact.calibration.size
    assert found.artifact_digest == artifact.digest
    assert found.failure_probability is None
    assert found.heuristics == ()
    assert (found.certificate, found.wrong_answers) == (None, None)
    for words in ("one answer by itself", "wrong answer", "after drift", ON_AVERAGE):
        assert has(found.not_promised, words)
    assert "75 %" in found.sentence
    assert "90 %" in artifact.make_guarantee("0.1").sentence
    assert str(artifact.calibration.size) in found.sentence


@pytest.mark.parametrize(
    ("options", "names"), [({}, 3), ({"pac": PaperPAC()}, 3), ({"pac": PaperPAC(ridge=0.1)}, 0)]
)
def test_guarantee_lists_only_weightings_that_are_covered(options: dict[str, Any], names: int) -> None:
    found = make_artifact(**options).make_guarantee()
    assert len(found.weightings) == names
    assert [one.name for one in found.weightings][:1] == ["1"][:names]
    assert ("groups" in found.sentence) == (names == 3)


def test_guarantee_is_frozen_plain_data() -> None:
    found = make_artifact().make_guarantee()
    assert Guarantee.model_validate_json(found.model_dump_json()) == found
    with pytest.raises(ValueError, match="frozen"):
        found.kind = "heuristic"
    with pytest.raises(ValueError, match="Extra inputs"):
        Guarantee.model_validate({**found.model_dump(), "certified": True})


@pytest.mark.parametrize(
    ("features", "names"),
    [("1", ["1"]), ("group(topic)", ["1", "group(topic)=capital", "group(topic)=river"])],
)
def test_guarantee_with_confidence_covers_all_weightings(features: str, names: list[str]) -> None:
    found = make_artifact(features, alpha="0.4", delta="0.1").make_guarantee()
    assert found.failure_probability == 0.1
    assert [one.name for one in found.weightings] == names
    assert "With confidence 90 % it holds for this very artifact" in found.sentence
    assert ("over each of 2 groups" in found.sentence) == (len(names) > 1)
    assert has(found.assumptions, INDEPENDENT)
    # It holds for this very artifact under all that is listed, so that nothing is on average only.
    assert not has(found.not_promised, ON_AVERAGE)
    plain = make_artifact(features, alpha="0.4").make_guarantee()
    assert plain.failure_probability is None
    assert has(plain.not_promised, ON_AVERAGE)
    assert "With confidence" not in plain.sentence
    assert not has(plain.assumptions, INDEPENDENT)


@pytest.mark.parametrize(("ridge", "kind"), [(0.0, "conditional"), (0.1, "heuristic")])
def test_guarantee_states_cfc_pac_as_a_heuristic(ridge: float, kind: str) -> None:
    pac = PaperPAC(delta="0.5", ridge=ridge)
    found = make_artifact(pac=pac).make_guarantee()
    assert found.kind == kind
    assert found.heuristics == (pac.statement("0.2", found.calibration_size),)
    assert found.heuristics[0].startswith("CFC-PAC, a heuristic")
    assert found.failure_probability is None
    assert found.sentence.startswith("No guarantee: ") == (kind == "heuristic")
    assert make_artifact().make_guarantee().heuristics == ()


COVERED = CertifiedShare(
    name="1",
    words="all prompts",
    prompts=200,
    kept=190,
    kept_at_least=0.9129,
    covered=180,
    coverage_at_least=0.85,
)
CERTIFICATE = CoverageCertificate(
    alpha="0.1",
    set_rule="all",
    delta="0.05",
    attempt=1,
    level=0.04,
    prompts=200,
    records_digest="sha256:r",
    artifact_digest="sha256:a",
    shares=(COVERED,),
)
EVERYONE = CertifiedAnswers(name="1", words="all prompts", prompts=200, answered=150, wrong=3, certified=True)


def make_wrong_rate(*groups: CertifiedAnswers) -> WrongRateCertificate:
    return WrongRateCertificate(
        alpha="0.1",
        delta="0.05",
        attempt=1,
        level=0.04,
        prompts=200,
        records_digest="sha256:r",
        artifact_digest="sha256:a",
        max_wrong_rate="0.05",
        max_mean_score=0.25,
        groups=(EVERYONE, *groups),
    )


def test_coverage_certificate_sentence() -> None:
    sentence = CERTIFICATE.sentence
    assert "on 200 held-out questions, with confidence 95 %" in sentence
    assert "with probability at least 91.2 %, the answer set holds a correct answer, or" in sentence
    assert "holds a correct answer with probability at least 85.0 %" in sentence


@pytest.mark.parametrize("share", [0.29, 0.57, 0.58, 0.999, 1.0])
def test_format_bound_keeps_bounds_with_few_decimals(share: float) -> None:
    # 1000 * 0.57 is 569.9999999999999: cutting floats would say 56.9 %.
    assert format_bound(share) == f"{100 * share:.1f} %"
    assert format_bound(share - 0.0001) == f"{100 * share - 0.1:.1f} %"


def test_wrong_rate_certificate_sentence() -> None:
    words = "prompts whose topic is '{}'"
    capitals = EVERYONE.model_copy(update={"name": "g", "words": words.format("capital")})
    rivers = EVERYONE.model_copy(update={"name": "h", "words": words.format("river"), "certified": False})
    certificate = make_wrong_rate(capitals, rivers)
    assert certificate.claim == (
        "Of the questions that are answered, at most 5 % get a wrong answer, with confidence 95 %."
    )
    certified, _, missing = certificate.sentence.partition("The rate is not certified in: ")
    assert certified.startswith(certificate.claim)
    assert "in each of these groups, too: topic: capital." in certified
    assert "river" not in certified
    assert missing.startswith("topic: river (3 of 150 wrong). ")
    assert "mean score of its candidates is at most 0.25" in certificate.sentence
    assert "It answered 150 of 200 calibration questions, 3 wrongly" in certificate.sentence
    # What an end user reads leaves out how the test was made.
    assert certificate.sentence.startswith(certificate.summary)
    assert "mean score" not in certificate.summary
    assert "delta" not in certificate.summary


def test_guarantee_of_answers_holds_nothing_of_sets() -> None:
    artifact = calibrate(make_records(400), alpha="0.3", features="group(topic)", max_wrong_rate="0.4")
    found = artifact.make_guarantee(max_wrong_rate="0.4")
    assert found.kind == "certified"
    assert found.wrong_answers is not None
    assert found.sentence == found.wrong_answers.sentence
    assert (found.weightings, found.stated_coverage, found.certificate) == ((), None, None)
    assert not has((*found.not_promised, *found.assumptions), " set")
    assert has(found.assumptions, INDEPENDENT)
    # Control: the guarantee about sets speaks of them.
    assert has(artifact.make_guarantee().not_promised, " set")


def test_certified_guarantee_assumes_independent_prompts() -> None:
    # Exchangeability is enough on average; exact binomial bounds need more.
    artifact = calibrate(make_records(300), alpha="0.2", features="group(topic)")
    certified = certify(artifact, [one.model_copy(update={"id": f"x{one.id}"}) for one in make_records(100)])
    assert certified.make_guarantee().certificate is not None
    assert has(certified.make_guarantee().assumptions, INDEPENDENT)
    assert not has(artifact.make_guarantee().assumptions, INDEPENDENT)


def test_certificates_are_frozen_plain_data() -> None:
    found = (
        make_artifact()
        .make_guarantee()
        .model_copy(update={"certificate": CERTIFICATE, "wrong_answers": make_wrong_rate()})
    )
    assert Guarantee.model_validate_json(found.model_dump_json()) == found
    with pytest.raises(ValueError, match="frozen"):
        CERTIFICATE.delta = "0.5"
    for field, value in (("kept_at_least", float("nan")), ("kept_at_least", float("inf")), ("more", 1)):
        with pytest.raises(ValueError, match=field):
            CertifiedShare.model_validate({**COVERED.model_dump(), field: value})


def test_guarantee_assumes_the_same_metadata_function() -> None:
    words = "The metadata of a question come from the same function as in calibration"
    assert any(words in one for one in make_artifact("group(topic)").make_guarantee().assumptions)
    assert not any(words in one for one in make_artifact("1").make_guarantee().assumptions)
