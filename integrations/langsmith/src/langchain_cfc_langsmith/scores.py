"""Scores of a served prompt: its decision and, with labels, whether the promise was kept."""

from __future__ import annotations

import math
from collections.abc import Sequence

from langsmith.evaluation import EvaluationResult

from langchain_cfc import CFCResult


def make_scores(result: CFCResult, correct: Sequence[bool] | None = None) -> list[EvaluationResult]:
    """Return a decision as feedback, without the text of any candidate.

    Args:
        result: The served result.
        correct: Labels of the n candidates, of which only those of accepted candidates are used; None if
            there is no reference.

    Returns:
        - `cfc_answered`, `cfc_abstained`, `cfc_not_certifiable`: 1 or 0; the reason is the comment.
        - `cfc_set_size`: number of candidates in the set.
        - `cfc_threshold`, but for a bot: the threshold, without a score if it is infinite. The value says
          whether it reached the cap; the comment holds all digits.
        - With labels, `cfc_covered`: 1 if the set holds a correct candidate; `cfc_kept_promise`: 1 if it does
          or the prompt is flagged; and if it is answered, `cfc_correct`: 1 if the best answer is correct.
    """
    flagged = result.reason == "not_certifiable"
    accepted = [one.accepted for one in result.candidates]
    scores = [
        _make_binary("cfc_answered", not result.abstained, result.reason),
        _make_binary("cfc_abstained", result.abstained, result.reason),
        _make_binary("cfc_not_certifiable", flagged, result.reason),
        EvaluationResult(key="cfc_set_size", score=sum(accepted)),
    ]
    if result.threshold is not None:
        scores.append(
            EvaluationResult(
                key="cfc_threshold",
                score=result.threshold if math.isfinite(result.threshold) else None,
                value="reached the cap" if flagged else "below the cap",
                # LangSmith rounds scores to four decimals.
                comment=repr(result.threshold),
            )
        )
    if correct is None:
        return scores
    covered = any(inside and right for inside, right in zip(accepted, correct, strict=True))
    scores += [
        _make_binary("cfc_covered", covered, result.reason),
        _make_binary("cfc_kept_promise", covered or flagged, result.reason),
    ]
    if not result.abstained:
        best = min((one for one in result.candidates if one.accepted), key=lambda one: (one.score, one.slot))
        scores.append(_make_binary("cfc_correct", correct[best.slot], result.reason))
    return scores


def _make_binary(key: str, holds: bool, comment: str) -> EvaluationResult:
    return EvaluationResult(key=key, score=int(holds), comment=comment)
