"""Two artifacts on the same draws: what each decides, and what came of it."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING

import numpy as np
from pydantic import BaseModel, ConfigDict

from langchain_cfc._internal.arrays import BoolArray
from langchain_cfc.artifact import CalibrationArtifact, select_held_out
from langchain_cfc.decision import EVERY_SET, AnswerSets, decide
from langchain_cfc.errors import FingerprintError, InputError
from langchain_cfc.features import name_records_in_errors
from langchain_cfc.monitor.observed import FLAGGED
from langchain_cfc.monitor.traffic import Traffic, check_time, time_of
from langchain_cfc.records import Provenance

if TYPE_CHECKING:
    from typing_extensions import Self

    from langchain_cfc.monitor.monitor import CFCMonitor


class _Data(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Side(_Data):
    """What one artifact decided.

    Attributes:
        artifact: Its digest.
        answered: Share of results that it answers.
        flagged: Share that it flags as not certifiable.
        candidates: Mean number of candidates in a set.
        answers: Mean number of distinct answers in a set.
        kept: Share of the labelled results whose set holds a correct answer or is flagged; None without
            labels.
        wrong: Share of the labelled and answered results whose best answer is wrong; None where there are
            none.
    """

    artifact: str
    answered: float
    flagged: float
    candidates: float
    answers: float
    kept: float | None
    wrong: float | None

    @classmethod
    def of(
        cls, artifact: str, sets: AnswerSets, answered: BoolArray, correct: BoolArray, labelled: BoolArray
    ) -> Self:
        """What an artifact did.

        Args:
            artifact: Its digest.
            sets: Its sets for N results.
            answered: (N,) which of them it answers.
            correct: (N, n) which candidates are correct.
            labelled: (N,) of which results this is known.
        """
        kept = (sets.accepted & correct).any(axis=1) | sets.not_certifiable
        right = np.take_along_axis(correct, sets.best[:, np.newaxis], axis=1)[:, 0]
        judged = answered & labelled
        return cls(
            artifact=artifact,
            answered=float(answered.mean()),
            flagged=float(sets.not_certifiable.mean()),
            candidates=float(sets.accepted.sum(axis=1).mean()),
            answers=float(sets.distinct_answers.mean()),
            kept=float(kept[labelled].mean()) if labelled.any() else None,
            wrong=float((~right)[judged].mean()) if judged.any() else None,
        )


class SideBySide(_Data):
    """Two artifacts on the same draws.

    Attributes:
        alpha: Error level of both.
        results: Number of results.
        labelled: Number of those with complete labels.
        served: What the artifact decided that served them.
        other: What the other one would have.
        same: Share of results with the same decision: the same best answer, or none.
    """

    alpha: str
    results: int
    labelled: int
    served: Side
    other: Side
    same: float

    @classmethod
    def of(cls, traffic: Traffic, other: CalibrationArtifact, alpha: str) -> SideBySide | None:
        """Compare what was served at a level with what another artifact decides on the same draws.

        Args:
            traffic: What was served; its labels count as they are, so that they should speak of all results
                (`Traffic.fair`) or not be there.
            other: The other artifact; in bot mode if it holds a certified policy.
            alpha: Level of both.

        Returns:
            The comparison; None where nothing was asked at this level.

        Raises:
            InputError: If the other artifact cannot decide on these draws.
        """
        traffic = traffic.at(alpha)
        if not traffic.results:
            return None
        table = traffic.scored_for(other)
        served = AnswerSets(
            traffic.table().draws,
            np.array([one.accepted for one in traffic.results]),
            np.array([one.outcome == FLAGGED for one in traffic.results]),
        )
        withheld = np.array([one.withheld for one in traffic.results])
        answered = np.asarray(served.accepted.any(axis=1) & ~withheld, dtype=np.bool_)
        bot = None if other.policy is None else other.policy.certificate
        policy = EVERY_SET if bot is None or bot.alpha != alpha else bot.policy
        with name_records_in_errors(table.ids):
            decisions = decide(other, table.draws, alpha, policy=policy, uniforms=other.uniforms(table))
        complete = [one.id in traffic.labels and traffic.labels[one.id].complete for one in traffic.results]
        labelled = np.array(complete, dtype=np.bool_)
        codes = np.array([one.codes for one in traffic.results])
        rows = np.arange(len(codes))
        agree = codes[rows, served.best] == codes[rows, decisions.best]
        same = (answered == decisions.answered) & (agree | ~answered)
        return cls(
            alpha=alpha,
            results=len(traffic),
            labelled=int(labelled.sum()),
            served=Side.of(traffic.artifact.digest, served, answered, table.correct, labelled),
            other=Side.of(other.digest, decisions, decisions.answered, table.correct, labelled),
            same=float(same.mean()),
        )


def shadow(
    monitor: CFCMonitor, other: CalibrationArtifact, *, since: float | None = None
) -> tuple[SideBySide, ...]:
    """What another artifact would have decided on the very draws that were served.

    No model is asked again, and no chain waits: results hold what a decision is made of.

    Args:
        monitor: Watches the artifact that serves.
        other: The other one; it takes as many candidates from the same model and verifier.
        since: Seconds since 1970, from which on results count; by default since the other artifact was made.
            Of results that it was calibrated on, those held out from that count.

    Returns:
        The comparison at every level that both hold and that results were asked for; of labels a
        fair sample counts, and incomplete ones do not.

    Raises:
        InputError: If the other artifact cannot decide on these draws, or there are none.
        OverlapError: If these results calibrated it, and none were held out.
        FingerprintError: If it was calibrated for another model or verifier.
        StoreError: If the database cannot be used.
    """
    _check_parts(monitor.artifact.provenance, other.provenance)
    if since is None:
        since = datetime.fromisoformat(other.created_at).timestamp()
    check_time(since)
    traffic = monitor.traffic(since)
    if traffic.results:
        # All of them count here, labelled or not.
        table = replace(traffic.table(), weights=np.ones(len(traffic)))
        traffic = traffic.take(select_held_out(other, table)[0].ids)
    fair = traffic.labelled(leave_out_incomplete=True).fair(monitor.least_probability)
    judged = {one.id for one in fair.results}
    traffic = replace(traffic, labels={name: one for name, one in traffic.labels.items() if name in judged})
    both = [alpha for alpha in other.alphas if alpha in monitor.artifact.alphas]
    compared = [SideBySide.of(traffic, other, alpha) for alpha in both]
    if not any(compared):
        msg = (
            f"{monitor.name} holds no result since {time_of(since)} at a level that both artifacts hold "
            f"(served are {', '.join(monitor.artifact.alphas)}, the other one holds "
            f"{', '.join(other.alphas)})"
        )
        raise InputError(msg)
    return tuple(one for one in compared if one is not None)


def _check_parts(served: Provenance | None, other: Provenance | None) -> None:
    """Refuse an artifact for another model or verifier; a new version may be why it was made."""
    if served is None or other is None:
        return
    for part in ("generator", "verifier", "answer"):
        ours, theirs = (dict(getattr(one, part) or {}, model_version=None) for one in (served, other))
        if ours != theirs:
            msg = (
                f"the other artifact was calibrated for another {part} ({theirs}) than the one that serves "
                f"({ours}): draws of the one say nothing of the other"
            )
            raise FingerprintError(msg)
