"""`certify`: exact bounds about one frozen artifact, from prompts that it has never seen."""

from __future__ import annotations

import functools
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from langchain_cfc import CalibrationArtifact, FeatureMap, PromptRecord, calibrate
from langchain_cfc.candidates import CandidateBatch, LabelledBatch
from langchain_cfc.certificates import certify
from langchain_cfc.certificates.coverage import compute_records_digest, sample_groups
from langchain_cfc.errors import (
    FeatureError,
    FingerprintError,
    FingerprintWarning,
    InputError,
    OverlapError,
)
from langchain_cfc.guarantee import CoverageCertificate
from langchain_cfc.records import Provenance, read_records, tabulate, write_records
from tests.certificates.prompts import make_replay_chain
from tests.factories import change_candidates, reload_artifact

from .prompts import TOPICS, prompts, take_part

KNOWN = prompts(0, 400)
FRESH = prompts(1, 300)
# Of all tests of this file together that could fail by bad luck, were their seeds not fixed.
FALSE_ALARMS = 1e-6

pytestmark = pytest.mark.filterwarnings("ignore::langchain_cfc.errors.AttainabilityWarning")


def calibrate_known(features: str = "group(topic)", **options: Any) -> CalibrationArtifact:
    return calibrate(KNOWN, **{"alpha": "0.2", "features": features, **options})


def certify_and_get(
    artifact: CalibrationArtifact, records: Any = FRESH, **options: Any
) -> CoverageCertificate:
    (certificate,) = certify(artifact, records, **options).certificates
    return certificate


def compute_lower_bound(successes: int, size: int, delta: float) -> float:
    """The one-sided bound of Clopper and Pearson, by SciPy's own test."""
    if size == 0:
        return 0.0
    test = stats.binomtest(successes, size, alternative="greater")
    return float(test.proportion_ci(1.0 - delta, method="exact").low)


def count_outcomes(artifact: CalibrationArtifact, records: list[PromptRecord], alpha: str) -> dict[str, Any]:
    """By prompt, one at a time: its topic, size of the set, whether it is covered, whether flagged."""
    found: dict[str, Any] = {"topic": [], "size": [], "covered": [], "kept": []}
    for record in records:
        scores = [one.score for one in record.candidates]
        draws = CandidateBatch.from_arrays([scores], metadata=[record.metadata])
        solved = artifact.solve(artifact.feature_map.transform(draws), alpha)
        threshold, error = float(solved.values[0]), float(solved.errors[0])
        inside = [one for one in record.candidates if one.score <= threshold + error and threshold < math.inf]
        if not inside and threshold < math.inf:
            inside = [min(record.candidates, key=lambda one: one.score)]  # never empty; the earliest of ties
        covered = any(one.correct for one in inside)
        found["topic"].append(record.metadata["topic"])
        found["size"].append(len(inside))
        found["covered"].append(covered)
        found["kept"].append(covered or threshold == math.inf)
    return {name: np.array(values) for name, values in found.items()}


@pytest.mark.parametrize("delta", ["0.05", "0.3"])
@pytest.mark.parametrize("alpha", ["0.1", "0.3"])
def test_certify_bounds_equal_an_independent_computation(alpha: str, delta: str) -> None:
    artifact = calibrate_known(alpha=["0.1", "0.3"])
    found = certify_and_get(artifact, alpha=alpha, delta=delta)
    seen = count_outcomes(artifact, FRESH, alpha)
    everyone, *groups = found.shares
    whole = 0.8 * float(delta)  # the first test on these labels
    assert (found.alpha, found.delta, found.prompts) == (alpha, delta, 300)
    assert [group.name for group in groups] == [f"group(topic)={topic}" for topic in TOPICS]
    # Half of delta for two bounds over all prompts, half for two bounds on each of three groups.
    members = {everyone.name: np.ones(300, dtype=np.bool_)}
    members |= {f"group(topic)={topic}": seen["topic"] == topic for topic in TOPICS}
    for share in found.shares:
        failing = whole / 4 if share is everyone else whole / (2 * 2 * 3)
        inside = members[share.name]
        assert share.prompts == inside.sum()
        assert (share.kept, share.covered) == (seen["kept"][inside].sum(), seen["covered"][inside].sum())
        assert share.kept_at_least == pytest.approx(
            compute_lower_bound(share.kept, share.prompts, failing), abs=1e-7
        )
        assert share.coverage_at_least == pytest.approx(
            compute_lower_bound(share.covered, share.prompts, failing), abs=1e-7
        )
        # With all of delta for one bound it would be larger, and the others would have nothing left.
        assert share.kept_at_least < compute_lower_bound(share.kept, share.prompts, whole) - 1e-3


