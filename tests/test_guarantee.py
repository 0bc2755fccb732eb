from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from langchain_cfc import Candidate, Guarantee, PromptRecord, calibrate
from langchain_cfc.artifact import CalibrationArtifact
from langchain_cfc.certificates import certify
from langchain_cfc.errors import AttainabilityWarning
from langchain_cfc.guarantee import (
    NOT_PROMISED,
    Binding,
    CertifiedAnswers,
    CertifiedShare,
    CoverageCertificate,
    PaperPAC,
    Weighting,
    WrongRateCertificate,
    format_bound,
    list_assumptions,
    list_exclusions,
    restrict_to_answers,
    state_confidence,
    state_guarantee,
)
from langchain_cfc.guarantee.words import BEST_ALONE, NOT_BY_LEVEL, ON_AVERAGE
from langchain_cfc.records import Provenance, tabulate

ALL = Weighting(name="1", kind="constant", words="all prompts", coefficients=(1.0,))
CAPITALS = Weighting(
    name="g", kind="indicator", words="prompts whose topic is 'capital'", coefficients=(1.0,)
)
BINDINGS: tuple[Binding, ...] = ("unchecked", "matched", "unverified", "unbound")

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


def test_state_guarantee_of_the_conditional_rule() -> None:
    assert state_guarantee("conditional", 0.9, 500, (ALL, CAPITALS)) == (
        "For a new prompt exchangeable with the 500 calibration prompts, the answer set holds a correct "
        "answer, or the prompt is flagged as not certifiable, with probability at least 90 %: on average "
        "over all prompts, and over each of these and any mix of them: prompts whose topic is 'capital'."
    )
    assert state_guarantee("conditional", 0.9, 500, (ALL,)).endswith(
        "at least 90 %, on average over all prompts."
    )


def test_state_guarantee_of_the_marginal_rule_excludes_hard_prompts() -> None:
    sentence = state_guarantee("marginal", 0.9, 500, (ALL,))
    assert "at least 90 %, on average over all prompts; nothing is promised for hard prompts" in sentence


def test_state_guarantee_of_a_heuristic_begins_with_no_guarantee() -> None:
    sentence = state_guarantee("heuristic", 0.9, 500, ())
    assert sentence.startswith("No guarantee: ")
    assert "at least" not in sentence


@pytest.mark.parametrize(
    ("target", "percent"),
    [(0.9, "90 %"), (0.55, "55 %"), (0.945, "94.5 %"), (0.9995, "99.95 %"), (0.9999999, "99.99999 %")],
)
def test_state_guarantee_shows_the_target_without_rounding(target: float, percent: str) -> None:
    kinds: tuple[Any, ...] = ("conditional", "marginal", "heuristic")
    for kind in kinds:
        assert f" {percent}" in state_guarantee(kind, target, 500, (ALL,))


def test_list_assumptions_ends_with_a_text_per_binding() -> None:
    texts = {binding: list_assumptions(binding=binding) for binding in BINDINGS}
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
    found = artifact.make_guarantee()
    draws = tabulate(make_records()).draws
    x = artifact.feature_map.transform(draws)
    values = {one.name: x @ np.array(one.coefficients) for one in found.weightings}
    assert found.feature_names == artifact.feature_map.names
    assert all(len(one.coefficients) == len(found.feature_names) for one in found.weightings)
    assert [one.name for one in found.weightings] == [
        weight.name for weight in artifact.feature_map.list_guaranteed_weights()
    ]
    np.testing.assert_allclose(values["1"], 1.0)
    assert min(value.min() for value in values.values()) >= -1e-9
    for name, value in values.items():
        if name.startswith("group(topic)="):
            topic = name.removeprefix("group(topic)=")
            np.testing.assert_allclose(
                value, [entries["topic"] == topic for entries in draws.metadata], atol=1e-12
            )
            assert f"whose topic is '{topic}'" in found.sentence
    # Soft groups of one statistic share out every prompt.
    for family in ("bernstein(", "hat("):
        parts = [value for name, value in values.items() if name.startswith(family)]
        assert not parts or sum(parts) == pytest.approx(np.ones(len(x)))


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
    assert found.not_promised == (*NOT_PROMISED, BEST_ALONE, ON_AVERAGE)
    assert "covered or flagged" in found.not_certifiable
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
    assert ("topic" in found.sentence) == (names == 3)


