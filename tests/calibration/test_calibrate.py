from __future__ import annotations

import math
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from langchain_cfc import (
    Candidate,
    PromptRecord,
    __version__,
    calibrate,
    evaluate,
    read_records,
    write_records,
)
from langchain_cfc.artifact import CalibrationArtifact, PackedArray
from langchain_cfc.decision import decide
from langchain_cfc.errors import InputError, UnattainableTargetError
from langchain_cfc.records import Provenance, tabulate
from langchain_cfc.support.arrays import FloatArray
from langchain_cfc.thresholds import CAP, ConditionalThreshold
from langchain_cfc.thresholds._locality import Neighbourhood
from tests.calibration.prompts import make_prompts, remove_date
from tests.factories import set_window


@pytest.mark.parametrize("size", [9, 19, 20, 99, 137])
@pytest.mark.parametrize("alpha", ["0.1", "0.3", "0.5", "0.05"])
def test_marginal_threshold_is_the_order_statistic_of_exact_rank(alpha: str, size: int) -> None:
    # Among these are ranks that floats get wrong: 10 (1 - 0.7) is 3.0000000000000004.
    records = make_prompts(size, size, right=1.0)
    rank = math.ceil((size + 1) * (1 - Fraction(alpha)))
    success = np.sort([min(one.score for one in record.candidates) for record in records])
    expected = success[rank - 1] if rank <= size else np.inf
    draws = tabulate(make_prompts(0, 3)).draws
    artifact = calibrate(records, alpha=alpha, features="1", allow_unattainable=True)
    assert decide(artifact, draws).thresholds.tolist() == [expected] * 3
    assert decide(artifact, draws, marginal=True).thresholds.tolist() == [expected] * 3


def test_group_threshold_is_the_order_statistic_of_the_group() -> None:
    records = make_prompts(0, 120)
    artifact = calibrate(records, alpha="0.2", features="group(topic)")
    part = artifact.calibration.split.find_part
    asked = tabulate(make_prompts(1, 20))
    thresholds = decide(artifact, asked.draws).thresholds
    for topic in ("capital", "river"):
        success = sorted(
            min((one.score for one in record.candidates if one.correct), default=2.0)
            for record in records
            if record.metadata["topic"] == topic and part(record.id, None) == "calibration"
        )
        rank = math.ceil((len(success) + 1) * Fraction(8, 10))
        rows = [row for row, entries in enumerate(asked.draws.metadata) if entries["topic"] == topic]
        assert rows
        assert set(thresholds[rows]) == {success[rank - 1]}


def read_success_scores(artifact: CalibrationArtifact) -> FloatArray:
    """The calibration scores of a small artifact, which keeps them all, equal prompts as one."""
    state = artifact.levels[0].rule
    scores, weights = (artifact.arrays[state[name]].unpack() for name in ("success_scores", "weights"))
    return np.repeat(scores, weights.astype(np.int64)) if len(weights) else scores


def test_prompts_without_a_correct_candidate_have_the_cap_as_success_score() -> None:
    records = make_prompts(0, 40, n=1, right=0.5)
    artifact = calibrate(records, alpha="0.6", features="1")
    scores = read_success_scores(artifact)
    hopeless = sum(not record.candidates[0].correct for record in records)
    assert hopeless > 5
    assert (scores == CAP).sum() == hopeless
    assert artifact.calibration.attainable_coverage == 1 - hopeless / 40


def test_artifact_keeps_what_the_calibration_prompts_need(monkeypatch: pytest.MonkeyPatch) -> None:
    records = make_prompts(0, 900, n=4)
    set_window(monkeypatch, 20)
    small = calibrate(records, alpha="0.3", features="mean_score")
    set_window(monkeypatch, None)
    whole = calibrate(records, alpha="0.3", features="mean_score")
    assert 20 <= len(read_success_scores(small)) < 60
    assert len(read_success_scores(whole)) == whole.calibration.size > 500
    draws = tabulate(make_prompts(1, 200, n=4)).draws
    some, all_ = decide(small, draws), decide(whole, draws)
    known = ~some.refused
    assert known.mean() > 0.95
    assert not all_.refused.any()
    np.testing.assert_allclose(some.thresholds[known], all_.thresholds[known], atol=1e-12)
    far = small.solve(np.array([[1.0, 0.5], [300.0, 0.0]]))
    assert far.outside.tolist() == [False, True]
    assert np.isinf(far.values).tolist() == [False, True]


