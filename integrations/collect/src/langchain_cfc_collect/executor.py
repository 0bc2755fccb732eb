"""`LocalExecutor`: draws, scores and labels in this process, with the same code as in serving.

**Retries.** A call is repeated if its failure looks transient (network, overloaded server or rate limit):
status 408, 409, 425, 429 or at least 500, a broken connection, or a time-out. The delay between two calls is
an exponential back-off with full jitter, and at least what the server asks for by `Retry-After`. A refused
key, a malformed request or an error in the user's own code is not retried.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any, Protocol

from langchain_core.load import dumps
from langchain_core.rate_limiters import BaseRateLimiter
from langchain_core.runnables import Runnable, RunnableConfig
from tenacity import AsyncRetrying, RetryCallState, stop_after_attempt, wait_random_exponential

from langchain_cfc.artifact import check_first_wave, has_separate_scores
from langchain_cfc.candidates import Scalar, Unit
from langchain_cfc.claims import ClaimSplitter, SentenceSplitter, Splitter
from langchain_cfc.draw_rules import DrawRule, parse_draw_rule
from langchain_cfc.errors import CFCError, InputError, StoreError
from langchain_cfc.execution import (
    CallLimits,
    ConcurrencyLimiter,
    Progress,
    Steps,
    Target,
    apply_limits,
    arun_flow,
)
from langchain_cfc.labelers import CandidateLabeling, Labeler, LabelerInput, Reads
from langchain_cfc.no_answers import Reasoning
from langchain_cfc.records import Example, Provenance
from langchain_cfc.sampling import DrawnCandidate, Sampler, SamplingName, UsageRecorder, resolve_generator
from langchain_cfc.sampling.candidates import Description
from langchain_cfc.sampling.fingerprints import compute_fingerprint
from langchain_cfc.sampling.usage import add_handler
from langchain_cfc.verifiers import Verifier, VerifierEnsemble, VerifierInput
from langchain_cfc.verifiers.base import CandidateScorer, IncrementalScorer, VerifierScores
from langchain_cfc_collect.costs import Usage
from langchain_cfc_collect.failures import is_transient, may_be_charged, read_retry_after

# Interfaces


@dataclass(frozen=True)
class Labels:
    """Labels of one prompt's n candidates or claims, with the prompt's computed metadata."""

    correct: Sequence[bool | None]  # None: no label could be read
    answers: Sequence[str] | None = None  # n extracted answers; None without an extractor
    metadata: Mapping[str, Scalar] | None = None  # output of the metadata function


@dataclass(frozen=True)
class Outcome:
    """Outcome of running one stage for one prompt.

    Attributes:
        result: `DrawnCandidate`s, the `Span`s of claims, `VerifierScores` or `Labels`; a `CFCError` if the
            stage failed; None if a prompt is left without labels for now.
        usage: Usage of models by the stage.
        scores: Scores of all candidates, if they were drawn by a rule that looks at scores; otherwise None.
    """

    result: Any
    usage: Usage
    scores: VerifierScores | None = None


class Journal:
    """Log of one stage: the candidates drawn, and requests that may have been billed. This one keeps nothing.

    Attributes:
        drawn: Candidates that are already stored, by slot.
        context: Digest of the prepared input that they were drawn for.
    """

    drawn: Mapping[int, DrawnCandidate] = {}
    context: str | None = None

    def resume(self, context: str) -> Mapping[int, DrawnCandidate]:
        """Return the stored candidates that were drawn for the prepared input with this digest."""
        del context
        return {}

    def save_draw(self, slot: int, draw: DrawnCandidate, usage: Usage) -> None:
        """Store a candidate and the usage of the stage so far."""

    def discard_draws(self) -> None:
        """Delete all stored candidates, because the sampler refused them."""

    def announce(self, requests: int) -> None:
        """Record that up to `requests` more requests may follow, for example another wave of draws."""

    def record_lost_request(self) -> None:
        """Record that a request failed although the server may have answered it."""

    async def flush(self) -> None:
        """Wait until everything recorded so far is durable; called before every request."""


class Executor(Protocol):
    """Runs the stages of prompts, in this process or on other machines."""

    @property
    def configuration(self) -> Mapping[str, Any]:
        """Everything that affects records, as plain data: `n`, and the fingerprints of the components."""

    async def draw(self, example: Example, journal: Journal) -> Outcome:
        """Draw n candidates, or as many as a draw rule asks for, without redrawing those in the journal."""

    async def split(self, answer: DrawnCandidate, journal: Journal) -> Outcome:
        """Split the first answer of a prompt into claims; called if `unit` is `claims`."""

    async def score(
        self,
        example: Example,
        draws: Sequence[DrawnCandidate],
        journal: Journal,
        answers: Sequence[DrawnCandidate] | None = None,
    ) -> Outcome:
        """Score the candidates `draws`, which are claims of the first answer if `answers` are given."""

    async def label(self, example: Example, draws: Sequence[DrawnCandidate], journal: Journal) -> Outcome:
        """Label candidates or claims, extract the answers of candidates and compute the prompt's metadata."""


