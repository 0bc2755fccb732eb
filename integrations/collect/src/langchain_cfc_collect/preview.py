"""`preview`: measure without labels how far n draws per question agree, and what they cost.

Nothing here is a guarantee. Draws may agree on a mistake; how often they do can only be found out with labels
and `langchain_cfc.calibrate`.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from statistics import fmean
from typing import Any

from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.runnables.config import ContextThreadPoolExecutor
from pydantic import BaseModel, ConfigDict

from langchain_cfc.errors import CFCError, InputError
from langchain_cfc.execution import (
    CallLimits,
    ConcurrencyLimiter,
    Progress,
    Steps,
    apply_limits,
    arun_flow,
)
from langchain_cfc.sampling import Sampler, SamplingName, UsageRecorder, resolve_generator
from langchain_cfc.sampling.usage import add_handler
from langchain_cfc.verifiers.base import CandidateScorer, Verifier, VerifierInput
from langchain_cfc.verifiers.self_consistency import Extractor, SelfConsistency, score_groups

__all__ = ["NO_GUARANTEE", "Cluster", "Preview", "QuestionPreview", "preview"]

NO_GUARANTEE = "Nothing here is a guarantee: agreement is not correctness. Calibrate with labels."


class _Data(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Cluster(_Data):
    """Group of one question's candidates that agree.

    Attributes:
        text: Text of the first candidate in the group, as it was drawn.
        size: Number of candidates in the group.
        score: Mean score of the group, in [0, 1], smaller is better.
    """

    text: str
    size: int
    score: float


class QuestionPreview(_Data):
    """Agreement and scores of one question's n candidates, or the error if the question failed.

    Attributes:
        question: The question.
        clusters: Groups of candidates that agree, largest cluster first, then by draw order.
        agreement: Share of the candidates in the largest cluster; None if the question failed.
        mean_score: Mean score of the candidates, in [0, 1], larger if less sure; None if the question failed.
        error: Why the question failed; None if it did not.
    """

    question: Any
    clusters: tuple[Cluster, ...] = ()
    agreement: float | None = None
    mean_score: float | None = None
    error: str | None = None


class Preview(_Data):
    """Preview of a chain on some questions, without labels and without a guarantee.

    Attributes:
        note: States that nothing here is a guarantee.
        n: Number of candidates per question.
        questions: All questions, those with the largest mean score (least sure) first, failed ones last.
        failed: Number of failed questions.
        unanimous: Share of the other questions on which all candidates agree; None if all failed.
        mean_agreement: Mean share of the largest cluster; None if all failed.
        mean_clusters: Mean number of clusters; None if all failed.
        calls: Number of requests that models answered, for candidates and for the verifier.
        silent_calls: Number of these whose answers did not report tokens.
        input_tokens: Tokens of the other requests.
        output_tokens: Tokens of the answers to the other requests.
    """

    note: str = NO_GUARANTEE
    n: int
    questions: tuple[QuestionPreview, ...]
    failed: int
    unanimous: float | None
    mean_agreement: float | None
    mean_clusters: float | None
    calls: int
    silent_calls: int
    input_tokens: int
    output_tokens: int


def preview(
    generator: Runnable[Any, Any] | Callable[[Any], Any] | str,
    questions: Sequence[Any],
    *,
    n: int = 5,
    verifier: Verifier | None = None,
    answer: Extractor | None = None,
    sampling: SamplingName = "requests",
    max_concurrency: int = 8,
    on_progress: Callable[[], object] | None = None,
) -> Preview:
    """Draw n candidates for each question and measure how far they agree, without any guarantee.

    Args:
        generator: The chat model or chain, or a model's name such as `openai:gpt-4o-mini`.
        questions: Inputs of the generator, one prompt each; at least one.
        n: Number of candidates per question, at least 1.
        verifier: Scores the candidates; `SelfConsistency(answer)` by default. A `SelfConsistency` given here
            also decides which candidates agree: with `entails=`, those with the same meaning.
        answer: Answer extractor, from text to answer, used to form the clusters; None for the whole text.
        sampling: How candidates are drawn, see `CFCRunnable`.
        max_concurrency: Maximum number of concurrent calls of generator and verifier, at least 1.
        on_progress: Called after each question.

    Returns:
        The questions, least sure first, with a summary and what they cost. Failed questions come last, with
        their errors.

    Raises:
        InputError: If there is no question, an argument is out of range, or `answer` is given together with a
            verifier that reads answers itself.
        VerifierError: If the verifier is neither a Runnable nor a function.
    """
    if not isinstance(n, int) or n < 1:  # type: ignore[redundant-expr]  # callers pass anything
        msg = f"n is {n!r}; expected a whole number of candidates, at least 1"
        raise InputError(msg)
    if not questions:
        msg = "there are no questions: pass at least one"
        raise InputError(msg)
    sampler = Sampler(resolve_generator(generator), sampling)
    previewer = _Previewer(sampler, n, verifier, answer)
    limiter = ConcurrencyLimiter(max_concurrency)
    run = partial(asyncio.run, previewer.preview_all(questions, limiter, on_progress))
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        previews = run()
    else:  # as in a notebook, whose running loop a synchronous function cannot use
        with ContextThreadPoolExecutor(1) as thread:
            previews = thread.submit(run).result()
    return _summarize(previews, n, previewer.usage)


class _Previewer:
    """Draws, scores and groups the candidates of questions.

    Attributes:
        usage: Records all requests, of the generator and of the verifier.
    """

    def __init__(self, sampler: Sampler, n: int, verifier: Verifier | None, answer: Extractor | None) -> None:
        if isinstance(verifier, SelfConsistency) and answer is not None:
            msg = "the verifier determines which candidates agree: pass answer= to SelfConsistency instead"
            raise InputError(msg)
        self.usage = UsageRecorder()
        self._sampler = sampler
        self._n = n
        self._agreement = verifier if isinstance(verifier, SelfConsistency) else SelfConsistency(answer)
        # A SelfConsistency scores candidates by their groups, so it need not be called a second time.
        self._scorer = None if verifier is None or verifier is self._agreement else CandidateScorer(verifier)

    async def preview_all(
        self, questions: Sequence[Any], limiter: ConcurrencyLimiter, on_progress: Callable[[], object] | None
    ) -> list[QuestionPreview]:
        """Return the agreement of each question's candidates, or the error."""
        # Limits memory: only a few more questions are in progress than there may be concurrent calls.
        places = asyncio.Semaphore(2 * limiter.size)

        async def preview_one(question: Any) -> QuestionPreview:
            async with places:
                try:
                    found = await arun_flow(self._preview_question(question))
                except CFCError as error:
                    found = QuestionPreview(question=question, error=str(error))
            if on_progress is not None:
                on_progress()
            return found

        with apply_limits(CallLimits(limiter), RunnableConfig()):
            return await asyncio.gather(*map(preview_one, questions))

    def _preview_question(self, question: Any) -> Steps[QuestionPreview]:
        draws = yield from self._sampler.draw_steps(
            question, self._n, RunnableConfig(), Progress(), self.usage
        )
        given = VerifierInput(prompt=question, candidates=draws)
        config = add_handler(RunnableConfig(callbacks=[]), self.usage, "cfc:verifier")
        groups = yield from self._agreement.find_groups(given, config)
        scores: Sequence[float] = score_groups(groups)
        if self._scorer is not None:
            scores = (yield from self._scorer.score(given, config)).scores
        sizes = Counter(group for group in groups if group >= 0)
        clusters = tuple(
            Cluster(
                text=draws[first].text,
                size=size,
                score=fmean(score for score, group in zip(scores, groups, strict=True) if group == first),
            )
            for first, size in sizes.most_common()
        )
        return QuestionPreview(
            question=question,
            clusters=clusters,
            agreement=clusters[0].size / self._n if clusters else 0.0,
            mean_score=fmean(scores),
        )


def _summarize(previews: Sequence[QuestionPreview], n: int, recorder: UsageRecorder) -> Preview:
    ranked = sorted(
        (
            (one.mean_score, one.agreement, one)
            for one in previews
            if one.mean_score is not None and one.agreement is not None
        ),
        key=lambda ranks: (-ranks[0], ranks[1]),
    )
    failed = [one for one in previews if one.error is not None]
    usage = recorder.usage
    return Preview(
        n=n,
        questions=(*(one for _, _, one in ranked), *failed),
        failed=len(failed),
        unanimous=fmean(len(one.clusters) == 1 for _, _, one in ranked) if ranked else None,
        mean_agreement=fmean(agreement for _, agreement, _ in ranked) if ranked else None,
        mean_clusters=fmean(len(one.clusters) for _, _, one in ranked) if ranked else None,
        calls=recorder.answered,
        silent_calls=recorder.silent,
        input_tokens=usage["input_tokens"] if usage else 0,
        output_tokens=usage["output_tokens"] if usage else 0,
    )
