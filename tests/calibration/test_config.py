"""`CalibrationConfig`: which options exist, which combinations are refused, and what the others do."""

from __future__ import annotations

import inspect
import math
import re
from dataclasses import fields
from typing import Any

import numpy as np
import pytest

from langchain_cfc import calibrate
from langchain_cfc.calibration import CalibrationConfig
from langchain_cfc.calibration.config import BOT_ALPHA, CLAIM_ALPHAS
from langchain_cfc.cli import calibrate as commands
from langchain_cfc.decision import decide
from langchain_cfc.errors import InputError
from langchain_cfc.guarantee.stability import PaperStability
from langchain_cfc.records import Provenance, tabulate
from langchain_cfc.thresholds import ConditionalThreshold, GroupedThreshold
from tests.calibration.prompts import make_prompts
from tests.factories import reload_artifact

STABLE = PaperStability.from_constant()

pytestmark = pytest.mark.filterwarnings("ignore::langchain_cfc.errors.AttainabilityWarning")


def make_config(**options: Any) -> CalibrationConfig:
    config = CalibrationConfig(**{"alpha": "0.3", **options})
    config.check()
    return config


def test_calibrate_takes_the_fields_of_config_as_keyword_arguments() -> None:
    records, *options, provenance, after = inspect.signature(calibrate).parameters.values()
    assert (records.name, provenance.name, provenance.default) == ("records", "provenance", None)
    assert (after.name, after.default) == ("after", None)
    assert {one.name: one.default for one in options} == {
        one.name: one.default for one in fields(CalibrationConfig)
    }
    assert {one.kind for one in (*options, provenance)} == {inspect.Parameter.KEYWORD_ONLY}


def test_calibration_config_documents_every_option() -> None:
    documented = re.findall(r"^ {4}(\w+): ", inspect.getdoc(CalibrationConfig) or "", re.MULTILINE)
    assert documented == [one.name for one in fields(CalibrationConfig)]


def test_config_command_states_options_that_differ_from_defaults() -> None:
    config = CalibrationConfig(alpha=["0.1", 0.2])
    assert config.format_command(["r.jsonl"], "a.json") == (
        "langchain-cfc calibrate r.jsonl --out a.json --alpha 0.1 --alpha 0.2 "
        "--features 'hat(mean_score, 5)' --set-rule all --seed 0"
    )


def test_calibrate_command_has_the_options_and_defaults_of_the_config() -> None:
    renamed = {"stability_delta": "stability"}
    command = {
        renamed.get(name, name): parameter.default
        for name, parameter in inspect.signature(commands.calibrate).parameters.items()
        if name not in {"records", "out_path", "as_json"}
    }
    # The command line reads text.
    assert {name: str(value) for name, value in command.items()} == {
        one.name: str(one.default) for one in fields(CalibrationConfig)
    }


