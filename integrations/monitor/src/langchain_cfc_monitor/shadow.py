"""Compare two artifacts on the same draws: what each decides, and how often it is right."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING

import numpy as np

from langchain_cfc.artifact import CalibrationArtifact, Promise, select_held_out
from langchain_cfc.decision import AnswerSets, decide
from langchain_cfc.errors import FingerprintError, InputError
from langchain_cfc.features import name_records_in_errors
from langchain_cfc.records import Provenance
from langchain_cfc.support.arrays import BoolArray
from langchain_cfc_monitor.observed import FLAGGED, Data, format_time
from langchain_cfc_monitor.traffic import Traffic, check_time

if TYPE_CHECKING:
    from typing_extensions import Self

    from langchain_cfc_monitor.monitor import CFCMonitor


class ShadowSide(Data):
    """Summary of what one artifact decided on the results.

    Attributes:
        artifact: Its digest.
        answered: Share of results that it answers.
        flagged: Share of results that it flags as not certifiable.
        candidates: Mean number of candidates in a set.
        answers: Mean number of distinct answers in a set.
        kept: Share of the labelled results whose set holds a correct answer or is flagged; None without
            labels.
        wrong: Share of the labelled and answered results whose best answer is wrong; None without any.
    """

    artifact: str
    answered: float
    flagged: float
    candidates: float
    answers: float
    kept: float | None
    wrong: float | None

    @classmethod
    def compute(
        cls, artifact: str, sets: AnswerSets, answered: BoolArray, correct: BoolArray, labelled: BoolArray
    ) -> Self:
        """Compute the summary of an artifact, given by its digest, for N results.

        `answered` (N,) says which results it answers, `correct` (N, n) which candidates are correct, and
        `labelled` (N,) for which results that is known.
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


class ShadowComparison(Data):
    """Comparison of two artifacts on the same draws.

    Attributes:
        alpha: Error level of the other artifact's sets.
        max_wrong_rate: Certified wrong-answer rate of both; None if sets are served.
        results: Number of results.
        labelled: Number of those with complete labels.
        served: What the serving artifact decided.
        other: What the other one would have decided.
        same: Share of results with the same decision: the same best answer, or none.
    """

    alpha: str
    max_wrong_rate: str | None
    results: int
    labelled: int
    served: ShadowSide
    other: ShadowSide
    same: float

    @classmethod
    def compute(
        cls, traffic: Traffic, other: CalibrationArtifact, promise: Promise
    ) -> ShadowComparison | None:
        """Compare what was served under a promise with what another artifact decides on the same draws.

        The other artifact decides under its own `promise`, of the same rate or level. All labels are used, so
        they should be a fair sample (`Traffic.select_sampled`). Returns None without results.
        """
        traffic = traffic.select_promise(promise)
        alpha, rate = promise.level, promise.max_wrong_rate
        if not traffic.results:
            return None
        table = traffic.to_batch_for(other)
        served = AnswerSets(
            traffic.to_batch().draws,
            np.array([one.accepted for one in traffic.results]),
            np.array([one.outcome == FLAGGED for one in traffic.results]),
        )
        withheld = np.array([one.withheld for one in traffic.results])
        answered = np.asarray(served.accepted.any(axis=1) & ~withheld, dtype=np.bool_)
        cut = None if rate is None else other.certified_bot.find_certificate(rate).cut
        with name_records_in_errors(table.ids):
            decisions = decide(other, table.draws, alpha, cut=cut)
        complete = [
            one.id in traffic.labels and traffic.labels[one.id].is_complete for one in traffic.results
        ]
        labelled = np.array(complete, dtype=np.bool_)
        codes = np.array([one.codes for one in traffic.results])
        rows = np.arange(len(codes))
        agree = codes[rows, served.best] == codes[rows, decisions.best]
        same = (answered == decisions.answered) & (agree | ~answered)
        return cls(
            alpha=alpha,
            max_wrong_rate=rate,
            results=len(traffic),
            labelled=int(labelled.sum()),
            served=ShadowSide.compute(traffic.artifact.digest, served, answered, table.correct, labelled),
            other=ShadowSide.compute(other.digest, decisions, decisions.answered, table.correct, labelled),
            same=float(same.mean()),
        )


def compare_promises(traffic: Traffic, other: CalibrationArtifact) -> tuple[ShadowComparison, ...]:
    """Compare under every promise that both artifacts hold and results have; see `ShadowComparison`."""
    compared = [ShadowComparison.compute(traffic, other, one) for one in other.promises]
    return tuple(one for one in compared if one is not None)


def compare_in_shadow(
    monitor: CFCMonitor, other: CalibrationArtifact, *, since: float | None = None
) -> tuple[ShadowComparison, ...]:
    """Compare the served decisions with those that another artifact would have made on the same draws.

    No model is called again: stored results hold everything that a decision needs.

    Args:
        monitor: The monitor of the artifact that serves.
        other: The other artifact; it must take as many candidates from the same model and verifier.
        since: Use only results from this time on, in seconds since 1970; by default since the other artifact
            was made. If it was calibrated on such results, only those held out from calibration are used.

    Returns:
        A comparison for every promise that both artifacts hold and results have. It uses a fair sample of the
        complete labels.

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
    traffic = monitor.read_traffic(since)
    if traffic.results:
        # All results count here, labelled or not.
        traffic = traffic.select_ids(select_held_out(other, traffic.to_batch())[0].ids)
    sampled = traffic.select_labelled(leave_out_incomplete=True).select_sampled(monitor.least_probability)
    judged = {one.id for one in sampled.results}
    traffic = replace(traffic, labels={name: one for name, one in traffic.labels.items() if name in judged})
    compared = compare_promises(traffic, other)
    if not compared:
        msg = (
            f"{monitor.name} holds no result since {format_time(since)} under a promise of both artifacts "
            f"(served: {_list_promises(monitor.artifact)}; other: {_list_promises(other)})"
        )
        raise InputError(msg)
    return compared


def _list_promises(artifact: CalibrationArtifact) -> str:
    return ", ".join("=".join(one) for one in artifact.promises)


def _check_parts(served: Provenance | None, other: Provenance | None) -> None:
    """Raise a FingerprintError for another model, verifier or extractor; versions of a model may differ."""
    if served is None or other is None:
        return
    for part in ("generator", "verifier", "answer"):
        ours, theirs = (dict(getattr(one, part) or {}, model_version=None) for one in (served, other))
        if ours != theirs:
            msg = (
                f"the other artifact was calibrated for another {part} ({theirs}) than the one that serves "
                f"({ours}): draws of one say nothing about the other"
            )
            raise FingerprintError(msg)
