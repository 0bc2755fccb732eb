"""How `evaluate` recognises calibration prompts among its records."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from langchain_cfc import calibrate, evaluate, read_records, write_records
from langchain_cfc.artifact import select_held_out
from langchain_cfc.errors import CalibrationError, FingerprintWarning, OverlapError
from langchain_cfc.records import Provenance, tabulate
from tests.evaluation.prompts import make_prompts

# More prompts than the sketch of an artifact keeps hashes of.
MANY = 800


def test_evaluate_refuses_calibration_records_without_a_test_part() -> None:
    records = make_prompts(0, MANY)
    artifact = calibrate(records, alpha="0.2", features="mean_score")
    with pytest.raises(OverlapError, match=r"calibrated on all of these records: .* test_fraction"):
        evaluate(artifact, records)
    # Those that fitted the feature map are no better, nor is any other order.
    fit = [one for one in records if artifact.calibration.split.find_part(one.id, None) == "fit"]
    with pytest.raises(OverlapError):
        evaluate(artifact, fit[::-1])


def test_evaluate_uses_only_the_held_out_part_of_calibration_records() -> None:
    records = make_prompts(0, MANY)
    artifact = calibrate(records, alpha="0.2", features="mean_score", test_fraction=0.25)
    held = [one for one in records if artifact.calibration.split.find_part(one.id, None) == "test"]
    report = evaluate(artifact, records)
    assert report.n_test == len(held) == artifact.calibration.held_out_size
    assert report.test_prompts == "the part of the calibration file that was held out"
    assert select_held_out(artifact, tabulate(records))[0].ids == tuple(one.id for one in held)
    # The part by itself holds no calibration record, and gives the same figures.
    alone = evaluate(artifact, held)
    assert alone.test_prompts.startswith("all records")
    assert alone.methods == report.methods


def test_evaluate_uses_all_new_records() -> None:
    artifact = calibrate(make_prompts(0, MANY), alpha="0.2", features="mean_score", test_fraction=0.25)
    report = evaluate(artifact, make_prompts(1, 200, prefix="new"))
    assert report.n_test == 200
    assert report.test_prompts.startswith("all records: none of them was recognised")


def test_evaluate_recognises_calibration_records_among_new_ones() -> None:
    # Of 256 hashes kept of 800 ids, 80 ids miss them all with probability below 0.9^256 = 2e-12.
    old, new = make_prompts(0, MANY), make_prompts(1, 1000, prefix="new")
    whole = calibrate(old, alpha="0.2", features="1")
    assert len(whole.calibration.sketch) == 256 < whole.calibration.size
    for start in range(10):
        with pytest.raises(OverlapError):
            evaluate(whole, new + old[start::10])
    parted = calibrate(old, alpha="0.2", features="1", test_fraction=0.5)
    tested, _ = select_held_out(parted, tabulate(new + old[::10]))
    part = parted.calibration.split.find_part
    assert set(tested.ids) == {one.id for one in new + old[::10] if part(one.id, None) == "test"}


def test_evaluate_recognises_new_prompts_of_a_calibration_cluster() -> None:
    """A paraphrase of a calibration prompt is not new, whatever its id."""
    old = make_prompts(0, 60, clusters=[f"talk {row // 3}" for row in range(60)])
    artifact = calibrate(old, alpha="0.2", features="1")
    paraphrase = make_prompts(1, 1, prefix="new", clusters=["talk 7"])
    with pytest.raises(OverlapError):
        evaluate(artifact, [*make_prompts(2, 50, prefix="other"), *paraphrase])
    assert evaluate(artifact, make_prompts(1, 1, prefix="new", clusters=["talk 700"])).n_test == 1


def test_evaluate_refuses_calibration_records_with_changed_clusters() -> None:
    records = make_prompts(0, 100)
    artifact = calibrate(records, alpha="0.2", features="1", test_fraction=0.3)
    part = artifact.calibration.split.find_part
    cluster = next(name for name in map(str, range(100)) if part("", name) == "test")
    moved = [one.model_copy(update={"cluster": cluster}) for one in records]
    with pytest.raises(OverlapError, match="clusters have changed since calibration"):
        evaluate(artifact, moved)


def test_evaluate_uses_one_prompt_of_each_cluster() -> None:
    artifact = calibrate(make_prompts(0, 100), alpha="0.2", features="1")
    clusters = [f"c{row // 4}" if row < 40 else None for row in range(60)]
    tests = make_prompts(1, 60, prefix="new", clusters=clusters)
    assert evaluate(artifact, tests).n_test == 10 + 20
    # The same one of each, in whatever order they come.
    assert set(select_held_out(artifact, tabulate(tests))[0].ids) == set(
        select_held_out(artifact, tabulate(tests[::-1]))[0].ids
    )


def test_evaluate_refuses_if_no_prompt_is_left_to_test_on() -> None:
    records = make_prompts(0, 40)
    artifact = calibrate(records, alpha="0.2", features="1", test_fraction=0.2)
    used = [one for one in records if artifact.calibration.split.find_part(one.id, None) == "calibration"]
    with pytest.raises(CalibrationError, match="no prompts are left to test on"):
        evaluate(artifact, used)


def make_provenance(**parts: Any) -> Provenance:
    same = {"generator": {"id": "g"}, "verifier": {"id": "v"}, "answer": {"id": "a"}, "labeler": {"id": "l"}}
    return Provenance(n=3, **{**same, **parts})


@pytest.mark.parametrize("part", ["generator", "verifier", "answer"])
def test_evaluate_warns_of_records_of_another_origin(part: str) -> None:
    artifact = calibrate(make_prompts(0, 60), alpha="0.2", features="1", provenance=make_provenance())
    tests = make_prompts(1, 30, prefix="new")
    for other in ({"id": "other"}, None):
        with pytest.warns(FingerprintWarning, match=f"another {part} than the calibration records") as caught:
            report = evaluate(artifact, tests, provenance=make_provenance(**{part: other}))
        assert len(caught) == 1
        assert caught[0].filename == __file__
        assert report.n_test == 30


def test_evaluate_does_not_warn_of_the_same_or_an_unknown_origin() -> None:
    tests = make_prompts(1, 30, prefix="new")
    bound = calibrate(make_prompts(0, 60), alpha="0.2", features="1", provenance=make_provenance())
    # Who labelled plays no part in serving.
    evaluate(bound, tests, provenance=make_provenance(labeler={"id": "other"}))
    evaluate(bound, tests)
    unbound = calibrate(make_prompts(0, 60), alpha="0.2", features="1")
    evaluate(unbound, tests, provenance=make_provenance())


def test_evaluate_reads_the_origin_of_records_from_their_file(tmp_path: Path) -> None:
    bound = calibrate(make_prompts(0, 60), alpha="0.2", features="1", provenance=make_provenance())
    tests = make_prompts(1, 30, prefix="new")
    write_records(tmp_path / "other.jsonl", tests, make_provenance(generator={"id": "other"}))
    write_records(tmp_path / "silent.jsonl", tests)
    with pytest.warns(FingerprintWarning, match="generator"):
        evaluate(bound, read_records(tmp_path / "other.jsonl"))
    # What is said by argument counts, also of a file that does not say or says otherwise; so it is in
    # `calibrate`.
    with pytest.warns(FingerprintWarning, match="verifier"):
        evaluate(
            bound,
            read_records(tmp_path / "silent.jsonl"),
            provenance=make_provenance(verifier={"id": "other"}),
        )
    evaluate(bound, read_records(tmp_path / "other.jsonl"), provenance=make_provenance())
