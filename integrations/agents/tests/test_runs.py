"""Runs are recorded as they will be served, one line a run, and become records of actions and scores."""

from __future__ import annotations

import asyncio
import gzip
import json
from pathlib import Path
from typing import Annotated, Any
from uuid import uuid4

import pytest
from langchain_cfc_agents import (
    RecordedRun,
    Turn,
    arecord_runs,
    make_run_records,
    match_reference,
    read_runs,
    record_runs,
)
from langchain_cfc_agents.actions import Toolbox, list_open_calls
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import InjectedToolArg, StructuredTool, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command
from pydantic import BaseModel, Field, SecretStr

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
from langchain_cfc.records import Claim, ClaimsRecord, Example, PromptRecord

TOOLBOX = Toolbox([*Desk().tools, {"type": "web_search"}], ["look_up", "web_search"])


def calling(*calls: tuple[str, dict[str, Any]], text: str = "", **fields: Any) -> AIMessage:
    made: Any = [{"name": name, "args": args, "id": str(place)} for place, (name, args) in enumerate(calls)]
    return AIMessage(text, tool_calls=made, **fields)


def read(*calls: tuple[str, dict[str, Any]], text: str = "") -> str:
    return TOOLBOX.read_candidate(calling(*calls, text=text)).text


def test_arguments_are_what_the_schema_makes_of_them() -> None:
    whole = ("book", {"room": "small", "day": "friday"})
    assert read(("book", {"day": "friday"})) == read(whole) == read(whole, text="I book it.")
    assert read(("book", {"day": "friday", "room": "large"})) != read(whole)
    assert read(("book", {"day": "Friday"})) != read(whole)


def test_arguments_of_other_types_are_converted() -> None:
    @tool
    def pay(euros: float, to: list[str] | None = None) -> str:
        """Pay."""
        return f"{euros} {to}"

    box = Toolbox([pay], [])
    texts = {box.read_candidate(calling(("pay", {"euros": euros}))).text for euros in (5, 5.0, "5")}
    assert texts == {'{"tool_calls":[{"args":{"euros":5.0,"to":null},"name":"pay"}]}'}


class Order(BaseModel):
    payee: str | None = Field(None, alias="to")
    key: SecretStr = SecretStr("")
    note: str = Field("", exclude=True)


class Stamped(BaseModel):
    stamp: str = Field(default_factory=lambda: uuid4().hex)


def test_arguments_that_a_schema_or_json_does_not_hold_tell_actions_apart() -> None:
    @tool
    def pay(order: Order, user: Annotated[str, InjectedToolArg] = "clerk") -> str:
        """Pay."""
        return f"{order} {user}"

    aliased = StructuredTool.from_function(str, name="alias", description="Pay.", args_schema=Order)
    box = Toolbox([pay, aliased], [])
    made: list[tuple[str, dict[str, Any]]] = [
        *(("pay", {"order": {field: "a"}}) for field in ("to", "key", "note")),
        *(("pay", {"order": order}) for order in ({}, {"key": "b"})),
        ("pay", {"order": {}, "user": "root"}),
        *(("alias", {"to": payee}) for payee in "ab"),
    ]
    assert len({box.read_candidate(calling(call)).text for call in made}) == len(made)
    stamped = StructuredTool.from_function(str, name="stamp", description="Stamp.", args_schema=Stamped)
    assert len({Toolbox([stamped], []).read_candidate(calling(("stamp", {}))).text for _ in range(2)}) == 1


def test_parallel_calls_are_one_action_in_any_order() -> None:
    calls: list[tuple[str, dict[str, Any]]] = [("book", {"day": day}) for day in ("friday", "monday")]
    assert read(*calls) == read(*reversed(calls))
    assert read(*calls) != read(*calls, calls[0])


def test_text_is_the_action_without_calls() -> None:
    assert read(text="done") == read(text="all is booked") == '{"tool_calls":[]}'


def test_arguments_that_a_schema_refuses_stay_as_they_are() -> None:
    assert json.loads(read(("book", {"night": "friday"}))) == {
        "tool_calls": [{"name": "book", "args": {"night": "friday"}}]
    }
    assert json.loads(read(("unknown", {"a": 1})))["tool_calls"] == [{"name": "unknown", "args": {"a": 1}}]


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        (calling(("book", {"day": float("nan")})), "unparsable"),
        (
            AIMessage("", invalid_tool_calls=[{"name": "book", "args": "{", "id": "1", "error": None}]),
            "unparsable",
        ),
        (AIMessage(" "), "blank"),
        (calling(("book", {}), response_metadata={"finish_reason": "length"}), "cut_off"),
    ],
)
def test_message_that_cannot_be_read_is_no_answer(message: AIMessage, kind: str) -> None:
    assert TOOLBOX.read_candidate(message).no_answer == kind


def test_unguarded_tools_must_exist() -> None:
    with pytest.raises(InputError, match=r"no tool of this agent: lookup\. It has book, look_up"):
        Toolbox(Desk().tools, ["lookup"])
    used = {"type": "web_search_20250305", "name": "web_search", "max_uses": 5}
    theirs: list[dict[str, Any]] = [{"type": "web_search"}, used, {"google_search": {}}]
    for given in theirs:
        with pytest.raises(InputError, match=r"the provider runs \w+_search"):
            Toolbox([given, *Desk().tools], ["look_up"])
    Toolbox([{"type": "bash_20250124", "name": "bash"}], [])
    servers = [{"type": "mcp", "server_label": label} for label in "ab"]
    assert len(Toolbox(servers, ["mcp"]).describe()) == len(servers)


def test_open_calls_are_those_that_no_later_message_answers() -> None:
    first, second = calling(("book", {})), calling(("book", {}), ("look_up", {}))
    done = ToolMessage("done", tool_call_id="0")
    asked = HumanMessage("book")
    assert list_open_calls([asked, first]) == first.tool_calls
    # Some providers use the ids of calls again.
    assert list_open_calls([asked, first, done, second], ["look_up"]) == second.tool_calls[:1]
    assert list_open_calls([asked, first, done, second, done]) == second.tool_calls[1:]
    assert list_open_calls([asked, first, done]) == list_open_calls([asked]) == []


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
    twice = turn(0.1, calls=(BOOK, BOOK))
    assert match_reference(run(twice, reference=[BOOK])) == [False]
    number, same = ({"name": "pay", "args": {"euros": euros}} for euros in (5, 5.0))
    assert match_reference(run(turn(0.1, calls=(same,)), reference=[number])) == [True]
    for reference in ("friday", [{"name": "book"}]):
        with pytest.raises(InputError, match="no list of calls"):
            match_reference(run(turn(0.1), reference=reference))


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
                msg = "the line is dead: api_key=a1b2c3"
                raise ConnectionError(msg)
            return super()._generate(messages)

    agent = agent_at(Desk(), Broken(), recording())
    (run,) = record_runs(agent, EXAMPLES[:1], tmp_path / "runs.jsonl", label=is_right)
    assert run.error == "ConnectionError: the line is dead: api_key=[redacted]"
    assert (tmp_path / "runs.jsonl").stat().st_mode & 0o077 == 0
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
    path.write_bytes(gzip.compress(b"{}"))
    with pytest.raises(InputError, match="cannot read runs from"):
        read_runs(path)
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
