"""`RecordedRun`: what an agent did in one run, as plain data, and the records that runs become.

A run becomes one record before anything is calibrated (`make_run_records`). So calibration, the certificate
and the decision are those of a bot or of claims; the proofs are in `promises`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any, Literal, NamedTuple, TypeAlias

from pydantic import BaseModel, ConfigDict, Field

from langchain_cfc.errors import InputError
from langchain_cfc.no_answers import NoAnswer
from langchain_cfc.records import Candidate, Claim, ClaimsRecord, PromptRecord, Provenance
from langchain_cfc.verifiers import normalise_answer
from langchain_cfc_agents.actions import write_json

Fate: TypeAlias = Literal["executed", "approved", "edited", "rejected", "refused"]
"""What became of an action: it ran at once, a person decided, or the model was sent a refusal."""

# Of the claims records: each call is a claim.
SPLITTER = {"id": "guarded-actions"}
_RAN = ("executed", "approved")
_CALL = {"name", "args"}


class _Data(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class DrawnAction(_Data):
    """The action of one of a turn's n messages.

    Attributes:
        calls: Its calls, with normalised arguments, sorted.
        score: Its score, smaller is better.
        scores: Raw outputs of several verifiers by name.
        no_answer: Why the message is no answer; its score is then 1.
        no_verdict: Whether the verifier had no verdict on it; its score is then 1.
    """

    calls: tuple[dict[str, Any], ...]
    score: float
    scores: dict[str, float] | None = None
    no_answer: NoAnswer | None = None
    no_verdict: bool = False


class Turn(_Data):
    """A turn of which n messages were drawn, because the first one called a guarded tool.

    Attributes:
        place: How many turns the run had before, drawn n times or not.
        score: Mean score of the n actions.
        calls: The calls of the message taken, as in `DrawnAction`.
        guarded: Whether any of them calls a guarded tool.
        fate: What became of the calls.
        failed: Whether the turn, or the run before it, failed and went on.
        judged: Whether any of the n messages is an answer that the verifier has a verdict on.
        taken: Which of the n messages was taken.
        prompt: The messages that the model was shown; None if the run was not recorded.
        candidates: The n actions; empty if the run was not recorded.
    """

    place: int = 0
    score: float = Field(ge=0.0, le=1.0)
    calls: tuple[dict[str, Any], ...]
    guarded: bool
    fate: Fate = "executed"
    failed: bool = False
    judged: bool = True
    taken: int = 0
    prompt: list[dict[str, Any]] | None = None
    candidates: tuple[DrawnAction, ...] = ()


class RecordedRun(_Data):
    """One run of an agent, from its first message to its end.

    Attributes:
        id: Unique name of the run.
        prompt: The messages that it began with.
        reference: Any JSON value that labelling needs.
        metadata: Texts, numbers and booleans by name, known before the first turn.
        cluster: Name of the thread or environment that it shares with other runs.
        turns: The turns that were drawn n times, in order.
        messages: All messages at its end; empty if it failed.
        error: Why it failed, or that it was continued from a checkpoint; None if it went through.
        right: The label: whether every guarded action that ran was right, or a list with one value for each
            turn in `executed`. None if it is not labelled.
        setup: What must be the same in serving: fingerprints of `generator` and `verifier`. None if it failed
            before its first turn.
    """

    id: str = Field(min_length=1)
    prompt: list[dict[str, Any]]
    reference: Any = None
    metadata: dict[str, Any] = {}
    cluster: str | None = None
    turns: tuple[Turn, ...] = ()
    messages: list[dict[str, Any]] = []
    error: str | None = None
    right: bool | list[bool] | None = None
    setup: dict[str, Any] | None = None

    @property
    def guarded(self) -> tuple[Turn, ...]:
        """The turns whose action calls a guarded tool."""
        return tuple(turn for turn in self.turns if turn.guarded)

    @property
    def executed(self) -> tuple[Turn, ...]:
        """The guarded turns whose action ran as it was drawn, up to the first that did not."""
        ran = [turn.fate in _RAN for turn in self.guarded]
        return self.guarded[: ran.index(False)] if False in ran else self.guarded

    @property
    def stopped(self) -> Turn | None:
        """The first guarded turn whose action was refused, edited or rejected; None if all ran."""
        return next((turn for turn in self.guarded if turn.fate not in _RAN), None)


class RunRecords(NamedTuple):
    """Records made of runs, for `calibrate(records, provenance=provenance)`.

    Attributes:
        records: One a run.
        provenance: Where they come from.
        without_calls: How many runs have no guarded call, so that no promise is about them.
    """

    records: list[PromptRecord | ClaimsRecord]
    provenance: Provenance
    without_calls: int


def make_run_records(runs: Iterable[RecordedRun], *, per: Literal["run", "call"] = "run") -> RunRecords:
    """Return one record for each run with a guarded call.

    Args:
        runs: Labelled runs of one agent.
        per: The promise to calibrate: `run` for `calibrate(records, max_wrong_rate=...)` or
            `max_wrong_of_all`, `call` for `calibrate(records, unit="claims", max_wrong_rate=...)`.

    Returns:
        The records with their provenance, and the number of runs left out.

    Raises:
        InputError: If a run has no label, or one that does not fit, or runs were recorded with different
            settings.
    """
    listed = list(runs)
    setup = _find_setup(listed)
    used = [run for run in listed if run.guarded or run.error is not None]
    make = _make_run_record if per == "run" else _make_call_record
    made = [make(run, setup["generator"]["max_turns"]) for run in used]
    about: dict[str, Any] = {"subject": "runs"}
    if per == "call":
        about = {"subject": "calls", "unit": "claims", "splitter": SPLITTER}
    provenance = Provenance(n=1, **setup, **about)
    records = [one for one in made if one is not None]
    return RunRecords(records, provenance, len(listed) - len(records))


def _find_setup(runs: Sequence[RecordedRun]) -> dict[str, Any]:
    """Return the one setup of all runs."""
    known = {write_json(run.setup): run for run in runs if run.setup is not None}
    if len(known) == 1:
        (only,) = known.values()
        return dict(only.setup or {})
    if not known:
        msg = f"found no run with a turn among {len(runs)}: record the agent with RecordActions"
        raise InputError(msg)
    first, second, *_ = known.values()
    stated = [{**(run.setup or {})["generator"], **(run.setup or {})["verifier"]} for run in (first, second)]
    changed = sorted(key for key in stated[0] | stated[1] if stated[0].get(key) != stated[1].get(key))
    msg = (
        f"the runs {first.id!r} and {second.id!r} were recorded with different settings "
        f"({', '.join(changed)}): calibrate on runs of one agent"
    )
    raise InputError(msg)


def _read_labels(run: RecordedRun) -> list[bool]:
    """Return whether each executed turn was right; with one label for the run, that label for each."""
    label, ran = run.right, run.executed
    if label is None and all(turn.fate == "approved" for turn in ran):
        return [True] * len(ran)  # a person saw each of them
    if isinstance(label, list) and len(label) == len(ran):
        return label
    if label is None or isinstance(label, list):
        found = "no label" if label is None else f"{len(label)} labels"
        msg = (
            f"the run {run.id!r} has {found}, and {len(ran)} guarded turns that ran: set right to a list of "
            "as many booleans, or to one for the whole run"
        )
        raise InputError(msg)
    return [label] * len(ran)


def _make_run_record(run: RecordedRun, _: int) -> PromptRecord:
    """Return the record of a run: its largest score, and whether nothing wrong ran.

    A person's first correction makes it wrong, with the largest score up to that turn.
    """
    stop = run.stopped
    turns = run.executed if stop is None else (*run.executed, stop)
    text = write_actions(turns)
    if (stop is None and run.error is not None) or any(turn.failed or not turn.judged for turn in turns):
        candidate = Candidate(text="", score=1.0, correct=False, no_answer="unparsable")
    else:
        right = stop is None and all(_read_labels(run))
        candidate = Candidate(text=text, score=max(turn.score for turn in turns), correct=right)
    return PromptRecord(**_name(run), candidates=(candidate,))


def _make_call_record(run: RecordedRun, max_turns: int) -> ClaimsRecord | None:
    """Return the record of a run's calls, each with the largest score so far; None without a call.

    After a correction it is not known what the agent would have done: it is recorded with as many wrong calls
    as it had turns left.
    """
    labels = _read_labels(run)
    if isinstance(run.right, bool) and len(labels) > 1 and not run.right:
        msg = f"the run {run.id!r} has one label for {len(labels)} turns: per='call' needs one for each"
        raise InputError(msg)
    turns, stop = list(run.executed), run.stopped
    if stop is not None:
        left = max_turns - stop.place
        turns, labels = [*turns, *[stop] * left], [*labels, *[False] * left]
    if not turns:
        return None
    lost = accumulate((turn.failed or not turn.judged for turn in turns), max)
    scores = accumulate((turn.score for turn in turns), max)
    claims = [
        Claim(text=write_json(turn.calls), score=1.0 if is_lost else score, supported=right and not is_lost)
        for turn, score, right, is_lost in zip(turns, scores, labels, lost, strict=True)
    ]
    return ClaimsRecord(**_name(run), claims=tuple(claims))


def _name(run: RecordedRun) -> dict[str, Any]:
    return {
        "id": run.id,
        "input": run.prompt,
        "reference": run.reference,
        "metadata": run.metadata,
        "cluster": run.cluster,
    }


def write_actions(turns: Iterable[Turn]) -> str:
    """Return the actions of turns as text, one a line."""
    return "\n".join(write_json(turn.calls) for turn in turns)


def match_reference(run: RecordedRun) -> list[bool]:
    """Return whether each action that ran is one of the reference's: a label function for `record_runs`.

    Args:
        run: A run whose reference is a list of calls, each with `name` and `args`, in any order. An action is
            right if each of its calls to a guarded tool is there, and was not made before.

    Returns:
        One value for each turn in `executed`.

    Raises:
        InputError: If the reference is no such list.
    """
    calls = run.reference
    if not isinstance(calls, list) or not all(isinstance(one, dict) and one.keys() >= _CALL for one in calls):
        msg = f"the reference of the run {run.id!r} is no list of calls, [{{'name': ..., 'args': ...}}]"
        raise InputError(msg)
    left = Counter(map(_write_call, calls))
    unguarded = (run.setup or {}).get("generator", {}).get("unguarded", [])
    found = []
    for turn in run.executed:
        made = Counter(_write_call(call) for call in turn.calls if call["name"] not in unguarded)
        found.append(made <= left)
        left -= made
    return found


def _write_call(call: Mapping[str, Any]) -> str:
    """Return a call as text in which 1.0 is 1."""
    return normalise_answer(write_json({"tool_calls": [{"name": call["name"], "args": call["args"]}]}))
