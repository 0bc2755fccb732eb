"""Two hundred guarded runs: model, verifier and tools fail at random, and people decide at random."""

from __future__ import annotations

import random
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from langchain.agents.middleware import AgentMiddleware
from langchain_cfc_agents import read_outcome
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.types import Command

from integrations.agents.tests.office import (
    Clerk,
    Desk,
    agent_at,
    asked,
    guarding,
    make_runs,
    recording,
    task,
)
from integrations.agents.tests.test_action_guard import calibrate_on
from integrations.tests.graphs import MODES, read_stored, thread
from langchain_cfc import CalibrationArtifact
from langchain_cfc.verifiers import SelfConsistency

RUNS = 200
CUT = 0.4
# Of each request, verdict and call.
FAULTS = 0.03
ANSWERS: list[dict[str, Any]] = [
    {"type": "approve"},
    {"type": "edit", "edited_action": {"name": "book", "args": {"day": "sunday"}}},
    {"type": "reject"},
]


class FaultyDesk(Desk):
    """A desk whose tool fails at times, after it acted or before."""

    def __init__(self, chance: random.Random) -> None:
        super().__init__()
        tool: Any = self.tools[0]
        book = tool.func

        def book_or_fail(day: str, room: str = "small") -> str:
            if chance.random() < FAULTS:
                self.booked.append(day)
                msg = "the phone is dead"
                raise RuntimeError(msg)
            return str(book(day=day, room=room))

        tool.func = book_or_fail


@pytest.fixture(scope="module")
def bot() -> CalibrationArtifact:
    setup = agent_at(Desk(), Clerk(), recording()).invoke(asked(task("one", 1.0)))["cfc_run"]["setup"]
    artifact = calibrate_on(make_runs(setup, CUT))
    assert CUT <= artifact.certified_bot.certificates[0].cut < 0.5
    return artifact


def make_faulty(monkeypatch: pytest.MonkeyPatch, chance: random.Random) -> None:
    """Let the verifier fail at times, or return what is no score."""
    flow = SelfConsistency.flow

    def score(verifier: Any, given: Any, config: Any) -> Any:
        scores = yield from flow(verifier, given, config)
        if chance.random() >= FAULTS:
            return scores
        kind = chance.randrange(4)
        if kind == 0:
            msg = f"cannot read {[one.text for one in given['candidates']]}"
            raise ValueError(msg)
        return [scores[1:], [float("nan"), *scores[1:]], [None] * len(scores)][kind - 1]

    monkeypatch.setattr(SelfConsistency, "flow", score)


@contextmanager
def open_agent(
    folder: Path, bot: CalibrationArtifact, desk: Desk, model: Clerk, otherwise: Any
) -> Iterator[Any]:
    with SqliteSaver.from_conn_string(str(folder / "threads.db")) as memory:
        yield agent_at(desk, model, guarding(bot, otherwise=otherwise), checkpointer=memory)


def drive(agent: Any, given: Any, seen: list[str]) -> bool:
    """Run an agent, and note what it streams; return whether it waits for a person."""
    seen.extend(map(repr, agent.stream(given, thread(), stream_mode=[*MODES], subgraphs=True)))
    return bool(agent.get_state(thread()).interrupts)


def check_run(agent: Any, desk: Desk, seen: list[str], folder: Path, name: str) -> None:
    """Nothing ran but what was decided about, and nothing shows that was not taken."""
    values = agent.get_state(thread()).values
    turns = [one for one in values["cfc_run"]["turns"] if one["guarded"]]
    ran = [one for one in turns if one["fate"] in {"executed", "approved", "edited"}]
    assert len(desk.booked) <= len(ran)
    assert all(one["score"] <= CUT and one["judged"] for one in ran if one["fate"] == "executed")
    # Without the seed, at which a page of the database may end.
    taken = {
        call["id"].partition(":")[2]
        for message in values["messages"][1:]
        for call in getattr(message, "tool_calls", ())
    }
    shown = set(re.findall(rf"{name}:\d+:\d+:0", "".join(seen) + read_stored(folder)))
    assert shown <= taken


@pytest.mark.long
def test_faults_run_no_undecided_call_and_leak_nothing(
    bot: CalibrationArtifact, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(57)  # noqa: S311 - no secret
    ended = failed = resumed = unattended = 0
    for place in range(RUNS):
        name = f"run-{place}"
        folder = tmp_path / name
        folder.mkdir()
        desk: Desk = FaultyDesk(chance)
        model = Clerk(seed=place, broken=FAULTS)
        # Redrawn calls would have the ids of the first ones, and days of their own tell them apart.
        example = task(name, *[chance.choice([1.0, 0.9, 0.5]) for _ in range(chance.randint(1, 3))])
        seen: list[str] = []
        otherwise = chance.choice(["interrupt", "interrupt", "refuse"])
        with monkeypatch.context() as patch, open_agent(folder, bot, desk, model, otherwise) as agent:
            make_faulty(patch, chance)
            try:
                waits = drive(agent, asked(example), seen)
            except Exception:  # noqa: BLE001 - any failure will do
                failed += 1
                check_run(agent, desk, seen, folder, name)
                continue
            check_run(agent, desk, seen, folder, name)
            if not waits:
                ended += 1
                unattended += read_outcome(agent.get_state(thread()).values).unattended
        if not waits:
            continue
        copy = tmp_path / f"{name}-copy"
        shutil.copytree(folder, copy)
        booked = list(desk.booked)
        answers = [chance.choice(ANSWERS) for _ in range(8)]
        results = []
        for one in (folder, copy):
            desk, model = Desk(), Clerk(seed=place)
            desk.booked = list(booked)
            with open_agent(one, bot, desk, model, otherwise) as agent:
                waiting = agent.get_state(thread()).values["cfc_run"]["place"]
                given = iter(answers)
                # One draw after the other: their order breaks ties.
                config = {**thread(), "max_concurrency": 1}
                while agent.invoke(Command(resume={"decisions": [next(given)]}), config).get("__interrupt__"):
                    pass
                check_run(agent, desk, seen, one, name)
                values = agent.get_state(thread()).values
                results.append((desk.booked, values["cfc_run"], read_outcome(values)))
            # The turn that a person decided about is not drawn again.
            assert not [key for key in model.counts if int(key.rpartition(":")[2]) <= waiting]
        assert results[0] == results[1]
        assert not results[0][2].unattended
        resumed += 1
    assert ended + failed + resumed == RUNS
    assert min(ended, unattended) > 20
    assert min(failed, resumed) > 20


class Drawing(AgentMiddleware[Any, Any, Any]):
    """Draws five messages, and does nothing else."""

    def wrap_model_call(self, request: Any, handler: Any) -> Any:
        return next(reversed([handler(request) for _ in range(5)]))


@pytest.mark.long
def test_guard_takes_at_most_five_milliseconds_a_turn_besides_drawing(bot: CalibrationArtifact) -> None:
    turns = 8
    example = asked(task("long", *[1.0] * turns))
    agents = [agent_at(Desk(), Clerk(), one) for one in (Drawing(), guarding(bot))]
    spent: list[list[float]] = [[], []]
    for _ in range(25):
        for agent, times in zip(agents, spent, strict=True):
            start = time.process_time()
            agent.invoke(example, {"max_concurrency": 1, "recursion_limit": 100})
            times.append((time.process_time() - start) / turns)
    # The fastest runs, because others may share the machine.
    assert min(spent[1]) - min(spent[0]) < 0.005
