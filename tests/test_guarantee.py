from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from langchain_cfc import Candidate, Guarantee, PromptRecord, calibrate
from langchain_cfc.artifact import CalibrationArtifact
from langchain_cfc.errors import AttainabilityWarning
from langchain_cfc.guarantee import NOT_PROMISED, Binding, Weighting, assumptions, guarantee_kind, promise
from langchain_cfc.records import Provenance, tabulate

ALL = Weighting(name="1", kind="constant", words="all prompts", coefficients=(1.0,))
CAPITALS = Weighting(
    name="g", kind="indicator", words="prompts whose topic is 'capital'", coefficients=(1.0,)
)
BINDINGS: tuple[Binding, ...] = ("unchecked", "matched", "unverified", "unbound")

pytestmark = pytest.mark.filterwarnings(
    f"ignore::{AttainabilityWarning.__module__}.{AttainabilityWarning.__name__}"
)


def records(size: int = 80, clusters: int | None = None) -> list[PromptRecord]:
    rng = np.random.default_rng(0)
    return [
        PromptRecord(
            id=f"p{row}",
            input="?",
            metadata={"topic": ("capital", "river")[row % 2]},
            cluster=f"c{row % clusters}" if clusters else None,
            candidates=tuple(
                Candidate(text=str(slot), score=float(rng.random()), correct=bool(rng.random() < 0.9))
                for slot in range(3)
            ),
        )
        for row in range(size)
    ]


def artifact_for(features: str = "group(topic)", **options: Any) -> CalibrationArtifact:
    return calibrate(records(), **{"alpha": "0.2", "features": features, **options})


@pytest.mark.parametrize(
    ("rule", "exchangeable", "kind"),
    [
        ("conditional", True, "conditional"),
        ("marginal", True, "marginal"),
        ("learned", True, "heuristic"),
        ("conditional", False, "heuristic"),
        ("marginal", False, "heuristic"),
        ("learned", False, "heuristic"),
        # Whatever has no theorem here is not certified.
        ("magic", True, "heuristic"),
    ],
)
def test_the_kind_of_a_promise_is_that_of_its_theorem(rule: str, exchangeable: bool, kind: str) -> None:
    assert guarantee_kind(rule, exchangeable=exchangeable) == kind


def test_the_conditional_promise_in_a_sentence() -> None:
    assert promise("conditional", 0.9, 500, (ALL, CAPITALS)) == (
        "For a new prompt exchangeable with the 500 calibration prompts, the answer set holds a correct "
        "answer, or the prompt is flagged as not certifiable, with probability at least 90 %: on average "
        "over all prompts, and over each of these and any mix of them: prompts whose topic is 'capital'."
    )
    assert promise("conditional", 0.9, 500, (ALL,)).endswith("at least 90 %, on average over all prompts.")


def test_the_marginal_promise_disclaims_hard_prompts() -> None:
    sentence = promise("marginal", 0.9, 500, (ALL,))
    assert "at least 90 %, on average over all prompts; nothing is said about hard prompts" in sentence


def test_without_a_theorem_the_sentence_begins_with_that() -> None:
    sentence = promise("heuristic", 0.9, 500, ())
    assert sentence.startswith("No guarantee: ")
    assert "at least" not in sentence


@pytest.mark.parametrize(
    ("target", "percent"),
    [(0.9, "90 %"), (0.55, "55 %"), (0.945, "94.5 %"), (0.9995, "99.95 %"), (0.9999999, "99.99999 %")],
)
def test_a_target_is_neither_rounded_up_nor_shown_with_round_off(target: float, percent: str) -> None:
    kinds: tuple[Any, ...] = ("conditional", "marginal", "heuristic")
    for kind in kinds:
        assert f" {percent}" in promise(kind, target, 500, (ALL,))


def test_each_binding_has_a_text_of_its_own_at_the_end_of_the_assumptions() -> None:
    texts = {binding: assumptions(within_clusters="one", binding=binding) for binding in BINDINGS}
    assert len({text[-1] for text in texts.values()}) == len(BINDINGS)
    assert len({text[:-1] for text in texts.values()}) == 1
    assert "assumed" not in texts["matched"][-1]
    assert "assumed" in texts["unverified"][-1]
    assert "unbound" in texts["unbound"][-1]


def test_an_artifact_says_itself_whether_its_records_named_their_origin() -> None:
    assert artifact_for().guarantee().binding == "unbound"
    bound = artifact_for(provenance=Provenance(n=3, generator={"id": "g"}))
    assert bound.guarantee().binding == "unchecked"
    assert bound.guarantee(binding="matched").binding == "matched"


@pytest.mark.parametrize(
    "features", ["group(topic)", "mean_score^2 + group(topic)", "hat(mean_score, 4)", "1"]
)
def test_the_weightings_are_those_of_the_feature_map(features: str) -> None:
    artifact = artifact_for(features)
    found = artifact.guarantee()
    draws = tabulate(records()).draws
    x = artifact.feature_map.transform(draws)
    values = {one.name: x @ np.array(one.coefficients) for one in found.weightings}
    assert found.feature_names == artifact.feature_map.names
    assert all(len(one.coefficients) == len(found.feature_names) for one in found.weightings)
    assert [one.name for one in found.weightings] == [
        weight.name for weight in artifact.feature_map.guaranteed_weights()
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


def test_a_promise_carries_all_it_depends_on() -> None:
    artifact = artifact_for(alpha=["0.1", "0.25"], set_rule="rank")
    found = artifact.guarantee(0.25)
    assert (found.kind, found.alpha, found.target_coverage) == ("conditional", "0.25", 0.75)
    assert (found.threshold_rule, found.set_rule) == ("conditional", "rank")
    assert found.calibration_size == artifact.calibration.size
    assert found.artifact_digest == artifact.digest
    assert found.failure_probability is None
    assert found.not_promised == NOT_PROMISED
    assert "covered or flagged" in found.not_certifiable
    assert "75 %" in found.sentence
    assert "90 %" in artifact.guarantee("0.1").sentence
    assert str(artifact.calibration.size) in found.sentence


@pytest.mark.parametrize(("rule", "names"), [("conditional", 3), ("marginal", 1), ("learned", 0)])
def test_no_rule_claims_more_weightings_than_it_covers(rule: Any, names: int) -> None:
    found = artifact_for(threshold_rule=rule).guarantee()
    assert len(found.weightings) == names
    assert [one.name for one in found.weightings][:1] == ["1"][:names]
    assert ("topic" in found.sentence) == (rule == "conditional")


def test_prompts_that_share_a_cluster_leave_no_promise_under_any_rule() -> None:
    rules: tuple[Any, ...] = ("conditional", "marginal", "learned")
    for rule in rules:
        artifact = calibrate(
            records(clusters=30), alpha="0.2", features="1", threshold_rule=rule, within_clusters="all"
        )
        found = artifact.guarantee()
        assert (found.kind, found.weightings) == ("heuristic", ())
        assert "no theorem" in found.assumptions[0]
        one = calibrate(records(clusters=30), alpha="0.2", features="1", threshold_rule=rule).guarantee()
        assert "one per cluster" in one.assumptions[0]


def test_a_promise_is_plain_data() -> None:
    found = artifact_for().guarantee()
    assert Guarantee.model_validate_json(found.model_dump_json()) == found
    with pytest.raises(ValueError, match="frozen"):
        found.kind = "marginal"
    with pytest.raises(ValueError, match="Extra inputs"):
        Guarantee.model_validate({**found.model_dump(), "certified": True})