@pytest.mark.parametrize(
    ("options", "draws"),
    [
        ({}, None),
        ({"draws": "fixed(3)"}, "fixed(3)"),
        # Not stated if it is the recorded number.
        ({"draws": "fixed(4)"}, None),
        ({"draws": "lead(1, at_most=4)"}, "lead(1, at_most=4)"),
        ({"draws": "lead(1, at_most=3)"}, "lead(1, at_most=3)"),
        ({"adaptive_alpha": True, "features": "mean_score"}, None),
        ({"set_rule": "unique(all)"}, None),
        ({"alpha": None, "max_wrong_rate": ["0.3", "0.4"]}, None),
        ({"max_wrong_rate": ["0.4"]}, None),
        (
            {"alpha": None, "max_wrong_rate": ["0.4"], "wrong_rate_groups": True, "features": "group(topic)"},
            None,
        ),
        ({"features": "mean_score", "ridge": 0.1, "penalised": "all", "fit_fraction": 0.25}, None),
        ({"stability": STABLE}, None),
        ({"seed": "other", "test_fraction": 0.25}, None),
        ({"alpha": ["0.3", "0.4"], "features": "group(topic)", "delta": "0.1"}, None),
    ],
)
def test_config_from_artifact_reproduces_the_artifact(
    options: dict[str, Any], draws: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "0")  # the digest holds the time of making
    records = make_prompts(0, 200)
    provenance = Provenance(n=4, separate_scores=True)
    made = calibrate(records, provenance=provenance, **{"alpha": "0.3", "features": "1", **options})
    config = CalibrationConfig.from_artifact(made)
    assert config.draws == draws
    for name, value in options.items():
        found = getattr(config, name)
        if name not in {"draws", "features"}:
            assert (list(found) if isinstance(value, list) else found) == value
    again = calibrate(records, provenance=provenance, **config.to_arguments())
    assert again.frozen_digest == made.frozen_digest


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_wrong_rate": []}, "at least one rate is needed"),
        ({"max_wrong_rate": "0.1", "unit": "claims"}, "one rate and no alpha"),
        ({"max_wrong_rate": ["0.1", "0.2"], "unit": "claims", "alpha": None}, "one rate and no alpha"),
        *(
            ({"delta": "0.05", **options}, "delta with alpha needs features .* certify the artifact")
            for options in (
                {"features": "hat(mean_score, 5)"},
                {"features": "group(topic) + bins(mean_score, 3)"},
                {"features": "hard(mean_score, 0.8)"},
                {"features": "1", "ridge": 0.1},
                {"features": "group(topic)", "stability": STABLE},
                {"features": "1", "adaptive_alpha": True},
            )
        ),
        ({"alpha": None}, "at least one error level"),
        ({"alpha": []}, "at least one error level"),
        ({"delta": 1}, "delta must be a decimal number strictly between 0 and 1"),
        ({"delta": "x"}, "delta must be a decimal number strictly between 0 and 1"),
        ({"max_wrong_rate": 0}, "max_wrong_rate must be a decimal number strictly between 0 and 1"),
        ({"max_wrong_rate": 1.0}, "max_wrong_rate must be a decimal number strictly between 0 and 1"),
        ({"max_wrong_rate": True}, "max_wrong_rate must be a decimal number strictly between 0 and 1"),
        ({"ridge": -0.1}, "ridge must be a finite number, at least 0"),
        ({"ridge": math.nan}, "ridge must be a finite number, at least 0"),
        ({"ridge": math.inf}, "ridge must be a finite number, at least 0"),
        ({"ridge": 0.1, "penalised": "none"}, "penalised must be 'slopes' or 'all'"),
        # Options that would have no effect without another one.
        ({"penalised": "all"}, "penalised: needs a ridge"),
        ({"wrong_rate_groups": True}, "wrong_rate_groups: needs max_wrong_rate"),
        ({"at_most": 1}, "at_most: it counts unsupported claims"),
        (
            {"adaptive_alpha": True, "alpha": None, "max_wrong_rate": "0.1"},
            "adaptive_alpha: needs alpha",
        ),
    ],
)
def test_config_check_refuses_incompatible_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        make_config(**options)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"ridge": 0.1, "stability": STABLE},
        {"delta": "0.05", "features": "1"},
        {"delta": "0.05", "features": "bins(max_score, 5)", "unit": "claims"},
        {"delta": "0.05", "features": "hat(mean_score, 5)", "max_wrong_rate": "0.1"},
        {"max_wrong_rate": "0.1", "stability": STABLE},
        {"max_wrong_rate": ["0.1", "0.2"], "certification_fraction": 0.3},
    ],
)
def test_config_check_accepts_compatible_options(options: dict[str, Any]) -> None:
    assert make_config(**options).alphas == ("0.3",)


def test_config_alpha_may_be_omitted_only_with_a_rate() -> None:
    assert make_config(alpha=None, max_wrong_rate="0.1").alphas == (BOT_ALPHA,)
    assert make_config(alpha=None, max_wrong_rate="0.1", unit="claims").alphas == CLAIM_ALPHAS
    assert make_config(alpha=["0.3", 0.2], max_wrong_rate="0.1").alphas == ("0.2", "0.3")


def test_certification_split_is_made_only_where_needed() -> None:
    records = make_prompts(0, 400)
    shares = {
        (): 0.0,
        (("max_wrong_rate", "0.9"),): 0.0,
        (("certification_fraction", 0.25),): 0.25,
    }
    for options, share in shares.items():
        artifact = calibrate(records, alpha="0.5", features="1", **dict[str, Any](options))
        assert artifact.calibration.split.certification == share
        assert (artifact.calibration.certification_size > 0) == (share > 0)
        assert ("certification" in artifact.calibration.digests) == (share > 0)


def test_paper_stability_makes_levels_stricter_and_is_called_a_heuristic() -> None:
    records = make_prompts(0, 400)
    stability = PaperStability.from_constant(0.5)
    artifact = calibrate(records, alpha=["0.2", "0.4"], features="group(topic)", stability=stability)
    size = artifact.calibration.size
    loaded = reload_artifact(artifact)
    assert loaded == artifact
    draws = tabulate(make_prompts(1, 50)).draws
    for level in loaded.levels:
        expected = stability.effective_alpha(level.alpha, size)
        assert level.effective_alpha == expected
        assert float(expected) < float(level.alpha)
        direct = calibrate(records, alpha=expected, features="group(topic)")
        plain = calibrate(records, alpha=level.alpha, features="group(topic)")
        served = decide(loaded, draws, level.alpha).thresholds
        assert served.tobytes() == decide(direct, draws).thresholds.tobytes()
        assert served.tobytes() != decide(plain, draws).thresholds.tobytes()
        promise = loaded.make_guarantee(level.alpha)
        # The promise that does hold is that of the level asked for; the paper's claim stands beside it.
        assert (promise.kind, promise.alpha) == ("conditional", level.alpha)
        assert promise.failure_probability is None
        assert promise.heuristics == (stability.statement(level.alpha, size),)
        assert promise.heuristics[0].startswith("CFC-PAC, a heuristic.")
        assert plain.make_guarantee().heuristics == ()


