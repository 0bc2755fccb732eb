"""The ledger of attempts: which attempt counts, which labels may certify, and its file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from langchain_cfc import CalibrationArtifact, PromptRecord, calibrate, write_records
from langchain_cfc.artifact import Attempt, AttemptLedger, open_attempts
from langchain_cfc.certificates import certify
from langchain_cfc.errors import InputError, OverlapError, UnattainableTargetError
from langchain_cfc.records import Provenance, tabulate
from tests.certificates.prompts import prompts
from tests.cli.running import run
from tests.factories import change_candidates

KNOWN, MORE = prompts(0, 300), prompts(1, 300)


def refuse(records: list[PromptRecord], **options: object) -> UnattainableTargetError:
    """The refusal of a rate that no records certify."""
    with pytest.raises(UnattainableTargetError) as caught:
        calibrate(records, features="1", max_wrong_rate="0.001", **options)  # type: ignore[arg-type]
    return caught.value


def get_number(made: CalibrationArtifact) -> int:
    return made.certified_bot.certificates[0].attempt


def test_attempt_after_a_refusal_has_a_tenth_of_delta() -> None:
    first = refuse(KNOWN)
    assert "This was test 1 on these labels" in str(first)
    made = calibrate([*KNOWN, *MORE], features="1", max_wrong_rate="0.2", after=first)
    certificate = made.certified_bot.certificates[0]
    assert certificate.attempt == 2
    assert certificate.level == pytest.approx(0.005)
    words = "Second test on these labels, wrong with probability at most 0.5 %"
    assert words in made.make_guarantee(max_wrong_rate="0.2").sentence
    third = calibrate(KNOWN, features="1", max_wrong_rate="0.3", after=made)
    assert get_number(third) == 3
    assert [(one.number, one.certified) for one in third.attempts] == [(1, False), (2, True), (3, True)]


def test_following_the_advice_of_a_refusal_of_confidences_certifies() -> None:
    confidences = [change_candidates(one, lambda each: {"score": 1 - each.score}) for one in MORE]
    with pytest.raises(UnattainableTargetError, match="Smaller scores are better") as caught:
        calibrate(confidences, features="1", max_wrong_rate="0.2")
    assert get_number(calibrate(MORE, features="1", max_wrong_rate="0.2", after=caught.value)) == 2


@pytest.mark.parametrize(("n", "rates"), [(10, ["0.05"]), (20, ["0.05", "0.4"]), (100, ["0.02", "0.08"])])
def test_refusal_advises_a_rate_only_if_the_next_attempt_can_certify_it(n: int, rates: list[str]) -> None:
    right = [change_candidates(one, correct=True) for one in KNOWN[:n]]
    first, *larger = rates
    with pytest.raises(UnattainableTargetError) as caught:
        calibrate(right, features="1", max_wrong_rate=first)
    assert ("allow more" in str(caught.value)) == bool(larger)
    for rate in larger:
        assert f"max_wrong_rate={rate} " in str(caught.value)
        assert get_number(calibrate(right, features="1", max_wrong_rate=rate, after=caught.value)) == 2


def test_equal_records_and_settings_are_the_same_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "0")
    made = calibrate(KNOWN, features="1", max_wrong_rate="0.2")
    later = calibrate(MORE + KNOWN, features="1", max_wrong_rate="0.2", after=made)
    assert get_number(later) == 2
    # The order of records, and another spelling of the options, change nothing.
    again = calibrate(KNOWN[::-1], features="1", max_wrong_rate=[0.20], delta=0.05, seed=0, after=later)
    assert again.to_bytes() == made.to_bytes()
    # Records that `collect` wrote again with an id, so that serving can compare: the labels are the same.
    named = Provenance(n=4, generator={"id": "my-bot"})
    again = calibrate(KNOWN, features="1", max_wrong_rate="0.2", provenance=named, after=later)
    assert get_number(again) == 1


@pytest.mark.parametrize("change", ["seed", "rate", "labels", "records", "ids", "groups", "blanks", "linked"])
def test_any_change_on_overlapping_labels_is_another_attempt(change: str) -> None:
    made = calibrate(KNOWN, features="1", max_wrong_rate="0.2")
    wrong = [change_candidates(KNOWN[0], correct=False), *KNOWN[1:]]
    if change == "linked":  # shares prompts with an attempt that shares prompts with the first
        made = calibrate([KNOWN[-1], *MORE], features="1", max_wrong_rate="0.2", after=made)
        assert get_number(made) == 2
        other = calibrate([*MORE[:-5], *prompts(2, 200)], features="1", max_wrong_rate="0.2", after=made)
        assert get_number(other) == 3
        return
    # Ids that are digests of inputs and references change with a corrected reference.
    renamed = [one.model_copy(update={"id": f"again-{one.id}"}) for one in KNOWN]
    grouped = [one.model_copy(update={"metadata": {"topic": one.id[-1]}}) for one in KNOWN]
    once = next(row for row, one in enumerate(KNOWN) if "wrong 2" in {each.text for each in one.candidates})
    blank = list(KNOWN)
    blank[once] = change_candidates(KNOWN[once], lambda each: {"text": ""} if each.text == "wrong 2" else {})
    records = {
        "labels": wrong,
        "records": KNOWN[:-1],
        "ids": renamed,
        "groups": grouped,
        "blanks": blank,
    }.get(change, KNOWN)
    other = calibrate(
        records,
        features="1",
        max_wrong_rate="0.3" if change == "rate" else "0.2",
        seed=1 if change == "seed" else 0,
        after=made,
    )
    assert get_number(other) == 2


def test_attempt_on_new_labels_is_a_first_one() -> None:
    first = refuse(KNOWN)
    made = calibrate(MORE, features="1", max_wrong_rate="0.2", after=first)
    assert get_number(made) == 1
    assert len(made.attempts) == 2


def test_calibrate_without_certificate_spends_nothing() -> None:
    first = refuse(KNOWN)
    plain = calibrate(KNOWN, alpha="0.5", features="1", after=first)
    assert plain.attempts == list(first.attempts.attempts)
    assert calibrate(KNOWN, alpha="0.5", features="1").attempts == []


def test_certify_counts_as_an_attempt_and_divides_delta_among_levels() -> None:
    artifact = calibrate(KNOWN, alpha=["0.5", "0.6"], features="1")
    both = certify(artifact, MORE)
    assert [(one.attempt, one.level) for one in both.certificates] == [(1, 0.02)] * 2
    one = certify(certify(artifact, MORE, alpha="0.5"), MORE, alpha="0.6")
    assert [(one.attempt, one.level) for one in one.certificates] == [(1, 0.04), (2, 0.005)]
    # The same artifact, made again, is certified by the same attempt.
    again = calibrate(KNOWN, alpha=["0.5", "0.6"], features="1")
    assert certify(again, MORE, after=both).certificates[0].attempt == 1


def test_settings_tried_after_a_look_certify_on_other_labels() -> None:
    first = refuse(KNOWN)
    looked = first.attempts.with_look(tabulate(KNOWN), "compare")
    assert looked.with_look(tabulate(KNOWN), "compare") == looked
    both = calibrate([*KNOWN, *MORE], features="1", max_wrong_rate="0.2", after=looked)
    certificate = both.certified_bot.certificates[0]
    assert (certificate.prompts, certificate.attempt) == (len(MORE), 1)
    with pytest.raises(OverlapError, match=r"compare.*label new prompts"):
        calibrate(KNOWN, features="1", max_wrong_rate="0.2", after=looked)
    # Order statistics are of all labels.
    sure = {"delta": "0.05"}
    with pytest.raises(OverlapError, match="were shown before"):
        calibrate([*KNOWN, *MORE], alpha="0.5", features="1", after=looked, **sure)  # type: ignore[arg-type]
    # Settings that had been tried before may be tried again, with more labels too.
    assert refuse([*KNOWN, *MORE], after=looked).attempts.attempts[-1].number == 2
    # A look chooses among all settings that had been tried, on whatever labels.
    tried = refuse(KNOWN, seed=2, after=refuse(KNOWN, seed=1, after=first)).attempts
    shown = tried.with_look(tabulate(MORE), "compare")
    assert [refuse(MORE, after=one).attempts.attempts[-1].number for one in (tried, shown)] == [1, 3]


def test_command_line_keeps_attempts_beside_the_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "0")
    path, out = tmp_path / "records.jsonl", tmp_path / "artifact.json"
    write_records(path, KNOWN)
    options = ("calibrate", path, "--features", "1", "--out", out, "--max-wrong-rate")
    refused = run(*options, "0.001")
    assert (refused.code, "test 1 on these labels" in refused.err) == (1, True)
    assert not out.exists()
    assert [one.certified for one in read_ledger(path)] == [False]
    assert run(*options, "0.2").code == 0
    made = out.read_bytes()
    assert get_number(CalibrationArtifact.load(out)) == 2
    assert run(*options, "0.3").code == 0
    assert get_number(CalibrationArtifact.load(out)) == 3
    assert run(*options, "0.2").code == 0
    assert out.read_bytes() == made
    assert len(read_ledger(path)) == 3
    # The artifact that is overwritten is known, too.
    (tmp_path / "records.jsonl.attempts.json").unlink()
    assert run(*options, "0.4").code == 0
    assert get_number(CalibrationArtifact.load(out)) == 3


def read_ledger(path: Path) -> tuple[Attempt, ...]:
    with open_attempts([path]) as kept:
        return kept.ledger.attempts


def test_certify_command_counts_the_attempts_on_its_records(tmp_path: Path) -> None:
    known, new, out = tmp_path / "known.jsonl", tmp_path / "new.jsonl", tmp_path / "artifact.json"
    write_records(known, KNOWN)
    write_records(new, MORE)
    for alpha in ("0.5", "0.6"):
        assert run("calibrate", known, "--alpha", alpha, "--features", "1", "--out", out).code == 0
        assert run("certify", out, new).code == 0
    assert CalibrationArtifact.load(out).certificates[0].attempt == 2


@pytest.mark.parametrize("damage", ["", "[]", "{}", '{"format": "langchain-cfc/attempts", "version": 2}'])
def test_calibrate_command_refuses_a_damaged_ledger(damage: str, tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    write_records(path, KNOWN)
    (tmp_path / "records.jsonl.attempts.json").write_text(damage)
    ran = run("calibrate", path, "--max-wrong-rate", "0.2", "--out", tmp_path / "artifact.json")
    ran.assert_refused("not a ledger of attempts")
    assert not (tmp_path / "artifact.json").exists()


def test_attempt_is_refused_if_another_run_recorded_one_meanwhile(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    write_records(path, KNOWN)
    with open_attempts([path]) as slow:
        with open_attempts([path]) as fast:
            fast.record(refuse(KNOWN))
        with pytest.raises(InputError, match="another run"):
            slow.record(calibrate(KNOWN, features="1", max_wrong_rate="0.2"))
    assert len(read_ledger(path)) == 1


def test_calibrate_refuses_something_else_than_attempts() -> None:
    with pytest.raises(InputError, match="expected an artifact, a refusal or an AttemptLedger, got str"):
        calibrate(KNOWN, max_wrong_rate="0.2", after="artifact.json")  # type: ignore[arg-type]


def test_ledger_does_not_reveal_ids() -> None:
    ledger = AttemptLedger().with_look(tabulate(KNOWN), "compare")
    (look,) = ledger.attempts
    assert len(look.names) == 2 * len(KNOWN)  # ids and inputs
    assert not any(one.id in look.model_dump_json() for one in KNOWN)
    assert np.all([len(one) == 6 for one in look.names])


def test_evaluated_artifact_may_be_certified_but_no_other(tmp_path: Path) -> None:
    known, new = tmp_path / "known.jsonl", tmp_path / "new.jsonl"
    write_records(known, KNOWN)
    write_records(new, MORE)
    first, second = tmp_path / "first.json", tmp_path / "second.json"
    for alpha, out in (("0.5", first), ("0.6", second)):
        assert run("calibrate", known, "--alpha", alpha, "--features", "1", "--out", out).code == 0
    run("evaluate", first, new)
    assert len(read_ledger(new)) == 1
    run("certify", second, new).assert_refused("label new prompts")
    assert run("certify", first, new).code == 0
    # One of several levels may have been chosen by what the evaluation showed.
    both, held_out = tmp_path / "both.json", tmp_path / "held_out.jsonl"
    write_records(held_out, prompts(2, 300))
    levels = ("--alpha", "0.5", "--alpha", "0.6", "--features", "1", "--out", both)
    assert run("calibrate", known, *levels).code == 0
    assert run("evaluate", both, held_out, "--alpha", "0.5").code in {0, 1}
    run("certify", both, held_out, "--alpha", "0.5").assert_refused("label new prompts")
    assert run("certify", both, held_out).code == 0
