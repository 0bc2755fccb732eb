"""What is promised about the actions of an agent, in words, and why it holds.

*The setting.* A run is one invocation of an agent. Its turns are drawn, scored and taken by one procedure,
the same in recording and in serving (`turns`). S_1, S_2, ... are the scores of its guarded turns: those
whose action taken calls a guarded tool. Recorded runs always go on: nothing is refused, and in a sandbox
each action runs. They are independent and identically distributed (one of each cluster), and served runs
arise in the same way. Serving has a cut c: the action of a guarded turn runs if its score is at most c. A
run *leaves the path* at the first guarded turn whose action does not run as it was drawn: because it is
refused, a person is asked, or the turn fails. A person's approval leaves the path too, as it was not the
guard that let the action run.

*Coupling.* Up to the turn at which a served run leaves the path, everything that it saw is what the
recorded run sees that makes the same draws: both draw from the same state by the same procedure, and the
environment got the same actions. So for every cut the law of (the turns before a run leaves the path, their
scores, whether their actions are wrong) is the law of the recorded turns t with max(S_1, ..., S_t) <= c and
those between them.

*Per run.* Let M be the largest score of a run's guarded turns, W whether a guarded action was wrong, G
whether it has a guarded turn. By the coupling, with cut c a served run is unattended, with W, as often as a
recorded run has G, M <= c, and W. Hence

    P(wrong | unattended at c) = P(W | G, M <= c).

That is the wrong-answer rate at the cut c of a bot whose prompts are the runs with G, with the mean score M
and the label "not W". So a certificate of `certificates.cuts` for these records is about unattended runs,
for every dependence between turns; and `max_wrong_of_all` bounds P(unattended and W | G) in every group
that reads nothing but metadata known before the first turn. Features that read scores are refused: at turn
t they would read M, which is not known yet.

A refusal with a message to the model leaves the path, since the served run goes on from a state that no
recorded run was in; the model may try until a call passes. Runs without G never count, as they would dilute
the rate.

*Failures.* A recorded run that fails is no answer at any cut, and a served one that fails is not
unattended. One that goes on from a checkpoint has failed: a step may have been drawn or run twice, or the
state edited.

*People.* If a person first corrects an action at turn t, it is unknown how the run would have gone on. It
is recorded as wrong, with the largest score of the turns 1, ..., t. Compare what it adds at a cut c to the
number A of unattended runs and the number W of wrong ones, had the action run. If it was wrong: nothing or
one to both, and recorded one to both if the score is at most c, which is at least as often. If it was
right: to A the same or less, and to W at most as much. So A and W become A + x and W + x + y with x, y >=
0, and as W <= A, (W + x + y) / (A + x) >= W / A. The rate of the recorded law is at least the true one at
every cut, so its certificate holds for the true one as well.

*Per call.* Let the calls of a run be its guarded actions, and X(c) the wrong share of those before it
leaves the path at c. By the coupling X(c) is the wrong share among the recorded calls t with max(S_1, ...,
S_t) <= c. Give call t the score M_t = max(S_1, ..., S_t), and the label whether it was right. Then a run is
an answer whose claims are its calls, and a claim is shown at the cut c if and only if its call comes before
the run leaves the path. `certificates.shown_claims` certifies E[X(c) | a call is shown] <= r. Its cuts are
fixed by scores of runs that do not certify, and its tests count one call drawn from each run, so calls of
one run may depend on each other in any way.

A run that a person corrects at turn t has at most T - t further turns, T being the turn limit. Had the
action run, X(c) at cuts from M_t on would have been at most (w + 1 + k) / (t + k) with k further calls, w
wrong ones before: largest for k = T - t, since w + 1 <= t. It is recorded with so many wrong calls at the
score M_t.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict

from langchain_cfc.artifact import CalibrationArtifact, Promise
from langchain_cfc.errors import InputError
from langchain_cfc_agents.runs import RecordedRun

Left: TypeAlias = Literal["no guarded call", "failed", "refused", "approved", "edited", "rejected"]

_LEFT = {
    "failed": "a step was run again, after an error or from a checkpoint",
    "refused": "the model was sent a refusal",
    "approved": "a person approved an action",
    "edited": "a person edited an action",
    "rejected": "a person rejected an action",
}
_UNATTENDED = (
    "A run is unattended if it has a guarded call, and none was refused, sent to a person, edited or failed. "
    "Parallel calls count as one."
)


class RunOutcome(BaseModel):
    """How a guarded run ended, and what is promised about it.

    Attributes:
        unattended: Whether it went through unattended, which a promise about runs is about.
        left: Why it did not, or first left the path.
        guarded_calls: Number of guarded actions that ran; parallel calls are one.
        promised_calls: Number of these before it left the path, which a promise about calls is about.
        score: The largest score of its guarded turns; None if it has none.
        promise: What is promised, with its conditions.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    unattended: bool
    left: Left | None
    guarded_calls: int
    promised_calls: int
    score: float | None
    promise: str

    @classmethod
    def from_run(cls, run: RecordedRun, promise: str) -> RunOutcome:
        """Return the outcome of a run that has ended, under a promise in words."""
        turns = run.guarded
        ways: list[Any] = ["failed" if one.failed else one.fate for one in turns]
        alone = next((at for at, way in enumerate(ways) if way != "executed"), None)
        ways.append(None if run.error is None else "failed")
        left: Any = "no guarded call" if not turns else ways[-1 if alone is None else alone]
        return cls(
            unattended=left is None,
            left=left,
            guarded_calls=sum(one.fate not in ("refused", "rejected") for one in turns),
            promised_calls=len(turns) if alone is None else alone,
            score=max((one.score for one in turns), default=None),
            promise=promise,
        )

    def explain(self) -> str:
        """Return a few sentences, for end users, on what happened and what is promised."""
        if self.left == "no guarded call":
            return "The run made no guarded call, so no promise is about it."
        ran = f"{self.guarded_calls} guarded action{'s' * (self.guarded_calls != 1)} ran"
        if self.left is None:
            return f"The run went through unattended: {ran}. {self.promise}"
        return (
            f"The run left the unattended path, because {_LEFT[self.left]}: {ran}, {self.promised_calls} of "
            f"them before that. {self.promise}"
        )