# Rate limits


class TokenRateLimiter(BaseRateLimiter):
    """Rate limiter for tokens per second.

    The tokens of a call are known only afterwards. So each call is first charged the mean of the settled
    calls before it, and `settle` corrects the charge. The rate holds over any period, except for calls in
    flight.

    Args:
        tokens_per_second: Tokens per second, prompts and answers together, above 0.
    """

    def __init__(self, tokens_per_second: float) -> None:
        self._tokens_per_second = tokens_per_second
        self._free_at = time.monotonic()
        self._settled = _TokenCount()
        self._charged = _TokenCount()
        self._lock = threading.Lock()

    def acquire(self, *, blocking: bool = True) -> bool:
        """Wait in a thread until a call may start; return False instead of waiting if not `blocking`."""
        wait = self._reserve(blocking=blocking)
        if wait is None:
            return False
        time.sleep(wait)
        return True

    async def aacquire(self, *, blocking: bool = True) -> bool:
        """Wait on an event loop until a call may start; otherwise the same as `acquire`."""
        wait = self._reserve(blocking=blocking)
        if wait is None:
            return False
        await asyncio.sleep(wait)
        return True

    def settle(self, calls: int, tokens: int) -> None:
        """Replace the charge of finished calls by the total number of tokens that they used.

        `calls` includes calls that failed or asked no model, because they were charged too.
        """
        with self._lock:
            charged = min(calls, self._charged.calls) * self._charged.mean
            self._charged.add(-min(calls, self._charged.calls), -charged)
            self._settled.add(calls, tokens)
            self._free_at += (tokens - charged) / self._tokens_per_second

    def _reserve(self, *, blocking: bool) -> float | None:
        """Reserve a call and return the seconds until it may start; None if not `blocking` and not free."""
        with self._lock:
            now = time.monotonic()
            wait = max(0.0, self._free_at - now)
            if wait > 0 and not blocking:
                return None
            charge = self._settled.mean
            self._charged.add(1, charge)
            self._free_at = max(now, self._free_at) + charge / self._tokens_per_second
            return wait


@dataclass
class _TokenCount:
    """Number of calls and their total number of tokens."""

    calls: int = 0
    tokens: float = 0.0

    @property
    def mean(self) -> float:
        return self.tokens / self.calls if self.calls else 0.0

    def add(self, calls: int, tokens: float) -> None:
        self.calls += calls
        self.tokens += tokens


# Retries


@dataclass(frozen=True)
class RetryPolicy:
    """Retries, time limit and rate limits of calls.

    Args:
        max_attempts: Maximum number of times that a call with a transient failure is made, at least 1.
        timeout: Seconds that one call may take; None for no limit.
        rate_limiters: Rate limiters that each call waits for.
        initial_wait: Maximum seconds between the first and the second call; it doubles from there.
        max_wait: Maximum seconds between two calls, even if the server asks for more: a server that asks for
            an hour is down, and no call should hold up its prompt that long.
    """

    max_attempts: int = 5
    timeout: float | None = None
    rate_limiters: tuple[BaseRateLimiter, ...] = ()
    initial_wait: float = 1.0
    max_wait: float = 120.0

    def compute_wait_seconds(self, state: RetryCallState) -> float:
        """Return the seconds to wait before the next call."""
        requested = read_retry_after(_get_last_outcome(state))
        backoff = wait_random_exponential(multiplier=self.initial_wait, max=self.max_wait)(state)
        return min(backoff if requested is None else max(requested, backoff), self.max_wait)