def test_paper_stability_with_a_too_large_slack_flags_every_prompt() -> None:
    stability = PaperStability.from_constant(10.0)
    artifact = calibrate(
        make_prompts(0, 100), alpha=["0.2", "0.9"], features="group(topic)", stability=stability
    )
    loaded = reload_artifact(artifact)
    assert (loaded, loaded.digest) == (artifact, artifact.digest)
    assert [one.effective_alpha == "0" for one in loaded.levels] == [True, False]
    draws = tabulate(make_prompts(1, 50)).draws
    flagged = decide(loaded, draws, "0.2")
    assert flagged.not_certifiable.all()
    assert not flagged.accepted.any()
    assert flagged.find_reason(0) == "not_certifiable"
    assert "the claim is vacuous, and every prompt is flagged" in loaded.make_guarantee("0.2").heuristics[0]
    # The other level is served as usual, and so is the marginal rule beside the first.
    assert decide(loaded, draws, "0.9").accepted.any()
    assert decide(loaded, draws, "0.2", marginal=True).accepted.any()


@pytest.mark.parametrize(
    ("penalised", "kind", "names"), [("slopes", "marginal", ["1"]), ("all", "heuristic", [])]
)
def test_ridge_weakens_the_guarantee_and_states_estimated_slack(
    penalised: Any, kind: str, names: list[str]
) -> None:
    artifact = calibrate(
        make_prompts(0, 400), alpha="0.3", features="hat(mean_score, 3)", ridge=0.1, penalised=penalised
    )
    promise = artifact.make_guarantee()
    assert promise.kind == kind
    assert [one.name for one in promise.weightings] == names
    every = [one.name for one in artifact.feature_map.list_guaranteed_weights()]
    assert list(promise.estimated_slack) == every
    # The constant pays nothing unless it is penalised as well.
    assert (promise.estimated_slack["1"] == pytest.approx(0.0, abs=1e-12)) == (penalised == "slopes")
    assert any(abs(value) > 1e-3 for value in promise.estimated_slack.values())
    assert artifact.calibration.split.fit == 0.2  # its units are fitted on a split of their own
    loaded = reload_artifact(artifact)
    assert loaded.make_guarantee() == promise
    assert calibrate(
        make_prompts(0, 400), alpha="0.3", features="hat(mean_score, 3)"
    ).make_guarantee().kind == ("conditional")


def test_ridge_takes_its_units_from_the_fit_split() -> None:
    records = make_prompts(0, 300)
    artifact = calibrate(records, alpha="0.3", features="mean_score", ridge=0.1, fit_fraction=0.25)
    split = artifact.calibration.split
    fitting, calibrating = (
        tabulate([one for one in records if split.find_part(one.id, None) == part])
        for part in ("fit", "calibration")
    )
    transform = artifact.feature_map.transform
    scores = artifact.parsed_set_rule.compute_success_scores(calibrating)
    asked = transform(tabulate(make_prompts(1, 20)).draws)
    rule = ConditionalThreshold("0.3", ridge=0.1)
    found = decide(artifact, tabulate(make_prompts(1, 20)).draws).thresholds

    def solve(units_of: Any) -> Any:
        fitted = rule.fit(transform(calibrating.draws), scores, units_of=units_of)
        return fitted.thresholds(asked)

    np.testing.assert_allclose(found, solve(transform(fitting.draws)), rtol=1e-9)
    # Control: units from the calibration prompts give other thresholds.
    assert not np.allclose(found, solve(None), rtol=1e-6)


def test_levels_with_confidence_divide_the_share_of_the_first_test() -> None:
    # A caller may choose the level by what it gives, so the promises of all levels have to hold together.
    options: dict[str, Any] = {"delta": "0.1"}
    for alphas, level in ((["0.3"], "0.08"), (["0.3", "0.4"], "0.04")):
        artifact = calibrate(make_prompts(0, 200), alpha=alphas, features="1", **options)
        assert artifact.confidence is not None
        assert (artifact.confidence.delta, artifact.confidence.level) == ("0.1", float(level))
        rule = artifact.get_rule("0.3")
        assert isinstance(rule, GroupedThreshold)
        assert rule.delta == level
