"""Labels of served candidates, by the rule that collected records follow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from langchain_core.runnables import RunnableConfig

from langchain_cfc.extend import DrawnCandidate, Steps
from langchain_cfc.labelers import CandidateLabeling, LabelerInput
from langchain_cfc.runnable import ScoredCandidate


def label_served(
    labelling: CandidateLabeling,
    prompt: Any,
    reference: Any,
    candidates: Sequence[ScoredCandidate],
    config: RunnableConfig,
) -> Steps[list[bool]]:
    """Label each served candidate; one whose text a result does not show counts as incorrect.

    Args:
        labelling: Asks the labeler.
        prompt: What was asked.
        reference: The reference.
        candidates: The n candidates.
        config: Config of child runs.

    Returns:
        n labels.

    Raises:
        LabelerError: If the labeler fails.
    """
    shown = [one for one in candidates if one.text is not None]
    if not shown:
        return [False] * len(candidates)
    draws = [DrawnCandidate(str(one.text), data=one.data) for one in shown]
    extracted = [one.answer for one in shown if one.answer is not None]
    given = LabelerInput(prompt=prompt, reference=reference, candidates=draws)
    labels = yield from labelling.label_candidates(given, extracted or None, config)
    by_slot = {one.slot: label for one, label in zip(shown, labels, strict=True)}
    return [by_slot.get(one.slot, False) for one in candidates]