def test_certify_without_groups_spends_delta_on_all_prompts() -> None:
    found = certify_and_get(calibrate_known("1"), delta="0.25")
    (everyone,) = found.shares
    assert everyone.kept_at_least == pytest.approx(compute_lower_bound(everyone.kept, 300, 0.1), abs=1e-7)
    assert everyone.kept_at_least > compute_lower_bound(everyone.kept, 300, 0.05) + 1e-3


def test_certify_counts_flagged_prompts_as_kept_and_not_covered() -> None:
    # One topic of three is hopeless, so that it is flagged.
    known = [
        change_candidates(one, correct=False) if one.metadata["topic"] == "law" else one for one in KNOWN
    ]
    artifact = calibrate(known, alpha="0.2", features="group(topic)", allow_unattainable=True)
    by_name = {share.name: share for share in certify_and_get(artifact).shares}
    law, art = by_name["group(topic)=law"], by_name["group(topic)=art"]
    assert (law.kept, law.covered, law.coverage_at_least) == (law.prompts, 0, 0.0)
    assert law.kept_at_least > 0.9
    assert art.covered == art.kept > 0


@functools.cache
def make_soft_world() -> tuple[CalibrationArtifact, LabelledBatch]:
    """An artifact of soft weightings, and 20,000 prompts; samples for a weighting do not depend on labels."""
    rng = np.random.default_rng(0)
    size = 20_000
    scores = rng.random((size, 4)) * rng.random((size, 1))
    labelled = LabelledBatch.from_arrays(
        [f"x{row}" for row in range(size)],
        scores,
        rng.random((size, 4)) < 0.5,
        [["a", "b", "c", "d"]] * size,
        metadata=[{"topic": TOPICS[row % 3]} for row in range(size)],
    )
    return calibrate_known("hat(mean_score, 5) + group(topic)"), labelled


def test_sample_groups_draws_as_many_prompts_as_a_weighting_weighs() -> None:
    artifact, labelled = make_soft_world()
    x = artifact.feature_map.transform(labelled.draws)
    everyone, *others = sample_groups(artifact, labelled, x)
    weights = {one.name: one.compute_values(x) for one in artifact.feature_map.list_guaranteed_weights()}
    assert everyone.members.all()
    assert [one.name for one in others] == list(weights)[1:]
    # A sum of independent coins of bias f: by Bernstein's inequality it is off by more than this with
    # probability below FALSE_ALARMS, over all weightings together.
    logarithm = math.log(2 * 2 * len(others) / FALSE_ALARMS)
    off = {}
    for one in others:
        f = weights[one.name]
        variance = float((f * (1 - f)).sum())
        tolerance = math.sqrt(2 * variance * logarithm) + logarithm / 3
        assert abs(one.members.sum() - f.sum()) <= tolerance
        off[one.name] = abs((f > 0).sum() - f.sum()) > tolerance
        if one.name.startswith("group"):  # weights of 0 and 1 leave nothing to chance
            np.testing.assert_array_equal(one.members, f == 1.0)
        assert not one.members[f == 0.0].any()
    # To take every prompt that weighs something instead is noticed for each soft weighting.
    assert {name for name, noticed in off.items() if noticed} == {
        name for name in weights if name.startswith("hat(")
    }