def test_guarantee_is_frozen_plain_data() -> None:
    found = make_artifact().make_guarantee()
    assert Guarantee.model_validate_json(found.model_dump_json()) == found
    with pytest.raises(ValueError, match="frozen"):
        found.kind = "marginal"
    with pytest.raises(ValueError, match="Extra inputs"):
        Guarantee.model_validate({**found.model_dump(), "certified": True})


def test_state_guarantee_mentions_weighted_labels() -> None:
    weighted = state_guarantee("conditional", 0.9, 500, (ALL,), weighted=True)
    assert "exchangeable with the prompts from which the 500 calibration prompts were chosen" in weighted
    assumed = list_assumptions(binding="matched", weighted=True)
    assert "does not depend on what labels say" in assumed[0]
    assert "would not be smaller for any new prompt" in assumed[0]
    assert "chosen to be labelled" not in list_assumptions(binding="matched")[0]


def test_state_guarantee_of_adaptive_levels_holds_on_average() -> None:
    of_all = state_guarantee("conditional", 0.9, 500, (ALL,), adaptive=[0.6])
    assert of_all == (
        "For new prompts exchangeable with the 500 calibration prompts, the answer set holds a correct "
        "answer, or the prompt is flagged as not certifiable, at least as often as is stated (60 % for this "
        "prompt), on average over all prompts. This is not promised for the prompts of one stated level "
        "alone."
    )
    for listed in (True, False):
        by_group = state_guarantee(
            "conditional", 0.9, 500, (ALL, CAPITALS), adaptive=[0.6, 0.9], listed=listed
        )
        assert "at least as often as is stated (from 60 % to 90 %): on average" in by_group
        assert by_group.endswith("This is not promised for the prompts of one stated level alone.")
    assert "stated" not in state_guarantee("conditional", 0.9, 500, (ALL,))


@pytest.mark.parametrize("claims", [True, False])
def test_list_exclusions_of_adaptive_levels_excludes_single_levels(claims: bool) -> None:
    assert NOT_BY_LEVEL in list_exclusions("conditional", adaptive=True, claims=claims)
    assert NOT_BY_LEVEL not in list_exclusions("conditional", claims=claims)
    assert NOT_BY_LEVEL not in list_exclusions("heuristic", adaptive=True, claims=claims)


def test_state_guarantee_can_count_weightings() -> None:
    soft = Weighting(name="s", kind="hat", words="soft ones", coefficients=(1.0,))
    sentence = state_guarantee("conditional", 0.9, 500, (ALL, CAPITALS, CAPITALS, soft), listed=False)
    assert sentence.endswith(
        "on average, and over each of 2 groups and 1 soft weighting and any mix of them."
    )
    assert "capital" not in sentence
    # Where there is nothing to count the sentence is the same.
    assert state_guarantee("conditional", 0.9, 500, (ALL,), listed=False) == state_guarantee(
        "conditional", 0.9, 500, (ALL,)
    )


