"""`CalibrationConfig`: which options exist, which combinations are refused, and what the others do."""

from __future__ import annotations

import inspect
from dataclasses import fields
from typing import Any

import numpy as np
import pytest

from langchain_cfc import calibrate
from langchain_cfc.calibration import CalibrationConfig
from langchain_cfc.decision import decide
from langchain_cfc.errors import InputError, UnattainableTargetError
from langchain_cfc.guarantee import PaperPAC
from langchain_cfc.records import Provenance, tabulate
from langchain_cfc.thresholds import GroupedThreshold
from tests.calibration.prompts import make_prompts
from tests.factories import reload_artifact

PAC = PaperPAC()

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


def test_config_command_states_options_that_differ_from_defaults() -> None:
    config = CalibrationConfig(alpha=["0.1", 0.2])
    assert config.format_command(["r.jsonl"], "a.json") == (
        "langchain-cfc calibrate r.jsonl --out a.json --alpha 0.1 --alpha 0.2 "
        "--features 'hat(mean_score, 5)' --set-rule all --seed 0"
    )


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
        ({"features": "mean_score", "pac": PaperPAC(0.8, 0.1), "fit_fraction": 0.25}, None),
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
    ("options", "text"),
    [
        ({}, "hat(mean_score, 5)"),
        ({"unit": "claims"}, "hat(min_score, 5)"),
        ({"unit": "claims", "at_most": 1}, "hat(mean_score, 5)"),
        ({"unit": "claims", "features": "1"}, "1"),
        ({"alpha": None, "max_wrong_of_all": "0.1"}, "1"),
    ],
)
def test_config_chooses_the_default_feature_map_by_the_promise(options: dict[str, Any], text: str) -> None:
    assert CalibrationConfig(**{"alpha": "0.1", **options}).feature_map.text == text


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
                {"features": "group(topic)", "pac": PAC},
                {"features": "1", "adaptive_alpha": True},
            )
        ),
        ({"alpha": None}, "name a promise"),
        ({"alpha": []}, "at least one error level"),
        ({"delta": 1}, "delta must be a decimal number strictly between 0 and 1"),
        ({"delta": "x"}, "delta must be a decimal number strictly between 0 and 1"),
        ({"max_wrong_rate": 0}, "max_wrong_rate must be a decimal number strictly between 0 and 1"),
        ({"max_wrong_rate": 1.0}, "max_wrong_rate must be a decimal number strictly between 0 and 1"),
        ({"max_wrong_rate": True}, "max_wrong_rate must be a decimal number strictly between 0 and 1"),
        ({"pac": 0.9}, "pac is 0.9; expected PaperPAC or None"),
        ({"set_rule": None}, "set_rule is None; expected str"),
        ({"draws": 5}, "draws is 5; expected str or None"),
        ({"features": ["1"]}, "features is .* expected str or FeatureMap or None"),
        ({"seed": None}, "seed is None; expected str or int"),
        ({"at_most": "1"}, "at_most is '1'; expected int"),
        ({"fit_fraction": "0.5"}, "fit_fraction is '0.5'; expected float or None"),
        ({"allow_unattainable": "no"}, "allow_unattainable is 'no'; expected bool"),
        ({"unit": []}, "unit must be"),
        # Options that would have no effect without another one.
        ({"wrong_rate_groups": True}, "wrong_rate_groups: needs max_wrong_rate"),
        *(
            ({"alpha": None, "max_wrong_rate": "0.1", **one}, "features, set_rule, .* are about sets")
            for one in (
                {"features": "group(topic)"},
                {"set_rule": "rank"},
                {"pac": PaperPAC(delta=0.9)},
                {"adaptive_alpha": True},
            )
        ),
        ({"at_most": 1}, "at_most: it counts unsupported claims"),
    ],
)
def test_config_check_refuses_incompatible_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        make_config(**options)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"pac": PaperPAC(ridge=0.1)},
        {"delta": "0.05", "features": "1"},
        {"delta": "0.05", "features": "bins(max_score, 5)", "unit": "claims"},
        {"delta": "0.05", "features": "hat(mean_score, 5)", "max_wrong_rate": "0.1"},
        {"max_wrong_rate": "0.1", "pac": PAC},
        {"max_wrong_rate": ["0.1", "0.2"], "test_fraction": 0.3},
    ],
)
def test_config_check_accepts_compatible_options(options: dict[str, Any]) -> None:
    assert make_config(**options).alphas == ("0.3",)


def test_config_alpha_may_be_omitted_only_with_a_rate() -> None:
    assert make_config(alpha=None, max_wrong_rate="0.1").alphas == ()
    assert make_config(alpha=None, max_wrong_rate="0.1", unit="claims").alphas == ()
    assert make_config(alpha=["0.3", 0.2], max_wrong_rate="0.1").alphas == ("0.2", "0.3")


def test_fit_split_is_made_only_where_needed() -> None:
    for unit, rate, share in (
        ("answers", None, 0.0),
        ("answers", "0.2", 0.0),
        ("claims", None, 0.0),
        ("claims", "0.2", 0.2),
    ):
        alpha = None if rate else "0.3"
        config = make_config(alpha=alpha, unit=unit, max_wrong_rate=rate, features="1")
        assert config.plan_split().fit == share


def test_pac_makes_levels_stricter_and_is_called_a_heuristic() -> None:
    records = make_prompts(0, 400)
    artifact = calibrate(records, alpha=["0.2", "0.4"], features="group(topic)", pac=PAC)
    size = artifact.calibration.size
    loaded = reload_artifact(artifact)
    assert loaded == artifact
    draws = tabulate(make_prompts(1, 50)).draws
    for level in loaded.levels:
        expected = PAC.effective_alpha(level.alpha, size)
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
        assert promise.heuristics == (PAC.statement(level.alpha, size),)
        assert promise.heuristics[0].startswith("CFC-PAC, a heuristic.")
        assert plain.make_guarantee().heuristics == ()


def test_pac_with_a_too_large_slack_is_refused() -> None:
    pac, records = PaperPAC(delta=1e-12), make_prompts(0, 100)
    with pytest.raises(UnattainableTargetError, match=r"leaves nothing of alpha = 0\.2 with \d+ calibration"):
        calibrate(records, alpha=["0.2", "0.9"], features="group(topic)", pac=pac)
    assert calibrate(records, alpha="0.9", features="group(topic)", pac=pac).levels[0].effective_alpha


def test_pac_with_a_ridge_smooths_thresholds_and_promises_nothing() -> None:
    def solve(ridge: float) -> Any:
        options: dict[str, Any] = {"alpha": "0.3", "features": "group(topic)", "pac": PaperPAC(ridge=ridge)}
        artifact = reload_artifact(calibrate(make_prompts(0, 400), **options))
        assert artifact.make_guarantee().kind == ("heuristic" if ridge else "conditional")
        return decide(artifact, tabulate(make_prompts(1, 50)).draws).thresholds

    # Coefficients of groups are their thresholds, which a ridge of any strength pulls towards 0.
    assert (solve(10.0) < solve(0.1)).all()
    assert (solve(0.1) < solve(0.0)).all()
    np.testing.assert_allclose(solve(1e-9), solve(0.0), atol=1e-6)


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
