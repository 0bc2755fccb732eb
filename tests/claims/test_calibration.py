"""From records of claims to an artifact, its figures, its certificate and its words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from langchain_cfc import CalibrationArtifact, calibrate, evaluate
from langchain_cfc.calibration.config import CalibrationConfig
from langchain_cfc.certificates import certify
from langchain_cfc.decision import decide
from langchain_cfc.errors import FeatureError, InputError, UnattainableTargetError
from langchain_cfc.records import Provenance, tabulate, write_records
from langchain_cfc.thresholds import compute_conformal_rank, compute_tau
from tests.claims.worlds import count_unsupported, make_answers
from tests.cli.running import run
from tests.factories import make_records, reload_artifact

FEATURES = "group(tier) + hat(mean_score, 4) + hat(count, 3)"


@pytest.fixture(scope="module")
def artifact() -> CalibrationArtifact:
    records = make_answers(np.random.default_rng(1), 600)
    return calibrate(records, unit="claims", at_most=1, alpha=0.2, features=FEATURES)


def test_claims_threshold_is_the_back_off_of_mohri_and_hashimoto() -> None:
    # Their threshold is the conformal quantile of the scores r = inf {t: what stays at t is supported}.
    records = make_answers(np.random.default_rng(2), 40)
    artifact = calibrate(records, unit="claims", alpha=0.2, features="1")
    scores = sorted(
        max((1.0 - claim.score for claim in record.claims if not claim.supported), default=0.0)
        for record in records
    )
    new = tabulate(make_answers(np.random.default_rng(3), 1), claims=True)
    expected = scores[compute_conformal_rank(40, compute_tau("0.2")) - 1]
    assert decide(artifact, new.draws).thresholds.tolist() == [expected]


def test_evaluate_claims_figures_equal_a_count_by_hand(artifact: CalibrationArtifact) -> None:
    records = make_answers(np.random.default_rng(4), 500)
    report = evaluate(artifact, records)
    decisions = decide(artifact, tabulate(records, claims=True).draws)
    kept = [row[: len(one.claims)] for row, one in zip(decisions.accepted.tolist(), records, strict=True)]
    wrong = [count_unsupported(record, row) for record, row in zip(records, kept, strict=True)]
    own = report.methods["conditional"]
    total = sum(len(record.claims) for record in records)
    shown = sum(map(sum, kept))
    assert own.claims is not None
    assert own.kept_promise == pytest.approx(np.mean([one <= 1 for one in wrong]))
    assert own.claims.kept == pytest.approx(shown / total)
    assert own.claims.emptied == pytest.approx(np.mean([not any(row) for row in kept]))
    assert own.claims.unsupported_kept == pytest.approx(sum(wrong) / shown)
    unsupported = sum(not claim.supported for record in records for claim in record.claims)
    assert own.claims.unsupported == pytest.approx(unsupported / total)
    hard = [record.metadata["tier"] == "hard" for record in records]
    group = next(one for one in own.groups if one.name == "group(tier)=hard")
    counts = [(sum(row), len(row)) for row, flag in zip(kept, hard, strict=True) if flag]
    assert group.claims is not None
    assert group.claims.kept == pytest.approx(sum(a for a, _ in counts) / sum(b for _, b in counts))
    # The figures of usefulness are not trivial: neither everything nor nothing is kept.
    assert 0.2 < own.claims.kept < 0.9
    assert own.claims.unsupported_kept < own.claims.unsupported - 0.1


def test_certify_claims_states_and_checks_claims(artifact: CalibrationArtifact, tmp_path: Path) -> None:
    certified = certify(artifact, make_answers(np.random.default_rng(5), 400))
    (one,) = certified.certificates
    assert one.set_rule == "claims(1)"
    assert "at most 1 unsupported claim is left in the answer. First test" in one.sentence
    path = tmp_path / "artifact.json"
    certified.save(path)
    assert CalibrationArtifact.load(path).digest == certified.digest
    # A certificate that speaks of sets, or of another k, does not belong to this artifact.
    for set_rule in ("all", "claims(2)"):
        forged = one.model_copy(update={"set_rule": set_rule})
        with pytest.raises(ValueError, match="the certificate at 0"):
            CalibrationArtifact.model_validate(
                {**certified.model_dump(), "certificates": [forged.model_dump()]}
            )


def test_guarantee_of_claims_states_unsupported_claims(artifact: CalibrationArtifact) -> None:
    guarantee = artifact.make_guarantee()
    assert guarantee.claim == (
        "With probability at least 80 %, at most 1 unsupported claim is left in the answer."
    )
    assert any("omits" in sentence for sentence in guarantee.not_promised)
    assert not any("set" in sentence.split() for sentence in guarantee.not_promised)
    assert artifact.unit == "claims"


def test_config_from_artifact_reproduces_claims_options(artifact: CalibrationArtifact) -> None:
    config = CalibrationConfig.from_artifact(artifact)
    assert (config.unit, config.at_most, config.set_rule) == ("claims", 1, "all")
    assert "--unit claims --at-most 1" in config.format_command(["records.jsonl"])
    again = calibrate(make_answers(np.random.default_rng(1), 600), **config.to_arguments())
    assert again.levels == artifact.levels


@pytest.mark.parametrize(
    "options",
    [
        {"adaptive_alpha": 0.3},
        {"features": "1"},
        {"features": "group(tier)", "delta": "0.05"},
    ],
)
def test_calibrate_claims_works_with_other_options(options: dict[str, Any]) -> None:
    records = make_answers(np.random.default_rng(6), 500)
    made = calibrate(records, **{"unit": "claims", "alpha": 0.2, "features": FEATURES, **options})
    assert "no unsupported claim is left in the answer" in made.make_guarantee().sentence
    new = make_answers(np.random.default_rng(7), 200)
    claims = evaluate(made, new).methods["conditional"].claims
    assert claims is not None
    assert 0.05 < claims.kept < 0.9


def test_adaptive_levels_of_claims_keep_the_share_and_what_is_stated() -> None:
    records = make_answers(np.random.default_rng(11), 1_000)
    new = make_answers(np.random.default_rng(12), 2_000)
    stated, kept, emptied = [], [], []
    for share in (False, "0.3", "0.6"):
        made = calibrate(records, unit="claims", alpha=0.1, features="1", adaptive_alpha=share)
        method = evaluate(made, new).methods["conditional"]
        assert method.claims is not None
        stated.append(method.stated_coverage)
        kept.append(method.claims.kept)
        emptied.append(method.claims.emptied)
        # Hoeffding: over 2,000 new prompts below what is stated by .05 with probability below 1e-4, to which
        # the 800 calibration prompts add a standard deviation of .015.
        assert abs(method.kept_promise - method.stated_coverage) < 0.06
    assert stated == sorted(stated, reverse=True)
    assert kept == sorted(kept)
    assert kept[1] > 0.3
    assert kept[2] > 0.6
    assert emptied[0] > 0.3
    assert max(emptied[1:]) < 0.05


def test_adaptive_levels_of_claims_are_reproduced_from_the_artifact(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "0")
    records = make_answers(np.random.default_rng(1), 400)
    options: dict[str, Any] = {"unit": "claims", "alpha": "0.1", "features": "1"}
    made = calibrate(records, adaptive_alpha=0.3, **options)
    adaptive = made.feature_map.adaptive_alpha
    assert adaptive is not None
    assert (adaptive.share, adaptive.margin) == ("0.3", 0.0)
    config = CalibrationConfig.from_artifact(made)
    assert "--adaptive-alpha 0.3" in config.format_command(["records.jsonl"])
    assert calibrate(records, **config.to_arguments()).digest == made.digest
    assert calibrate(records, adaptive_alpha="0.30", **options).digest == made.digest
    assert reload_artifact(made).digest == made.digest
    given = calibrate(records, adaptive_alpha="0.3", **{**options, "features": made.feature_map})
    assert given.feature_map == made.feature_map
    with pytest.raises(InputError, match="the share that they were fitted to keep"):
        calibrate(records, adaptive_alpha="0.5", **{**options, "features": made.feature_map})


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"unit": "sentences"}, "unit must be"),
        ({"unit": "claims", "adaptive_alpha": True}, "with claims the share"),
        ({"adaptive_alpha": 0.3}, "with claims the share"),
        ({"unit": "claims", "adaptive_alpha": 1}, "adaptive_alpha must be a decimal"),
        ({"unit": "claims", "adaptive_alpha": 0}, "adaptive_alpha must be a decimal"),
        ({"unit": "claims", "adaptive_alpha": "yes"}, "adaptive_alpha must be a decimal"),
        ({"at_most": 1}, "needs unit='claims'"),
        ({"unit": "claims", "at_most": -1}, "unknown set rule"),
        ({"unit": "claims", "set_rule": "rank"}, "several answers"),
        ({"unit": "claims", "draws": "fixed(3)"}, "several answers"),
    ],
)
def test_config_check_refuses_options_that_do_not_suit_claims(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        CalibrationConfig(**{"alpha": 0.1, **options}).check()


def test_calibrate_claims_refuses_features_of_answers() -> None:
    with pytest.raises(FeatureError, match="need the candidates' answers"):
        calibrate(make_answers(np.random.default_rng(8), 50), unit="claims", alpha=0.2, features="entropy")


def test_calibrate_and_evaluate_commands_accept_claims(tmp_path: Path) -> None:
    path, out = tmp_path / "records.jsonl", tmp_path / "artifact.json"
    write_records(path, make_answers(np.random.default_rng(10), 300), Provenance(n=1, unit="claims"))
    options = ["--unit", "claims", "--alpha", "0.2", "--test-fraction", "0.3", "--out", str(out)]
    shown = run("calibrate", path, *options, "--adaptive-alpha", "0.5")
    assert shown.code == 0, shown.err
    assert "to keep 50 % of the claims of an answer" in " ".join(run("inspect", out, "--details").out.split())
    assert run("calibrate", path, *options, "--adaptive-alpha", "true").code == 2
    shown = run("calibrate", path, *options)
    assert shown.code == 0, shown.err
    assert "no unsupported" in " ".join(shown.out.split())
    shown = run("evaluate", out, path)
    assert shown.code == 0, shown.err
    assert "of the claims are shown" in shown.out
    assert "of those shown" in shown.out
    assert max(map(len, (shown.out + shown.err).splitlines())) <= 80
    report = run("evaluate", out, path, "--json").data
    assert report["methods"]["conditional"]["claims"]["kept"] > 0.1


def test_unattainable_claims_error_counts_prompts() -> None:
    with pytest.raises(UnattainableTargetError, match="of 10 questions") as e:
        calibrate(make_answers(np.random.default_rng(11), 10), unit="claims", alpha="0.05", features="1")
    assert "Add questions (at least 19)" in str(e.value)


def test_evaluate_with_a_claims_artifact_refuses_candidates(artifact: CalibrationArtifact) -> None:
    with pytest.raises(InputError, match="unit='answers'"):
        evaluate(artifact, make_records())
