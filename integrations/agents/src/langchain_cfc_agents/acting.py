"""`ActionMiddleware`: what recording and serving share of an agent whose tool calls are guarded.

What decides about a turn is written into the metadata of its message by `wrap_model_call`, so a checkpoint
keeps it. `after_model` acts on that, and a resume starts there, so nothing is drawn again. `wrap_tool_call`
runs no guarded call that `after_model` did not clear in this turn.

LangGraph does not say to nodes whether their run goes on from a checkpoint: after an error or a kill, by
hand, from an older one. But within one invocation it hands states on in memory, and otherwise it reads them
from storage. So a mark in the state that storage turns into plain text (`_Begun`) shows it.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, NotRequired, TypeAlias

from langchain.agents.middleware import AgentMiddleware, AgentState, HumanInTheLoopMiddleware
from langchain.agents.middleware.types import OmitFromInput
from langchain_core.messages import ToolMessage
from langchain_core.runnables.config import ensure_config

from langchain_cfc.errors import InputError, ServingError
from langchain_cfc.execution import Step, Steps, apply_config_limits, arun_flow, run_flow
from langchain_cfc.extend import combine_fingerprints, compute_fingerprint, withhold_quotes
from langchain_cfc.verifiers import Verifier, VerifierEnsemble
from langchain_cfc_agents.actions import Call, Toolbox, find_last, list_open_calls
from langchain_cfc_agents.asking import (
    Request,
    Response,
    SilentRequest,
    convert_request,
    hide_messages,
    refuse_interrupts,
)
from langchain_cfc_agents.prompts import make_prompt_data
from langchain_cfc_agents.runs import Fate, Turn
from langchain_cfc_agents.turns import RULE, TurnDrawer, mark_message

Decision: TypeAlias = Literal["run", "ask", "refuse"]
Memory: TypeAlias = Literal["none", "thread"]

REFUSED = (
    "This call was not run: it is not certain enough to run without a person. Do not repeat it; say what you "
    "would have done, or go on without it."
)
_ASKED = ["approve", "edit", "reject"]
_MOST_ANSWERS = 100  # of a person about the calls of one turn
_EDITS = "hitl_edited_tool_calls"  # where LangChain keeps the calls that a person changed


if TYPE_CHECKING:
    PeopleState = AgentState[Any]
else:  # where it keeps what a person changed
    PeopleState = HumanInTheLoopMiddleware.state_schema


class ActionState(PeopleState):
    """The state of an agent with a record of its run, which the result shows."""

    cfc_run: NotRequired[Annotated[dict[str, Any], OmitFromInput]]
    cfc_outcome: NotRequired[Annotated[dict[str, Any] | None, OmitFromInput]]


class Setup(NamedTuple):
    """The tools of an agent, and the fingerprint of its model, tools and settings."""

    toolbox: Toolbox
    generator: dict[str, Any]


class AgentPart:
    """The agent as the generator of a fingerprint."""

    def __init__(self, stated: Mapping[str, Any]) -> None:
        self.fingerprint = stated


class ActionMiddleware(AgentMiddleware[AgentState[Any], Any, Any]):
    """Base of the middleware that draws turns n times; `RecordActions` describes the arguments."""

    state_schema = ActionState

    def __init__(
        self,
        verifier: Verifier | Mapping[str, Verifier],
        *,
        n: int,
        unguarded: Collection[str],
        max_turns: int,
        memory: Memory,
        agent_id: str | None,
        verifier_id: str | None,
    ) -> None:
        super().__init__()
        self.tools = []
        if isinstance(unguarded, str):
            msg = f"unguarded is {unguarded!r}: expected a list of names of tools"
            raise InputError(msg)
        self.verifier = VerifierEnsemble(verifier) if isinstance(verifier, Mapping) else verifier
        self._drawer = TurnDrawer(self.verifier, n, frozenset(unguarded))
        self._unguarded = frozenset(unguarded)
        self._max_turns, self._memory = max_turns, memory
        self._settings = {
            "n": n,
            "rule": RULE,
            "unguarded": sorted(self._unguarded),
            "max_turns": max_turns,
            "memory": memory,
        }
        self._agent_id = agent_id
        self._verifier = compute_fingerprint(self.verifier, verifier_id)
        self._people = HumanInTheLoopMiddleware({})
        self._known: tuple[list[Any], Setup] | None = None

    def after_agent(self, state: AgentState[Any], runtime: Any) -> dict[str, Any]:
        """End a run: what is left in `cfc_run` is a `RecordedRun` without a name."""
        del runtime
        return run_flow(self._end(_get_run(state)))

    async def aafter_agent(self, state: AgentState[Any], runtime: Any) -> dict[str, Any]:
        """Do the same as `after_agent`, asynchronously."""
        del runtime
        return await arun_flow(self._end(_get_run(state)))

    def _end(self, run: Mapping[str, Any]) -> Steps[dict[str, Any]]:
        yield from ()  # nothing is called
        kept = {name: run[name] for name in ("prompt", "turns", "setup")}
        return {"cfc_run": {**kept, "error": _find_error(run)}}

    @abstractmethod
    def _decide(self, run: Mapping[str, Any], turn: Turn) -> Steps[Decision]:
        """Return what is to become of the guarded action of a turn."""

    @abstractmethod
    def _keep(self, turn: Turn) -> Turn:
        """Return what the state keeps of a turn."""

    def _check_setup(self, setup: Setup) -> None:
        """Raise an error if an agent must not run; called before its first turn."""

    def before_agent(self, state: AgentState[Any], runtime: Any) -> dict[str, Any]:
        """Begin a run.

        Raises:
            InputError: If it begins with earlier answers, and has no memory.
        """
        del runtime
        messages = state["messages"]
        if self._memory == "none" and find_last(messages) is not None:
            msg = (
                "the run begins with an earlier answer of the model, and was to have no memory: begin it "
                f"without, or record and serve conversations, {self.name}(..., memory='thread')"
            )
            raise InputError(msg)
        began = {"prompt": make_prompt_data(messages), "turns": [], "setup": None}
        marks = {"place": 0, "cleared": [], "failed": False, "error": None, "begun": _Begun()}
        return {"cfc_run": {**began, **marks}, "cfc_outcome": None}

    async def abefore_agent(self, state: AgentState[Any], runtime: Any) -> dict[str, Any]:
        """Do the same as `before_agent`, asynchronously."""
        return self.before_agent(state, runtime)

    def wrap_model_call(self, request: Request, handler: Callable[[Request], Response]) -> Response:
        """Return the response of the model, or of n the best one, with what was decided about it.

        Raises:
            InputError: If `unguarded` names no tool, or the agent must not run.
            FingerprintError: If it is not the agent that was recorded.
            ServingError: If the run has too many turns, or drawing, scoring or deciding fails.
        """
        return run_flow(self._ask_model(request, handler))

    async def awrap_model_call(
        self, request: Request, handler: Callable[[Request], Awaitable[Response]]
    ) -> Response:
        """Do the same as `wrap_model_call`, asynchronously."""
        return await arun_flow(self._ask_model(request, handler))

    def _ask_model(self, request: Request, handler: Any) -> Steps[Response]:
        run = _get_run(request.state)
        if run["place"] >= self._max_turns:
            msg = (
                f"the run has had {self._max_turns} turns: it ends here, without a promise. Record and serve "
                f"with more, {self.name}(..., max_turns=...)"
            )
            raise ServingError(msg)
        setup, asked = self._read_setup(request), convert_request(SilentRequest, request)
        with hide_messages():
            first: Response = yield Step(partial(handler, asked), partial(handler, asked))
            if not list_open_calls(first.result, self._unguarded):
                return first
            with refuse_interrupts(), withhold_quotes(), apply_config_limits(ensure_config()):
                return (yield from self._take_turn(run, setup, asked, first, handler))

    def _read_setup(self, request: Request) -> Setup:
        """Return the setup of a request, which costs more than a turn, so the last one is kept."""
        bound = dict(request.model_settings)
        if request.tool_choice is not None:
            bound["tool_choice"] = request.tool_choice
        given = [request.model, list(request.tools), bound]
        # Lists compare by identity first.
        if self._known is None or self._known[0] != given:
            toolbox = Toolbox(request.tools, self._unguarded)
            settings = {**self._settings, "tools": toolbox.describe()}
            model = request.model.bind(**bound) if bound else request.model
            part = AgentPart(combine_fingerprints("actions", settings, {"agent": model}))
            setup = Setup(toolbox, compute_fingerprint(part, self._agent_id))
            self._check_setup(setup)
            self._known = (given, setup)
        return self._known[1]

    def _take_turn(
        self, run: dict[str, Any], setup: Setup, request: Request, first: Response, handler: Any
    ) -> Steps[Response]:
        # Retries around this middleware come back with the same object. What was drawn in between is a
        # selection if the failure depends on what was drawn, so the run must not count as unattended.
        has_failed = run.get("failed", False)
        run["failed"] = True
        response, turn, usage = yield from self._drawer.draw(request, first, handler, setup.toolbox)
        turn = turn.model_copy(update={"failed": has_failed})
        decision = (yield from self._decide(run, turn)) if turn.guarded else "run"
        run["failed"] = has_failed
        turn = turn.model_copy(update={"failed": has_failed or _find_error(run) is not None})
        marks = {
            "decision": decision,
            "score": turn.score,
            "usage": usage,
            "turn": self._keep(turn).model_dump(mode="json"),
            "keys": list(map(_make_key, list_open_calls(response.result, self._unguarded))),
            "setup": {"generator": setup.generator, "verifier": self._verifier},
        }
        return mark_message(response, marks)

    def after_model(self, state: AgentState[Any], runtime: Any) -> dict[str, Any]:
        """Clear the calls of a turn, refuse them, or ask a person about them.

        Raises:
            ServingError: If something was called that no turn decided about.
        """
        run, messages = _get_run(state), state["messages"]
        message, calls = find_last(messages), list_open_calls(messages, self._unguarded)
        marks = (message.response_metadata.get("cfc") or {}) if message is not None else {}
        if message is None or marks.get("keys", []) != list(map(_make_key, calls)):
            msg = (
                f"{self.name}: the calls of the last message are not those that were decided about; other "
                f"middleware changed them. Put {self.name} last in the list"
            )
            raise ServingError(msg)
        # After a person's answer states come from storage as well.
        error = run["error"] if marks.get("decision") == "ask" else _find_error(run)
        ended = {**run, "place": run["place"] + 1, "cleared": [], "failed": False}
        ended |= {"error": error, "begun": _Begun()}
        # Ids are used again by some providers, and what a person changed is kept by them.
        update: dict[str, Any] = {_EDITS: {}} if state.get(_EDITS) else {}
        if "turn" not in marks:
            return {**update, "cfc_run": ended}
        answers: Sequence[Any] = ()
        fate: Fate = "executed"
        if marks["decision"] == "refuse":
            fate, answers = "refused", list(map(_make_refusal, list_open_calls(messages)))
        elif marks["decision"] == "ask":
            before = list(map(_make_key, message.tool_calls))
            update |= _ask_person(state, runtime, calls, marks["setup"]["generator"]["tools"])
            message, *answers = update.pop("messages")
            edited = answers or update.get(_EDITS) or list(map(_make_key, message.tool_calls)) != before
            rejected = {one.tool_call_id for one in answers} >= {call["id"] for call in calls}
            fate = "rejected" if rejected else "edited" if edited else "approved"
        answered = {one.tool_call_id for one in answers}
        cleared = [_make_key(one) for one in message.tool_calls if one["id"] not in answered]
        turn = {**marks["turn"], "place": run["place"], "fate": fate}
        turn["failed"] |= error is not None
        ended |= {"turns": [*run["turns"], turn], "cleared": cleared, "setup": marks["setup"]}
        shown = {name: marks[name] for name in ("decision", "score", "usage")}
        metadata = {**message.response_metadata, "cfc": shown}
        kept = message.model_copy(update={"response_metadata": metadata})
        return {**update, "messages": [kept, *answers], "cfc_run": ended}

    async def aafter_model(self, state: AgentState[Any], runtime: Any) -> dict[str, Any]:
        """Do the same as `after_model`, asynchronously."""
        return self.after_model(state, runtime)

    def wrap_tool_call(self, request: Any, handler: Callable[[Any], Any]) -> Any:
        """Run a call that was cleared or needs no guard; a person's changes are made here.

        Raises:
            ServingError: If it was not cleared.
        """
        self._check_call(request)
        return self._people.wrap_tool_call(request, handler) if _CHANGES_CALLS else handler(request)

    async def awrap_tool_call(self, request: Any, handler: Callable[[Any], Awaitable[Any]]) -> Any:
        """Do the same as `wrap_tool_call`, asynchronously."""
        self._check_call(request)
        return await (self._people.awrap_tool_call(request, handler) if _CHANGES_CALLS else handler(request))

    def _check_call(self, request: Any) -> None:
        call = request.tool_call
        if call["name"] in self._unguarded or _make_key(call) in _get_run(request.state)["cleared"]:
            return
        msg = (
            f"the call of {call['name']} was not decided about, so it does not run: other middleware made or "
            f"changed it. Put {self.name} last in the list"
        )
        raise ServingError(msg)


# Until LangChain 1.5, a person's changes replace the call in the message.
_CHANGES_CALLS = HumanInTheLoopMiddleware.wrap_tool_call is not AgentMiddleware.wrap_tool_call


def _get_run(state: Mapping[str, Any]) -> dict[str, Any]:
    run: dict[str, Any] = state.get("cfc_run") or {}
    if "begun" not in run:
        msg = "the agent's state has no cfc_run that goes on: the run did not begin with this middleware"
        raise ServingError(msg)
    return run


class _Begun(str):
    """A mark of a run that no checkpoint keeps: what is read from storage is a plain `str`."""

    __slots__ = ()

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        """Make pickles and copies plain, as other formats do."""
        return str, (str(self),)


def _ask_person(state: Any, runtime: Any, calls: Sequence[Call], tools: Collection[str]) -> dict[str, Any]:
    """Return what a person decided about calls; who answers in another form is asked again.

    Raises:
        ServingError: If an answer cannot be matched to the calls, or too many have another form.
    """
    ids = [call["id"] for call in calls]
    if not all(ids) or len(set(ids)) < len(ids):
        msg = "the model's calls have no ids of their own, so that a person's changes would reach other calls"
        raise ServingError(msg)
    config: Any = {call["name"]: {"allowed_decisions": _ASKED} for call in calls}
    *earlier, message = state["messages"]
    for _ in range(_MOST_ANSWERS):  # each time for the next answer: without one, the interrupt ends this
        with suppress(AttributeError, KeyError, TypeError, ValueError):
            # Older releases of LangChain change the message instead of keeping the edits beside it.
            shown: Any = {**state, "messages": [*earlier, message.model_copy()]}
            update = dict(HumanInTheLoopMiddleware(config).after_model(shown, runtime) or {})
            changed = [one for one in update["messages"][0].tool_calls if one not in message.tool_calls]
            edits = [*(update.get(_EDITS) or {}).values(), *changed]
            if all(isinstance(one["args"], dict) and one["name"] in tools for one in edits):
                return update
    msg = "no answer of the person could be read: expected decisions as HumanInTheLoopMiddleware takes them"
    raise ServingError(msg)


def _find_error(run: Mapping[str, Any]) -> str | None:
    """Return why a run is not one that went through at once; None if it is."""
    continued = None if isinstance(run["begun"], _Begun) else "the run was continued from a checkpoint"
    return run["error"] or continued


def _make_key(call: Call) -> str:
    """Return what makes a call the same call: id, name and arguments."""
    return repr((call.get("id"), call["name"], sorted(call["args"].items())))


def _make_refusal(call: Call) -> ToolMessage:
    return ToolMessage(REFUSED, name=call["name"], tool_call_id=call["id"], status="error")
