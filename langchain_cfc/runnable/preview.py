"""`preview_answers`: a first look at a chain without labels: where its answers agree, and where they do not.

Agreement is not correctness, and nothing here is a guarantee: a model may be wrong with one voice. It shows,
before anything is labelled, whether there is something to choose from, and which questions to look at first.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from langchain_core.messages.ai import add_usage
from langchain_core.runnables import Runnable, RunnableConfig, ensure_config
from pydantic import BaseModel, ConfigDict

from langchain_cfc.errors import CFCError, InputError
from langchain_cfc.execution import FlowRunnable, Progress, Steps
from langchain_cfc.sampling import Sampler, SamplingName, UsageRecorder
from langchain_cfc.sampling.usage import add_handler
from langchain_cfc.verifiers import SelfConsistency, Verifier, VerifierInput
from langchain_cfc.verifiers.base import CandidateScorer


class _Data(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class AnswerCluster(_Data):
    """Candidates of one question that give the same answer.

    Attributes:
        answer: Text of the first of them.
        count: How many there are, 1 ... n.
        score: Smallest verifier score among them, in [0, 1], smaller is better.
    """

    answer: str
    count: int
    score: float


class PreviewedQuestion(_Data):
    """A question, and what the chain answers to it.

    Attributes:
        question: The question.
        clusters: Its distinct answers, those given most often first; empty where it failed.
        agreement: Share of the n candidates that give the most frequent answer, in [1/n, 1]; None where it
            failed.
        entropy: Entropy of the distribution over distinct answers in nats, 0 where all agree (discrete
            semantic entropy, Farquhar et al. 2024, where an `equivalent` judge makes the clusters); None
            where it failed.
        usage: Tokens of the draws and the verifier as far as models state them.
        error: Why it failed; None where it did not.
    """

    question: str
    clusters: tuple[AnswerCluster, ...] = ()
    agreement: float | None = None
    entropy: float | None = None
    usage: dict[str, Any] | None = None
    error: str | None = None


class Preview(_Data):
    """What a chain answers to questions without labels. It guarantees nothing.

    Attributes:
        n: Number of candidates drawn for each question.
        questions: The questions, those with the least agreement first, failed ones last.
        usage: Tokens of all questions as far as models state them.
    """

    n: int
    questions: tuple[PreviewedQuestion, ...]
    usage: dict[str, Any] | None

    @property
    def answered(self) -> tuple[PreviewedQuestion, ...]:
        """The questions that did not fail."""
        return tuple(one for one in self.questions if one.error is None)

    @property
    def unanimous_rate(self) -> float:
        """Share of the answered questions on which all candidates agree, in [0, 1]; 0 without any."""
        return sum(len(one.clusters) == 1 for one in self.answered) / max(len(self.answered), 1)

    @property
    def mean_distinct_answers(self) -> float:
        """Mean number of distinct answers to a question; 0 where all failed."""
        return sum(len(one.clusters) for one in self.answered) / max(len(self.answered), 1)


class _PreviewChain(FlowRunnable[str, PreviewedQuestion]):
    """Draws and scores the candidates of one question, and counts its answers."""

    def __init__(
        self, sampler: Sampler, n: int, agreement: SelfConsistency, verifier: Verifier | None
    ) -> None:
        self.name = "preview"
        self._sampler, self._n, self._agreement = sampler, n, agreement
        self._scorer = None if verifier is None else CandidateScorer(verifier)

    def flow(self, given: str, config: RunnableConfig) -> Steps[PreviewedQuestion]:
        """Preview one question."""
        drawing, judging = UsageRecorder(), UsageRecorder()
        draws = yield from self._sampler.draw_steps(given, self._n, config, Progress(), drawing)
        drawn = VerifierInput(prompt=given, candidates=draws)
        watched = add_handler(config, judging)
        groups = yield from self._agreement.group_candidates(drawn, watched)
        counts = Counter(groups)
        if self._scorer is None:
            scores: Sequence[float] = [(len(groups) - counts[group]) / len(groups) for group in groups]
        else:
            scores = (yield from self._scorer.score(drawn, watched)).scores
        clusters = [
            AnswerCluster(
                answer=draws[groups.index(group)].text,
                count=count,
                score=min(score for score, own in zip(scores, groups, strict=True) if own == group),
            )
            for group, count in counts.most_common()
        ]
        shares = [one.count / len(groups) for one in clusters]
        usage = add_usage(drawing.usage, judging.usage) if drawing.usage or judging.usage else None
        return PreviewedQuestion(
            question=given,
            clusters=tuple(clusters),
            agreement=shares[0],
            entropy=max(0.0, -sum(share * math.log(share) for share in shares)),
            usage=None if usage is None else dict(usage),
        )


def preview_answers(
    generator: Runnable[Any, Any],
    questions: Sequence[str],
    *,
    n: int = 5,
    verifier: Verifier | None = None,
    answer: Runnable[Any, Any] | Callable[[str], str] | None = None,
    sampling: SamplingName = "requests",
    config: RunnableConfig | None = None,
    on_progress: Callable[[int], None] | None = None,
) -> Preview:
    """Ask a chain every question n times, and show where its answers agree; no labels are needed.

    Args:
        generator: The chat model or chain.
        questions: The questions, at least one.
        n: Number of candidates for each question, at least 2.
        verifier: Scores the candidates; agreement itself is the score if left out. A `SelfConsistency` also
            says which answers are the same, for instance by a judge (`equivalent=`).
        answer: Text to the answer that is compared; the whole text if left out.
        sampling: As in `CFCRunnable`.
        config: LangChain config; `max_concurrency` bounds the questions at once.
        on_progress: Called with the number of questions that are done.

    Returns:
        The preview. A question that fails has an `error`, and does not stop the others.

    Raises:
        InputError: If there is no question, n is below 2, or `answer` is given beside a `SelfConsistency`.
    """
    if not questions or n < 2:  # noqa: PLR2004 - one candidate cannot disagree
        msg = f"a preview takes at least one question and n = 2 candidates, got {len(questions)} and n = {n}"
        raise InputError(msg)
    agreement = verifier if isinstance(verifier, SelfConsistency) else SelfConsistency(answer=answer)
    if agreement is verifier and answer is not None:
        msg = "answer: the SelfConsistency given as verifier has an extractor of its own, so leave it out"
        raise InputError(msg)
    chain = _PreviewChain(
        Sampler(generator, sampling), n, agreement, None if agreement is verifier else verifier
    )
    found: dict[int, PreviewedQuestion] = {}
    for index, outcome in chain.batch_as_completed(
        list(questions), ensure_config(config), return_exceptions=True
    ):
        if isinstance(outcome, CFCError):
            found[index] = PreviewedQuestion(question=questions[index], error=str(outcome))
        elif isinstance(outcome, Exception):
            raise outcome
        else:
            found[index] = outcome
        if on_progress is not None:
            on_progress(len(found))
    ordered = [found[index] for index in range(len(questions))]
    ordered.sort(key=lambda one: (one.error is not None, one.agreement or 0.0, -(one.entropy or 0.0)))
    usage: Any = None
    for one in ordered:
        usage = add_usage(usage, one.usage) if one.usage else usage  # type: ignore[arg-type]  # its own dump
    return Preview(n=n, questions=tuple(ordered), usage=None if usage is None else dict(usage))