def test_evaluate_counts_refused_prompts_apart_from_not_certifiable_ones() -> None:
    """An artifact that keeps too few prompts, as such were made before, reports that as such."""
    artifact = calibrate(make_prompts(0, 900, n=4), alpha="0.3", features="mean_score")
    fitted = ConditionalThreshold("0.3", window=None).restore(
        {key: artifact.arrays[name].unpack() for key, name in artifact.levels[0].rule.items()}
    )
    near = fitted.fitted.near
    few = Neighbourhood(near.rows, near.rest, near.centre, 1e-12)
    narrow = replace(fitted, _state=replace(fitted.fitted, near=few))
    arrays = {key: PackedArray.pack(array) for key, array in narrow.get_state_data().items()}
    level = artifact.levels[0].model_copy(update={"rule": {key: one.name for key, one in arrays.items()}})
    refusing = artifact.model_copy(
        update={"levels": [level], "arrays": {one.name: one for one in arrays.values()}}
    )
    fresh = [one.model_copy(update={"id": f"new {one.id}"}) for one in make_prompts(1, 200, n=4)]
    method = evaluate(refusing, fresh).methods["conditional"]
    assert 0.05 < method.refused_rate <= method.not_certifiable_rate
    assert evaluate(artifact, fresh).methods["conditional"].refused_rate == 0.0


def test_fixed_draws_use_the_first_slots() -> None:
    records = make_prompts(0, 80, n=6)
    first_two = [r.model_copy(update={"candidates": r.candidates[:2]}) for r in records]
    last_two = [r.model_copy(update={"candidates": r.candidates[-2:]}) for r in records]
    provenance = Provenance(n=6, separate_scores=True)
    artifact = calibrate(records, alpha="0.2", draws="fixed(2)", features="mean_score", provenance=provenance)
    assert artifact.n == 2
    direct = calibrate(first_two, alpha="0.2", features="mean_score")
    assert (artifact.arrays, artifact.levels, artifact.features) == (
        direct.arrays,
        direct.levels,
        direct.features,
    )
    # Scores made by comparing all candidates would differ for fewer: the promise says what it assumes.
    assert any("scores each candidate separately" in one for one in artifact.make_guarantee().assumptions)
    assert not any("scores each candidate separately" in one for one in direct.make_guarantee().assumptions)
    assert artifact.arrays != calibrate(last_two, alpha="0.2", features="mean_score").arrays
    for draws, problem in {"fixed(0)": "at least 1", "fixed(7)": "these prompts have 6"}.items():
        with pytest.raises(InputError, match=problem):
            calibrate(records, alpha="0.2", draws=draws, provenance=provenance)


@pytest.mark.parametrize("alpha", [0.2, "0.2", "0.20", Decimal("0.200"), [0.2], ("0.2", 0.2)])
def test_calibrate_reads_alpha_in_every_notation(alpha: Any) -> None:
    artifact = calibrate(make_prompts(0, 50), alpha=alpha, features="1")
    assert artifact.alphas == ("0.2",)
    assert remove_date(artifact) == remove_date(calibrate(make_prompts(0, 50), alpha="0.2", features="1"))


def test_calibrate_holds_several_levels_in_ascending_order() -> None:
    artifact = calibrate(make_prompts(0, 50), alpha=[0.2, "0.10", Decimal("0.35"), 0.1], features="1")
    assert artifact.alphas == ("0.1", "0.2", "0.35")
    draws = tabulate(make_prompts(1, 1)).draws
    alone = [calibrate(make_prompts(0, 50), alpha=alpha, features="1") for alpha in artifact.alphas]
    for level, one in zip(artifact.alphas, alone, strict=True):
        assert decide(artifact, draws, level).thresholds == decide(one, draws).thresholds


