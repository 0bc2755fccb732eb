"""Calls of an agent run below the cut; above it a person is asked, or the model is sent a refusal."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast
from unittest import mock

import pytest
from langchain.agents.middleware import (
    AgentMiddleware,
    HumanInTheLoopMiddleware,
    ModelRetryMiddleware,
    human_in_the_loop,
)
from langchain.agents.structured_output import ToolStrategy
from langchain_cfc_agents import RecordedRun, acting, make_run_records, read_outcome
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import HumanMessage
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import MessagesState
from langgraph.types import Command, interrupt
from pydantic import BaseModel

from integrations.agents.tests.office import (
    RIGHT,
    Clerk,
    Desk,
    agent_at,
    asked,
    guarding,
    make_runs,
    recording,
    task,
)
from integrations.tests.graphs import (
    Watch,
    every_watch,
    make_one_node_graph,
    read_stored,
    run_ainvoke,
    run_invoke,
    thread,
)
from langchain_cfc import CalibrationArtifact, CFCResult, CFCRunnable, calibrate
from langchain_cfc.errors import (
    AttainabilityWarning,
    CFCError,
    FingerprintError,
    InputError,
    ServingError,
    VerifierError,
)
from langchain_cfc.records import write_records
from langchain_cfc.verifiers import SelfConsistency
from tests.cli.running import run

pytestmark = pytest.mark.filterwarnings(
    "ignore:The v3 streaming protocol:langchain_core._api.LangChainBetaWarning"
)

SURE, UNSURE = task("sure", 1.0, 1.0), task("unsure", 1.0, 0.0, 1.0)
both_ways = pytest.mark.parametrize("way", [run_invoke, run_ainvoke])


def calibrate_on(runs: Sequence[RecordedRun], per: Any = "run", **target: Any) -> CalibrationArtifact:
    records, provenance, _ = make_run_records(runs, per=per)
    return calibrate(records, provenance=provenance, **(target or {"max_wrong_rate": 0.1}))


@pytest.fixture(scope="session")
def setup() -> Any:
    return agent_at(Desk(), Clerk(), recording()).invoke(asked(SURE))["cfc_run"]["setup"]


@pytest.fixture(scope="session")
def bot(setup: Any) -> CalibrationArtifact:
    return calibrate_on(make_runs(setup))


@pytest.fixture(scope="session")
def per_call(setup: Any) -> CalibrationArtifact:
    return calibrate_on(make_runs(setup), "call", unit="claims", max_wrong_rate=0.1)


@both_ways
@pytest.mark.parametrize("unit", ["bot", "per_call"])
def test_calls_below_the_cut_run_unattended(request: Any, unit: str, way: Any) -> None:
    desk = Desk()
    agent = agent_at(desk, Clerk(), guarding(request.getfixturevalue(unit)))
    state = way(agent, asked(SURE))
    outcome = read_outcome(state)
    assert desk.booked == [RIGHT, RIGHT]
    assert (outcome.unattended, outcome.left, outcome.guarded_calls, outcome.promised_calls) == (
        True,
        None,
        2,
        2,
    )
    assert outcome.score == 0.0
    assert outcome.explain().startswith("The run went through unattended: 2 guarded actions ran. Of the ")
    decisions = [message.response_metadata["cfc"] for message in state["messages"][1:4:2]]
    assert decisions == [{"decision": "run", "score": 0.0, "usage": None}] * 2


@both_ways
@pytest.mark.parametrize("unit", ["bot", "per_call"])
def test_refused_call_does_not_run_and_the_run_leaves_the_path(request: Any, unit: str, way: Any) -> None:
    desk = Desk()
    agent = agent_at(desk, Clerk(), guarding(request.getfixturevalue(unit), otherwise="refuse"))
    state = way(agent, asked(UNSURE))
    outcome = read_outcome(state)
    assert desk.booked == [RIGHT, RIGHT]  # the first step and the third
    assert [message.text for message in state["messages"] if message.type == "tool"][1] == acting.REFUSED
    assert (outcome.unattended, outcome.left) == (False, "refused")
    assert (outcome.guarded_calls, outcome.promised_calls) == (2, 1)
    assert (
        "because the model was sent a refusal: 2 guarded actions ran, 1 of them before" in outcome.explain()
    )


DECISIONS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "approved": ({"type": "approve"}, ["asked"]),
    "edited": ({"type": "edit", "edited_action": {"name": "book", "args": {"day": "sunday"}}}, ["sunday"]),
    "rejected": ({"type": "reject", "message": "Not on that day."}, []),
}


@both_ways
@pytest.mark.parametrize("fate", DECISIONS)
def test_person_decides_and_the_run_goes_on_where_it_stopped(
    bot: CalibrationArtifact, fate: str, way: Any
) -> None:
    decision, middle = DECISIONS[fate]
    model, desk = Clerk(), Desk()

    saver = InMemorySaver()
    agent = agent_at(desk, model, guarding(bot), checkpointer=saver)
    waiting = way(agent, asked(UNSURE), thread())
    request = waiting["__interrupt__"][0].value
    call = waiting["messages"][-1].tool_calls[0]
    with pytest.raises(InputError, match="waits for a person"):
        read_outcome(waiting)
    # LangChain's own middleware asks the same.
    theirs: Any = HumanInTheLoopMiddleware({"book": {"allowed_decisions": ["approve", "edit", "reject"]}})
    with (
        mock.patch.object(human_in_the_loop, "interrupt", side_effect=InterruptedError) as asks,
        pytest.raises(InterruptedError),
    ):
        theirs.after_model(waiting, None)
    assert request == asks.call_args.args[0]
    drawn = len(model.drawn)
    # Another process, which knows the checkpoint alone.
    agent = agent_at(desk, model, guarding(bot), checkpointer=saver)
    state = way(agent, Command(resume={"decisions": [decision]}), thread())
    assert model.drawn[:drawn] + [RIGHT] * 5 + ["done"] == model.drawn
    expected = [call["args"]["day"] if day == "asked" else day for day in middle]
    assert desk.booked == [RIGHT, *expected, RIGHT]
    outcome = read_outcome(state)
    assert (outcome.unattended, outcome.left, outcome.promised_calls) == (False, fate, 1)


def test_person_who_answers_in_another_form_is_asked_again(bot: CalibrationArtifact) -> None:
    desk = Desk()
    agent = agent_at(desk, Clerk(), guarding(bot), checkpointer=InMemorySaver())
    agent.invoke(asked(UNSURE), thread())
    edits = [{}, {"name": "unknown", "args": {}}, {"name": "book", "args": "friday"}]
    made = [
        [],
        [{"type": "approve"}] * 2,
        [{"type": "yes"}],
        *([{"type": "edit", "edited_action": one}] for one in edits),
    ]
    for answer in ("approve", True, *({"decisions": one} for one in made)):
        assert "__interrupt__" in agent.invoke(Command(resume=answer), thread())
    state = agent.invoke(Command(resume={"decisions": [{"type": "reject"}]}), thread())
    assert (desk.booked, read_outcome(state).left) == ([RIGHT, RIGHT], "rejected")


def test_person_who_cannot_be_asked_ends_the_run(
    bot: CalibrationArtifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HumanInTheLoopMiddleware, "after_model", mock.Mock(side_effect=KeyError))
    with pytest.raises(ServingError, match="no answer of the person"):
        agent_at(Desk(), Clerk(), guarding(bot)).invoke(asked(UNSURE))


def test_change_by_a_person_reaches_no_other_call(bot: CalibrationArtifact) -> None:
    desk, edited = Desk(), {"decisions": [DECISIONS["edited"][0]]}
    # Some providers use the ids of calls again.
    agent = agent_at(desk, Clerk(call_id="0"), guarding(bot), checkpointer=InMemorySaver())
    agent.invoke(asked(UNSURE), thread())
    agent.invoke(Command(resume=edited), thread())
    assert desk.booked == [RIGHT, "sunday", RIGHT]
    with pytest.raises(ServingError, match="no ids of their own"):
        agent.invoke(asked(task("twice", 0.0, tools=["book", "book"])), thread("2"))
    assert desk.booked == [RIGHT, "sunday", RIGHT]


def test_parallel_calls_are_decided_about_together(bot: CalibrationArtifact) -> None:
    for right, expected in ((1.0, [RIGHT]), (0.0, [])):
        desk = Desk()
        agent = agent_at(desk, Clerk(), guarding(bot, otherwise="refuse"))
        state = agent.invoke(asked(task("both", right, tools=["book", "look_up"])))
        assert (desk.booked, desk.read) == (expected, expected)
        assert sum(message.type == "tool" for message in state["messages"]) == 2


@pytest.mark.parametrize(("decisions", "left", "ran"), [("ar", "edited", 1), ("rr", "rejected", 0)])
def test_action_of_which_a_person_rejects_a_call_is_edited(
    bot: CalibrationArtifact, decisions: str, left: str, ran: int
) -> None:
    desk = Desk()
    agent = agent_at(desk, Clerk(), guarding(bot), checkpointer=InMemorySaver())
    agent.invoke(asked(task("both", 0.0, tools=["book", "book"])), thread())
    answers = [{"type": "approve" if one == "a" else "reject"} for one in decisions]
    outcome = read_outcome(agent.invoke(Command(resume={"decisions": answers}), thread()))
    assert (outcome.left, outcome.guarded_calls, len(desk.booked)) == (left, ran, ran)


def test_unguarded_calls_run_at_once_and_are_drawn_once(bot: CalibrationArtifact) -> None:
    model, desk = Clerk(), Desk()
    state = agent_at(desk, model, guarding(bot)).invoke(asked(task("read", 0.0, tools=["look_up"])))
    outcome = read_outcome(state)
    assert (len(desk.read), len(model.drawn)) == (1, 2)
    assert (outcome.unattended, outcome.left, outcome.score) == (False, "no guarded call", None)
    assert outcome.explain() == "The run made no guarded call, so no promise is about it."


def test_structured_output_ends_the_run(bot: CalibrationArtifact) -> None:
    class Report(BaseModel):
        """What was done."""

        day: str

    desk = Desk()
    agent = agent_at(desk, Clerk(), guarding(bot), response_format=ToolStrategy(Report))
    state = agent.invoke(asked(task("report", 1.0, tools=["Report"])))
    assert state["structured_response"] == Report(day=RIGHT)
    assert read_outcome(state).left == "no guarded call"


def test_agent_in_a_graph_asks_through_it(bot: CalibrationArtifact) -> None:
    desk = Desk()
    graph = make_one_node_graph(
        agent_at(desk, Clerk(), guarding(bot)), MessagesState, checkpointer=InMemorySaver()
    )
    waiting = graph.invoke(asked(UNSURE), thread())
    assert waiting["__interrupt__"][0].value["action_requests"][0]["name"] == "book"
    graph.invoke(Command(resume={"decisions": [{"type": "reject"}]}), thread())
    assert desk.booked == [RIGHT, RIGHT]


@every_watch
@pytest.mark.parametrize("otherwise", ["interrupt", "refuse"])
def test_streams_and_checkpoints_show_no_call_that_was_not_taken(
    bot: CalibrationArtifact, tmp_path: Path, watch: Watch, otherwise: Any
) -> None:
    model = Clerk()
    with SqliteSaver.from_conn_string(str(tmp_path / "threads.db")) as memory:
        saver: Any = memory if watch.__name__ in {"list_streams", "list_parts"} else InMemorySaver()
        agent = agent_at(Desk(), model, guarding(bot, otherwise=otherwise), checkpointer=saver)
        shown = repr(watch(agent, asked(UNSURE), thread("leaks")))
        taken = {
            call["id"]
            for message in agent.get_state(thread("leaks")).values["messages"][1:]
            for call in getattr(message, "tool_calls", [])
        }
    # Every drawn call has an id of its own, which tells where it came from.
    drawn = {f"0:unsure:{turn}:{count}:0" for turn in range(3) for count in range(5)}
    assert len(taken) == (2 if otherwise == "interrupt" else 3)
    assert {one for one in drawn if one in shown + read_stored(tmp_path)} <= taken


def test_watchers_find_calls_that_are_drawn_without_the_guard() -> None:
    class Loose(AgentMiddleware[Any, Any, Any]):
        """A wrong guard, which takes the last of five."""

        def wrap_model_call(self, request: Any, handler: Any) -> Any:
            return [handler(request) for _ in range(5)][-1]

    agent = agent_at(Desk(), Clerk(), Loose())
    shown = repr(list(agent.stream(asked(UNSURE), stream_mode=["messages"])))
    assert "0:unsure:1:0:0" in shown


@both_ways
def test_failing_verifier_runs_nothing_and_a_retry_is_not_unattended(
    bot: CalibrationArtifact, monkeypatch: pytest.MonkeyPatch, way: Any
) -> None:
    failures: list[int] = []
    flow = SelfConsistency.flow

    def fail_once(verifier: Any, given: Any, config: Any) -> Any:
        if failures:
            failures.pop()
            msg = f"cannot read {[one.text for one in given['candidates']]}"
            raise ValueError(msg)
        return (yield from flow(verifier, given, config))

    monkeypatch.setattr(SelfConsistency, "flow", fail_once)
    for retries in (False, True):
        failures[:] = [1]
        desk = Desk()
        outside = [ModelRetryMiddleware(max_retries=2, initial_delay=0.0)] if retries else []
        agent = agent_at(desk, Clerk(), *outside, guarding(bot, otherwise="refuse"))
        if retries:
            outcome = read_outcome(way(agent, asked(SURE)))
            assert (outcome.unattended, outcome.left) == (False, "failed")
            assert (outcome.promised_calls, desk.booked) == (0, [RIGHT])
        else:
            with pytest.raises(VerifierError) as error:
                way(agent, asked(SURE))
            assert RIGHT not in str(error.value)
            assert desk.booked == []


class Fault(AgentMiddleware[Any, Any, Any]):
    """Fails once, at its second use."""

    def __init__(self) -> None:
        self.uses = 0

    def use(self) -> None:
        self.uses += 1
        if self.uses == 2:
            msg = "the line is dead"
            raise ConnectionError(msg)

    def before_model(self, state: Any, runtime: Any) -> None:
        del state, runtime
        self.use()

    def wrap(self, function: Any) -> Any:
        def fail_or_call(*args: Any, **given: Any) -> Any:
            self.use()
            return function(*args, **given)

        return fail_or_call


class Outer(MessagesState):
    cfc_outcome: dict[str, Any]


def put_fault(where: str, desk: Desk, monkeypatch: pytest.MonkeyPatch) -> list[Fault]:
    """Let something fail once in the second turn; return middleware, which fails in place of a part."""
    fault = Fault()
    book, look_up = cast("list[Any]", desk.tools)
    if where == "guarded tool":
        book.func = fault.wrap(book.func)
    elif where == "unguarded tool":
        look_up.func = fault.wrap(look_up.func)
    elif where == "verifier":
        monkeypatch.setattr(SelfConsistency, "flow", fault.wrap(SelfConsistency.flow))
    elif where == "model":
        fault.uses = -4
        monkeypatch.setattr(Clerk, "_generate", fault.wrap(Clerk._generate))
    return [fault] if where == "middleware" else []


BOTH = task("both", 1.0, 1.0, tools=["book", "look_up"])
# Number of actions before the fault, which the run's promise per call is about.
FAULTS = {"guarded tool": 2, "unguarded tool": 2, "verifier": 1, "model": 1, "middleware": 1}


@both_ways
@pytest.mark.parametrize("is_inside", [False, True])
@pytest.mark.parametrize("where", FAULTS)
def test_run_that_goes_on_after_an_error_is_not_unattended(
    bot: CalibrationArtifact, monkeypatch: pytest.MonkeyPatch, where: str, is_inside: bool, way: Any
) -> None:
    for is_seen in (True, False):  # without the mark nothing tells it apart
        with monkeypatch.context() as patch:
            desk, given = Desk(), {"checkpointer": InMemorySaver()}
            middleware = put_fault(where, desk, patch)
            agent = agent_at(desk, Clerk(), *middleware, guarding(bot), **({} if is_inside else given))
            graph = make_one_node_graph(agent, Outer, **given) if is_inside else agent
            with pytest.raises((ConnectionError, VerifierError)):
                way(graph, asked(BOTH), thread())
            if not is_seen:
                patch.setattr(acting, "_find_error", lambda run: run["error"])
            outcome = read_outcome(way(graph, None, thread()))
        assert (outcome.unattended, outcome.left) == ((False, "failed") if is_seen else (True, None))
        assert outcome.promised_calls == (FAULTS[where] if is_seen else 2)


def continue_killed(agents: Any, folder: Path) -> Any:
    with SqliteSaver.from_conn_string(str(folder / "threads.db")) as memory:
        steps = agents(memory).stream(asked(BOTH), thread(), durability="sync")
        assert any("tools" in one for one in steps)
        steps.close()
    with SqliteSaver.from_conn_string(str(folder / "threads.db")) as memory:
        return agents(memory).invoke(None, thread())


def continue_edited(agents: Any, _: Path) -> Any:
    agent = agents(InMemorySaver())
    agent.invoke(asked(BOTH), thread(), interrupt_before=["tools"])
    agent.update_state(thread(), {"messages": [HumanMessage("Hurry up.")]}, as_node="tools")
    return agent.invoke(None, thread())


def continue_from_the_past(agents: Any, _: Path) -> Any:
    agent = agents(InMemorySaver())
    assert read_outcome(agent.invoke(asked(BOTH), thread())).unattended
    past = next(one for one in agent.get_state_history(thread()) if one.next == ("model",))
    return agent.invoke(None, past.config)


def continue_interrupted(agents: Any, _: Path) -> Any:
    agent = agents(InMemorySaver(), InterruptOnce())
    assert agent.invoke(asked(BOTH), thread())["__interrupt__"]
    return agent.invoke(Command(resume="yes"), thread())


class InterruptOnce(AgentMiddleware[Any, Any, Any]):
    """Asks a person something before the second turn."""

    def before_model(self, state: Any, runtime: Any) -> None:
        del runtime
        if len(state["messages"]) == 4:
            interrupt("Go on?")


@pytest.mark.parametrize(
    "go_on", [continue_killed, continue_edited, continue_from_the_past, continue_interrupted]
)
def test_run_that_goes_on_from_a_checkpoint_is_not_unattended(
    bot: CalibrationArtifact, tmp_path: Path, go_on: Any
) -> None:
    def make(memory: Any, *middleware: Any) -> Any:
        return agent_at(Desk(), Clerk(), *middleware, guarding(bot), checkpointer=memory)

    state = go_on(make, tmp_path)
    outcome = read_outcome(state)
    assert (outcome.unattended, outcome.left) == (False, "failed")
    (record,) = make_run_records([RecordedRun(**state["cfc_run"], id="one", right=True)]).records
    assert record.candidates[0].no_answer is not None  # type: ignore[union-attr]  # of answers


def test_ended_run_does_not_go_on(bot: CalibrationArtifact) -> None:
    desk = Desk()
    agent = agent_at(desk, Clerk(), guarding(bot), checkpointer=InMemorySaver())
    last = agent.invoke(asked(SURE), thread())["messages"][1]
    model = {"messages": [last.model_copy(update={"id": "again"})]}
    for node in ("tools", "model"):
        agent.update_state(thread(), model, as_node=node)
        with pytest.raises(ServingError, match="has no cfc_run that goes on"):
            agent.invoke(None, thread())
    assert desk.booked == [RIGHT] * 2


class Changing(AgentMiddleware[Any, Any, Any]):
    """Changes calls after they were decided about."""

    def __init__(self, where: str) -> None:
        self.where = where

    def after_model(self, state: Any, runtime: Any) -> Any:
        del runtime
        last = state["messages"][-1]
        if self.where != "message" or not last.tool_calls:
            return None
        calls = [{**call, "args": {"day": "never"}} for call in last.tool_calls]
        return {"messages": [last.model_copy(update={"tool_calls": calls})]}

    def wrap_tool_call(self, request: Any, handler: Any) -> Any:
        if self.where == "call":
            call = {**request.tool_call, "args": {"day": "never"}}
            return handler(request.override(tool_call=call))
        return handler(request)


@pytest.mark.parametrize(("where", "place"), [("message", 0), ("message", 1), ("call", 0)])
def test_changed_call_does_not_run(bot: CalibrationArtifact, where: str, place: int) -> None:
    desk = Desk()
    middleware: list[Any] = [guarding(bot)]
    middleware.insert(place, Changing(where))
    agent = agent_at(desk, Clerk(), *middleware)
    with pytest.raises(ServingError, match="Put GuardedActions last"):
        agent.invoke(asked(SURE))
    assert desk.booked == []


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"max_turns": 5}, "max_turns is 5, in calibration it was 20"),
        ({"memory": "thread"}, "memory is 'thread', in calibration it was 'none'"),
        ({"unguarded": []}, "unguarded is \\[\\], in calibration it was \\['look_up'\\]"),
        ({"agent_id": "other"}, "id is 'other', in calibration it was 'clerk'"),
        ({}, "tools is "),
    ],
)
def test_other_agent_is_refused_before_anything_is_drawn(
    bot: CalibrationArtifact, change: dict[str, Any], error: str
) -> None:
    desk, model = Desk(), Clerk()
    if not change:
        desk.tools[0].description = "Book a room, or a whole house."
    with pytest.raises(FingerprintError, match=error):
        agent_at(desk, model, guarding(bot, **change)).invoke(asked(SURE))
    assert model.drawn == []


def test_artifact_that_is_not_about_runs_is_refused(setup: Any) -> None:
    runs = make_runs(setup, metadata={"kind": "mail"})
    sets = calibrate_on(make_runs(setup, cut=1.0), alpha=0.6)
    with pytest.raises(InputError, match=r"promises sets or lists \(alpha = 0.6\)"):
        guarding(sets)
    with pytest.warns(AttainabilityWarning, match="mean_score"):
        scores = calibrate_on(runs, max_wrong_of_all=0.3, features="bins(mean_score, 2)")
    with pytest.raises(InputError, match=r"bins\(mean_score, 2\) read the scores of a whole run"):
        guarding(scores)
    records, _, _ = make_run_records(runs)
    with pytest.raises(InputError, match="was not calibrated on runs of an agent"):
        guarding(calibrate(records, max_wrong_rate=0.1))
    with pytest.raises(InputError, match="expected 'interrupt' or 'refuse'"):
        guarding(calibrate_on(runs), otherwise="ask")


def test_promise_of_all_runs_reads_metadata_of_the_first_messages(setup: Any) -> None:
    runs = [
        run.model_copy(
            update={"metadata": {"kind": "mail" if place % 3 else "talk"}, "right": bool(place % 3)}
        )
        for place, run in enumerate(make_runs(setup, cut=1.0))
    ]
    artifact = calibrate_on(runs, max_wrong_of_all=0.1, features="group(kind)")
    for kind, expected in (("mail", [RIGHT] * 2), ("talk", [])):
        desk = Desk()
        guard = guarding(artifact, otherwise="refuse", metadata=lambda _, kind=kind: {"kind": kind})
        state = agent_at(desk, Clerk(), guard).invoke(asked(SURE))
        assert desk.booked == expected
        promise = read_outcome(state).promise
        assert "with a wrong one, on average over calibration sets" in promise
        assert "over each of 2 groups" in promise


def test_unreadable_turn_does_not_run_at_the_largest_cut(setup: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    everything = calibrate_on([one.model_copy(update={"right": True}) for one in make_runs(setup)])
    assert everything.certified_bot.certificates[0].cut == 1.0

    def judge_nothing(_: Any, given: Any, config: Any) -> Any:
        del config
        yield from ()
        return [None] * len(given["candidates"])

    monkeypatch.setattr(SelfConsistency, "flow", judge_nothing)
    desk = Desk()
    agent_at(desk, Clerk(), guarding(everything, otherwise="refuse")).invoke(asked(SURE))
    assert desk.booked == []


def test_words_state_conditions_and_unguarded_tools(bot: CalibrationArtifact, per_call: Any) -> None:
    words = guarding(bot).promise
    assert words.startswith(
        "Of the runs that go through unattended, at most 10 % contain a wrong guarded call, with confidence "
    )
    for part in ("the 400 recorded ones", "5 messages a turn, at most 20 turns", "Not guarded: look_up."):
        assert part in words
    calls = guarding(per_call).promise
    assert "Nothing is promised about calls after a run leaves the unattended path." in calls


# Words of bots, except for the parts and options of commands.
OTHER_WORDS = re.compile(r"\b(question|answer|claim|prompt)", re.IGNORECASE)


@pytest.mark.parametrize("per", ["run", "call", None])
def test_commands_speak_of_runs_and_calls(setup: Any, tmp_path: Path, per: Any) -> None:
    records, provenance, _ = make_run_records(make_runs(setup, cut=0.6), per=per or "run")
    if per is None:  # the control: the same records as answers to questions
        provenance = provenance.model_copy(update={"subject": None})
    path, made = tmp_path / "runs.jsonl", tmp_path / "artifact.json"
    write_records(path, records, provenance)
    given: list[Any] = ["calibrate", path, "--out", made, *(["--unit", "claims"] if per == "call" else [])]
    refused = run(*given, "--max-wrong-rate", "0.001")
    shown = [
        run(*given, "--max-wrong-rate", "0.3", "--test-fraction", "0.2", "--details"),
        run("evaluate", made, path),
        run("inspect", made),
    ]
    if per != "call":
        shown += [
            run(*given, "--max-wrong-of-all", "0.5", "--test-fraction", "0.2"),
            run("evaluate", made, path),
        ]
    assert [refused.code, *(one.code for one in shown)] == [1] + [0] * len(shown)
    for words in (refused.err, *(one.out for one in shown)):
        assert bool(OTHER_WORDS.search(words)) == (per is None), words


def test_observers_see_one_result_a_run(bot: CalibrationArtifact, per_call: Any) -> None:
    class Seen(BaseCallbackHandler):
        def __init__(self) -> None:
            self.results: list[CFCResult] = []

        def on_chain_end(self, outputs: Any, **_: Any) -> None:
            if isinstance(outputs, CFCResult):
                self.results.append(outputs)

    seen = Seen()
    agent = agent_at(Desk(), Clerk(), guarding(bot, otherwise="refuse"))
    agent.invoke(asked(SURE), {"callbacks": [seen]})
    asyncio.run(agent.ainvoke(asked(UNSURE), {"callbacks": [seen]}))
    assert [one.abstained for one in seen.results] == [False, True]
    assert [one.candidates[0].score for one in seen.results] == [0.0, pytest.approx(0.8)]
    assert seen.results[0].guarantee.binding == "matched"
    seen_of_calls = Seen()
    agent = agent_at(Desk(), Clerk(), guarding(per_call, otherwise="refuse"))
    agent.invoke(asked(UNSURE), {"callbacks": [seen_of_calls]})
    said = [one.explain() for one in (*seen.results, *seen_of_calls.results)]
    assert not OTHER_WORDS.search(" ".join(said))
    assert said[0].startswith("All guarded calls of the run were let through.")
    assert said[1].startswith("Not unattended, because a guarded turn has a score above the cut.")
    assert said[2].startswith("1 of 3 guarded calls were let through")


def test_nothing_runs_if_the_run_did_not_begin(bot: CalibrationArtifact) -> None:
    guard = guarding(bot)
    with pytest.raises(CFCError, match="has no cfc_run"):
        guard.after_model({"messages": []}, None)
    with pytest.raises(InputError, match="expected a list of names"):
        guarding(bot, unguarded="look_up")


def test_chain_of_answers_refuses_an_artifact_of_runs(bot: CalibrationArtifact) -> None:
    with pytest.raises(FingerprintError, match="the generator is not the one"):
        CFCRunnable(generator=Clerk(), verifier=SelfConsistency(), artifact=bot, generator_id="other")
    model = ChatOpenAI(model="gpt-4o-mini", api_key="none")  # type: ignore[arg-type]  # it takes text
    with pytest.raises(FingerprintError, match=r"class is 'langchain_openai.* GuardedActions"):
        CFCRunnable(generator=model, verifier=SelfConsistency(), artifact=bot)