def read_outcome(state: Mapping[str, Any]) -> RunOutcome:
    """Return the outcome of a run from the final state of its agent.

    Raises:
        InputError: If the run has not ended, or was not guarded by `GuardedActions`.
    """
    found = state.get("cfc_outcome")
    if found is None:
        msg = "the state holds no outcome: the run waits for a person, or its agent has no GuardedActions"
        raise InputError(msg)
    return RunOutcome.model_validate(found)


def check_artifact(artifact: CalibrationArtifact, promise: Promise) -> dict[str, Any]:
    """Return the settings of the recorded agent.

    Raises:
        InputError: If the artifact was not calibrated on runs, or the promise does not fit runs.
    """
    recorded = artifact.provenance.generator if artifact.provenance is not None else None
    if recorded is None or artifact.subject is None:
        msg = (
            "the artifact was not calibrated on runs of an agent: record them with RecordActions, and "
            "calibrate on make_run_records(runs). Answers are guarded with GuardedAnswer"
        )
        raise InputError(msg)
    if promise.option == "alpha":
        msg = (
            f"the artifact promises sets or lists (alpha = {promise.level}), and an agent takes one action: "
            "calibrate with max_wrong_rate or max_wrong_of_all"
        )
        raise InputError(msg)
    reading = [term.text for term in artifact.feature_map.terms if term.statistics]
    if promise.option == "max_wrong_of_all" and reading:
        msg = (
            f"the features {', '.join(reading)} read the scores of a whole run, which are not known at its "
            "first turn: calibrate with features of metadata, such as group(kind)"
        )
        raise InputError(msg)
    return recorded


def word_promise(artifact: CalibrationArtifact, promise: Promise, recorded: Mapping[str, Any]) -> str:
    """Return a promise about actions in words, with its conditions."""
    if promise.max_wrong_rate is None:
        said, runs = artifact.make_guarantee(promise.level).sentence, artifact.calibration.size
    else:
        certificate = artifact.certified_bot.find_certificate(promise.max_wrong_rate)
        said, runs = certificate.claim, certificate.prompts
    memory = "no memory of earlier runs" if recorded["memory"] == "none" else "conversations as recorded"
    unguarded = recorded["unguarded"]
    free = f"Not guarded: {', '.join(unguarded)}." if unguarded else "Every tool is guarded."
    return (
        f"{' '.join([said, _UNATTENDED, *artifact.traits.excluded])} It holds for runs that arise as the "
        f"{runs} recorded ones did, with the same model, instructions, tools and verifier, {recorded['n']} "
        f"messages a turn, at most {recorded['max_turns']} turns and {memory}. {free}"
    )
