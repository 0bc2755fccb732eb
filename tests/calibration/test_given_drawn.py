"""The promise "if a correct candidate is drawn, it is kept", from calibration to the answer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from langchain_cfc import CalibrationArtifact, calibrate, evaluate
from langchain_cfc.calibration.config import CalibrationConfig
from langchain_cfc.certificates import certify
from langchain_cfc.decision import decide
from langchain_cfc.errors import CalibrationError, InputError
from tests.calibration.test_adaptive import draw_world
from tests.calls import Invoke
from tests.factories import make_chain, make_hopeless_records, make_records, reload_artifact


@pytest.fixture(scope="module")
def artifact() -> CalibrationArtifact:
    """An artifact that promises something about prompts with a correct candidate."""
    return calibrate(draw_world(1, 600), alpha="0.1", given_drawn=True)


def test_given_drawn_calibrates_on_prompts_with_a_correct_candidate(artifact: CalibrationArtifact) -> None:
    world = draw_world(1, 600)
    calibration = world.take(artifact.calibration.split.list_rows(world)["calibration"])
    drawn = calibration.correct.any(axis=1)
    assert 0 < drawn.sum() < drawn.size
    facts = artifact.calibration
    assert (facts.size, facts.drawn_among) == (drawn.sum(), drawn.size)
    # It is the rule that the drawn prompts alone give.
    fitted = artifact.get_rule().fit(
        artifact.feature_map.transform(calibration.draws)[drawn],
        artifact.parsed_set_rule.compute_success_scores(calibration, 2.0)[drawn],
    )
    test = draw_world(2, 100).draws
    expected = fitted.solve(artifact.feature_map.transform(test)).values
    assert decide(artifact, test).thresholds.tolist() == expected.tolist()


def test_given_drawn_flags_few_prompts_and_keeps_drawn_answers(artifact: CalibrationArtifact) -> None:
    test = draw_world(3, 2000)
    report = evaluate(artifact, test)
    own = report.methods["conditional"]
    assert report.n_test == test.correct.any(axis=1).sum()
    assert report.test_prompts.endswith("of these 2000, only the prompts with a correct candidate")
    assert report.guarantee == "given_drawn"
    assert report.contradicted == []
    assert own.not_certifiable_rate < 0.02
    assert own.kept_promise > 0.88
    # The control: over all prompts this much is not kept.
    assert decide(artifact, test.draws).accepted[~test.correct.any(axis=1)].any()
    covered = (decide(artifact, test.draws).accepted & test.correct).any(axis=1)
    assert covered.mean() < 0.85


def test_evaluate_contradicts_given_drawn_if_drawn_answers_are_wrong(artifact: CalibrationArtifact) -> None:
    test = draw_world(4, 2000)
    best = test.draws.scores.argmin(axis=1)
    correct = test.correct.copy()
    correct[np.arange(2000), best] = False  # the likeliest to be kept
    assert "1" in evaluate(artifact, replace(test, correct=correct)).contradicted


def test_certify_given_drawn_counts_prompts_with_a_correct_candidate(artifact: CalibrationArtifact) -> None:
    records = draw_world(5, 500)
    certificate = certify(artifact, records).certificates[0]
    assert certificate.prompts == records.correct.any(axis=1).sum()
    assert "with a correct candidate, and only for such prompts" in certificate.sentence
    certified = certify(artifact, records)
    assert reload_artifact(certified).digest == certified.digest
    with pytest.raises(CalibrationError, match="none of 40 prompts has a correct candidate"):
        certify(artifact, replace(records.take(np.arange(40)), correct=np.zeros((40, 3), dtype=np.bool_)))


def test_guarantee_of_given_drawn_states_its_condition(artifact: CalibrationArtifact) -> None:
    guarantee = artifact.make_guarantee()
    assert guarantee.kind == "given_drawn"
    assert guarantee.sentence.startswith("If a correct answer is among the candidates drawn")
    assert any("no correct candidate is drawn" in one for one in guarantee.not_promised)
    assert guarantee.stated_coverage == pytest.approx(0.9)
    assert reload_artifact(artifact).make_guarantee() == guarantee


def test_explain_of_given_drawn_states_its_condition(invoke: Invoke) -> None:
    served = calibrate(
        [*make_records("easy", 39), *make_hopeless_records("hopeless", 20)],
        alpha="0.25",
        given_drawn=True,
        features="1",
    )
    result = invoke(make_chain(served), "x")
    assert "If the model gave a correct answer at all" in result.explain()


def test_config_from_artifact_reproduces_given_drawn(
    artifact: CalibrationArtifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "0")
    config = CalibrationConfig.from_artifact(artifact)
    assert "--given-drawn" in config.format_command(["r.jsonl"])
    first = calibrate(draw_world(1, 600), alpha="0.1", given_drawn=True)
    assert calibrate(draw_world(1, 600), **config.to_arguments()).digest == first.digest


@pytest.mark.parametrize(
    "options",
    [{"adaptive_alpha": True}, {"max_wrong_rate": "0.1"}, {"confident": True}, {"shift": "meta(ratio)"}],
)
def test_calibrate_refuses_given_drawn_with_promises_about_all_prompts(options: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="these are about all prompts"):
        calibrate(draw_world(1, 100), alpha="0.1", given_drawn=True, **options)


def test_given_drawn_refuses_records_without_a_correct_candidate() -> None:
    with pytest.raises(CalibrationError, match="none of 39 calibration prompts"):
        calibrate(make_hopeless_records(), alpha="0.1", given_drawn=True, features="1")
