"""`Standing`: how far a collection has come, what it shows, and what should be looked at early."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from langchain_cfc.collect.stages import Stage, Usage
from langchain_cfc.collect.store import Store
from langchain_cfc.scoring import discrimination

# Identical candidates show early; whether a verifier can tell right from wrong takes more prompts.
_IDENTICAL_AFTER = 20
_LOOK_AFTER = 100
# A good verifier is suspected once in a hundred collections if it is as good as useless, hardly ever else.
_CONFIDENCE = 0.99
_NO_INFORMATION = 0.5


@dataclass
class CollectionStatus:
    """How far a collection has come.

    Attributes:
        total: Number of prompts in the store.
        labelled: Number of finished ones.
        failed: Number of those that failed.
        covered: Number of finished ones with a correct candidate.
        candidates: Number of candidates that are labelled wrong, and correct.
        score_sums: Sum of the scores of wrong candidates, and of correct ones.
        spent: What models took, for all prompts.
        cost: The same in money; None without prices.
        unanswered: Number of requests that were announced, and may have been paid for, without an answer
            having been received: the process died, or a connection broke.
        begun_with: How many were finished when this run began.
        begun_at: When that was, in `time.monotonic()` seconds.
    """

    total: int
    labelled: int
    failed: int
    covered: int
    candidates: list[int]
    score_sums: list[float]
    spent: Usage
    cost: float | None = None
    unanswered: int = 0
    begun_with: int = 0
    begun_at: float = field(default_factory=time.monotonic)

    @classmethod
    def of(cls, store: Store) -> CollectionStatus:
        """What a store holds."""
        stages = store.stages()
        covered, by_label = store.seen()
        sums = [by_label.get(label, (0, 0.0)) for label in (False, True)]
        done = stages[Stage.LABELLED]
        return cls(
            total=sum(stages.values()),
            labelled=done,
            failed=len(store.failures()),
            covered=covered,
            candidates=[count for count, _ in sums],
            score_sums=[total for _, total in sums],
            spent=store.paid(),
            unanswered=sum(store.history().unanswered.values()),
            begun_with=done,
        )

    @property
    def per_second(self) -> float:
        """Prompts finished per second of this run."""
        return (self.labelled - self.begun_with) / max(time.monotonic() - self.begun_at, 1e-9)

    @property
    def left(self) -> int:
        """How many prompts are neither finished nor failed."""
        return self.total - self.labelled - self.failed

    @property
    def coverage(self) -> float | None:
        """Share of finished prompts with a correct candidate (pass@n); None without any."""
        return self.covered / self.labelled if self.labelled else None

    @property
    def mean_scores(self) -> tuple[float | None, float | None]:
        """Mean score of wrong candidates, and of correct ones; None without any."""
        wrong, correct = (
            total / count if count else None
            for count, total in zip(self.candidates, self.score_sums, strict=True)
        )
        return wrong, correct

    def add(self, scores: Sequence[float], correct: Sequence[bool]) -> None:
        """Count a prompt that is finished."""
        self.labelled += 1
        self.covered += any(correct)
        for score, label in zip(scores, correct, strict=True):
            self.candidates[label] += 1
            self.score_sums[label] += score


@dataclass
class EarlyLook:
    """Finds out soon, and says once, that a collection will not calibrate well.

    Attributes:
        n: Number of candidates per prompt.
    """

    n: int
    _identical: int = 0
    _drawn: int = 0
    _scores: list[Sequence[float]] = field(default_factory=list)
    _correct: list[Sequence[bool]] = field(default_factory=list)
    _versions: set[str] = field(default_factory=set)

    def drawn(self, texts: Sequence[str], paid: Usage) -> Iterator[str]:
        """Look at the candidates of one more prompt.

        Yields:
            What people should know, if there is anything.
        """
        self._drawn += 1
        self._identical += len(set(texts)) == 1
        if self._drawn == _IDENTICAL_AFTER == self._identical and self.n > 1:
            yield (
                f"all {self.n} candidates were identical for each of the first {_IDENTICAL_AFTER} prompts: "
                "is the temperature 0, or does something cache? There is nothing to choose from"
            )
        versions = {one.model for one in paid.calls if one.drew and one.model}
        if self._versions and not versions <= self._versions:
            new, known = ", ".join(sorted(versions - self._versions)), ", ".join(sorted(self._versions))
            yield (
                f"another model drew than before: {new}, after {known}. If that was not meant to be, the "
                "records are no sample of what will serve"
            )
        self._versions |= versions

    def labelled(
        self, standing: CollectionStatus, scores: Sequence[float], correct: Sequence[bool]
    ) -> Iterator[str]:
        """Look at the scores and labels of one more prompt.

        Args:
            standing: With this prompt counted.
            scores: n scores.
            correct: n labels.

        Yields:
            What people should know, if there is anything.
        """
        if standing.labelled == _LOOK_AFTER and standing.covered == 0:
            yield (
                f"none of the first {_LOOK_AFTER} prompts has a correct candidate: look at the labeler and "
                "the references (an export shows both), and at whether the model can do this at all"
            )
        if len(self._scores) == _LOOK_AFTER:
            return
        self._scores.append(scores)
        self._correct.append(correct)
        if len(self._scores) == _LOOK_AFTER:
            yield from self._verifier()

    def _verifier(self) -> Iterator[str]:
        found = discrimination(np.array(self._scores), np.array(self._correct), _CONFIDENCE)
        if found is None or found.low > _NO_INFORMATION:
            return
        seen = (
            f"AUROC {found.auroc:.3f}, {100 * _CONFIDENCE:g} % interval {found.low:.3f} to {found.high:.3f}, "
            f"over {_LOOK_AFTER} prompts"
        )
        if found.high < _NO_INFORMATION:
            yield (
                f"the scores point the wrong way ({seen}): smaller must be better, so if the verifier speaks "
                "in confidence p, use 1 - p"
            )
        else:
            yield (
                f"the verifier does not tell correct from wrong candidates, as far as can be seen ({seen}): "
                "answer sets will be large and abstentions many. Try another, or combine several"
            )