class StageCalls:
    """Makes the calls of one stage of a prompt, with the retries and limits of a policy.

    Each call waits until the journal of the stage is durable. Tokens are settled for all calls together.
    """

    def __init__(self, policy: RetryPolicy, journal: Journal) -> None:
        self._policy = policy
        self._journal = journal
        self._unsettled = 0

    def settle(self, tokens: int) -> None:
        """Settle all calls so far with the total number of tokens that they used."""
        for limiter in self._policy.rate_limiters:
            if isinstance(limiter, TokenRateLimiter):
                limiter.settle(self._unsettled, tokens)
        self._unsettled = 0

    async def acall(self, arun: Callable[[Any], Awaitable[Any]], item: Any, within: CallLimits) -> Any:
        """Call, and retry transient failures; return the last call's result, or its exception."""
        first = await self._call_once(arun, item, within)
        if not is_transient(first):
            # Skip tenacity, whose set-up can take longer than the call.
            return first
        outcomes = [first]

        async def call() -> Any:
            return outcomes.pop() if outcomes else await self._call_once(arun, item, within)

        retrying = AsyncRetrying(
            stop=stop_after_attempt(self._policy.max_attempts),
            wait=self._policy.compute_wait_seconds,
            retry=_should_retry,
            retry_error_callback=_get_last_outcome,
        )
        return await retrying(call)

    async def _call_once(self, arun: Callable[[Any], Awaitable[Any]], item: Any, within: CallLimits) -> Any:
        timeout = self._policy.timeout
        with await within.aacquire_permit():
            for limiter in self._policy.rate_limiters:
                await limiter.aacquire()
            self._unsettled += 1
            await self._journal.flush()
            try:
                if timeout is None:
                    return await arun(item)
                return await _run_with_timeout(arun(item), timeout)
            except asyncio.TimeoutError as error:
                # The time-out above has no message, and one raised by the user's code may have none.
                limit = "in time" if timeout is None else f"within {timeout:g} seconds"
                return self._record_failure(error if str(error) else TimeoutError(f"no answer {limit}"))
            except Exception as error:  # noqa: BLE001 - an outcome like any other; the flow looks at it
                return self._record_failure(error)

    def _record_failure(self, error: Exception) -> Exception:
        if may_be_charged(error):
            self._journal.record_lost_request()
        return error


async def _run_with_timeout(call: Awaitable[Any], seconds: float) -> Any:
    if sys.version_info < (3, 11):
        return await asyncio.wait_for(call, seconds)
    # Unlike `wait_for`, this needs no task for each call.
    async with asyncio.timeout(seconds):
        return await call


def _get_last_outcome(state: RetryCallState) -> Any:
    return state.outcome.result() if state.outcome is not None else None


def _should_retry(state: RetryCallState) -> bool:
    # An exception that was raised instead of returned is not the outcome of a call: it ends the flow.
    return state.outcome is not None and not state.outcome.failed and is_transient(state.outcome.result())


# The executor in this process


@dataclass(frozen=True)
class Components:
    """Components that make records: those of `CFCRunnable`, and the labeler.

    Attributes:
        generator: The chat model or chain, or a model's name such as `openai:gpt-4o-mini`.
        verifier: One verifier, or several, whose mean is the `score`: a mapping by name for equal weights, or
            a `VerifierEnsemble`.
        labeler: The labeler of the candidates.
        n: Number of candidates per prompt, at least 1; None with `draws`, which states the maximum.
        unit: `answers` to score and label candidates, or `claims` to score and label the claims of the first
            candidate. The other candidates are then only for verifiers that compare answers.
        splitter: With claims, splits an answer, as in `CFCRunnable`; by default a `SentenceSplitter`.
        answer: Answer extractor, from text to answer; None without one.
        metadata: Metadata function of the prompt, as in serving; None to use only the dataset's metadata.
        draws: A rule that stops drawing, such as `lead(3, at_most=10)`; see `parse_draw_rule`. Fewer
            candidates are drawn, scored and labelled, and only this rule can be calibrated then. An
            extractor that asks a model is called between the waves, and again for the labels.
        sampling: How candidates are drawn, see `CFCRunnable`.
        reasoning: Whether reasoning in candidates' texts is removed, likewise.
        reads: What the labeler is shown if there is an extractor, see `CandidateLabeling`.
        generator_id: Name of the generator in the records, if it cannot name itself.
        verifier_id: Name of the verifier, likewise.
        labeler_id: Name of the labeler, likewise.
        answer_id: Name of the answer extractor, likewise.
        splitter_id: Name of the splitter, likewise.
    """

    generator: Runnable[Any, Any] | Callable[[Any], Any] | str
    verifier: Verifier | VerifierEnsemble | Mapping[str, Verifier]
    labeler: Labeler
    n: int | None = None
    unit: Unit = "answers"
    splitter: Splitter | None = None
    answer: Target | None = None
    metadata: Target | None = None
    draws: str | None = None
    sampling: SamplingName = "requests"
    reasoning: Reasoning = "strip"
    reads: Reads = "answer"
    generator_id: str | None = None
    verifier_id: str | None = None
    labeler_id: str | None = None
    answer_id: str | None = None
    splitter_id: str | None = None


