"""Runs are recorded as they will be served, one line a run, and the recording goes on where it stopped."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from langchain_cfc_agents import (
    RecordedRun,
    arecord_runs,
    make_run_records,
    read_runs,
    record_runs,
)
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command

from integrations.agents.tests.office import (
    RIGHT,
    Clerk,
    Desk,
    agent_at,
    asked,
    is_right,
    recording,
    task,
)
from integrations.tests.graphs import thread
from langchain_cfc import calibrate
from langchain_cfc.errors import CollectionError, InputError
from langchain_cfc.records import Example

EXAMPLES = [
    task("sure", 1.0, 1.0, metadata={"kind": "easy"}, cluster="desk", reference="friday"),
    task("unsure", 0.5, 1.0),
    task("reading", 1.0, tools=["look_up"]),
    task("idle"),
    task("several", 0.7, tools=["book", "look_up"]),
]


def record(path: Path, model: Clerk | None = None, **settings: Any) -> list[RecordedRun]:
    agent = agent_at(Desk(), model or Clerk(), recording())
    return record_runs(agent, EXAMPLES, path, label=is_right, **settings)


def test_runs_are_recorded_with_turns_candidates_and_labels(tmp_path: Path) -> None:
    runs = record(tmp_path / "runs.jsonl")
    assert runs == read_runs(tmp_path / "runs.jsonl")
    assert [len(one.guarded) for one in runs] == [2, 2, 0, 0, 1]
    sure, unsure, reading, _, several = runs
    assert (sure.metadata, sure.cluster, sure.reference) == ({"kind": "easy"}, "desk", "friday")
    assert (sure.right, [one.place for one in sure.turns]) == ([True, True], [0, 1])
    first = unsure.turns[0]
    assert first.prompt == unsure.prompt
    days = [one.calls[0]["args"]["day"] for one in first.candidates]
    shares = [days.count(day) / 5 for day in days]
    assert [one.score for one in first.candidates] == pytest.approx([1 - share for share in shares])
    assert first.score == pytest.approx(1 - sum(shares) / 5)
    assert first.taken == shares.index(max(shares))
    assert first.calls == first.candidates[first.taken].calls
    assert [call["name"] for call in several.turns[0].calls] == ["book", "look_up"]
    assert reading.setup is None


def test_a_model_that_is_not_asked_to_act_is_asked_once(tmp_path: Path) -> None:
    model = Clerk()
    record_runs(agent_at(Desk(), model, recording()), [EXAMPLES[2]], tmp_path / "runs.jsonl")
    assert model.drawn == [RIGHT, "done"]


@pytest.mark.parametrize("cut", [0, 40])
def test_recording_goes_on_where_it_stopped(tmp_path: Path, cut: int) -> None:
    whole = record(tmp_path / "whole.jsonl")
    lines = (tmp_path / "whole.jsonl").read_text().splitlines(keepends=True)
    path = tmp_path / "runs.jsonl"
    path.write_text("".join(lines[:2]) + lines[2][:cut])
    model = Clerk()
    assert record(path, model) == whole
    assert len(path.read_text().splitlines()) == len(EXAMPLES)
    assert len(model.drawn) == 2 + 1 + 6


def test_async_recording_gives_the_same_runs(tmp_path: Path) -> None:
    agent = agent_at(Desk(), Clerk(), recording())
    runs = asyncio.run(arecord_runs(agent, EXAMPLES, tmp_path / "a.jsonl", label=is_right, max_concurrency=3))
    strip: Any = lambda run: [(turn.score, turn.calls) for turn in run.turns]  # noqa: E731
    assert list(map(strip, runs)) == list(map(strip, record(tmp_path / "b.jsonl", max_concurrency=3)))


def test_each_run_may_have_an_environment_of_its_own(tmp_path: Path) -> None:
    desks: dict[str, Desk] = {}

    def make(example: Example) -> Any:
        desks[example.id] = Desk()
        return agent_at(desks[example.id], Clerk(), recording())

    runs = record_runs(
        make, EXAMPLES, tmp_path / "runs.jsonl", label=lambda run: set(desks[run.id].booked) == {RIGHT}
    )
    assert runs[0].right is True
    assert runs[2].right is None
    assert (desks["sure"].booked, desks["reading"].booked) == ([RIGHT] * 2, [])


def test_failed_run_is_recorded_with_what_ran_before(tmp_path: Path) -> None:
    class Broken(Clerk):
        def _generate(self, messages: Any, *_: Any, **__: Any) -> Any:
            if len(messages) > 1:
                msg = "the line is dead"
                raise ConnectionError(msg)
            return super()._generate(messages)

    agent = agent_at(Desk(), Broken(), recording())
    (run,) = record_runs(agent, EXAMPLES[:1], tmp_path / "runs.jsonl", label=is_right)
    assert run.error == "ConnectionError: the line is dead"
    assert (len(run.executed), run.right) == (1, [True])
    (record,) = make_run_records([run]).records
    assert record.candidates[0].no_answer is not None  # type: ignore[union-attr]  # of answers


def test_supervised_run_holds_what_a_person_did() -> None:
    agent = agent_at(Desk(), Clerk(), recording(supervised=True), checkpointer=InMemorySaver())
    state = agent.invoke(asked(EXAMPLES[0]), thread())
    request = state["__interrupt__"][0].value
    assert request["review_configs"] == [
        {"action_name": "book", "allowed_decisions": ["approve", "edit", "reject"]}
    ]
    agent.invoke(Command(resume={"decisions": [{"type": "approve"}]}), thread())
    change = {"type": "edit", "edited_action": {"name": "book", "args": {"day": "monday"}}}
    state = agent.invoke(Command(resume={"decisions": [change]}), thread())
    run = RecordedRun.model_validate({**state["cfc_run"], "id": "by a person"})
    assert [turn.fate for turn in run.turns] == ["approved", "edited"]
    (record,) = make_run_records([run]).records
    assert not record.candidates[0].correct  # type: ignore[union-attr]  # of answers


def test_records_can_be_calibrated(tmp_path: Path) -> None:
    examples = [task(str(place), (0.99, 0.6)[place % 2], 0.99) for place in range(60)]
    agent = agent_at(Desk(), Clerk(), recording())
    runs = record_runs(agent, examples, tmp_path / "runs.jsonl", label=is_right)
    made = make_run_records(runs)
    bot = calibrate(made.records, provenance=made.provenance, max_wrong_rate=0.3)
    assert bot.certified_bot.certificates[0].prompts == 60
    calls = make_run_records(runs, per="call")
    assert calibrate(calls.records, provenance=calls.provenance, unit="claims", max_wrong_rate=0.3).bot


def test_recording_refuses_what_it_cannot_record(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    with pytest.raises(CollectionError, match="'sure' ended without a record: give the agent"):
        record_runs(agent_at(Desk(), Clerk()), EXAMPLES[:1], path)
    supervised = agent_at(Desk(), Clerk(), recording(supervised=True), checkpointer=InMemorySaver())
    with pytest.raises(CollectionError, match="waits for a person"):
        record_runs(supervised.with_config(thread()), EXAMPLES[:1], path)
    with pytest.raises(InputError, match="1 examples have the id of another one"):
        record_runs(supervised, [EXAMPLES[0], EXAMPLES[0]], path)
    with pytest.raises(InputError, match="unguarded names no tool of this agent: search"):
        record_runs(agent_at(Desk(), Clerk(), recording(unguarded=["search"])), EXAMPLES[:1], path)
    with pytest.raises(InputError, match="cannot read runs from"):
        read_runs(tmp_path / "no.jsonl")
    path.write_text('{"id": "one"}\n')
    with pytest.raises(InputError, match=r"runs.jsonl:1 is no recorded run: 1 validation error"):
        read_runs(path)


def test_turn_limit_and_memory_are_kept(tmp_path: Path) -> None:
    limited = agent_at(Desk(), Clerk(), recording(max_turns=2))
    (run,) = record_runs(limited, EXAMPLES[:1], tmp_path / "runs.jsonl", label=is_right)
    assert run.error is not None
    assert run.error.startswith("ServingError: the run has had 2 turns")
    later = {"messages": [*asked(EXAMPLES[0])["messages"], {"role": "assistant", "content": "yes"}]}
    with pytest.raises(InputError, match="begins with an earlier answer"):
        limited.invoke(later)
    assert agent_at(Desk(), Clerk(), recording(memory="thread")).invoke(later)["cfc_run"]["turns"]
