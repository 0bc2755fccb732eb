"""Progress of a collection, an estimate of what is left, and early warnings about its quality."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from langchain_cfc.candidates import Unit
from langchain_cfc.records import Example
from langchain_cfc.sampling import SamplingName
from langchain_cfc.scoring import compute_auroc
from langchain_cfc_collect.costs import ASSUMED_OUTPUT, CHARACTERS_PER_TOKEN, Budget, ModelCalls, Stage, Usage
from langchain_cfc_collect.store import Store
from langchain_cfc_collect.store.summary import MAX_DOUBTFUL_LABELS, LabelledAnswer, summarize_store


@dataclass
class CollectionStatus:
    """Progress of a collection, with counts, usage and cost.

    Attributes:
        total: Number of prompts in the store.
        labelled: Number of finished prompts.
        failed: Number of failed prompts.
        covered: Number of finished prompts with a correct candidate, or a supported claim.
        candidates: Number of candidates (or claims) labelled wrong, and number labelled correct.
        score_sums: Sum of the scores of wrong candidates (or claims), and of correct ones.
        usage: Usage of models for all prompts.
        unit: What is scored and labelled.
        without_claims: Number of finished prompts whose answer has no claims.
        cost: Cost of the usage; None without prices.
        unanswered: Number of announced requests without an answer, which may have been charged: the process
            died, or a connection broke.
        waiting: Description of the batches that the run waits for; None if it waits for none.
        labelled_at_start: Number of prompts that were finished when this run started.
        started_at: Start of this run, in `time.monotonic()` seconds.
    """

    total: int
    labelled: int
    failed: int
    covered: int
    candidates: list[int]
    score_sums: list[float]
    usage: Usage
    unit: Unit = "answers"
    without_claims: int = 0
    cost: float | None = None
    unanswered: int = 0
    waiting: str | None = None
    labelled_at_start: int = 0
    started_at: float = field(default_factory=time.monotonic)

    @classmethod
    def from_store(cls, store: Store) -> CollectionStatus:
        """Return the status of an open store, with the run starting now."""
        stages, found = store.count_stages(), summarize_store(store)
        finished = stages[Stage.LABELLED]
        return cls(
            total=sum(stages.values()),
            labelled=finished,
            failed=len(store.read_failures()),
            covered=found.covered,
            candidates=found.counts,
            score_sums=found.score_sums,
            usage=store.read_usage(),
            unit=store.unit,
            without_claims=found.without_claims,
            unanswered=sum(store.read_request_history().unanswered.values()),
            labelled_at_start=finished,
        )

    @property
    def prompts_per_second(self) -> float:
        """Number of prompts finished per second of this run."""
        return (self.labelled - self.labelled_at_start) / max(time.monotonic() - self.started_at, 1e-9)

    @property
    def remaining(self) -> int:
        """Number of prompts that are neither finished nor failed."""
        return self.total - self.labelled - self.failed

    @property
    def coverage(self) -> float | None:
        """Share of finished prompts with a correct candidate (pass@n); None if none is finished."""
        return self.covered / self.labelled if self.labelled else None

    @property
    def supported(self) -> float | None:
        """Share of the claims that are labelled supported; None if there are no claims."""
        return self.candidates[True] / sum(self.candidates) if sum(self.candidates) else None

    @property
    def mean_scores(self) -> tuple[float | None, float | None]:
        """Mean score of wrong candidates, and of correct ones; None for a label without candidates."""
        wrong, correct = (
            total / count if count else None
            for count, total in zip(self.candidates, self.score_sums, strict=True)
        )
        return wrong, correct

    def add_prompt(self, scores: Sequence[float], correct: Sequence[bool]) -> None:
        """Count one more finished prompt, with the scores and labels of its candidates or claims."""
        self.labelled += 1
        self.without_claims += not scores
        self.covered += any(correct)
        for score, label in zip(scores, correct, strict=True):
            self.candidates[label] += 1
            self.score_sums[label] += score


@dataclass(frozen=True)
class Estimate:
    """Estimate of the remaining prompts, requests, tokens and cost."""

    prompts: int  # number of prompts that are neither finished nor failed
    draws: int  # number of requests for their candidates, if each succeeds at the first attempt
    input_tokens: int  # tokens of the requests
    output_tokens: int  # tokens of the answers
    cost: float | None  # cost of these tokens; None if it is not known
    batch_cost: float | None  # the same at batch prices
    # Number of finished prompts that the estimate is based on, with verifier and labeler; 0 for a rough guess
    # of the draws alone
    measured_on: int


def estimate_remaining(
    examples: Iterable[Example],
    status: CollectionStatus | None,
    *,
    n: int,
    sampling: SamplingName,
    budget: Budget,
) -> Estimate:
    """Estimate the requests, tokens and cost of the prompts of a dataset that are left.

    The estimate scales up the usage of finished prompts, if there are any. Otherwise it assumes a token per
    four characters of a prompt and `ASSUMED_OUTPUT` tokens per candidate, without verifier and labeler, and
    the cost is None unless there is exactly one price. `status` is None if there is no store yet.
    """
    sizes = [
        len(one.input if isinstance(one.input, str) else json.dumps(one.input, ensure_ascii=False))
        for one in examples
    ]
    measured, failed = (0, 0) if status is None else (status.labelled, status.failed)
    left = max(0, len(sizes) - measured - failed)
    requests = left * (1 if sampling == "single_request" else n)
    if status is not None and measured:
        share = left / measured
        calls = [
            replace(
                one,
                input_tokens=round(one.input_tokens * share),
                output_tokens=round(one.output_tokens * share),
            )
            for one in status.usage.calls
        ]
    else:
        per_prompt = sum(sizes) / len(sizes) / CHARACTERS_PER_TOKEN if sizes else 0.0
        # The model's name is not known yet, but a single price applies to any model.
        name = next(iter(budget.prices)) if len(budget.prices) == 1 else ""
        calls = [ModelCalls(name, True, round(per_prompt * requests), ASSUMED_OUTPUT * left * n)]
    usage = Usage(tuple(calls))
    has_cost = measured > 0 or len(budget.prices) == 1
    return Estimate(
        prompts=left,
        draws=requests,
        input_tokens=sum(one.input_tokens for one in calls),
        output_tokens=sum(one.output_tokens for one in calls),
        cost=budget.compute_cost(usage) if has_cost else None,
        batch_cost=budget.compute_cost(usage, usage) if has_cost else None,
        measured_on=measured,
    )


# Prompts after which to check for identical candidates and for labels that are never correct; judging whether
# a verifier is informative takes more prompts.
_FIRST_CHECK = 20
_VERIFIER_CHECK = 100
# A useless verifier is reported in 99 of 100 collections, an informative one hardly ever.
_CONFIDENCE = 0.99
_CHANCE_AUROC = 0.5


# By unit: its name, its two labels, and the consequence of a useless verifier.
_WORDS_BY_UNIT: dict[Unit, tuple[str, str, str, str]] = {
    "answers": ("candidate", "correct", "wrong", "large answer sets and many abstentions"),
    "claims": ("claim", "supported", "unsupported", "that most claims are dropped"),
}


class EarlyWarnings:
    """Reports early, and each problem once, that a collection will not calibrate well."""

    def __init__(self, n: int, unit: Unit) -> None:
        self._n = n
        self._unit = unit
        self._noun, self._right, self._wrong, self._consequence = _WORDS_BY_UNIT[unit]
        self._identical = 0
        self._drawn = 0
        self._scores: list[Sequence[float]] = []
        self._correct: list[Sequence[bool]] = []
        self._models: set[str] = set()
        self._examples: list[LabelledAnswer] = []

    def check_draws(self, texts: Sequence[str], usage: Usage) -> Iterator[str]:
        """Yield warnings after one more prompt's candidates were drawn."""
        self._drawn += 1
        self._identical += len(set(texts)) == 1
        if self._drawn == _FIRST_CHECK == self._identical and self._n > 1:
            yield (
                f"all {self._n} candidates were identical for each of the first {_FIRST_CHECK} prompts: "
                "is the temperature 0, or are answers cached? Every set would hold a single answer"
            )
        models = {one.model for one in usage.calls if one.drew and one.model}
        if self._models and not models <= self._models:
            new, known = ", ".join(sorted(models - self._models)), ", ".join(sorted(self._models))
            yield (
                f"candidates were drawn by {new}, after {known} before. Unless this is intended, the "
                "records do not represent the model that will serve"
            )
        self._models |= models

    def check_labels(
        self,
        status: CollectionStatus,
        example: Example,
        answers: Sequence[str],
        scores: Sequence[float],
        correct: Sequence[bool],
    ) -> Iterator[str]:
        """Yield warnings after one more prompt was labelled, which `status` counts already."""
        # An answer may have no claims.
        if scores and status.covered == 0 and len(self._examples) < MAX_DOUBTFUL_LABELS:
            best = min(range(len(scores)), key=scores.__getitem__)
            self._examples.append(LabelledAnswer(example.input, answers[best], example.reference, False))
        if status.labelled == _FIRST_CHECK and status.covered == 0:
            lines = "".join(f"\n  {one}" for one in self._examples)
            yield (
                f"none of the first {_FIRST_CHECK} prompts has a {self._right} {self._noun}. Is the labeler "
                f"correct, and can the model solve this task at all?{lines}"
            )
        if not scores or len(self._scores) == _VERIFIER_CHECK:
            return
        if self._unit == "claims":
            # Answers differ in their number of claims, so take one claim of each, in rotating slots.
            slot = len(self._scores) % len(scores)
            scores, correct = [scores[slot]], [correct[slot]]
        self._scores.append(scores)
        self._correct.append(correct)
        if len(self._scores) == _VERIFIER_CHECK:
            yield from self._check_verifier()

    def _check_verifier(self) -> Iterator[str]:
        # Under a draw rule, prompts differ in their number of candidates, so compare the first ones of each.
        least = min(map(len, self._scores))
        scores, correct = (np.array([one[:least] for one in of]) for of in (self._scores, self._correct))
        found = compute_auroc(scores, correct, _CONFIDENCE)
        if found is None or found.low > _CHANCE_AUROC:
            return
        seen = (
            f"AUROC {found.auroc:.3f}, {100 * _CONFIDENCE:g} % interval {found.low:.3f} to {found.high:.3f}, "
            f"over {_VERIFIER_CHECK} prompts"
        )
        if found.high < _CHANCE_AUROC:
            yield (
                f"the scores point the wrong way ({seen}): smaller must be better, so if the verifier "
                "returns a confidence p, use 1 - p"
            )
        else:
            yield (
                f"the verifier does not detectably separate {self._right} from {self._wrong} {self._noun}s "
                f"({seen}): expect {self._consequence}. Try another verifier, or the mean of several"
            )
