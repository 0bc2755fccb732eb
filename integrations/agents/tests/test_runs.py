"""A run becomes one record: the largest score of its guarded turns, and whether anything wrong ran."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_cfc_agents import RecordedRun, Turn, make_run_records, match_reference

from langchain_cfc.errors import InputError
from langchain_cfc.records import Claim, ClaimsRecord, PromptRecord

LIMIT = 6
SETUP: dict[str, Any] = {"generator": {"id": "clerk", "max_turns": LIMIT}, "verifier": {"id": "votes"}}
BOOK = {"name": "book", "args": {"day": "friday"}}


def turn(score: float, place: int = 0, **fields: Any) -> Turn:
    return Turn(**{"score": score, "place": place, "calls": (BOOK,), "guarded": True, **fields})


def run(*turns: Turn, name: str = "one", **fields: Any) -> RecordedRun:
    prompt = [{"role": "user", "content": name}]
    return RecordedRun(**{"id": name, "prompt": prompt, "turns": turns, "setup": SETUP, **fields})


def record_of(one: RecordedRun) -> PromptRecord:
    (record,) = make_run_records([one]).records
    assert isinstance(record, PromptRecord)
    return record


def claims_of(one: RecordedRun) -> tuple[Claim, ...]:
    (record,) = make_run_records([one], per="call").records
    assert isinstance(record, ClaimsRecord)
    return record.claims


TURNS = (turn(0.1), turn(0.9, guarded=False), turn(0.4, 1), turn(0.2, 2))


@pytest.mark.parametrize(("right", "expected"), [(True, True), (False, False), ([True, True, False], False)])
def test_run_has_the_largest_score_of_its_guarded_turns_and_is_right_if_all_are(
    right: Any, expected: bool
) -> None:
    (candidate,) = record_of(run(*TURNS, right=right)).candidates
    assert (candidate.score, candidate.correct) == (0.4, expected)
    assert candidate.text is not None
    assert candidate.text.count("\n") == 2


@pytest.mark.parametrize("fate", ["edited", "rejected", "refused"])
def test_corrected_run_is_wrong_with_the_largest_score_up_to_its_correction(fate: Any) -> None:
    turns = (turn(0.3, fate="approved"), turn(0.4, 1, fate=fate), turn(0.9, 2, fate="approved"))
    for fields in ({}, {"right": True}, {"error": "it failed later"}):
        (candidate,) = record_of(run(*turns, **fields)).candidates
        assert (candidate.score, candidate.correct, candidate.no_answer) == (0.4, False, None)


@pytest.mark.parametrize(
    "one",
    [
        run(turn(0.1), error="ConnectionError"),
        run(error="ConnectionError"),
        run(turn(0.1), turn(0.1, failed=True), right=True),
        run(turn(0.1), turn(1.0, judged=False), right=True),
    ],
)
def test_failed_run_is_no_answer_at_any_cut(one: RecordedRun) -> None:
    (candidate,) = make_run_records([one, run(turn(0.1), name="two", right=True)]).records[0].candidates  # type: ignore[union-attr]  # of answers
    assert (candidate.no_answer, candidate.score, candidate.correct) == ("unparsable", 1.0, False)


def test_runs_without_a_guarded_call_are_counted_and_left_out() -> None:
    idle = [run(turn(0.1, guarded=False), name="two"), run(name="three", setup=None)]
    for per in ("run", "call"):
        made = make_run_records([run(turn(0.1), right=True), *idle], per=per)
        assert ([one.id for one in made.records], made.without_calls) == (["one"], 2)


def test_approval_by_a_person_is_a_label_unless_there_is_another_one() -> None:
    seen = turn(0.1, fate="approved")
    assert record_of(run(seen)).candidates[0].correct
    assert not record_of(run(seen, right=[False])).candidates[0].correct
    with pytest.raises(InputError, match="no label, and 2 guarded turns"):
        record_of(run(seen, turn(0.1)))


def test_call_has_the_largest_score_so_far() -> None:
    claims = claims_of(run(*TURNS, right=[True, False, True]))
    assert [(one.score, one.supported) for one in claims] == [(0.1, True), (0.4, False), (0.4, True)]


def test_call_after_a_failed_turn_is_never_below_a_cut() -> None:
    turns = (turn(0.1), turn(0.2, 1, failed=True), turn(0.1, 2))
    assert [one.score for one in claims_of(run(*turns, right=True))] == [0.1, 1.0, 1.0]
    # What ran before a run failed has run in serving too.
    assert [one.score for one in claims_of(run(*turns[:1], right=[True], error="dead"))] == [0.1]


@pytest.mark.parametrize("later", [0, 1, 3])
def test_corrected_run_bounds_the_wrong_share_of_any_continuation(later: int) -> None:
    turns = (turn(0.3, fate="approved"), turn(0.2, 2, fate="edited"), turn(0.1, 3, fate="approved"))
    claims = claims_of(run(*turns, right=[True]))
    assert [one.score for one in claims] == [0.3] * 5
    # The correction was at place 2 of 6 turns: at most three further calls, all of them wrong.
    assert sum(not one.supported for one in claims) / len(claims) >= (1 + later) / (2 + later)


@pytest.mark.parametrize(
    ("runs", "per", "error"),
    [
        ([run(turn(0.1))], "run", "'one' has no label"),
        ([run(turn(0.1), right=[True, True])], "run", "2 labels, and 1 guarded turns"),
        ([run(turn(0.1), turn(0.1), right=False)], "call", "one label for 2 turns"),
        ([run(name="idle", setup=None)], "run", "no run with a turn among 1"),
        (
            [run(turn(0.1), right=True), run(turn(0.1), name="b", setup={**SETUP, "verifier": {"id": "x"}})],
            "run",
            "'one' and 'b' were recorded with different settings \\(id\\)",
        ),
    ],
)
def test_runs_that_make_no_records_are_refused(runs: list[RecordedRun], per: Any, error: str) -> None:
    with pytest.raises(InputError, match=error):
        make_run_records(runs, per=per)


def test_match_reference_uses_each_call_once() -> None:
    setup = {**SETUP, "generator": {**SETUP["generator"], "unguarded": ["look_up"]}}
    looked = (BOOK, {"name": "look_up", "args": {}})
    other = ({"name": "book", "args": {"day": "monday"}},)
    turns = [turn(0.1, calls=calls) for calls in (looked, other, (BOOK,))]
    assert match_reference(run(*turns, reference=[BOOK], setup=setup)) == [True, False, False]
    with pytest.raises(InputError, match="no list of calls"):
        match_reference(run(turn(0.1), reference="friday"))
