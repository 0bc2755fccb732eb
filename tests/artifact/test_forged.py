"""Forged artifacts with a matching digest: loading recomputes what follows from the rest of the file.

Each case changes one statement of a genuine artifact and seals the file again. The genuine artifact loads.
"""

from __future__ import annotations

import copy
import functools
import json
import math
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from scipy.stats import binom

from langchain_cfc import calibrate
from langchain_cfc.artifact import CalibrationArtifact, model
from langchain_cfc.artifact.consistency import compute_lower_tail, compute_upper_tail, find_contradictions
from langchain_cfc.certificates import certify
from langchain_cfc.errors import ArtifactFormatError, CFCWarning
from langchain_cfc.guarantee.stability import PaperStability
from langchain_cfc.records import Provenance
from tests.artifact.files import make_records, seal_content, set_value
from tests.artifact.goldens import make_claims
from tests.factories import change_candidates
from tests.lengths import mostly_long

Content = dict[str, Any]
Forge = Callable[[Content], None]

RECORDS = make_records(0, 300)
CLUSTERED = [
    one.model_copy(update={"cluster": f"shared {row // 2}"}) for row, one in enumerate(make_records(0, 40))
]
# Three in ten are wrong, those with the largest scores.
SEPARATED = [
    change_candidates(one, lambda each: {"correct": each.score < 0.7}) for one in make_records(3, 200, n=1)
]
# Arguments of `calibrate`, with RECORDS unless others are named.
MAKERS: dict[str, dict[str, Any]] = {
    "tiny": {"records": make_records(0, 8), "alpha": "0.3", "features": "1"},
    "hopeless": {"records": make_records(3, 60, n=1), "alpha": "0.3", "features": "1"},
    "hat": {
        "alpha": "0.2",
        "features": "hat(mean_score, 5) + group(topic) + meta(year)^2 + hard(mean_score, max_score, 0.5)",
        "window": 64,
        "test_fraction": 0.2,
    },
    "clusters": {"records": CLUSTERED, "alpha": "0.3", "features": "1", "within_clusters": "all"},
    "ridge": {"alpha": ["0.3", "0.2"], "features": "mean_score^3", "ridge": 0.01, "window": 64},
    "bot": {"max_wrong_rate": "0.5", "features": "group(topic)", "window": 64, "certification_fraction": 0.3},
    "bot without sets": {"max_wrong_rate": "0.8", "features": "group(topic)"},
    "cautious bot": {"records": SEPARATED, "max_wrong_rate": "0.2", "features": "1"},
    "bot in groups": {
        "alpha": ["0.5", "0.3"],
        "max_wrong_rate": "0.6",
        "wrong_rate_groups": True,
        "features": "group(topic)",
    },
    "randomised": {"alpha": "0.3", "features": "mean_score", "randomised": True, "window": 64},
    "tested": {"alpha": "0.3", "features": "group(topic)", "confident": True, "window": 64},
    "grouped": {"alpha": "0.3", "features": "group(topic)", "threshold_rule": "grouped", "confident": True},
    "marginal": {"alpha": ["0.3", "0.2"], "features": "1", "threshold_rule": "marginal"},
    "confident": {
        "records": make_records(3, 60, n=1),
        "alpha": "0.3",
        "features": "1",
        "threshold_rule": "marginal",
        "confident": True,
        "delta": "0.2",
    },
    "stability": {
        "alpha": "0.4",
        "features": "mean_score",
        "stability": PaperStability.from_constant(0.01),
        "window": 64,
    },
    "shift": {"alpha": "0.3", "features": "group(topic)", "shift": "mean_score"},
    "drawn by a rule": {
        "alpha": "0.3",
        "features": "1",
        "draws": "lead(1, at_most=4)",
        "provenance": Provenance(n=4, separate_scores=True),
    },
    "learned": {"alpha": "0.3", "features": "mean_score", "threshold_rule": "learned"},
    "given drawn": {"alpha": "0.3", "features": "1", "given_drawn": True},
    "adaptive": {"alpha": "0.2", "adaptive_alpha": True, "window": 32},
    "claims": {
        "records": make_claims(0, 60),
        "alpha": "0.3",
        "features": "1",
        "unit": "claims",
        "at_most": 1,
    },
    "certified": {"alpha": "0.3", "features": "group(topic)", "certification_fraction": 0.4},
}
STRICT_CONFIDENCE = {"delta": "0.000001", "attempt": 1, "level": 0.0000008, "names": ["1"]}
CERTIFICATION_RECORDS: dict[str, list[Any]] = {
    "certified": RECORDS,
    "adaptive": make_records(1, 120),
    "claims": make_claims(1, 60),
}


