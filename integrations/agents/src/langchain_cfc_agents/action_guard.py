"""`GuardedActions`: middleware that runs the calls of an agent, refuses them, or asks a person."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from contextvars import ContextVar
from functools import partial
from itertools import accumulate, takewhile
from typing import Any, Literal

from langchain_core.runnables import RunnableConfig, RunnableSerializable
from langchain_core.runnables.config import ensure_config
from pydantic import PrivateAttr

from langchain_cfc import CalibrationArtifact, CFCResult, CFCRunnable
from langchain_cfc.errors import InputError
from langchain_cfc.execution import Step, Steps, set_context_variable
from langchain_cfc.runnable import detach_register
from langchain_cfc.sampling import DrawnCandidate
from langchain_cfc.thresholds import Level
from langchain_cfc.verifiers import Verifier
from langchain_cfc_agents.acting import ActionMiddleware, Decision, Memory, Setup
from langchain_cfc_agents.promises import RunOutcome, check_artifact, word_promise
from langchain_cfc_agents.runs import SPLITTER, RecordedRun, Turn, write_actions


class GuardedActions(ActionMiddleware):
    """Guards the tool calls of an agent: `create_agent(model, tools, middleware=[GuardedActions(...)])`.

    Before a guarded tool runs, n messages are drawn from the same state and scored; no token or event of
    those that are not taken leaves. If the score of the turn is at most the artifact's cut, the calls of the
    best one run. Otherwise a person is asked, by the interrupt of LangChain's `HumanInTheLoopMiddleware`, or
    the model is sent a refusal. `promises` says what is promised about runs and about calls, and proves it;
    `read_outcome(state)` says how a run ended.

    Put it last in the list of middleware, so that what others do to calls is part of what is drawn.

    Args:
        artifact: An artifact calibrated on runs of this agent, or its path; see `make_run_records`.
        verifier: The verifier of the recording.
        unguarded: Names of the tools that need no guard, as in the recording.
        max_wrong_rate: The certified rate; may be left out if the artifact holds one promise.
        max_wrong_of_all: The rate of wrong unattended runs among all.
        otherwise: What happens to calls above the cut: `interrupt` asks a person, who approves, edits or
            rejects them (the agent needs a checkpointer); `refuse` tells the model that they did not run.
        metadata: Function from the messages that a run begins with to the metadata that the artifact reads.
        max_turns: Number of turns after which a run fails, as in the recording.
        memory: As in the recording: `thread` if runs continue conversations.
        agent_id: Name of the agent, if the recording had one.
        verifier_id: Name of the verifier, likewise.

    Raises:
        InputError: If the artifact was not calibrated on runs, or its promise does not fit them; when called,
            if `unguarded` names no tool, or a run without memory begins with an earlier answer.
        FingerprintError: When called, before anything is drawn, if the agent is not the recorded one.
        ServingError: When called, if drawing, scoring or deciding fails. Nothing has run then.
    """

    def __init__(
        self,
        artifact: CalibrationArtifact | str | os.PathLike[str],
        verifier: Verifier | Mapping[str, Verifier],
        *,
        unguarded: Collection[str] = (),
        max_wrong_rate: Level | None = None,
        max_wrong_of_all: Level | None = None,
        otherwise: Literal["interrupt", "refuse"] = "interrupt",
        metadata: Callable[[Any], Mapping[str, Any]] | None = None,
        max_turns: int = 20,
        memory: Memory = "none",
        agent_id: str | None = None,
        verifier_id: str | None = None,
    ) -> None:
        if not isinstance(artifact, CalibrationArtifact):
            artifact = CalibrationArtifact.load(artifact)
        promise = artifact.select_promise(max_wrong_rate=max_wrong_rate, max_wrong_of_all=max_wrong_of_all)
        recorded = check_artifact(artifact, promise)
        if otherwise not in ("interrupt", "refuse"):
            msg = f"otherwise is {otherwise!r}: expected 'interrupt' or 'refuse'"
            raise InputError(msg)
        super().__init__(
            verifier,
            n=recorded["n"],
            unguarded=unguarded,
            max_turns=max_turns,
            memory=memory,
            agent_id=agent_id,
            verifier_id=verifier_id,
        )
        self._artifact, self._promise, self._metadata = artifact, promise, metadata
        self._otherwise: Decision = "ask" if otherwise == "interrupt" else "refuse"
        self.promise = word_promise(artifact, promise, recorded)
        self._chain: CFCRunnable | None = None

    def _check_setup(self, setup: Setup) -> None:
        self._chain = self._make_chain(setup.generator)

    def _make_chain(self, generator: Mapping[str, Any]) -> CFCRunnable:
        """Return the chain that decides about actions; a `FingerprintError` if it is of another agent."""
        further: dict[str, Any] = {}
        if self._artifact.unit == "claims":
            further = {"output": "claims", "splitter": _Part(SPLITTER, _split_actions)}
        return CFCRunnable(
            generator=_Part(generator, _draw_actions),
            verifier=_Part(self._verifier, partial(_score_actions, each=bool(further))),
            artifact=self._artifact,
            metadata=self._metadata,
            **{self._promise.option: self._promise.level},
            **further,
        )

    def _decide(self, run: Mapping[str, Any], turn: Turn) -> Steps[Decision]:
        # Results are counted by runs, so observers do not see those of turns.
        result = yield from self._decide_turns([turn], run["prompt"], {"callbacks": []})
        return "run" if result else self._otherwise

    def _end(self, run: Mapping[str, Any]) -> Steps[dict[str, Any]]:
        """State the outcome, and let observers of the run, such as a monitor, see its result."""
        ended = yield from super()._end(run)
        recorded = RecordedRun(id="ended", **ended["cfc_run"])
        if recorded.guarded:
            # Without the register of decisions: another run of this call may begin with the same messages.
            config = detach_register(ensure_config())
            if self._chain is None:  # a run that began in another process
                self._chain = self._make_chain((recorded.setup or {})["generator"])
            turns = [*recorded.guarded]
            if self._artifact.unit == "claims":  # those before the run fails
                turns = [*takewhile(_is_readable, turns)] or turns
            elif recorded.error is not None:
                turns[-1] = turns[-1].model_copy(update={"failed": True})
            yield from self._decide_turns(turns, recorded.prompt, config)
        outcome = RunOutcome.from_run(recorded, self.promise)
        return {**ended, "cfc_outcome": outcome.model_dump(mode="json")}

    def _decide_turns(self, turns: list[Turn], prompt: Any, config: RunnableConfig) -> Steps[CFCResult]:
        chain: Any = self._chain

        def run() -> CFCResult:
            with set_context_variable(_DECIDED, turns):
                result: CFCResult = chain.invoke(prompt, config)
            return result

        async def arun() -> CFCResult:
            with set_context_variable(_DECIDED, turns):
                result: CFCResult = await chain.ainvoke(prompt, config)
            return result

        result: CFCResult = yield Step(run, arun)
        return result

    def _keep(self, turn: Turn) -> Turn:
        """Keep no candidate: states are streamed and stored."""
        return turn.model_copy(update={"prompt": None, "candidates": ()})


# The turns that are decided about; the parts of the chain read them here.
_DECIDED: ContextVar[list[Turn]] = ContextVar("langchain_cfc_agents_decided")


class _Part(RunnableSerializable[Any, Any]):
    """A part of the chain that decides: it states a fingerprint, and reads the turns to decide about."""

    _fingerprint: dict[str, Any] = PrivateAttr()
    _read: Callable[[Any], Any] = PrivateAttr()

    def __init__(self, fingerprint: Mapping[str, Any], read: Callable[[Any], Any]) -> None:
        super().__init__()
        self._fingerprint, self._read = dict(fingerprint), read

    @property
    def fingerprint(self) -> Mapping[str, Any]:
        """The fingerprint of the part that it stands for."""
        return self._fingerprint

    def invoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:  # noqa: A002 - LangChain's name
        """Return what this part reads in the turns."""
        del input, config, kwargs
        return self._read(_DECIDED.get())


def _draw_actions(turns: list[Turn]) -> DrawnCandidate:
    """Return the actions as the one candidate."""
    if all(map(_is_readable, turns)):
        return DrawnCandidate(write_actions(turns))
    return DrawnCandidate("", no_answer="unparsable")


def _is_readable(turn: Turn) -> bool:
    return turn.judged and not turn.failed


def _score_actions(turns: list[Turn], *, each: bool) -> list[float]:
    """Return the largest score, or of each action the largest one so far."""
    scores = [*accumulate((turn.score for turn in turns), max)]
    return scores if each else scores[-1:]


def _split_actions(turns: list[Turn]) -> list[tuple[int, int]]:
    """Return where each action is in the text of all."""
    ends = [*accumulate(len(write_actions([turn])) + 1 for turn in turns)]
    return [(start, end - 1) for start, end in zip([0, *ends], ends, strict=False)]