@pytest.mark.parametrize("alpha", [0, 1, 1.5, -0.1, "much", "", float("nan"), True, [0.2, 2]])
def test_calibrate_refuses_invalid_alpha(alpha: Any) -> None:
    with pytest.raises(InputError, match="alpha must be a decimal number strictly between 0 and 1"):
        calibrate(make_prompts(0, 30), alpha=alpha)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"set_rule": "some"}, "'some'; known are all, best_prefix, rank"),
    ],
)
def test_calibrate_refuses_an_unknown_option_value_and_lists_known_ones(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        calibrate(make_prompts(0, 30), alpha="0.2", **options)


@pytest.mark.parametrize("is_shown_correct", [True, False])
def test_unique_counts_the_label_of_the_shown_candidate(is_shown_correct: bool) -> None:
    # One answer in two spellings that a judge labels differently; the one with the lower score is shown.
    candidates = (
        Candidate(text="Lima", score=0.2, correct=is_shown_correct),
        Candidate(text="lima.", score=0.5, correct=not is_shown_correct),
    )
    records = [PromptRecord(id=f"q{row}", input=f"q{row}", candidates=candidates) for row in range(9)]
    assert calibrate(records, alpha="0.2", features="1").set_rule == "all"
    if is_shown_correct:
        assert calibrate(records, alpha="0.2", features="1", set_rule="unique").set_rule == "unique(all)"
        return
    with pytest.raises(UnattainableTargetError):
        calibrate(records, alpha="0.2", features="1", set_rule="unique")


def test_success_scores_are_those_of_the_set_rule() -> None:
    records = make_prompts(0, 80)
    for text in ("all", "best_prefix", "rank", "unique(rank)"):
        artifact = calibrate(
            records, alpha="0.4", features="1", set_rule=text.replace("(", " ( "), allow_unattainable=True
        )
        assert artifact.set_rule == text
        expected = artifact.parsed_set_rule.compute_success_scores(tabulate(records), 2.0)
        np.testing.assert_array_equal(np.sort(read_success_scores(artifact)), np.sort(expected))


def test_calibrate_takes_provenance_from_records_or_argument(tmp_path: Path) -> None:
    records = make_prompts(0, 50)
    header = Provenance(n=4, generator={"id": "g"}, verifier={"id": "v"})
    other = Provenance(n=4, generator={"id": "other"})
    write_records(tmp_path / "with.jsonl", records, header)
    write_records(tmp_path / "without.jsonl", records)

    def provenance(source: Any, given: Provenance | None = None) -> Provenance | None:
        artifact = calibrate(source, alpha="0.2", features="1", provenance=given)
        assert (artifact.make_guarantee().binding == "unbound") == (artifact.provenance is None)
        return artifact.provenance

    assert provenance(read_records(tmp_path / "with.jsonl")) == header
    assert provenance(read_records(tmp_path / "with.jsonl"), other) == other
    assert provenance(read_records(tmp_path / "without.jsonl")) is None
    assert provenance(read_records(tmp_path / "without.jsonl"), header) == header
    assert provenance(records) is None
    assert provenance(records, header) == header
    wrong: Any = header.model_dump()
    with pytest.raises(InputError, match="expected the `provenance` of records"):
        provenance(records, wrong)


def test_calibrate_accepts_an_iterator() -> None:
    records = make_prompts(0, 50)
    once = calibrate(iter(records), alpha="0.2", features="mean_score")
    assert remove_date(once) == remove_date(calibrate(records, alpha="0.2", features="mean_score"))


def test_artifact_states_time_and_library_version() -> None:
    artifact = calibrate(make_prompts(0, 30), alpha="0.2", features="1")
    assert artifact.library_version == __version__
    made = datetime.fromisoformat(artifact.created_at)
    assert made.utcoffset() == timedelta(0)
    assert abs(datetime.now(timezone.utc) - made) < timedelta(hours=1)


def test_calibrate_takes_its_time_from_source_date_epoch(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1767225600")
    made = [calibrate(make_prompts(0, 30), alpha="0.2", features="1") for _ in range(2)]
    assert made[0].created_at == "2026-01-01T00:00:00+00:00"
    for one in made:
        one.save(tmp_path / f"{id(one)}.json")
    assert len({path.read_bytes() for path in tmp_path.iterdir()}) == 1
    for wrong in ("yesterday", "1e9", "99999999999999999999"):
        monkeypatch.setenv("SOURCE_DATE_EPOCH", wrong)
        with pytest.raises(InputError, match="SOURCE_DATE_EPOCH must be a whole number of seconds"):
            calibrate(make_prompts(0, 30), alpha="0.2", features="1")


def test_calibrate_reads_a_computed_alpha_as_its_decimal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "0")
    records = make_prompts(0, 39)
    computed = calibrate(records, alpha=1 - 0.8, features="1", allow_unattainable=True)
    assert computed.digest == calibrate(records, alpha="0.2", features="1", allow_unattainable=True).digest
    assert computed.get_rule(1 - 0.8) is computed.get_rule("0.2")
    with pytest.raises(InputError, match="at most 12 decimals"):
        calibrate(records, alpha="0.19999999999999996", features="1")