@functools.cache
def make_content(name: str) -> Content:
    """The content of a genuine artifact."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CFCWarning)
        artifact = calibrate(**{"records": RECORDS, **MAKERS[name]}, allow_unattainable=True)
        if name in CERTIFICATION_RECORDS:
            artifact = certify(artifact, CERTIFICATION_RECORDS[name])
    return artifact.model_dump(mode="json")


def set_field(path: str, value: Any) -> Forge:
    """Set one field, or remove it."""
    return lambda content: set_value(content, path, value)


def without_settings(forge: Forge) -> Forge:
    """The same by someone who leaves out the digests of settings, as files of older versions do."""

    def forged(content: Content) -> None:
        forge(content)
        for level in content["levels"]:
            level.pop("settings")

    return forged


def lower_alpha(alpha: str) -> Forge:
    def forge(content: Content) -> None:
        old = content["levels"][0]["alpha"]
        content["levels"][0]["alpha"] = alpha
        content["levels"][0].pop("effective_alpha", None)
        for one in content["reference"]:
            if one.get("alpha") == old:
                one["alpha"] = alpha

    return forge


def enlarge_size(content: Content) -> None:
    content["calibration"]["size"] = 10**6
    content["calibration"]["groups"][0]["size"] = 1e6


def claim_confidence(content: Content) -> None:
    content["confidence"] = {
        **STRICT_CONFIDENCE,
        "delta": "0.001",
        "level": 0.0008,
        "prompts": 1000,
        "records_digest": "sha256:x",
    }


def claim_a_test(content: Content) -> None:
    """Claim confidence by a test of one prompt, of which no count says how it went."""
    content["confidence"] = {**STRICT_CONFIDENCE, "prompts": 1, "records_digest": "sha256:x"}


def promise_to_all(content: Content) -> None:
    """Turn a promise given a correct candidate into one about all prompts."""
    del content["calibration"]["drawn_among"], content["reference"]


def promise_to_all_sampled(content: Content) -> None:
    """Do the same, and claim that the counts are of a fair sample."""
    del content["calibration"]["drawn_among"]
    content["calibration"]["sampled"] = True


def answer_more(content: Content) -> None:
    """Raise the cut on the mean score to that of the next policy compared."""
    cut = content["policy"]["certificate"]["policy"]
    others = [one["policy"]["max_mean_score"] for one in content["policy"]["curve"]]
    cut["max_mean_score"] = min(one for one in others if one > cut["max_mean_score"])


def answer_everything(content: Content) -> None:
    """Answer every prompt, without the policies whose counts deny it."""
    content["policy"]["certificate"]["policy"]["max_mean_score"] = 1.0
    content["policy"]["curve"] = []


def certify_all(content: Content) -> None:
    for share in content["policy"]["coverage"][0]["shares"]:
        share["coverage_at_least"] = share["kept_at_least"] = 0.999


def forge_quantile(content: Content) -> None:
    level = content["levels"][0]
    level["marginal"]["quantile"] = level["marginal"]["dimension"]


def forge_sets(content: Content) -> None:
    certificate = content["certificates"][0]
    del certificate["claims"]
    certificate.update(mean_set_size=1.0, mean_set_size_at_most=1.0)


# Name, genuine artifact, forgery. `without_settings` where other content of the file reveals the forgery.
FORGED: list[tuple[str, str, Forge]] = [
    ("alpha", "tiny", without_settings(lower_alpha("0.03"))),
    ("alpha with a slack", "stability", without_settings(lower_alpha("0.03"))),
    ("alpha with a window", "hat", without_settings(lower_alpha("0.02"))),
    ("alpha with a ridge", "ridge", without_settings(set_field("levels.0.alpha", "0.02"))),
    ("alpha without rows", "grouped", lower_alpha("0.03")),
    ("size", "tiny", without_settings(set_field("calibration.size", 10**6))),
    ("size and its group", "tiny", without_settings(enlarge_size)),
    ("exchangeable", "clusters", without_settings(set_field("calibration.exchangeable", True))),
    ("slack dropped", "stability", without_settings(set_field("stability", ...))),
    ("confidence claimed", "hat", without_settings(claim_confidence)),
    ("confidence of the learned rule", "learned", set_field("confidence", STRICT_CONFIDENCE)),
    ("delta of tested levels", "tested", without_settings(set_field("confidence.delta", "0.000000000001"))),
    ("prompts of tested levels", "tested", without_settings(set_field("confidence.prompts", 10**6))),
    (
        "confidence in groups",
        "tested",
        without_settings(set_field("confidence.names", ["1", "group(topic)=river"])),
    ),
    ("counts of tested levels dropped", "tested", set_field("confidence.missed", ...)),
    ("confidence of the marginal rule", "marginal", set_field("confidence", STRICT_CONFIDENCE)),
    ("level of the marginal rule", "confident", set_field("confidence.level", 0.0001)),
    ("delta of the marginal rule", "confident", set_field("confidence.delta", "0.0001")),
    ("level of the grouped rule", "grouped", set_field("confidence.level", 1e-12)),
    ("attempts dropped", "bot", set_field("attempts", ...)),
    ("a refused attempt", "bot", set_field("attempts.0.certified", False)),
    ("the number of an attempt", "bot", set_field("attempts.0.number", 2)),
    ("an earlier attempt dropped", "certified", set_field("certificates.0.attempt", 2)),
    ("more than the share of an attempt", "certified", set_field("certificates.0.level", 0.05)),
    ("prompts without a correct candidate", "given drawn", promise_to_all),
    ("a larger cut on the mean score", "cautious bot", answer_more),
    ("a curve dropped", "cautious bot", answer_everything),
    ("max_wrong_rate", "bot", set_field("policy.certificate.max_wrong_rate", "0.01")),
    ("delta of a wrong rate", "bot", set_field("policy.certificate.delta", "0.000001")),
    ("wrong answers", "bot", set_field("policy.certificate.groups.0.wrong", 0)),
    ("policies tested", "bot", set_field("policy.certificate.policies_tested", 999)),
    ("a bound of the curve", "bot", set_field("policy.curve.0.wrong_rate_at_most", 0.001)),
    ("coverage of a policy", "bot", certify_all),
    ("coverage of a group", "certified", set_field("certificates.0.shares.2.coverage_at_least", 0.999)),
    ("a kept promise", "certified", set_field("certificates.0.shares.0.kept_at_least", 0.999)),
    ("kept prompts", "certified", set_field("certificates.0.prompts", 10**5)),
    ("delta of a certificate", "certified", set_field("certificates.0.delta", "0.000001")),
    ("set sizes", "certified", set_field("certificates.0.mean_set_size_at_most", 0.5)),
    ("a mean of set sizes", "certified", set_field("certificates.0.mean_set_size", 0.123)),
    ("prompts of a certificate", "certified", set_field("certificates.0.given_drawn", True)),
    ("a stated coverage", "certified", set_field("certificates.0.shares.0.stated", 0.99)),
    ("words of a wrong rate", "bot in groups", set_field("policy.certificate.groups.1.words", "everyone")),
    (
        "a group of a wrong rate dropped",
        "bot in groups",
        lambda one: one["policy"]["certificate"]["groups"].pop(),
    ),
    ("unit of a wrong rate", "bot", set_field("policy.certificate.unit", "claims")),
    ("draw rule", "drawn by a rule", set_field("draws", "lead(2, at_most=4)")),
    ("draw rule dropped", "drawn by a rule", set_field("draws", ...)),
    ("cap", "hopeless", without_settings(set_field("cap", 1.0001))),
    ("a larger cap", "hopeless", without_settings(set_field("cap", 3.0))),
    ("cap without effect", "tiny", set_field("cap", 1.0001)),
    ("n", "tiny", set_field("n", 3)),
    ("randomised", "randomised", set_field("randomised", ...)),
    ("sets that may be empty", "tiny", set_field("never_empty", ...)),
    ("set rule", "tiny", set_field("set_rule", "best_prefix")),
    ("a terminal escape", "tiny", without_settings(set_field("created_at", "\x1b]0;pwn\x07\x1b[31m"))),
    ("a script", "tiny", without_settings(set_field("library_version", "<script>alert(1)</script>"))),
    ("attainable coverage", "hopeless", without_settings(set_field("calibration.attainable_coverage", 1.0))),
    (
        "attainable coverage of a group",
        "hat",
        without_settings(set_field("calibration.groups.3.attainable", 1.0)),
    ),
    ("smallest alpha", "hat", without_settings(set_field("calibration.groups.3.smallest_alpha", 0.0))),
    ("words of a group", "hat", without_settings(set_field("calibration.groups.3.words", "everyone"))),
    (
        "reference counts",
        "hat",
        without_settings(
            lambda one: one["reference"][0]["counts"]["1"].append(
                one["reference"][0]["counts"]["1"].pop() + 5
            )
        ),
    ),
    (
        "reference counts of a group",
        "hat",
        without_settings(set_field("reference.0.counts.group(topic)=river.0", 10**6)),
    ),
]


# The message of the check that a forgery is meant for: another check may report the same forgery first.
FOUND: list[tuple[str, str, Forge]] = [
    ("must certify the sets of every level", "bot in groups", lambda one: one["policy"]["coverage"].pop()),
    (
        "given a correct candidate allows no adaptive levels, policy",
        "given drawn",
        set_field("shift", "mean_score"),
    ),
    (
        "adaptive levels cannot be combined with a ridge",
        "adaptive",
        set_field("confidence", STRICT_CONFIDENCE),
    ),
    ("one prompt of each cluster was used", "tiny", set_field("calibration.exchangeable", False)),
    (
        "are for a weighting that the feature map does not have",
        "tiny",
        set_field("reference.0.counts.group(topic)=river", [0] * 16),
    ),
    ("cover more prompts than were held out", "hat", set_field("reference.16.counts.1.0", 10**6)),
    ("the fit uses 8 prompts, but calibration used 9", "tiny", set_field("calibration.size", 9)),
    (
        "differs from that of the calibration prompts",
        "hopeless",
        set_field("calibration.attainable_coverage", 0.99),
    ),
    ("the marginal quantile differs", "tiny", forge_quantile),
    (
        "levels must be tested on prompts for the conditional rule",
        "tested",
        set_field("confidence.prompts", 0),
    ),
    ("the counts are not for the levels", "tested", set_field("confidence.missed", {"0.01": 0})),
    ("the counts are not for the levels", "tested", set_field("confidence.missed", ...)),
    ("0 of 1 prompts missed do not certify 0.3", "certified", claim_a_test),
    (
        "only the conditional rule has counts of missed prompts",
        "grouped",
        set_field("confidence.missed", {"0.3": 0}),
    ),
    # A larger rank than that of the marginal rule at 0.2, and than there are scores below the cap.
    ("the threshold at 0.3 on 1 is too small", "marginal", set_field("confidence", STRICT_CONFIDENCE)),
    ("the threshold at 0.3 on 1 is too small", "confident", set_field("confidence.level", 0.0001)),
    (
        "the threshold at 0.3 on group(topic)=river is too small",
        "grouped",
        set_field("confidence.level", 1e-12),
    ),
    ("the tests of attempt 1 use more of delta", "bot", set_field("policy.certificate.level", 0.04)),
    ("is of attempt 2, which the ledger does not hold", "bot", set_field("policy.certificate.attempt", 2)),
    ("attempt 1 is numbered 2", "bot", set_field("attempts.0.number", 2)),
    ("reference counts of min_score are missing", "given drawn", promise_to_all),
    ("reference counts of mean_score cover 300 prompts", "given drawn", promise_to_all_sampled),
    ("a larger cut must answer at least as many prompts", "cautious bot", answer_more),
    ("do not include the one that answers every prompt", "cautious bot", answer_everything),
    ("is about sets, and the artifact about claims", "claims", forge_sets),
    (
        "states a coverage for 1 that no prompt has",
        "adaptive",
        set_field("certificates.0.shares.0.stated", 0.2),
    ),
    (
        "of different rates, ascending, none of them refused",
        "bot",
        set_field("policy.refused", {"0.5": "why"}),
    ),
    ("more than were held out for it", "bot", set_field("policy.certificate.prompts", 10**5)),
    ("is not certified over all prompts", "bot", set_field("policy.certificate.groups.0.certified", False)),
    ("its sets at 0.5 have different prompts", "bot in groups", set_field("policy.coverage.1.delta", "0.2")),
]


@pytest.mark.parametrize(("words", "name", "forge"), FOUND)
def test_find_contradictions_reports_each_forged_statement(words: str, name: str, forge: Forge) -> None:
    content = copy.deepcopy(make_content(name))
    forge(content)
    with mock.patch.object(model, "find_contradictions", return_value=iter(())):
        forged = CalibrationArtifact.model_validate(content)
    assert [one for one in find_contradictions(forged) if words in one]


@mostly_long("name", MAKERS, quick=5)
def test_load_accepts_genuine_artifacts_of_every_kind(name: str, tmp_path: Path) -> None:
    path = tmp_path / "genuine.json"
    path.write_bytes(seal_content(make_content(name)))
    artifact = CalibrationArtifact.load(path)
    assert list(find_contradictions(artifact)) == []
    # So do those of before settings had a digest. Misses were counted by then.
    older = copy.deepcopy(make_content(name))
    for level in older["levels"]:
        level.pop("settings")
    if "certificates" in older or "policy" in older:
        return  # these speak of the artifact as it was
    path.write_bytes(seal_content(older))
    assert CalibrationArtifact.load(path).alphas == artifact.alphas


@pytest.mark.parametrize(("name", "forge"), [case[1:] for case in FORGED], ids=[case[0] for case in FORGED])
def test_load_refuses_a_forged_statement(name: str, forge: Forge, tmp_path: Path) -> None:
    content = copy.deepcopy(make_content(name))
    forge(content)
    assert content != make_content(name)
    path = tmp_path / "forged.json"
    path.write_bytes(seal_content(content))
    with pytest.raises(ArtifactFormatError, match=r"contradicts itself|array 'success_scores'"):
        CalibrationArtifact.load(path)


def test_load_names_the_contradiction_in_its_error(tmp_path: Path) -> None:
    content = json.loads(json.dumps(make_content("tiny")))
    without_settings(set_field("calibration.size", 9))(content)
    path = tmp_path / "forged.json"
    path.write_bytes(seal_content(content))
    with pytest.raises(
        ArtifactFormatError,
        match="contradicts itself: size: 9 calibration prompts, but the group of all prompts has 8",
    ):
        CalibrationArtifact.load(path)


@pytest.mark.parametrize("size", [1, 7, 120, 5000])
@pytest.mark.parametrize("share", [1e-6, 0.05, 0.5, 0.999])
def test_binomial_tails_equal_those_of_scipy(size: int, share: float) -> None:
    for count in sorted({0, 1, size // 3, size // 2, size - 1, size}):
        above, below = compute_upper_tail(count, size, share), compute_lower_tail(count, size, share)
        assert math.isclose(above, binom.sf(count - 1, size, share), rel_tol=1e-8, abs_tol=1e-300)
        assert math.isclose(below, binom.cdf(count, size, share), rel_tol=1e-8, abs_tol=1e-300)
