"""`RecordActions` and `record_runs`: run an agent as it will be served, and record its turns."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from langchain_core.messages import convert_to_messages
from langchain_core.runnables import Runnable, RunnableLambda

from langchain_cfc.errors import CollectionError, InputError
from langchain_cfc.execution import Step, Steps, arun_flow, describe_error, run_flow, set_context_variable
from langchain_cfc.records import Example
from langchain_cfc.verifiers import Verifier
from langchain_cfc_agents.acting import ActionMiddleware, Decision, Memory
from langchain_cfc_agents.prompts import make_prompt_data
from langchain_cfc_agents.recording import make_state
from langchain_cfc_agents.runs import RecordedRun, Turn

AgentLike: TypeAlias = Runnable[Any, Any] | Callable[[Example], Runnable[Any, Any]]
Label: TypeAlias = Callable[[RecordedRun], bool | list[bool]]

# Receives the state of a run after each turn, since a failing agent returns none.
_WATCHED: ContextVar[list[dict[str, Any]] | None] = ContextVar("langchain_cfc_agents_watched", default=None)


class RecordActions(ActionMiddleware):
    """Middleware that replaces `GuardedActions` while runs are recorded: no action is refused.

    The state of an ended run holds it under `cfc_run`, as plain data: see `RecordedRun`. So runs can be read
    from the results of the agent, its checkpoints, and its traces.

    Args:
        verifier: Scores actions, whose canonical JSON is the text of the candidates; of several by name, the
            mean counts.
        n: Number of messages drawn at a turn that calls a guarded tool, at least 1.
        unguarded: Names of the tools that need no guard, such as those that only read.
        supervised: Whether a person is asked about each guarded action, by the interrupt of LangChain's
            `HumanInTheLoopMiddleware`; the agent then needs a checkpointer. For agents without a sandbox.
        max_turns: Number of turns after which a run fails.
        memory: `thread` if runs may begin with earlier answers; `none` if that is an error.
        agent_id: Name of the agent; it vouches for parts that cannot be described.
        verifier_id: Name of the verifier, likewise.
    """

    def __init__(
        self,
        verifier: Verifier | Mapping[str, Verifier],
        *,
        n: int,
        unguarded: Collection[str] = (),
        supervised: bool = False,
        max_turns: int = 20,
        memory: Memory = "none",
        agent_id: str | None = None,
        verifier_id: str | None = None,
    ) -> None:
        super().__init__(
            verifier,
            n=n,
            unguarded=unguarded,
            max_turns=max_turns,
            memory=memory,
            agent_id=agent_id,
            verifier_id=verifier_id,
        )
        self._supervised = supervised

    def _decide(self, run: Mapping[str, Any], turn: Turn) -> Steps[Decision]:
        del run, turn
        yield from ()  # nothing is called
        return "ask" if self._supervised else "run"

    def _keep(self, turn: Turn) -> Turn:
        return turn

    def after_model(self, state: Any, runtime: Any) -> dict[str, Any]:
        """Do what the base class does, and hand the run so far to `record_runs`."""
        update = super().after_model(state, runtime)
        watched = _WATCHED.get()
        if watched is not None:
            watched.append(update["cfc_run"])
        return update


def record_runs(
    agent: AgentLike,
    examples: Iterable[Example],
    path: str | os.PathLike[str],
    *,
    label: Label | None = None,
    max_concurrency: int = 1,
) -> list[RecordedRun]:
    """Run an agent on each example, and append every run to a file as soon as it ends.

    Runs that the file holds already are not run again, so an interrupted recording goes on where it stopped.
    A run that fails is recorded as such, because failures are part of what is served.

    Args:
        agent: An agent with `RecordActions`, without a checkpointer; or a function that makes one for an
            example, if each run has an environment of its own.
        examples: Examples whose `input` is a question, messages, or the state that the agent is invoked with.
            Runs that share a thread or an environment have the same `cluster`.
        path: The JSON Lines file.
        label: Called when a run has ended: whether all its guarded actions were right, or a list with one
            value for each of `run.executed`. None to label later.
        max_concurrency: Maximum number of concurrent runs, at least 1.

    Returns:
        All runs of the examples, in their order.

    Raises:
        InputError: If the agent is not set up as it must be, or the file holds something else.
        CollectionError: If a run ends without a record, or with a person to be asked.
    """
    listed, known = _open_runs(examples, path)
    recorder = _Recorder(agent, path, label)
    left = [one for one in listed if one.id not in known]
    record: Runnable[Example, RecordedRun] = RunnableLambda(lambda one: run_flow(recorder.record(one)))
    runs = record.batch(left, {"max_concurrency": max_concurrency})
    return _sort(listed, [*known.values(), *runs])


async def arecord_runs(
    agent: AgentLike,
    examples: Iterable[Example],
    path: str | os.PathLike[str],
    *,
    label: Label | None = None,
    max_concurrency: int = 1,
) -> list[RecordedRun]:
    """Do the same as `record_runs`, asynchronously, for agents with async tools."""
    listed, known = _open_runs(examples, path)
    recorder = _Recorder(agent, path, label)
    left = [one for one in listed if one.id not in known]

    async def record(example: Example) -> RecordedRun:
        return await arun_flow(recorder.record(example))

    runs = await RunnableLambda(record).abatch(left, {"max_concurrency": max_concurrency})
    return _sort(listed, [*known.values(), *runs])


def read_runs(path: str | os.PathLike[str]) -> list[RecordedRun]:
    """Return the runs of a file that `record_runs` wrote.

    Raises:
        InputError: If there is no such file, or a line is no run; an unfinished last line is left out.
    """
    try:
        *lines, rest = Path(path).read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        msg = f"cannot read runs from {os.fspath(path)!r}: {getattr(error, 'strerror', 'no text in UTF-8')}"
        raise InputError(msg) from error
    del rest  # empty, unless the process was killed while it wrote
    return [_read_run(line, f"{os.fspath(path)}:{place}") for place, line in enumerate(lines, 1)]


def _read_run(line: str, where: str) -> RecordedRun:
    try:
        return RecordedRun.model_validate_json(line)
    except ValueError as error:
        msg = f"{where} is no recorded run: {str(error).splitlines()[0]}"
        raise InputError(msg) from error


def _open_runs(
    examples: Iterable[Example], path: str | os.PathLike[str]
) -> tuple[list[Example], dict[str, RecordedRun]]:
    """Return the examples, and the runs of the file by id; an unfinished last line is removed from it."""
    listed, file = list(examples), Path(path)
    repeated = len(listed) - len({one.id for one in listed})
    if repeated:
        msg = f"{repeated} examples have the id of another one: a run needs a name of its own"
        raise InputError(msg)
    if not file.exists():
        return listed, {}
    whole = file.read_bytes()
    with file.open("r+b") as opened:
        opened.truncate(whole.rfind(b"\n") + 1)
    return listed, {run.id: run for run in read_runs(path)}


def _sort(examples: Sequence[Example], runs: Iterable[RecordedRun]) -> list[RecordedRun]:
    by_id = {run.id: run for run in runs}
    return [by_id[one.id] for one in examples]


class _Recorder:
    """Runs an agent on examples, and writes the runs to a file."""

    def __init__(self, agent: AgentLike, path: str | os.PathLike[str], label: Label | None) -> None:
        self._agent, self._path, self._label = agent, Path(path), label
        self._lock = threading.Lock()

    def record(self, example: Example) -> Steps[RecordedRun]:
        watched: list[dict[str, Any]] = []
        state = make_state(example.input)
        with set_context_variable(_WATCHED, watched):
            try:
                agent = self._agent if isinstance(self._agent, Runnable) else self._agent(example)
                ended = yield Step(partial(agent.invoke, state), partial(agent.ainvoke, state))
            except InputError:  # of how the agent is set up
                raise
            except Exception as error:  # noqa: BLE001 - a failure is an outcome like any other
                ended = error
        return self._write(example, ended, watched)

    def _write(self, example: Example, ended: Any, watched: list[dict[str, Any]]) -> RecordedRun:
        fields: dict[str, Any] = {name: value for name, value in example if name != "input"}
        if isinstance(ended, Exception):
            begun = convert_to_messages(make_state(example.input)["messages"])
            last = watched[-1] if watched else {"turns": [], "setup": None}
            fields |= {"turns": last["turns"], "setup": last["setup"], "prompt": make_prompt_data(begun)}
            fields |= {"error": describe_error(ended)}
        else:
            fields |= _read_state(example, ended)
        run = RecordedRun(**fields)
        if self._label is not None and run.executed:
            run = run.model_copy(update={"right": self._label(run)})
        # Runs hold prompts, so that a new file is for its owner alone.
        opener = partial(os.open, mode=0o600)
        with self._lock, open(self._path, "a", encoding="utf-8", opener=opener) as file:
            file.write(run.model_dump_json() + "\n")
        return run


def _read_state(example: Example, state: Mapping[str, Any]) -> dict[str, Any]:
    if state.get("__interrupt__"):
        msg = (
            f"the run {example.id!r} waits for a person: after the last answer, make it of the final state, "
            "RecordedRun.model_validate({**state['cfc_run'], 'id': ...})"
        )
        raise CollectionError(msg)
    if "cfc_run" not in state:
        msg = f"the run {example.id!r} ended without a record: give the agent the middleware RecordActions"
        raise CollectionError(msg)
    return {**state["cfc_run"], "messages": make_prompt_data(state["messages"])}
