"""`LocalExecutor`: draws, scores and labels in this process, with the code that serves later.

**Retries.** A call is repeated if its failure looks like one of the network, of an overloaded server, or of a
rate limit: status 408, 409, 425, 429 or any from 500 on, a broken connection, a time-out. The delay between
two calls is an exponential back-off with full jitter, or what the server asks for by `Retry-After`. A refused
key or a malformed request is not repeated, nor is an error that the user's own code raises.
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

from langchain_cfc._internal.metadata import Scalar
from langchain_cfc.artifact import check_first_wave, scores_separately
from langchain_cfc.candidates import Unit
from langchain_cfc.claims import ClaimSplitter, SentenceSplitter, Splitter, split_candidate
from langchain_cfc.collect.costs import Usage
from langchain_cfc.collect.failures import is_transient, may_be_charged, read_retry_after
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
from langchain_cfc.records import Example, Provenance
from langchain_cfc.sampling import DrawnCandidate, Sampler, SamplingName, UsageRecorder, resolve_generator
from langchain_cfc.sampling.candidates import Description
from langchain_cfc.sampling.fingerprints import compute_fingerprint
from langchain_cfc.sampling.usage import add_handler
from langchain_cfc.verifiers import Verifier, VerifierEnsemble, VerifierInput
from langchain_cfc.verifiers.base import CandidateScorer, VerifierScores
from langchain_cfc.verifiers.waves import SeenCandidates

# Interfaces


@dataclass(frozen=True)
class Labels:
    """Labels of n candidates, with what is said of their prompt."""

    correct: Sequence[bool]
    answers: Sequence[str] | None = None  # n extracted answers; None without an extractor
    metadata: Mapping[str, Scalar] | None = None  # output of the metadata function


@dataclass(frozen=True)
class Outcome:
    """Outcome of one stage of one prompt.

    Attributes:
        result: `DrawnCandidate`s, the `Span`s of claims, `VerifierScores` or `Labels`; the error if the stage
            failed.
        usage: Usage of models by the stage.
        scores: Of candidates that were drawn by a rule that looks at scores, those of all of them.
    """

    result: Any
    usage: Usage
    scores: VerifierScores | None = None


class Journal(Protocol):
    """Durable notes of a stage: its candidates, and requests that may have been charged."""

    @property
    def drawn(self) -> Mapping[int, DrawnCandidate]:
        """Candidates that are stored already, by slot."""

    @property
    def context(self) -> str | None:
        """Digest of the prepared input that they were drawn for."""

    def resume(self, context: str) -> Mapping[int, DrawnCandidate]:
        """Return the candidates that need not be drawn again for the prepared input with this digest."""

    def save_draw(self, slot: int, draw: DrawnCandidate, usage: Usage) -> None:
        """Store a candidate, and the usage of the stage so far."""

    def discard_draws(self) -> None:
        """Delete all stored candidates, because the sampler refused them."""

    def announce(self, requests: int) -> None:
        """Note that so many further requests may follow, as those of another wave of draws."""

    def record_lost_request(self) -> None:
        """Note that a request failed that may have been answered."""

    async def flush(self) -> None:
        """Wait until all notes are durable; called before every request."""


class Executor(Protocol):
    """Runs the stages of prompts: in this process, or on other machines."""

    @property
    def configuration(self) -> Mapping[str, Any]:
        """Everything that changes records, as plain data: `n`, and the fingerprints of the components."""

    async def draw(self, example: Example, journal: Journal) -> Outcome:
        """Draw n candidates, or as many as a draw rule wants, except for those that the journal holds."""

    async def split(self, answer: DrawnCandidate, journal: Journal) -> Outcome:
        """Split the first answer of a prompt into claims; called if `unit` is `claims`."""

    async def score(
        self,
        example: Example,
        draws: Sequence[DrawnCandidate],
        journal: Journal,
        answers: Sequence[DrawnCandidate] | None = None,
    ) -> Outcome:
        """Score the candidates of a prompt; claims, if `answers` are given, the first of which makes them."""

    async def label(self, example: Example, draws: Sequence[DrawnCandidate], journal: Journal) -> Outcome:
        """Label candidates or claims, extract the answers of candidates and compute the prompt's metadata."""


