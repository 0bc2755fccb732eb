"""Progress of a collection, an estimate of what is left, and early warnings about its quality."""

from __future__ import annotations

import heapq
import json
import math
import re
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from langchain_cfc.errors import CFCError
from langchain_cfc.no_answers import describe_unscored
from langchain_cfc.records import Example
from langchain_cfc.sampling import DrawnCandidate
from langchain_cfc.sampling.comparison import simplify_model_name
from langchain_cfc.scoring import compute_auroc
from langchain_cfc.support.json_text import short_repr
from langchain_cfc.support.text import pluralize
from langchain_cfc.support.units import UNITS, Unit
from langchain_cfc_collect.costs import CHARACTERS_PER_TOKEN, Budget, ModelCalls, Stage, Usage, assume_output
from langchain_cfc_collect.stages import Labels
from langchain_cfc_collect.store import Store, StoredPrompt

# Number of answers to show for each label, few enough for people to read.
_MAX_DOUBTFUL_LABELS = 3
# Number of different causes of failures to show while prompts are processed.
_MOST_CAUSES = 10


@dataclass(frozen=True)
class LabelledAnswer:
    """Candidate or claim with its label, its prompt and its reference."""

    prompt: Any
    answer: str  # the extracted answer; the text if there is none
    reference: Any
    correct: bool

    def __str__(self) -> str:
        """Return one line that shows the answer next to its reference."""
        answer, reference = short_repr(self.answer), short_repr(self.reference)
        return f"answer {answer}, reference {reference}, prompt {short_repr(self.prompt)}"


