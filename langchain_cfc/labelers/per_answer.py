"""`Labelling`: one label for each distinct answer, offline, whoever wants the labels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

from langchain_core.runnables import RunnableConfig

from langchain_cfc.calls import Steps, tagged
from langchain_cfc.labelers.base import Labeler, LabelerInput, checked_labels, labeler_call
from langchain_cfc.sampling import Draw

Reads: TypeAlias = Literal["answer", "text"]


class Labelling:
    """Asks a labeler about the candidates of a prompt.

    Candidates of one answer have one label: otherwise a set of distinct answers could not say what it holds.

    Args:
        labeler: The labeler.
        reads: What it is shown where there is an answer extractor: each distinct `answer` as if it were the
            text, or the whole `text` of the first candidate that gives it.

    Raises:
        LabelerError: If it is no labeler.
    """

    def __init__(self, labeler: Labeler, reads: Reads = "answer") -> None:
        self._call = labeler_call(labeler)
        self._reads = reads

    def labels(
        self, given: LabelerInput, answers: Sequence[str] | None, config: RunnableConfig
    ) -> Steps[list[bool]]:
        """Whether each candidate is correct.

        Args:
            given: Prompt, reference and all candidates.
            answers: Their answers; None without an extractor.
            config: Config of child runs.

        Returns:
            One label per candidate.

        Raises:
            LabelerError: If the labeler fails, or returns anything but one boolean for each that it is shown.
        """
        shown, places = self._shown(given["candidates"], answers)
        asked: LabelerInput = {**given, "candidates": shown}
        found = yield from self._call.one(asked, tagged(config, "cfc:labeler"))
        labels = checked_labels(found, len(shown))
        return [labels[place] for place in places]

    def _shown(self, draws: Sequence[Draw], answers: Sequence[str] | None) -> tuple[list[Draw], list[int]]:
        """What the labeler sees, and for each candidate the place of its own in that."""
        if answers is None:
            return list(draws), list(range(len(draws)))
        distinct = list(dict.fromkeys(answers))
        if self._reads == "answer":
            shown = [Draw(answer) for answer in distinct]
        else:
            shown = [draws[answers.index(answer)] for answer in distinct]
        return shown, [distinct.index(answer) for answer in answers]