# Rate limits


class TokenRateLimiter(BaseRateLimiter):
    """Rate limiter for tokens per second.

    The tokens of a call are known only afterwards. So each call is charged the mean of those before it, and
    the difference is settled when the call is over. Over any period the rate is kept, except for calls in
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
        """Do the same as `acquire` on an event loop."""
        wait = self._reserve(blocking=blocking)
        if wait is None:
            return False
        await asyncio.sleep(wait)
        return True

    def settle(self, calls: int, tokens: int) -> None:
        """Replace the charge of finished calls by the tokens that they used together.

        Calls that failed or asked no model count as well, because they were charged.
        """
        with self._lock:
            charged = min(calls, self._charged.calls) * self._charged.mean
            self._charged.add(-min(calls, self._charged.calls), -charged)
            self._settled.add(calls, tokens)
            self._free_at += (tokens - charged) / self._tokens_per_second

    def _reserve(self, *, blocking: bool) -> float | None:
        """Reserve a call, and return the seconds until it may start; None if it must not wait."""
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
    """Number of calls and of their tokens."""

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
    """How often, how long and how fast calls are made.

    Args:
        max_attempts: Maximum number of times that a call with a transient failure is made, at least 1.
        timeout: Seconds that one call may take; None for no limit.
        rate_limiters: Rate limiters that each call waits for.
        initial_wait: Maximum seconds between the first and the second call; it doubles from there.
        max_wait: Maximum seconds between two calls. A server that asks for more is down, and no call should
            hold up its prompt for an hour.
    """

    max_attempts: int = 5
    timeout: float | None = None
    rate_limiters: tuple[BaseRateLimiter, ...] = ()
    initial_wait: float = 1.0
    max_wait: float = 120.0

    def wait_seconds(self, state: RetryCallState) -> float:
        """Return the seconds to wait before the next call."""
        requested = read_retry_after(_last_outcome(state))
        backoff = wait_random_exponential(multiplier=self.initial_wait, max=self.max_wait)(state)
        return min(backoff if requested is None else max(requested, backoff), self.max_wait)


class StageCalls:
    """Makes the calls of one stage of a prompt by a policy.

    Each call waits until the journal of the stage is durable. Tokens are settled for all calls together.
    """

    def __init__(self, policy: RetryPolicy, journal: Journal) -> None:
        self._policy = policy
        self._journal = journal
        self._unsettled = 0

    def settle(self, tokens: int) -> None:
        """Settle all calls by the tokens that they used together."""
        for limiter in self._policy.rate_limiters:
            if isinstance(limiter, TokenRateLimiter):
                limiter.settle(self._unsettled, tokens)
        self._unsettled = 0

    async def aoutcome(self, arun: Callable[[Any], Awaitable[Any]], item: Any, within: CallLimits) -> Any:
        """Call until there is no transient failure; return what the last call returned, or its exception."""
        first = await self._call_once(arun, item, within)
        if not is_transient(first):
            # Setting up the retries costs more than many a call.
            return first
        outcomes = [first]

        async def call() -> Any:
            return outcomes.pop() if outcomes else await self._call_once(arun, item, within)

        retrying = AsyncRetrying(
            stop=stop_after_attempt(self._policy.max_attempts),
            wait=self._policy.wait_seconds,
            retry=_should_retry,
            retry_error_callback=_last_outcome,
        )
        return await retrying(call)

    async def _call_once(self, arun: Callable[[Any], Awaitable[Any]], item: Any, within: CallLimits) -> Any:
        timeout = self._policy.timeout
        with await within.apermit():
            for limiter in self._policy.rate_limiters:
                await limiter.aacquire()
            self._unsettled += 1
            await self._journal.flush()
            try:
                if timeout is None:
                    return await arun(item)
                return await _run_with_timeout(arun(item), timeout)
            except asyncio.TimeoutError as error:
                # A time-out of the limit above has no message, nor may one of the user's own code.
                limit = "in time" if timeout is None else f"within {timeout:g} seconds"
                return self._note_failure(error if str(error) else TimeoutError(f"no answer {limit}"))
            except Exception as error:  # noqa: BLE001 - an outcome like any other; the flow looks at it
                return self._note_failure(error)

    def _note_failure(self, error: Exception) -> Exception:
        if may_be_charged(error):
            self._journal.record_lost_request()
        return error


async def _run_with_timeout(call: Awaitable[Any], seconds: float) -> Any:
    if sys.version_info < (3, 11):
        return await asyncio.wait_for(call, seconds)
    # Unlike `wait_for`, this needs no task for each call.
    async with asyncio.timeout(seconds):
        return await call


def _last_outcome(state: RetryCallState) -> Any:
    return state.outcome.result() if state.outcome is not None else None


def _should_retry(state: RetryCallState) -> bool:
    # An exception that was raised instead of returned is not the outcome of a call: it ends the flow.
    return state.outcome is not None and not state.outcome.failed and is_transient(state.outcome.result())


# The executor in this process


@dataclass(frozen=True)
class Components:
    """The components that make records, as `CFCRunnable` takes them, and the labeler.

    Attributes:
        generator: The chat model or chain, or a model's name such as `openai:gpt-4o-mini`.
        verifier: One verifier, or a mapping of several by name, the first of which gives the `score`.
        labeler: The labeler of the candidates.
        n: Number of candidates per prompt, at least 1; None with `draws`, which says how many at most.
        unit: `answers` to score and label candidates, or `claims` to do so with the claims of the first; the
            others are for verifiers that compare answers.
        splitter: With claims, what splits an answer, as in `CFCRunnable`; by default a `SentenceSplitter`.
        answer: Answer extractor, from text to answer; None without one.
        metadata: Metadata function of the prompt, as in serving; None to use the dataset's metadata alone.
        draws: A rule that stops drawing, such as `lead(3, at_most=10)`; see `parse_draw_rule`. Fewer
            candidates are drawn, scored and labelled, and only this rule can be calibrated then. An
            extractor that asks a model is asked between the waves, and again for the labels.
        sampling: How candidates are drawn, see `CFCRunnable`.
        reads: What the labeler is shown if there is an extractor, see `CandidateLabeling`.
        generator_id: Name of the generator in the records, if it cannot name itself.
        verifier_id: Name of the verifier, likewise.
        labeler_id: Name of the labeler, likewise.
        answer_id: Name of the answer extractor, likewise.
        splitter_id: Name of the splitter, likewise.
    """

    generator: Runnable[Any, Any] | Callable[[Any], Any] | str
    verifier: Verifier | Mapping[str, Verifier]
    labeler: Labeler
    n: int | None = None
    unit: Unit = "answers"
    splitter: Splitter | None = None
    answer: Target | None = None
    metadata: Target | None = None
    draws: str | None = None
    sampling: SamplingName = "requests"
    reads: Reads = "answer"
    generator_id: str | None = None
    verifier_id: str | None = None
    labeler_id: str | None = None
    answer_id: str | None = None
    splitter_id: str | None = None


class LocalExecutor:
    """Runs the stages of prompts in this process.

    Args:
        components: What draws, scores and labels.
        limiter: Limits concurrent calls of all prompts; None for no limit.
        retry_policy: How calls are repeated; None to make each call once.
        config: LangChain config that all runs inherit, such as callbacks that trace them.
        make_calls: What makes the calls of a stage by the policy.

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
        self._sampler = Sampler(generator, components.sampling)
        self._description = Description(components.answer, components.metadata)
        self._limiter = limiter
        self._retry_policy = retry_policy
        self._config: RunnableConfig = config or {}
        provenance = Provenance(
            n=n,
            draws=None if self._rule is None else self._rule.text,
            generator=compute_fingerprint(generator, components.generator_id),
            verifier=compute_fingerprint(verifier, components.verifier_id),
            labeler=compute_fingerprint(components.labeler, components.labeler_id),
            answer=_compute_if_given(components.answer, components.answer_id),
            unit=None if splitter is None else "claims",
            splitter=_compute_if_given(splitter, components.splitter_id),
        )
        separate = getattr(verifier, "separate_scores", None)
        stated = provenance.model_copy(update={"separate_scores": separate})
        self._scored_separately = bool(scores_separately(stated))
        if self._rule is not None:
            check_first_wave(self._rule, stated)
        self._configuration = {
            **provenance.model_dump(exclude={"format", "version"}),
            **({} if separate is None else {"separate_scores": separate}),
            "sampling": components.sampling,
            "reads": components.reads,
            "metadata": _compute_if_given(components.metadata),
        }

    @property
    def configuration(self) -> dict[str, Any]:
        """Everything that changes records, as plain data."""
        return self._configuration

    async def draw(self, example: Example, journal: Journal) -> Outcome:
        """Draw n candidates, or as many as a draw rule wants, except for those that the journal holds."""
        recorder = UsageRecorder()
        store, rule = _JournalStore(journal, recorder), self._rule
        config = add_handler(self._config, recorder)
        seen = SeenCandidates(
            self._scorer,
            self._description,
            example.input,
            config,
            judging=add_handler(self._config, recorder, "cfc:verifier"),
            scored_separately=self._scored_separately,
        )

        def choose_next_wave(draws: list[DrawnCandidate]) -> Steps[int]:
            assert rule is not None  # noqa: S101 - it is called only then
            wave = yield from seen.choose_next_wave(rule, draws)
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
            if rule is not None and rule.needs_scores:  # those of the last wave, which stopped nothing
                yield from seen.score(draws)
            return draws

        outcome = await self._run(draw(), recorder, journal)
        is_scored = rule is not None and rule.needs_scores and not isinstance(outcome.result, CFCError)
        return replace(outcome, scores=seen.scores) if is_scored else outcome

    async def split(self, answer: DrawnCandidate, journal: Journal) -> Outcome:
        """Split the first answer of a prompt into claims."""
        if self._splitter is None:
            msg = 'these components keep whole answers: split needs unit="claims"'
            raise InputError(msg)
        recorder = UsageRecorder()
        steps = split_candidate(self._splitter, answer, add_handler(self._config, recorder))
        return await self._run(steps, recorder, journal)

    async def score(
        self,
        example: Example,
        draws: Sequence[DrawnCandidate],
        journal: Journal,
        answers: Sequence[DrawnCandidate] | None = None,
    ) -> Outcome:
        """Score the candidates of a prompt, or the claims of the first of its answers."""
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
        except StoreError:  # an error of the journal, not of the prompt
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