@dataclass
class CollectionStatus:
    """Progress of a collection, with counts, usage and cost.

    Attributes:
        total: Number of prompts in the store.
        failed: Number of failed prompts.
        usage: Usage of models for all prompts.
        unit: What is scored and labelled.
        labelled: Number of finished prompts.
        covered: Number of finished prompts with a correct candidate, or a supported claim.
        candidates: Number of candidates (or claims) labelled wrong or without a readable label, and number
            labelled correct.
        score_sums: Sums of their scores.
        without_claims: Number of finished prompts whose answer has no claims.
        cost: Cost of the usage; None without prices.
        unanswered: Number of announced requests without an answer, which may have been charged: the process
            died, or a connection broke.
        waiting: Description of the batches that the run waits for; None if it waits for none.
        drawn: Number of all candidates that were drawn.
        unscored: Number of these that are no answer, by kind, and of candidates or claims without a verdict
            (`no_verdict`) or a readable label (`no_label`), or without a place in the answer (`not_located`).
        contradicted: What `doubtful_labels` are taken from, by label: score (negative for right ones),
            position and answer.
        labelled_at_start: Number of prompts that were finished when this run started.
        started_at: Start of this run, in `time.monotonic()` seconds.
    """

    total: int
    failed: int
    usage: Usage
    unit: Unit = "answers"
    labelled: int = 0
    covered: int = 0
    candidates: list[int] = field(default_factory=lambda: [0, 0])
    score_sums: list[float] = field(default_factory=lambda: [0.0, 0.0])
    without_claims: int = 0
    cost: float | None = None
    unanswered: int = 0
    waiting: str | None = None
    drawn: int = 0
    unscored: Counter[str] = field(default_factory=Counter)
    contradicted: list[list[tuple[float, int, LabelledAnswer]]] = field(default_factory=lambda: [[], []])
    labelled_at_start: int = 0
    started_at: float = field(default_factory=time.monotonic)

    @classmethod
    def from_store(cls, store: Store) -> CollectionStatus:
        """Return the status of an open store, with the run starting now."""
        status = cls(
            total=sum(store.count_stages().values()),
            failed=len(store.read_failures()),
            usage=store.read_usage(),
            unit=store.unit,
            unanswered=store.track_budget(Budget()).unanswered,
        )
        for prompt in store.read_finished(Stage.DRAWN, messages=False):
            status.add_prompt(prompt)
        status.labelled_at_start = status.labelled
        return status

    @property
    def doubtful_labels(self) -> list[LabelledAnswer]:
        """The labels that the scores contradict most.

        There is at most one per prompt for each label: first the best-scored candidates or claims that are
        labelled wrong, then the worst-scored ones that are labelled right. Either the verifier errs or the
        labeler. People who saw only answers labelled wrong would correct mistakes in one direction, and a
        certificate would be too good.
        """
        return [one for kind in self.contradicted for *_, one in kind]

    @property
    def prompts_per_second(self) -> float:
        """Number of prompts finished per second of this run."""
        return (self.labelled - self.labelled_at_start) / max(time.monotonic() - self.started_at, 1e-9)

    @property
    def no_answers(self) -> Counter[str]:
        """The candidates that are no answer, by kind: blank, cut off, refused and so on."""
        others = ("no_verdict", "no_label", "not_located")
        return Counter({kind: count for kind, count in self.unscored.items() if kind not in others})

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

    def add_prompt(self, prompt: StoredPrompt) -> None:
        """Count everything that one more prompt has."""
        for stage in (Stage.DRAWN, Stage.SCORED, Stage.LABELLED):
            self.add_stage(prompt, stage)

    def add_stage(self, prompt: StoredPrompt, stage: Stage) -> None:
        """Count what a stage, if it is finished, has added to a prompt."""
        draws, scores, labels = prompt.draws or (), prompt.scores, prompt.labels
        if stage is Stage.DRAWN:
            self.drawn += len(draws)
            self.unscored.update(one.no_answer for one in draws if one.no_answer is not None)
        elif scores is not None and stage is Stage.SCORED:
            # Candidates that are no answer, and claims that were not found, have no verdict either.
            known: list[Any] = [one.no_answer for one in draws]
            if prompt.claims is not None:
                known = [None if one.place else "not_located" for one in prompt.claims]
                self.unscored.update(filter(None, known))
            pairs = zip(scores.verdicts, known, strict=True)
            self.unscored.update("no_verdict" for verdict, kind in pairs if verdict is None and kind is None)
        elif scores is not None and labels is not None:
            self.unscored.update("no_label" for one in labels.correct if one is None)
            self._add_labels(prompt, scores.scores, labels)

    def _add_labels(self, prompt: StoredPrompt, scores: Sequence[float], labels: Labels) -> None:
        self.labelled += 1
        self.without_claims += not scores
        self.covered += any(labels.correct)
        for score, label in zip(scores, labels.correct, strict=True):
            self.candidates[bool(label)] += 1
            self.score_sums[bool(label)] += score
        for correct, worst in enumerate(self.contradicted):
            # The best score of a wrong one, or the worst score of a right one, contradicts its label most.
            sign = -1.0 if correct else 1.0
            found = [
                (sign * scores[slot], slot) for slot, one in enumerate(labels.correct) if one is bool(correct)
            ]
            score, slot = min(found, default=(math.inf, 0))
            if found and (len(worst) < _MAX_DOUBTFUL_LABELS or (score, prompt.position) < worst[-1][:2]):
                extracted = labels.answers[slot] if labels.answers else ""
                said = (prompt.claims or prompt.candidates)[slot].text
                answer, example = extracted or str(said), prompt.example
                shown = LabelledAnswer(example.input, answer, example.reference, bool(correct))
                worst[:] = heapq.nsmallest(_MAX_DOUBTFUL_LABELS, [*worst, (score, prompt.position, shown)])


def mask_numbers(cause: str) -> str:
    """Return the cause of a failure without its numbers, which differ between prompts."""
    return re.sub(r"\d+", "#", cause)


def estimate_remaining(
    examples: Iterable[Example],
    status: CollectionStatus | None,
    configuration: Mapping[str, Any],
    budget: Budget,
) -> dict[str, Any]:
    """Estimate the requests, tokens and cost of the prompts of a dataset that are left.

    The estimate scales up the usage of finished prompts, if there are any. Otherwise it assumes a token per
    four characters of a prompt and 250 tokens per candidate, or the generator's limit if it is smaller,
    without verifier and labeler, and the cost is None unless there is exactly one price. `status` is None if
    there is no store yet; the `configuration` is that of an `Executor`.

    Returns plain data: the number of prompts, of requests for their candidates (`draws`), tokens, cost at
    live and at batch prices (None if it is not known), and the number of prompts that the estimate is based
    on.
    """
    sizes = [
        len(one.input if isinstance(one.input, str) else json.dumps(one.input, ensure_ascii=False))
        for one in examples
    ]
    measured, failed = (0, 0) if status is None else (status.labelled, status.failed)
    left = max(0, len(sizes) - measured - failed)
    n = int(configuration["n"])
    requests = left * (1 if configuration["sampling"] == "single_request" else n)
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
        output = assume_output(configuration["generator"])
        calls = [ModelCalls(name, True, round(per_prompt * requests), output * left * n)]
    usage = Usage(tuple(calls))
    has_cost = measured > 0 or len(budget.prices) == 1
    return {
        "prompts": left,
        "draws": requests,
        "input_tokens": sum(one.input_tokens for one in calls),
        "output_tokens": sum(one.output_tokens for one in calls),
        "cost": budget.compute_cost(usage) if has_cost else None,
        "batch_cost": budget.compute_cost(usage, usage) if has_cost else None,
        "measured_on": measured,
    }


