"""The office agent: its tasks, its recording and its figures. Its page is in `test_agent_actions_page`."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from langchain_cfc_agents import (
    GuardedActions,
    RecordActions,
    RecordedRun,
    make_run_records,
    match_reference,
    read_outcome,
    record_runs,
)
from langchain_core.messages import HumanMessage, SystemMessage, ToolMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command
from pydantic import SecretStr

from examples.tests.running import REPOSITORY, read_section
from langchain_cfc import CalibrationArtifact, calibrate
from tests.lengths import repetitions
from tests.serving.openai_bodies import Answer
from tests.serving.openai_server import Script, serving

if TYPE_CHECKING:
    from office_tasks import Task

EXAMPLE = REPOSITORY / "examples" / "agent_actions"
CONFIG: Any = {"configurable": {"thread_id": "test"}}

pytestmark = pytest.mark.usefixtures("modules_of_example")


@pytest.fixture(scope="module")
def tasks(modules_of_example: None) -> dict[str, Task]:
    del modules_of_example
    from office_tasks import make_tasks

    return {task.id: task for task in make_tasks()}


@pytest.fixture(scope="module")
def runs(modules_of_example: None) -> list[RecordedRun]:
    del modules_of_example
    from office_figures import read_recording

    return read_recording()


@pytest.fixture(scope="module")
def bot(runs: list[RecordedRun]) -> CalibrationArtifact:
    records, provenance, _ = make_run_records(runs)
    return calibrate(records, provenance=provenance, max_wrong_rate="0.1", delta="0.1")


def test_references_of_tasks_can_be_carried_out_and_change_the_office(tasks: dict[str, Task]) -> None:
    from office_world import make_tools

    assert len(tasks) == len({task.text for task in tasks.values()}) == 400
    for task in list(tasks.values())[: repetitions(len(tasks), share=0.1)]:
        office = copy.deepcopy(task.office)
        tools = {one.name: one for one in make_tools(office)}
        for name, args in task.reference:
            assert tools[name].invoke(args) in {"booked", "moved", "cancelled", "drafted"}
        assert (office == task.office) is (not task.reference)


@pytest.mark.parametrize(
    ("name", "args", "refusal"),
    [
        ("book", {"title": "Choir", "day": "Monday", "start": "09:15", "minutes": 5}, "Golf is then"),
        ("move", {"title": "Lunch", "day": "Monday", "start": "08:45"}, "Golf is then"),
        ("move", {"title": "Choir", "day": "Monday", "start": "08:45"}, "no event is called 'Choir'"),
        ("cancel", {"title": "Choir"}, "no event is called 'Choir'"),
        ("draft_mail", {"to": "ann", "subject": "Choir"}, "ann is not the address of a contact"),
    ],
)
def test_tools_refuse_what_the_office_does_not_allow(name: str, args: dict[str, Any], refusal: str) -> None:
    from office_world import Event, Office, make_tools

    office = Office(
        [Event("Golf", "Monday", 540, 600), Event("Lunch", "Friday", 720, 780)], {"Ann Lee": "al@x"}
    )
    before = copy.deepcopy(office)
    tools = {one.name: one for one in make_tools(office)}
    assert tools[name].invoke(args) == refusal
    assert office == before


def test_model_calls_tools_through_json_and_draws_the_rest_of_a_turn_in_one_request(
    tasks: dict[str, Task],
) -> None:
    from office_model import EXAMPLES, JsonToolModel
    from office_world import make_tools

    said = '[{"book":["Choir","Monday","09:00",45]},{"list_events":["Monday"]}]'
    script = Script(
        {"Results: booked; nothing": [Answer('"Done"', -0.1)], "Book it.": [Answer(said, -0.2)] * 5}
    )
    with serving(script) as url:
        model = JsonToolModel(base_url=url, api_key=SecretStr("none"), model="any", logprobs=True, draws=5)
        bound = model.bind_tools(make_tools(next(iter(tasks.values())).office))
        begun = [SystemMessage("system"), HumanMessage("Book it.")]
        drawn = [bound.invoke(begun) for _ in range(5)]
        results = [
            ToolMessage(text, tool_call_id=call["id"])
            for text, call in zip(("booked", "nothing"), drawn[0].tool_calls, strict=True)
        ]
        assert bound.invoke([*begun, drawn[0], *results]).text == "Done"
    for message in drawn:
        book, look = message.tool_calls
        assert book["name"] == "book"
        assert book["args"] == {"title": "Choir", "day": "Monday", "start": "09:00", "minutes": 45}
        assert (look["name"], look["args"]) == ("list_events", {"day": "Monday"})
    assert len({call["id"] for message in drawn for call in message.tool_calls}) == 10
    first, others, last = script.requests
    assert (first.get("n", 1), others["n"], last.get("n", 1)) == (1, 4, 1)
    assert first["response_format"]["type"] == "json_schema"
    assert [one["content"] for one in last["messages"][1 : 1 + len(EXAMPLES)]] == list(EXAMPLES)
    assert [one["content"] for one in last["messages"][-3:]] == ["Book it.", said, "Results: booked; nothing"]


def test_recording_holds_the_runs_that_its_description_states(runs: list[RecordedRun]) -> None:
    described = (EXAMPLE / "DATA.md").read_text(encoding="utf-8")
    guarded = [run for run in runs if run.guarded]
    failed = sum(run.error is not None for run in runs)
    right = sum(run.error is None and all(match_reference(run)) for run in guarded)
    assert len(runs) >= 300
    assert f"{len(runs)} runs" in described
    assert (
        f"{len(guarded)} have a guarded call, {right} of them made only right ones; {failed} failed"
        in described
    )
    assert all(run.right == match_reference(run) for run in guarded)
    assert all(len(turn.candidates) == 5 for run in runs for turn in run.turns)


def test_replayed_runs_have_the_recorded_turns_and_leave_the_office_as_labelled(
    runs: list[RecordedRun], tasks: dict[str, Task], tmp_path: Path
) -> None:
    from office_record import SETTINGS, VERIFIERS, make_agent, make_example
    from office_replay import ReplayModel
    from office_world import GUARDED, make_expected_office

    chosen = [run for run in runs if run.error is None][: repetitions(len(runs), share=0.1)]
    by_id = {run.id: run for run in chosen}
    offices = {name: copy.deepcopy(tasks[name].office) for name in by_id}

    def make(example: Any) -> Any:
        middleware = RecordActions(VERIFIERS, n=5, **SETTINGS)
        return make_agent(ReplayModel(run=by_id[example.id]), offices[example.id], middleware)

    examples = [make_example(tasks[name]) for name in by_id]
    again = record_runs(make, examples, tmp_path / "runs.jsonl", label=match_reference)
    for old, new in zip(chosen, again, strict=True):
        assert (new.error, new.right, new.setup) == (None, old.right, old.setup)
        assert [(one.calls, one.taken) for one in new.turns] == [(one.calls, one.taken) for one in old.turns]
        assert [one.score for one in new.turns] == pytest.approx([one.score for one in old.turns])
        task = tasks[old.id]
        made = [call for turn in old.executed for call in turn.calls if call["name"] in GUARDED]
        labels = old.right if isinstance(old.right, list) else []
        is_as_expected = offices[old.id] == make_expected_office(task.office, task.reference)
        assert is_as_expected is (False not in labels and len(made) == len(task.reference))


def test_guarded_runs_go_through_or_ask_as_the_recorded_scores_say(
    runs: list[RecordedRun], tasks: dict[str, Task], bot: CalibrationArtifact
) -> None:
    from office_record import SETTINGS, VERIFIERS, make_agent
    from office_replay import END, ReplayModel

    cut = bot.certified_bot.find_certificate("0.1").cut
    chosen = [run for run in runs if run.error is None and run.guarded]
    chosen = chosen[: repetitions(len(chosen), share=0.1)]
    asked = 0
    for run in chosen:
        office = copy.deepcopy(tasks[run.id].office)
        guard = GuardedActions(bot, VERIFIERS, max_wrong_rate="0.1", **SETTINGS)
        agent = make_agent(ReplayModel(run=run), office, guard, checkpointer=InMemorySaver())
        result = agent.invoke({"messages": run.prompt}, CONFIG)
        is_unattended = max(turn.score for turn in run.guarded) <= cut
        assert is_unattended is not bool(result.get("__interrupt__"))
        if is_unattended:
            assert read_outcome(result).unattended
            continue
        asked += 1
        before = copy.deepcopy(office)
        waiting = result["__interrupt__"][0].value["action_requests"]
        rejected: Command[Any] = Command(resume={"decisions": [{"type": "reject"} for _ in waiting]})
        result = agent.invoke(rejected, CONFIG)
        assert office == before
        assert result["messages"][-1].text == END
        assert read_outcome(result).left == "rejected"
    assert 0 < asked < len(chosen)


@pytest.mark.long
def test_readme_quotes_the_figures_and_they_keep_the_promises(capsys: pytest.CaptureFixture[str]) -> None:
    import office_figures

    office_figures.main()
    printed = capsys.readouterr().out
    quoted = re.findall(r"```text\n(.*?)```", read_section("agent_actions"), re.DOTALL)[0]
    assert printed == quoted
    rows = re.findall(
        r"at most (\d+)% wrong +(always run|fixed agreement|guarded) +([\d.]+)% +([\d.]+)%", printed
    )
    assert len(rows) == 12
    for always, fixed, guarded in zip(*[iter(rows)] * 3, strict=True):
        assert float(guarded[3]) <= float(guarded[0]) < float(always[3])
        assert float(guarded[2]) >= float(fixed[2])
