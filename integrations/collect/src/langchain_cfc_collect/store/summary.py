"""Summary of a store: labels, scores, what was not judged, and the labels that scores contradict."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from langchain_cfc.support.json_text import short_repr
from langchain_cfc_collect.costs import Stage
from langchain_cfc_collect.store.rows import StoredPrompt
from langchain_cfc_collect.store.store import Store

# Number of answers to show for each label, few enough for people to read.
MAX_DOUBTFUL_LABELS = 3


@dataclass(frozen=True)
class LabelledAnswer:
    """Candidate or claim with its label, its prompt and its reference."""

    prompt: Any
    answer: str  # the extracted answer, if there is an answer extractor; otherwise the text
    reference: Any
    correct: bool

    def __str__(self) -> str:
        """Return one line that shows the answer next to its reference."""
        answer, reference = short_repr(self.answer), short_repr(self.reference)
        return f"answer {answer}, reference {reference}, prompt {short_repr(self.prompt)}"


@dataclass
class StoreSummary:
    """Summary of the drawn prompts of a store.

    Attributes:
        covered: Number of finished prompts with a correct candidate, or a supported claim.
        without_claims: Number of finished prompts whose answer has no claims.
        counts: Number of candidates (or claims) labelled wrong or without a readable label, and labelled
            correct.
        score_sums: Sums of their scores.
        drawn: Number of all drawn candidates.
        unscored: Number of candidates that are no answer, by kind, and of candidates or claims without a
            verdict (`no_verdict`) or a readable label (`no_label`).
        doubtful_labels: The labels that the scores contradict most, at most one per prompt for each label:
            first the best-scored candidates or claims that are labelled wrong, then the worst-scored ones
            that are labelled right. Either the verifier errs or the labeler. People who saw only answers
            labelled wrong would correct mistakes in one direction, and a certificate would be too good.
    """

    covered: int = 0
    without_claims: int = 0
    counts: list[int] = field(default_factory=lambda: [0, 0])
    score_sums: list[float] = field(default_factory=lambda: [0.0, 0.0])
    drawn: int = 0
    unscored: Counter[str] = field(default_factory=Counter)
    doubtful_labels: Sequence[LabelledAnswer] = ()


def summarize_store(store: Store, most: int = MAX_DOUBTFUL_LABELS) -> StoreSummary:
    """Read a store, and summarize it with at most `most` doubtful labels of each kind."""
    found = StoreSummary()
    # By label: score (negative for right ones), position, answer.
    doubtful: list[list[tuple[float, int, LabelledAnswer]]] = [[], []]
    for prompt in store.read_finished(Stage.DRAWN, messages=False):
        _count_prompt(found, prompt)
        for correct in (False, True):
            contradicted = _find_contradicted(prompt, correct=correct)
            doubtful[correct] = heapq.nsmallest(most, [*doubtful[correct], *contradicted])
    found.doubtful_labels = [one for kind in doubtful for *_, one in kind]
    return found


def _count_prompt(found: StoreSummary, prompt: StoredPrompt) -> None:
    kinds = [one.no_answer for one in prompt.draws or ()]
    found.drawn += len(kinds)
    found.unscored.update(kind for kind in kinds if kind is not None)
    if prompt.scores is None:
        return
    # Candidates that are no answer have no verdict either.
    known = kinds if prompt.claims is None else [None] * len(prompt.scores.verdicts)
    pairs = zip(prompt.scores.verdicts, known, strict=True)
    found.unscored.update("no_verdict" for verdict, kind in pairs if verdict is None and kind is None)
    if prompt.labels is None:
        return
    labels = prompt.labels.correct
    found.unscored.update("no_label" for one in labels if one is None)
    found.covered += any(labels)
    found.without_claims += not labels
    for correct, score in zip(labels, prompt.scores.scores, strict=True):
        found.counts[bool(correct)] += 1
        found.score_sums[bool(correct)] += score


def _find_contradicted(prompt: StoredPrompt, *, correct: bool) -> list[tuple[float, int, LabelledAnswer]]:
    """Return the candidate or claim with a label whose score contradicts it most, if there is one."""
    if prompt.scores is None or prompt.labels is None:
        return []
    sign = -1.0 if correct else 1.0
    slots = [slot for slot, label in enumerate(prompt.labels.correct) if label is correct]
    if not slots:
        return []
    slot = min(slots, key=lambda one: sign * prompt.scores.scores[one])  # type: ignore[union-attr]  # as above
    answer = str(prompt.items[slot].text) if prompt.labels.answers is None else prompt.labels.answers[slot]
    example = prompt.example
    known = LabelledAnswer(example.input, answer, example.reference, correct)
    return [(sign * prompt.scores.scores[slot], prompt.position, known)]
