"""Certificates in artifact files: saved, loaded, and refused if they are of another artifact."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from langchain_cfc import calibrate
from langchain_cfc.artifact import CalibrationArtifact
from langchain_cfc.certificates import certify
from langchain_cfc.errors import ArtifactDigestError, ArtifactFormatError
from langchain_cfc.guarantee import PaperPAC
from tests.artifact.files import get_content, load_bytes, load_content, make_records, set_value

OPTIONAL_FIELDS = ("pac", "confidence", "certificates", "bot")

pytestmark = pytest.mark.filterwarnings("ignore::langchain_cfc.errors.AttainabilityWarning")


@pytest.fixture(scope="module")
def certified(artifact: CalibrationArtifact) -> CalibrationArtifact:
    """The small artifact of two levels, with a certificate for each."""
    return certify(artifact, make_records(9, 120))


@pytest.fixture(scope="module")
def bot_artifact() -> CalibrationArtifact:
    return calibrate(
        make_records(0, 400), alpha=["0.3", "0.5"], features="group(topic)", max_wrong_rate="0.5"
    )


@pytest.fixture(scope="module")
def confident_artifact() -> CalibrationArtifact:
    return calibrate(make_records(0, 300), alpha="0.5", features="group(topic)", delta="0.05")


@pytest.fixture(scope="module")
def pac_artifact() -> CalibrationArtifact:
    return calibrate(make_records(0, 100), alpha="0.5", features="1", pac=PaperPAC())


@pytest.fixture
def forged(certified: CalibrationArtifact) -> dict[str, Any]:
    """Content with certificates, to be tampered with."""
    return get_content(certified)


@pytest.fixture
def bot_content(bot_artifact: CalibrationArtifact) -> dict[str, Any]:
    """Content with a bot, to be tampered with."""
    return get_content(bot_artifact)


def test_save_and_load_round_trip_certificates_and_bots(
    certified: CalibrationArtifact, bot_artifact: CalibrationArtifact, tmp_path: Path
) -> None:
    both = certify(bot_artifact, make_records(9, 120), alpha="0.3")
    for number, one in enumerate((certified, bot_artifact, both)):
        path = tmp_path / f"{number}.json"
        one.save(path)
        loaded = CalibrationArtifact.load(path)
        assert (loaded, loaded.digest, loaded.frozen_digest) == (one, one.digest, one.frozen_digest)
        loaded.save(tmp_path / "again.json")
        assert (tmp_path / "again.json").read_bytes() == path.read_bytes()
    assert certified.frozen_digest != certified.digest
    assert both.frozen_digest == bot_artifact.frozen_digest


def test_content_without_certificates_or_bot_has_no_new_fields(
    content: dict[str, Any], artifact: CalibrationArtifact
) -> None:
    assert not set(OPTIONAL_FIELDS) & set(content)
    for level in content["levels"]:
        assert set(level) == {"alpha", "rule", "marginal"}
    assert artifact.model_copy(update={"reference": []}).digest == artifact.frozen_digest


@pytest.mark.parametrize(
    ("options", "fields"),
    [
        ({}, set()),
        ({"pac": PaperPAC()}, {"pac"}),
        ({"features": "1", "delta": "0.05"}, {"confidence"}),
        ({"max_wrong_rate": "0.5"}, {"bot"}),
    ],
    ids=str,
)
def test_save_writes_only_the_fields_of_options_that_are_used(
    options: dict[str, Any], fields: set[str]
) -> None:
    known = [
        one.model_copy(update={"metadata": {**one.metadata, "year": 1 + row % 5}})
        for row, one in enumerate(make_records(0, 300))
    ]
    artifact = calibrate(known, **{"alpha": "0.4", "features": "group(topic)", **options})
    content = get_content(artifact)
    assert set(OPTIONAL_FIELDS) & set(content) == fields
    assert load_content(content) == artifact
    for name in set(OPTIONAL_FIELDS) - fields:  # defaults, which `save` does not write
        default = type(artifact).model_fields[name].default
        with pytest.raises(ArtifactFormatError, match="not in the canonical form"):
            load_content({**content, name: default})


def test_load_refuses_a_changed_number_of_a_certificate(
    certified: CalibrationArtifact, tmp_path: Path
) -> None:
    certified.save(tmp_path / "artifact.json")
    data = (tmp_path / "artifact.json").read_bytes()
    before = f'"kept_at_least": {certified.certificates[0].shares[0].kept_at_least!r}'.encode()
    assert data.count(before) == 1
    load_bytes(data)
    with pytest.raises(ArtifactDigestError, match="changed or damaged"):
        load_bytes(data.replace(before, b'"kept_at_least": 0.99'))


def test_load_refuses_certificates_of_another_artifact(
    forged: dict[str, Any], bot_content: dict[str, Any]
) -> None:
    load_content(forged)
    other = calibrate(
        make_records(3, 60),
        alpha=["0.3", "0.2"],
        features="bins(mean_score, 2) + group(topic)",
        fit_fraction=0.3,
    )
    grafted = get_content(other)
    load_content(grafted)
    with pytest.raises(ArtifactFormatError, match="is about another artifact"):
        load_content({**grafted, "certificates": forged["certificates"]})
    with pytest.raises(ArtifactFormatError, match="is about another artifact"):
        load_content({**grafted, "bot": bot_content["bot"]})


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("set_rule", "rank"),
        ("created_at", "2000-01-01T00:00:00+00:00"),
        ("calibration.size", 10_000),
    ],
)
def test_load_refuses_a_certified_artifact_changed_afterwards(
    path: str, value: Any, forged: dict[str, Any]
) -> None:
    set_value(forged, path, value)
    with pytest.raises(ArtifactFormatError, match="is about another artifact"):
        load_content(forged)


def test_load_refuses_two_certificates_of_one_level(forged: dict[str, Any]) -> None:
    first, second = forged["certificates"]
    for several in ([first, first], [first, {**second, "alpha": first["alpha"]}], [first, second, second]):
        with pytest.raises(ArtifactFormatError, match="or two are about one level"):
            load_content({**forged, "certificates": several})
    assert len(load_content({**forged, "certificates": [second]}).certificates) == 1


def test_load_refuses_a_certificate_of_a_level_not_held(
    forged: dict[str, Any], bot_content: dict[str, Any]
) -> None:
    forged["certificates"][0]["alpha"] = "0.25"
    with pytest.raises(ArtifactFormatError, match="level that the artifact does not hold"):
        load_content(forged)
    bot_content["bot"]["certificates"][0]["alpha"] = "0.25"
    with pytest.raises(ArtifactFormatError, match=r"the rate 0\.5 is at"):
        load_content(bot_content)


def test_load_refuses_a_certificate_without_artifact_digest(forged: dict[str, Any]) -> None:
    del forged["certificates"][0]["artifact_digest"]
    with pytest.raises(ArtifactFormatError, match="artifact_digest"):
        load_content(forged)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("surprise", 1, "surprise"),
        ("delta", "much", "delta"),
        ("delta", "2", "delta"),
        ("delta", 0.05, "delta"),
        ("prompts", -1, "prompts"),
        ("prompts", "120", "not in the canonical form"),
        ("shares", [], "shares"),
        ("shares.0.kept", 121, None),
        ("shares.0.kept", "1", None),
        ("shares.0.covered", -1, None),
        ("shares.0.kept_at_least", 1.5, None),
        ("shares.0.coverage_at_least", -0.1, None),
    ],
)
def test_load_refuses_an_invalid_certificate(
    path: str, value: Any, message: str | None, forged: dict[str, Any]
) -> None:
    set_value(forged["certificates"][0], path, value)
    with pytest.raises(ArtifactFormatError, match=message):
        load_content(forged)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("created_at", "\x1b]0;title\x07", "created_at: "),
        ("library_version", "<script>alert(1)</script>", "library_version: "),
        ("calibration.groups.0.words", "everyone", "groups do not match the weightings"),
        ("reference.0.counts.group(topic)=ocean", [0] * 17, "a weighting that the feature map lacks"),
        ("certificates.0.shares.1.words", "everyone", "does not match the weightings"),
        ("certificates.0.attempt", 2, "which the ledger does not hold"),
        ("attempts", ..., "which the ledger does not hold"),
        ("attempts.0.certified", False, "which the ledger does not hold"),
        ("draws", "lead(1, at_most=9)", "is not a rule of at most 4 draws"),
    ],
)
def test_load_refuses_parts_that_do_not_fit(
    path: str, value: Any, message: str, certified: CalibrationArtifact
) -> None:
    content = get_content(certified)
    set_value(content, path, value)
    # As if the forger had computed this digest again.
    digest = mock.patch.object(type(certified), "frozen_digest", certified.frozen_digest)
    with digest, pytest.raises(ArtifactFormatError, match=message):
        load_content(content)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("certificates.0.max_mean_score", 1.5),
        ("certificates.0.max_mean_score", None),
        ("certificates.0.max_wrong_rate", "often"),
        ("certificates.0.delta", "1.5"),
        ("certificates.0.groups", []),
        ("certificates.0.groups.0.certified", False),
        ("certificates.0.unit", "claims"),
        ("refused", {"0.5": "too few"}),
        ("certificates.0.surprise", 1),
        ("curve", None),
        ("curve.0.answered", 0),
    ],
)
def test_load_refuses_an_invalid_bot(path: str, value: Any, bot_content: dict[str, Any]) -> None:
    load_content(bot_content)
    set_value(bot_content["bot"], path, value)
    with pytest.raises(ArtifactFormatError):
        load_content(bot_content)


def test_load_refuses_grouped_thresholds_without_confidence() -> None:
    artifact = calibrate(make_records(0, 200), alpha="0.5", features="group(topic)", delta="0.05")
    content = get_content(artifact)
    assert load_content(content) == artifact
    confidence = content.pop("confidence")
    with pytest.raises(ArtifactFormatError, match="state"):
        load_content(content)
    with pytest.raises(ArtifactFormatError, match="delta"):
        load_content({**content, "confidence": {**confidence, "delta": "2"}})


@pytest.mark.parametrize(
    ("field", "value"),
    [("delta", "much"), ("delta", "0.050"), ("attempt", 0), ("level", 1.5), ("level", "0.04")],
)
def test_load_refuses_invalid_confidence(
    field: str, value: Any, confident_artifact: CalibrationArtifact
) -> None:
    content = get_content(confident_artifact)
    assert load_content(content) == confident_artifact
    content["confidence"][field] = value
    with pytest.raises(ArtifactFormatError):
        load_content(content)


@pytest.mark.parametrize("effective", ["0.9", "x", "0.050", "-1", 0.1])
def test_load_refuses_an_invalid_or_laxer_effective_alpha(
    effective: Any, pac_artifact: CalibrationArtifact
) -> None:
    content = get_content(pac_artifact)
    assert load_content(content) == pac_artifact
    content["levels"][0]["effective_alpha"] = effective
    with pytest.raises(ArtifactFormatError):
        load_content(content)


@pytest.mark.parametrize(
    ("field", "value"),
    [("delta", "0.90"), ("delta", "1"), ("ridge", -0.1), ("ridge", True), ("ridge", "0.1"), ("more", 1)],
)
def test_load_refuses_invalid_pac(field: str, value: Any, pac_artifact: CalibrationArtifact) -> None:
    content = get_content(pac_artifact)
    content["pac"][field] = value
    with pytest.raises(ArtifactFormatError):
        load_content(content)