def test_state_confidence_names_weightings() -> None:
    assert state_confidence(0.05, (ALL,)) == (
        "With confidence 95 % it holds for this very artifact, not only on average over calibration sets: "
        "over all prompts."
    )
    assert state_confidence(0.1, (ALL, CAPITALS)).endswith("over all prompts and over each of 1 group.")


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
    assert any("independent and identically distributed" in one for one in found.assumptions)
    # It holds for this very artifact under all that is listed, so that nothing is on average only.
    assert ON_AVERAGE not in found.not_promised
    plain = make_artifact(features, alpha="0.4").make_guarantee()
    assert plain.failure_probability is None
    assert ON_AVERAGE in plain.not_promised
    assert "With confidence" not in plain.sentence
    assert not any("independent and identically" in one for one in plain.assumptions)


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
    delta="0.05",
    attempt=1,
    level=0.04,
    prompts=200,
    records_digest="sha256:r",
    artifact_digest="sha256:a",
    shares=(COVERED,),
    mean_set_size=1.5,
    mean_set_size_at_most=1.875,
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
    assert "on 200 held-out prompts, with confidence 95 %" in sentence
    assert "flagged with probability at least 91.2 %" in sentence  # rounded down
    assert "holds a correct answer with probability at least 85.0 %" in sentence


def test_coverage_certificate_rounds_the_mean_set_size_up() -> None:
    # The bound is an upper one: 1.8712 candidates are at most 1.88, not at most 1.87.
    assert (
        "at most 1.88 candidates" in CERTIFICATE.model_copy(update={"mean_set_size_at_most": 1.8712}).sentence
    )


@pytest.mark.parametrize("share", [0.29, 0.57, 0.58, 0.999, 1.0])
def test_format_bound_keeps_bounds_with_few_decimals(share: float) -> None:
    # 1000 * 0.57 is 569.9999999999999: cutting floats would say 56.9 %.
    assert format_bound(share) == f"{100 * share:.1f} %"
    assert format_bound(share - 0.0001) == f"{100 * share - 0.1:.1f} %"


def test_wrong_rate_certificate_sentence() -> None:
    capitals = EVERYONE.model_copy(update={"name": "g", "words": "prompts about capitals"})
    rivers = EVERYONE.model_copy(update={"name": "h", "words": "prompts about rivers", "certified": False})
    sentence = make_wrong_rate(capitals, rivers).sentence
    assert "at most 5 % get a wrong best answer" in sentence
    assert "prompts about capitals" in sentence
    certified, _, missing = sentence.partition("The rate is not certified in: ")
    assert "rivers" not in certified
    assert missing.startswith("prompts about rivers (3 of 150 wrong). ")
    assert "with confidence 95 % for this very artifact" in sentence
    assert "prompts whose candidates have a mean score of at most 0.25" in sentence
    assert "150 of 200 certification prompts, 3 of them wrongly" in sentence


def test_guarantee_of_answers_holds_nothing_of_sets() -> None:
    plain = make_artifact().make_guarantee()
    certificate = make_wrong_rate()
    found = restrict_to_answers(plain, certificate)
    assert (found.kind, found.sentence, found.wrong_answers) == (
        "certified",
        certificate.sentence,
        certificate,
    )
    assert (found.weightings, found.stated_coverage, found.certificate) == ((), None, None)
    assert not any(" set" in one for one in (*found.not_promised, *found.assumptions))
    # Control: the guarantee about sets speaks of them.
    assert any(" set" in one for one in (*plain.not_promised, *plain.assumptions))


def test_certified_guarantee_assumes_independent_prompts() -> None:
    # Exchangeability is enough on average; exact binomial bounds need more.
    artifact = calibrate(make_records(300), alpha="0.2", features="group(topic)")
    certified = certify(artifact, [one.model_copy(update={"id": f"x{one.id}"}) for one in make_records(100)])
    assert certified.make_guarantee().certificate is not None
    assert any(
        "independent and identically distributed" in one for one in certified.make_guarantee().assumptions
    )
    assert not any(
        "independent and identically distributed" in one for one in artifact.make_guarantee().assumptions
    )
    bot = calibrate(make_records(400), features="group(topic)", max_wrong_rate="0.4")
    assert any(
        "independent and identically distributed" in one for one in bot.make_bot_guarantee().assumptions
    )


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
    words = "The metadata of a prompt come from the same function as in calibration"
    assert any(words in one for one in make_artifact("group(topic)").make_guarantee().assumptions)
    assert not any(words in one for one in make_artifact("1").make_guarantee().assumptions)