class LocalExecutor:
    """Executor that runs the stages of prompts in this process.

    Args:
        components: The components that draw, score and label.
        limiter: Limits the concurrent calls of all prompts together; None for no limit.
        retry_policy: Retries and limits of calls; None to make each call once, without limits.
        config: LangChain config that all runs inherit, such as callbacks that trace them.
        make_calls: Factory for the object that makes the calls of one stage, from policy and journal.

    Raises:
        InputError: If n is less than 1, the draw rule cannot be used, the generator has a fixed seed, or a
            component does not suit `unit`.
        CFCError: If a component has a wrong type.
    """

    def __init__(
        self,
        components: Components,
        limiter: ConcurrencyLimiter | None = None,
        retry_policy: RetryPolicy | None = None,
        config: RunnableConfig | None = None,
        make_calls: Callable[[RetryPolicy, Any], StageCalls] = StageCalls,
    ) -> None:
        self._make_calls = make_calls
        self._rule = _parse_rule(components)
        n = components.n if self._rule is None else self._rule.at_most
        if not isinstance(n, int) or n < 1:
            msg = f"n is {n!r}; expected a whole number of candidates, at least 1"
            raise InputError(msg)
        generator = resolve_generator(components.generator)
        verifier: Any = components.verifier
        if isinstance(verifier, Mapping):
            verifier = VerifierEnsemble(verifier)
        self._n = n
        self._scorer = CandidateScorer(verifier)
        self._labelling = CandidateLabeling(components.labeler, components.reads)
        splitter = _choose_splitter(components)
        self._splitter = None if splitter is None else ClaimSplitter(splitter)
        self._sampler = Sampler(generator, components.sampling, reasoning=components.reasoning)
        self._description = Description(components.answer, components.metadata)
        self._limiter = limiter
        self._retry_policy = retry_policy
        self._config: RunnableConfig = config or {}
        provenance = Provenance(
            n=n,
            draws=None if self._rule is None else self._rule.text,
            generator=compute_fingerprint(generator, components.generator_id, components.reasoning),
            verifier=compute_fingerprint(verifier, components.verifier_id),
            labeler=compute_fingerprint(components.labeler, components.labeler_id),
            answer=_compute_optional_fingerprint(components.answer, components.answer_id),
            unit=None if splitter is None else "claims",
            splitter=_compute_optional_fingerprint(splitter, components.splitter_id),
        )
        separate = getattr(verifier, "separate_scores", None)
        stated = provenance.model_copy(update={"separate_scores": separate})
        self._scored_separately = bool(has_separate_scores(stated))
        if self._rule is not None:
            check_first_wave(self._rule, stated)
        self._configuration = {
            **provenance.model_dump(exclude={"format", "version"}),
            **({} if separate is None else {"separate_scores": separate}),
            "sampling": components.sampling,
            "reads": components.reads,
            "metadata": _compute_optional_fingerprint(components.metadata),
        }

    @property
    def configuration(self) -> dict[str, Any]:
        """Everything that affects records, as plain data."""
        return self._configuration

    async def draw(self, example: Example, journal: Journal) -> Outcome:
        """Draw n candidates, or as many as a draw rule asks for, without redrawing those in the journal."""
        recorder = UsageRecorder()
        store, rule = _JournalStore(journal, recorder), self._rule
        config = add_handler(self._config, recorder)
        scorer = IncrementalScorer(
            self._scorer,
            self._description,
            example.input,
            config,
            judging=add_handler(self._config, recorder, "cfc:verifier"),
            scored_separately=self._scored_separately,
        )

        def choose_next_wave(draws: list[DrawnCandidate]) -> Steps[int]:
            assert rule is not None  # noqa: S101 - it is called only then
            wave = yield from scorer.choose_next_wave(rule, draws)
            journal.announce(sum(slot not in journal.drawn for slot in range(len(draws), len(draws) + wave)))
            return wave

        def draw() -> Steps[list[DrawnCandidate]]:
            draws = yield from self._sampler.draw_steps(
                example.input,
                self._n if rule is None else rule.first_wave,
                self._config,
                Progress(),
                recorder,
                store=store,
                choose_next_wave=None if rule is None else choose_next_wave,
            )
            if rule is not None and rule.needs_scores:  # the rule does not score the last possible wave
                yield from scorer.score(draws)
            return draws

        outcome = await self._run(draw(), recorder, journal)
        is_scored = rule is not None and rule.needs_scores and not isinstance(outcome.result, CFCError)
        return replace(outcome, scores=scorer.scores) if is_scored else outcome

    async def split(self, answer: DrawnCandidate, journal: Journal) -> Outcome:
        """Split the first answer of a prompt into claims."""
        if self._splitter is None:
            msg = 'these components keep whole answers: split needs unit="claims"'
            raise InputError(msg)
        recorder = UsageRecorder()
        steps = self._splitter.split(answer, add_handler(self._config, recorder))
        return await self._run(steps, recorder, journal)

    async def score(
        self,
        example: Example,
        draws: Sequence[DrawnCandidate],
        journal: Journal,
        answers: Sequence[DrawnCandidate] | None = None,
    ) -> Outcome:
        """Score the candidates `draws`, which are claims of the first answer if `answers` are given."""
        recorder = UsageRecorder()
        given = VerifierInput(prompt=example.input, candidates=list(draws))
        if answers is not None:
            given["answers"] = list(answers)
        steps = self._scorer.score(given, add_handler(self._config, recorder, "cfc:verifier"))
        return await self._run(steps, recorder, journal)

    async def label(self, example: Example, draws: Sequence[DrawnCandidate], journal: Journal) -> Outcome:
        """Label candidates or claims, extract the answers of candidates and compute the prompt's metadata."""
        recorder = UsageRecorder()
        steps = self._label_steps(example, draws, add_handler(self._config, recorder))
        return await self._run(steps, recorder, journal)

    async def _run(self, steps: Steps[Any], recorder: UsageRecorder, journal: Journal) -> Outcome:
        calls = None if self._retry_policy is None else self._make_calls(self._retry_policy, journal)
        result: Any
        try:
            with apply_limits(CallLimits(self._limiter, attempts=calls), self._config):
                result = await arun_flow(steps)
        except StoreError:  # a failure of the journal, not of the prompt
            raise
        except CFCError as error:
            result = error
        usage = Usage.from_recorder(recorder)
        if calls is not None:
            calls.settle(usage.tokens)
        return Outcome(result, usage)

    def _label_steps(
        self, example: Example, draws: Sequence[DrawnCandidate], config: RunnableConfig
    ) -> Steps[Labels]:
        metadata = yield from self._description.describe_prompt(example.input, config)
        answers = yield from self._description.extract_answers(draws, config)
        extracted = answers if self._description.has_extractor else None
        given = LabelerInput(
            id=example.id, prompt=example.input, reference=example.reference, candidates=list(draws)
        )
        labels = yield from self._labelling.label_candidates(given, extracted, config)
        return Labels(labels, extracted, metadata)