def test_sample_groups_follows_the_distribution_of_the_weighting() -> None:
    artifact, labelled = make_soft_world()
    x = artifact.feature_map.transform(labelled.draws)
    # Something that differs a lot between prompts of small and of large weight.
    hardest = labelled.draws.scores.max(axis=1)
    noticed = 0
    for one, weight in zip(
        sample_groups(artifact, labelled, x)[1:],
        artifact.feature_map.list_guaranteed_weights()[1:],
        strict=True,
    ):
        f = weight.compute_values(x)
        expected = float(f @ hardest / f.sum())
        # Sum of (member - f) (hardest - expected) has mean 0 and terms below 1 in size: Bernstein as above.
        deviations = hardest - expected
        variance = float((f * (1 - f) * deviations**2).sum())
        logarithm = math.log(2 * 2 * 8 / FALSE_ALARMS)
        tolerance = math.sqrt(2 * variance * logarithm) + logarithm / 3
        assert abs(float(deviations[one.members].sum())) <= tolerance
        noticed += abs(float(deviations[f > 0].sum())) > tolerance
    assert noticed >= 3  # the control: all that weigh something are distributed otherwise


def test_sample_groups_does_not_depend_on_labels() -> None:
    artifact, labelled = make_soft_world()
    flipped = replace(labelled, correct=~labelled.correct)
    x = artifact.feature_map.transform(labelled.draws)
    for one, other in zip(
        sample_groups(artifact, labelled, x), sample_groups(artifact, flipped, x), strict=True
    ):
        np.testing.assert_array_equal(one.members, other.members)
    # Labels do decide on what is certified.
    before, after = certify_and_get(artifact, labelled), certify_and_get(artifact, flipped)
    assert [one.prompts for one in before.shares] == [one.prompts for one in after.shares]
    assert [one.covered for one in before.shares] != [one.covered for one in after.shares]


def test_sample_groups_draws_independently_for_each_weighting() -> None:
    artifact, labelled = make_soft_world()
    x = artifact.feature_map.transform(labelled.draws)
    members = {one.name: one.members for one in sample_groups(artifact, labelled, x)}
    f = {one.name: one.compute_values(x) for one in artifact.feature_map.list_guaranteed_weights()}
    names = [name for name in f if name.startswith("hat(")]
    # With one random number for all, a prompt in the lighter sample is in the heavier as well.
    lots = labelled.draws.scores[:, 0]
    apart = shared = 0
    for one in names:
        for other in names:
            lighter = f[one] < f[other]
            apart += int((lighter & members[one] & ~members[other]).sum())
            shared += int((lighter & (lots < f[one]) & ~(lots < f[other])).sum())
    assert apart > 100
    assert shared == 0


def test_records_digest_depends_on_content_and_not_on_order() -> None:
    labelled = tabulate(FRESH)
    digest = compute_records_digest(labelled)
    assert certify_and_get(calibrate_known()).records_digest == digest
    order = np.random.default_rng(0).permutation(len(labelled))
    assert compute_records_digest(labelled.take(order)) == digest
    assert certify_and_get(calibrate_known(), [FRESH[row] for row in order]).records_digest == digest
    correct, scores = labelled.correct.copy(), labelled.draws.scores.copy()
    correct[7, 2] ^= True
    scores[7, 2] = np.nextafter(scores[7, 2], 2.0)
    codes = labelled.draws.answer_codes
    assert codes is not None
    changed = codes.copy()
    changed[7] = np.arange(4) if (codes[7] != np.arange(4)).any() else 0
    others = [
        replace(labelled, correct=correct),
        replace(labelled, draws=replace(labelled.draws, scores=scores)),
        replace(labelled, draws=replace(labelled.draws, answer_codes=changed)),
        replace(labelled, ids=("another", *labelled.ids[1:])),
        labelled.take(np.arange(299)),
    ]
    assert len({digest, *map(compute_records_digest, others)}) == 6


def test_certify_uses_only_the_held_out_part() -> None:
    artifact = calibrate_known(test_fraction=0.3, fit_fraction=0.2)
    found = certify_and_get(artifact, KNOWN)
    parts = {name: take_part(artifact, KNOWN, name) for name in ("fit", "calibration", "test")}
    assert len(set().union(*(part.ids for part in parts.values()))) == 400
    assert sum(len(part) for part in parts.values()) == 400
    assert found.prompts == len(parts["test"]) == artifact.calibration.held_out_size
    assert found.records_digest == compute_records_digest(parts["test"])
    assert found.records_digest not in {
        compute_records_digest(part) for name, part in parts.items() if name != "test"
    }


