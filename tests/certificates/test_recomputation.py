"""`recompute_certificates` recomputes every bound from the counts of its certificate, and finds any other."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from langchain_cfc import CalibrationArtifact, calibrate
from langchain_cfc.certificates import certify
from langchain_cfc.certificates.recomputation import recompute_certificates
from langchain_cfc.errors import ArtifactFormatError, CFCWarning
from langchain_cfc.records import Provenance
from tests.artifact.files import make_records, seal_content, set_value
from tests.artifact.goldens import certify_by_people, make_claims
from tests.cli.running import run
from tests.lengths import mostly_long

RECORDS = make_records(0, 300)
NEW = make_records(1, 200)


MAKERS: dict[str, Callable[[], CalibrationArtifact]] = {
    "sets": lambda: certify(calibrate(RECORDS, alpha=["0.3", "0.2"], features="group(topic)"), NEW),
    "claims": lambda: certify(
        calibrate(make_claims(0, 300), alpha="0.3", unit="claims", at_most=1, features="1"),
        make_claims(1, 200),
    ),
    "bot": lambda: calibrate(RECORDS, max_wrong_rate=["0.5", "0.6"]),
    "confidence": lambda: calibrate(RECORDS, alpha="0.3", features="1", delta="0.05"),
    "draw rule": lambda: certify(
        calibrate(
            RECORDS,
            alpha="0.3",
            features="1",
            draws="lead(1, at_most=4)",
            provenance=Provenance(n=4, separate_scores=True),
        ),
        NEW,
    ),
    "people": lambda: certify_by_people(calibrate(RECORDS, alpha="0.3", features="1")),
}


@pytest.fixture(scope="module")
def made() -> dict[str, CalibrationArtifact]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CFCWarning)
        return {name: make() for name, make in MAKERS.items()}


@pytest.mark.parametrize("name", sorted(MAKERS.keys() - {"people"}))
def test_recompute_certificates_agrees_with_genuine_ones(
    name: str, made: dict[str, CalibrationArtifact]
) -> None:
    checks = recompute_certificates(made[name])
    assert checks
    assert [one for one in checks if not one.agrees] == []
    assert any(one.recomputed is not None for one in checks)


NAMES = {
    "claims": {"kept at least, 1", "covered at least, 1", "sum of levels"},
    "draw rule": {"kept at least, 1", "covered at least, 1", "sum of levels"},
    "confidence": {"sum of levels"},
}


@pytest.mark.parametrize("name", NAMES)
def test_recompute_certificates_names_each_check(name: str, made: dict[str, CalibrationArtifact]) -> None:
    checks = recompute_certificates(made[name])
    assert {one.bound for one in checks} == NAMES[name]
    named = {one.certificate.partition(" at alpha = ")[2] for one in checks if one.bound != "sum of levels"}
    assert named <= {"0.3"}


def test_recompute_certificates_of_a_plain_artifact_is_empty() -> None:
    assert recompute_certificates(calibrate(RECORDS, alpha="0.3", features="1")) == []


# Genuine artifact, field, and change: worse or better than its counts give, or than delta allows.
TAMPERED: list[tuple[str, str, Callable[[Any], Any]]] = [
    ("sets", "certificates.0.shares.0.kept_at_least", lambda bound: bound - 0.01),
    ("sets", "certificates.0.shares.2.coverage_at_least", lambda bound: bound / 2),
    ("sets", "certificates.0.shares.0.kept", lambda count: count + 1),
    ("sets", "certificates.1.delta", lambda _: "0.1"),
    ("sets", "certificates.0.level", lambda level: 4.0 * level),
    ("claims", "certificates.0.shares.0.kept_at_least", lambda bound: bound - 0.01),
    ("claims", "certificates.0.shares.0.kept_at_least", lambda _: 0.999),
    ("draw rule", "certificates.0.shares.0.kept_at_least", lambda _: 0.999),
    ("draw rule", "certificates.0.delta", lambda _: "0.000001"),
    ("draw rule", "certificates.0.shares.0.coverage_at_least", lambda bound: bound - 0.01),
    (
        "bot",
        "bot.curve.3.wrong_rate_at_most",
        lambda bound: min(1.0, bound + 0.01),
    ),
    ("bot", "bot.certificates.0.level", lambda level: 4.0 * level),
    ("bot", "bot.certificates.0.delta", lambda _: "0.000001"),
    ("bot", "bot.certificates.1.groups.0.wrong", lambda count: 3 * count),
]


def save_tampered(artifact: CalibrationArtifact, path: str, value: Any, folder: Path) -> Path:
    """A file in which one field is changed and every digest fits."""
    content = json.loads(json.dumps(artifact.model_dump(mode="json")))
    set_value(content, path, value)
    file = folder / "tampered.json"
    file.write_bytes(seal_content(content))
    return file


@mostly_long(("name", "path", "change"), TAMPERED, quick=6)
def test_inspect_verify_finds_a_bound_not_given_by_its_counts(
    name: str,
    path: str,
    change: Callable[[Any], Any],
    made: dict[str, CalibrationArtifact],
    tmp_path: Path,
) -> None:
    file = save_tampered(made[name], path, change, tmp_path)
    assert any(not one.agrees for one in recompute_certificates(CalibrationArtifact.load(file)))
    ran = run("inspect", file, "--verify", "--json", "--prompts", "1")
    assert ran.code == 1
    assert "contradicts its own counts" in ran.err
    assert not all(one["agrees"] for one in json.loads(ran.out)["certificates_verified"])


# Certificates about something that the artifact does not hold.
STRAY: list[tuple[str, str, Any]] = [
    ("claims", "certificates.0.set_rule", "claims(0)"),
    ("people", "people_certificates.0.set_rule", "claims(0)"),
    ("people", "people_certificates.0.alpha", "0.2"),
    ("people", "people_certificates.0.artifact_digest", "sha256:1"),
    ("people", "people_certificates.0.agreed", 201),
]


@pytest.mark.parametrize(("name", "path", "value"), STRAY)
def test_load_refuses_a_certificate_about_something_else(
    name: str, path: str, value: Any, made: dict[str, CalibrationArtifact], tmp_path: Path
) -> None:
    file = save_tampered(made[name], path, value, tmp_path)
    with pytest.raises(ArtifactFormatError):
        CalibrationArtifact.load(file)


def test_inspect_verify_command_states_what_was_recomputed(
    made: dict[str, CalibrationArtifact], tmp_path: Path
) -> None:
    path = tmp_path / "artifact.json"
    made["sets"].save(path)
    said = " ".join(run("inspect", path, "--verify", "--prompts", "1").out.split())
    assert "bounds and tests recomputed from counts" in said
    assert "only a signature detects that" in said
    # A rule without a solver of its own: certificates alone are verified.
    certify(calibrate(RECORDS, alpha="0.3", features="1", delta="0.05"), NEW).save(path)
    ran = run("inspect", path, "--verify", "--json")
    assert (ran.code, ran.data["verification"]) == (0, [])
    assert len(ran.data["certificates_verified"]) == 4
    assert ran.data["signature_verified"] is False


def test_people_certificate_is_not_recomputed(made: dict[str, CalibrationArtifact]) -> None:
    assert [(one.recomputed, one.agrees) for one in recompute_certificates(made["people"])] == [(None, True)]