def _compute_optional_fingerprint(part: Any, name: str | None = None) -> dict[str, Any] | None:
    """Return the fingerprint of a component, or None if there is no component."""
    return None if part is None else compute_fingerprint(part, name)


def _parse_rule(components: Components) -> DrawRule | None:
    """Return the draw rule, or None if every prompt gets n candidates."""
    if components.draws is None:
        return None
    if components.n is not None or components.unit == "claims":
        what = "n" if components.n is not None else 'unit="claims"'
        msg = f"draws cannot be combined with {what}: the rule determines how many whole answers are drawn"
        raise InputError(msg)
    rule = parse_draw_rule(components.draws)
    if rule.stored_text is None:
        msg = f"draws = {rule.text} never stops before its last draw: use n={rule.at_most} instead"
        raise InputError(msg)
    return rule


def _choose_splitter(components: Components) -> Splitter | None:
    """Return the splitter of claims, None for whole answers; raise if a component does not suit `unit`."""
    unit = components.unit
    if unit not in {"answers", "claims"}:
        msg = f"unit must be 'answers' or 'claims', got {unit!r}"
        raise InputError(msg)
    for name in ("answer",) if unit == "claims" else ("splitter", "splitter_id"):
        if getattr(components, name) is not None:
            msg = f"{name} has no meaning with unit={unit!r}: leave it out"
            raise InputError(msg)
    if unit == "answers":
        return None
    return SentenceSplitter() if components.splitter is None else components.splitter


@dataclass(frozen=True)
class _JournalStore:
    """Adapter that lets a sampler read its candidates from a journal, and write them with their usage."""

    journal: Journal
    recorder: UsageRecorder

    def load(self, prepared: Any) -> Mapping[int, DrawnCandidate]:
        # LangChain writes objects that it cannot serialize with their address, so they match in no later run.
        return self.journal.resume(blake2b(dumps(prepared).encode(), digest_size=8).hexdigest())

    def save(self, slot: int, draw: DrawnCandidate) -> None:
        self.journal.save_draw(slot, draw, Usage.from_recorder(self.recorder))

    def discard(self) -> None:
        self.journal.discard_draws()