def test_certify_counts_one_prompt_of_each_cluster() -> None:
    clusters = [f"c{row // 3}" for row in range(300)]
    artifact = calibrate_known()
    assert certify_and_get(artifact, prompts(1, 300, clusters=clusters)).prompts == 100
    assert certify_and_get(artifact, prompts(1, 300)).prompts == 300


def test_certify_refuses_a_bot_without_sets() -> None:
    bot = calibrate(KNOWN, max_wrong_rate=0.5)
    with pytest.raises(InputError, match=r"no answer sets to certify.*langchain-cfc evaluate"):
        certify(bot, FRESH)


def test_certify_refuses_calibration_records() -> None:
    words = r"calibrated on all of these records: .* test_fraction"
    with pytest.raises(OverlapError, match=words):
        certify(calibrate_known(), KNOWN)
    with pytest.raises(OverlapError):
        certify(calibrate_known(), [*FRESH, *KNOWN[:200]])
    assert certify(calibrate_known(), FRESH).certificates


@pytest.mark.parametrize("options", [{"features": "1", "delta": "0.05"}, {"max_wrong_rate": "0.2"}], ids=str)
def test_certify_uses_the_held_out_part_beside_confidence_or_a_bot(options: dict[str, Any]) -> None:
    # Neither has used it: the one rests on an order statistic, the other on labels that calibrate and fit.
    made = calibrate(KNOWN, alpha="0.3", test_fraction=0.3, **options)
    assert certify(made, KNOWN).certificates


def test_certify_refuses_records_of_another_generator(tmp_path: Path) -> None:
    ours = Provenance(n=4, generator={"id": "g"}, verifier={"id": "v"})
    artifact = calibrate_known(provenance=ours)
    assert certify(artifact, FRESH, provenance=ours).certificates
    with pytest.warns(FingerprintWarning, match="do not say which generator and verifier made them"):
        assert certify(artifact, FRESH).certificates
    theirs = Provenance(n=4, generator={"id": "other"}, verifier={"id": "w"})
    with pytest.raises(FingerprintError, match="another generator and verifier"):
        certify(artifact, FRESH, provenance=theirs)
    write_records(tmp_path / "theirs.jsonl", FRESH, theirs)
    with pytest.raises(FingerprintError, match="cannot certify this artifact"):
        certify(artifact, read_records(tmp_path / "theirs.jsonl"))


def test_certify_refuses_to_certify_a_level_twice() -> None:
    artifact = calibrate_known(alpha=["0.1", "0.2", "0.3"])
    once = certify(artifact, FRESH, alpha="0.2")
    assert [one.alpha for one in once.certificates] == ["0.2"]
    with pytest.raises(InputError, match=r"alpha = 0\.2 already has a certificate"):
        certify(once, prompts(2, 100), alpha=0.2)
    with pytest.raises(InputError, match="already has a certificate"):
        certify(once, prompts(2, 100))
    others = certify(certify(once, prompts(2, 100), alpha="0.3"), prompts(2, 100), alpha="0.1")
    assert [one.alpha for one in others.certificates] == ["0.1", "0.2", "0.3"]
    assert [one.prompts for one in others.certificates] == [100, 300, 100]
    assert [one.alpha for one in certify(artifact, FRESH).certificates] == ["0.1", "0.2", "0.3"]