def _compute_if_given(part: Any, name: str | None = None) -> dict[str, Any] | None:
    """Return the fingerprint of a part; None without one."""
    return None if part is None else compute_fingerprint(part, name)


def _parse_rule(components: Components) -> DrawRule | None:
    """Return the draw rule; None where every prompt gets n candidates."""
    if components.draws is None:
        return None
    if components.n is not None or components.unit == "claims":
        what = "n" if components.n is not None else 'unit="claims"'
        msg = f"draws, together with {what}: the rule says how many whole answers are drawn"
        raise InputError(msg)
    rule = parse_draw_rule(components.draws)
    if rule.stored_text is None:
        msg = f"draws = {rule.text} never stops before its last draw: give n={rule.at_most} in its place"
        raise InputError(msg)
    return rule


def _choose_splitter(components: Components) -> Splitter | None:
    """Return what splits answers into claims, None for whole answers; refuse what does not suit."""
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


class _JournalStore:
    """Passes a sampler's candidates to a journal, with their usage."""

    def __init__(self, journal: Journal, recorder: UsageRecorder) -> None:
        self._journal = journal
        self._recorder = recorder

    def load(self, prepared: Any) -> Mapping[int, DrawnCandidate]:
        # An object that LangChain cannot serialize is written with its address, and never matches.
        return self._journal.resume(blake2b(dumps(prepared).encode(), digest_size=8).hexdigest())

    def save(self, slot: int, draw: DrawnCandidate) -> None:
        self._journal.save_draw(slot, draw, Usage.from_recorder(self._recorder))

    def discard(self) -> None:
        self._journal.discard_draws()
