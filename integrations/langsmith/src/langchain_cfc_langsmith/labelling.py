"""Label served candidates by the same rule as collected records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from langchain_core.runnables import RunnableConfig

from langchain_cfc.errors import LabelerError
from langchain_cfc.execution import Steps
from langchain_cfc.labelers import CandidateLabeling, LabelerInput
from langchain_cfc.runnable import ScoredCandidate
from langchain_cfc.sampling import DrawnCandidate


def label_served(
    labelling: CandidateLabeling,
    prompt: Any,
    reference: Any,
    candidates: Sequence[ScoredCandidate],
    config: RunnableConfig,
) -> Steps[list[bool]]:
    """Return the labels of served candidates; a candidate whose text is hidden counts as incorrect.

    Args:
        labelling: Calls the labeler.
        prompt: The served prompt.
        reference: Its reference.
        candidates: The n candidates.
        config: Config of child runs.

    Returns:
        n labels, in the order of the candidates.

    Raises:
        LabelerError: If the labeler fails, or no label of a candidate can be read.
    """
    shown = [one for one in candidates if one.text is not None]
    if not shown:
        return [False] * len(candidates)
    draws = [DrawnCandidate(str(one.text), data=one.data) for one in shown]
    extracted = [one.answer for one in shown if one.answer is not None]
    given = LabelerInput(prompt=prompt, reference=reference, candidates=draws)
    labels = yield from labelling.label_candidates(given, extracted or None, config)
    if None in labels:
        msg = "the labeler could not read a label of this result, so it gets none: label it again"
        raise LabelerError(msg)
    by_slot = {one.slot: label for one, label in zip(shown, labels, strict=True)}
    return [bool(by_slot.get(one.slot)) for one in candidates]