def test_certificate_names_the_artifact_without_certificates() -> None:
    artifact = calibrate_known(alpha=["0.2", "0.3"])
    certified = certify(artifact, FRESH, alpha="0.2")
    assert certified.certificates[0].artifact_digest == artifact.frozen_digest
    assert certified.frozen_digest == artifact.frozen_digest
    assert certified.digest != artifact.digest
    twice = certify(certified, FRESH, alpha="0.3")
    assert {one.artifact_digest for one in twice.certificates} == {artifact.frozen_digest}
    assert artifact.certificates == []  # nothing is written into the artifact given
    # An artifact that differs in one bit has another digest.
    other = certify(artifact.model_copy(update={"set_rule": "rank"}), FRESH, alpha="0.2")
    assert other.certificates[0].artifact_digest != artifact.frozen_digest
    loaded = reload_artifact(twice)
    assert (loaded, loaded.digest, loaded.frozen_digest) == (twice, twice.digest, artifact.frozen_digest)


def test_served_result_contains_the_certificate_of_its_level(tmp_path: Path) -> None:
    artifact = certify(calibrate_known(alpha=["0.2", "0.3"]), FRESH, alpha="0.2")
    artifact.save(tmp_path / "artifact.json")
    chain = make_replay_chain(CalibrationArtifact.load(tmp_path / "artifact.json"), FRESH)
    served = chain.invoke(FRESH[0].input, alpha="0.2").guarantee
    assert served.certificate == artifact.certificates[0]
    assert served.certificate is not None
    assert f"on {served.certificate.prompts} held-out questions" in served.certificate.sentence
    # The other level has none, and says nothing.
    assert chain.invoke(FRESH[0].input, alpha="0.3").guarantee.certificate is None


@pytest.mark.parametrize(("at_least", "text"), [(0.89999, "89.9 %"), (0.9, "90.0 %"), (0.0, "0.0 %")])
def test_certificate_sentence_rounds_a_bound_down(at_least: float, text: str) -> None:
    found = certify_and_get(calibrate_known("1"))
    (share,) = found.shares
    changed = found.model_copy(update={"shares": (share.model_copy(update={"kept_at_least": at_least}),)})
    assert f"with probability at least {text}, the answer set" in changed.sentence


def test_certify_refuses_invalid_level_delta_and_records() -> None:
    artifact = calibrate_known()
    with pytest.raises(InputError, match=r"not calibrated at alpha = 0\.4"):
        certify(artifact, FRESH, alpha="0.4")
    deltas: tuple[Any, ...] = (0, 1, "much", float("nan"))
    for delta in deltas:
        with pytest.raises(InputError, match="delta must be a decimal number strictly between 0 and 1"):
            certify(artifact, FRESH, delta=delta)
    nowhere = FRESH[5].model_copy(update={"metadata": {}})
    with pytest.raises(FeatureError, match="1-5"):
        certify(artifact, [*FRESH[:5], nowhere])
    with pytest.raises(InputError):
        certify(artifact, prompts(3, 20, n=3))
    with pytest.raises(InputError, match="no records"):
        certify(artifact, [])


def test_certify_refuses_answers_without_the_extractor_of_calibration() -> None:
    known = [change_candidates(one, lambda each: {"answer": each.text}) for one in KNOWN]
    artifact = calibrate(known, alpha="0.2", features="entropy", set_rule="all", fit_fraction=0.2)
    assert artifact.calibration.extracted_answers
    with pytest.raises(InputError, match="answer"):
        certify(artifact, FRESH)


def test_certify_leaves_out_more_candidates_than_calibrated() -> None:
    artifact = calibrate(tabulate(KNOWN, n=2), alpha="0.3", features="group(topic)")
    short = [one.model_copy(update={"candidates": one.candidates[:2]}) for one in FRESH]
    assert certify_and_get(artifact, FRESH) == certify_and_get(artifact, short)


def test_certify_states_zero_for_a_weighting_without_prompts() -> None:
    topics = ("art", "law", "sea", "sky")
    groups = FeatureMap.parse("group(topic)").fit(
        CandidateBatch.from_arrays([[0.5] * 4] * 4, metadata=[{"topic": topic} for topic in topics])
    )
    artifact = calibrate(KNOWN, alpha="0.2", features=groups)
    last = certify_and_get(artifact).shares[-1]
    assert (last.name, last.prompts, last.kept_at_least, last.coverage_at_least) == (
        "group(topic)=sky",
        0,
        0.0,
        0.0,
    )