# Prompts after which to check for identical candidates and for labels that are never correct; judging whether
# a verifier is informative takes more prompts.
_FIRST_CHECK = 20
_VERIFIER_CHECK = 100
# After so many prompts, the least share of candidates that are no answer (blank, cut off) to report.
_NO_ANSWERS_CHECKS = {1: 1.0, _FIRST_CHECK: 0.1}
# A useless verifier is reported in 99 of 100 collections, an informative one hardly ever.
_CONFIDENCE = 0.99
_CHANCE_AUROC = 0.5


# What a useless verifier leads to.
_CONSEQUENCES: dict[Unit, str] = {
    "answers": "large answer sets and many abstentions",
    "claims": "that most claims are dropped",
}


class EarlyWarnings:
    """Reports early, and each problem once, that a collection will not calibrate well."""

    def __init__(self, n: int, status: CollectionStatus) -> None:
        self._n = n
        self._status = status
        self._words = UNITS[status.unit]
        self._identical = 0
        self._drawn = 0
        self._scores: list[Sequence[float]] = []
        self._correct: list[Sequence[bool]] = []
        self._models: set[str] = set()
        self._failures: Counter[str] = Counter()
        self._no_answers: Counter[str] = Counter()
        self._candidates = 0

    def check_failure(self, error: CFCError) -> Iterator[str]:
        """Yield the cause of a failed prompt the first time, and its count after 10, 100 and so on."""
        cause = f"{type(error).__name__}: {error}"
        kind = mask_numbers(cause)
        self._failures[kind] += 1
        count = self._failures[kind]
        if str(count).strip("0") == "1" and len(self._failures) <= _MOST_CAUSES:
            yield f"{pluralize(count, 'prompt')} failed with {cause}"

    def check_draws(self, draws: Sequence[DrawnCandidate], usage: Usage) -> Iterator[str]:
        """Yield warnings after one more prompt's candidates were drawn."""
        self._drawn += 1
        self._candidates += len(draws)
        self._no_answers.update(one.no_answer for one in draws if one.no_answer is not None)
        self._identical += len({one.text for one in draws}) == 1 and draws[0].no_answer is None
        share = _NO_ANSWERS_CHECKS.get(self._drawn)
        if share is not None and self._no_answers.total() >= share * self._candidates:
            yield " ".join(describe_unscored(self._no_answers, self._candidates))
        if self._drawn == _FIRST_CHECK == self._identical and self._n > 1:
            yield (
                f"all {self._n} candidates were identical for each of the first {_FIRST_CHECK} prompts: "
                "is the temperature 0, or are answers cached? Then agreement says nothing"
            )
        models = {simplify_model_name(one.model) for one in usage.calls if one.drew and one.model}
        if self._models and not models <= self._models:
            new, known = ", ".join(sorted(models - self._models)), ", ".join(sorted(self._models))
            yield (
                f"candidates were drawn by {new}, after {known} before. Unless this is intended, the "
                "records do not represent the model that will serve"
            )
        self._models |= models

    def check_labels(self, prompt: StoredPrompt) -> Iterator[str]:
        """Yield warnings after one more prompt was labelled, which the status counts already."""
        if prompt.scores is None or prompt.labels is None:
            return
        status, scores = self._status, prompt.scores.scores
        correct = list(map(bool, prompt.labels.correct))
        if status.labelled == _FIRST_CHECK and status.covered == 0:
            lines = "".join(f"\n  {one}" for one in status.doubtful_labels)
            yield (
                f"none of the first {_FIRST_CHECK} prompts has a {self._words.correct} {self._words.item}. "
                f"Is the labeler correct, and can the model solve this task at all?{lines}"
            )
        if not scores or len(self._scores) == _VERIFIER_CHECK:  # an answer may have no claims
            return
        if status.unit == "claims":
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
            consequence = _CONSEQUENCES[self._status.unit]
            yield (
                f"the verifier does not detectably separate {self._words.correct} from "
                f"{self._words.wrong} {self._words.item}s ({seen}): expect {consequence}. "
                "Try another verifier, or the mean of several"
            )
