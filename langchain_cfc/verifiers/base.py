"""Verifiers: their interface, checks of what they return, and scoring with one or several, wave by wave.

A verifier is set-wise: it sees the prompt and all n candidates, and returns n scores in [0, 1], smaller is
better. A judge that states a confidence p is wrapped as 1 - p.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import chain
from typing import Any, TypeAlias, TypedDict

import numpy as np
from langchain_core.runnables import Runnable, RunnableConfig
from pydantic import BaseModel
from typing_extensions import NotRequired

from langchain_cfc.candidates import CandidateBatch
from langchain_cfc.draw_rules import DrawRule, is_separate_verifier
from langchain_cfc.errors import CFCError, InputError, VerifierError
from langchain_cfc.execution import (
    FlowRunnable,
    Steps,
    arun_flow,
    call_each,
    describe_error,
    run_flow,
    unwrap_outcomes,
)
from langchain_cfc.execution.steps import map_distinct
from langchain_cfc.sampling import DrawnCandidate, make_silent_call
from langchain_cfc.sampling.candidates import Description
from langchain_cfc.sampling.code_identity import name_in_words
from langchain_cfc.sampling.fingerprints import compute_fingerprint, is_identified
from langchain_cfc.support.text import quote


class VerifierInput(TypedDict):
    """Input of a verifier that is a Runnable: the prompt, and n candidates in draw order.

    If the candidates are the claims of one answer, `answers` holds all drawn answers, that one first.
    """

    prompt: Any
    candidates: list[DrawnCandidate]
    answers: NotRequired[list[DrawnCandidate]]


Scores: TypeAlias = Sequence[float | None]
Verifier: TypeAlias = (
    Runnable[Any, Any]
    | Callable[[Any, list[DrawnCandidate]], Scores]
    | Callable[[Any, list[DrawnCandidate]], Awaitable[Scores]]
)
"""Scores each candidate in [0, 1], smaller is better: a function of prompt and candidates, or a Runnable.

None in place of a score says that there is no verdict, for example because a judge's reply cannot be read.
The candidate then has the worst score, 1.
"""

_HINT = (
    "expected one score in [0, 1] per candidate, smaller is better; "
    "from_evaluator wraps one that judges single candidates"
)
# The most by which a server's rounding can lift a log-probability above 0.
_ROUND_OFF = 1e-3


# Most verifiers return floats only, and callers of these need not check for None.
class BaseVerifier(FlowRunnable[VerifierInput, list[Any]]):
    """Base class of verifiers that are Runnables, written as one flow for the sync and the async path.

    A subclass implements `flow(given, config)`, a generator that returns n scores in [0, 1], smaller is
    better, for a `VerifierInput`. Each call of the flow acquires its own permit within the limits of the
    prompt that is served. A candidate for which there is no verdict gets None, which counts as the worst
    score; a fault that concerns all candidates raises a `VerifierError`.

    Attributes:
        fingerprint: What the verifier states about itself, see `langchain_cfc.sampling.fingerprints`.
        separate_scores: Whether it scores each candidate without looking at the others, so that scores do not
            change if a draw rule stops earlier; None if unknown.
    """

    fingerprint: Mapping[str, Any]
    separate_scores: bool | None = None

    def __repr__(self) -> str:
        """Name the class; `fingerprint` states the settings."""
        return f"{type(self).__name__}(...)"


class TextVerifier(BaseVerifier):
    """Base class of verifiers that see one text at a time: candidates with equal texts share one score."""

    separate_scores = True

    @abstractmethod
    def score_texts(self, prompt: Any, config: RunnableConfig, texts: list[str]) -> Steps[list[Any]]:
        """Return the scores of distinct texts, which are given in draw order."""

    def flow(self, given: VerifierInput, config: RunnableConfig) -> Steps[list[Any]]:
        """Score each distinct text once."""
        texts = [candidate.text for candidate in given["candidates"]]
        return (yield from map_distinct(texts, partial(self.score_texts, given["prompt"], config)))


def read_token_logprobs(message: Any) -> list[Mapping[str, Any]]:
    """Return the provider's entry for each token of a message; empty if there is none, or in no known form.

    OpenAI's API wraps the list in a mapping, or gives each block of text its own; Ollama does not wrap it,
    and Vertex AI has another name for it. The entries of Ollama are models of its client.
    """
    metadata = getattr(message, "response_metadata", None) or {}
    found = metadata.get("logprobs") or metadata.get("logprobs_result")
    listed = found.get("content") if isinstance(found, Mapping) else found
    if not found and isinstance(blocks := getattr(message, "content", None), list):
        parts: list[Any] = [
            one.get("logprobs") for one in blocks if isinstance(one, Mapping) and "text" in one
        ]
        listed = [*chain.from_iterable(parts)] if all(isinstance(one, list) for one in parts) else None
    if not isinstance(listed, list):
        return []
    entries = [one.model_dump() if isinstance(one, BaseModel) else one for one in listed]
    return entries if all(isinstance(one, Mapping) for one in entries) else []


def read_logprob(entry: Mapping[str, Any]) -> float:
    """Return the log-probability of a token; raise what says that it has none."""
    logprob = float(entry["logprob"])
    # NaN fails this as well; a probability in place of its logarithm would look certain.
    if not logprob <= _ROUND_OFF:
        msg = f"the log-probability of {entry.get('token')!r} is {logprob}"
        raise ValueError(msg)
    return logprob


def check_scores(scores: Any, n: int, owner: str = "the verifier") -> list[float | None]:
    """Return n scores as floats or None; raise a `VerifierError` unless there are n, all in [0, 1]."""
    values = list_values(scores, n, owner, what="scores", hint=_HINT, failure=VerifierError)
    numbers = [one if one is None or type(one) is float else _to_float(one) for one in values]
    for slot, number in enumerate(numbers):
        if number is not None and not 0.0 <= number <= 1.0:  # NaN fails this as well
            msg = f"{owner}: the score of candidate {slot} is {_quote_value(values[slot])}; {_HINT}"
            raise VerifierError(msg)
    return numbers


def _quote_value(value: Any) -> str:
    """Return a value for a message; anything but a number may quote a candidate."""
    return repr(value) if isinstance(value, (int, float, np.generic)) else quote(repr(value))


def list_values(
    values: Any, n: int, owner: str, *, what: str, hint: str, failure: type[CFCError]
) -> list[Any]:
    """Return the n values of a verifier or labeler as a list; raise `failure` unless there are n in order."""
    cause: Exception | None = None
    listed: list[Any] | None = None
    # The keys of a mapping, the members of a set and the parts of a text are not in the order of candidates.
    if not isinstance(values, (Mapping, AbstractSet, str, bytes, bytearray)):
        try:
            listed = list(values)
        except Exception as error:  # noqa: BLE001 - a generator may fail only here
            cause = error
    if listed is None:
        reason = f" ({describe_error(cause)})" if cause is not None else ""
        msg = f"{owner} returned {type(values).__name__} instead of {n} {what}{reason}: {hint}"
        raise failure(msg) from cause
    if len(listed) != n:
        msg = f"{owner} returned {len(listed)} {what} for {n} candidates: {hint}"
        raise failure(msg)
    return listed


def _to_float(value: Any) -> float:
    """Return a number as a float; NaN for anything else, also for True, which would read as 1.0."""
    if isinstance(value, np.ma.MaskedArray):
        return math.nan
    try:
        number = to_python_scalar(value)
        return math.nan if isinstance(number, (bool, str, bytes, bytearray)) else float(number)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        return math.nan


def to_python_scalar(value: Any) -> Any:
    """Convert a number or boolean of NumPy, Torch and similar to Python's own; return other values as is."""
    try:
        return value.item() if hasattr(value, "item") else value
    except (TypeError, ValueError, RuntimeError):
        # More than one number, or none.
        return value


def combine_fingerprints(
    method: str, settings: Mapping[str, Any], parts: Mapping[str, object]
) -> dict[str, Any]:
    """Return the fingerprint of a verifier or labeler that is made of parts.

    `settings` are plain values that change its results; `parts` maps roles to what the user passed (None if
    left out). The method is the `id` only if every part identifies itself, as an id vouches for all of them.
    """
    stated = {
        role: compute_fingerprint(part) or {"unnamed": [name_in_words(part)]}
        for role, part in parts.items()
        if part is not None
    }
    known = all(is_identified(one) for one in stated.values())
    flat = {f"{role}.{key}": value for role, one in stated.items() for key, value in one.items()}
    return {"id" if known else "method": method, **settings, **flat}


@dataclass(frozen=True)
class VerifierScores:
    """What a verifier says about the n candidates of a prompt.

    A candidate without a verdict has the worst score. This is one more step of the function that turns
    candidates into scores, the same offline and online, so prompts remain exchangeable.

    Attributes:
        verdicts: n verifier scores in [0, 1], smaller is better; None without a verdict.
        outputs: For each candidate, the raw outputs of several verifiers by name, or None if one of them has
            no verdict; None in all if there is only one verifier.
    """

    verdicts: Sequence[float | None]
    outputs: Sequence[Mapping[str, float] | None] | None = None

    @cached_property
    def scores(self) -> list[float]:
        """The n scores, 1 for a candidate without a verdict."""
        return [1.0 if one is None else one for one in self.verdicts]


class _VerifierCall:
    """Calls a verifier about the candidates of a prompt, and gives what is no answer no verdict.

    A verifier that looks at each candidate by itself is asked about answers only; one that may compare
    candidates is given all n, because their number matters.
    """

    def __init__(self, verifier: Verifier, name: str = "the verifier") -> None:
        self._name = name
        self._call = make_silent_call("verifier", verifier, VerifierError, ("prompt", "candidates"), _HINT)
        self._compares = getattr(verifier, "separate_scores", None) is not True

    def score(self, given: VerifierInput, config: RunnableConfig) -> Steps[VerifierScores]:
        """Return a checked score for each candidate; no verdict for what is no answer."""
        draws = given["candidates"]
        answers = [slot for slot, one in enumerate(draws) if one.no_answer is None]
        if not answers:
            return VerifierScores([None] * len(draws))
        slots = list(range(len(draws))) if self._compares else answers
        asked: VerifierInput = {**given, "candidates": [draws[slot] for slot in slots]}
        found = check_scores((yield from self._call.invoke_one(asked, config)), len(slots), self._name)
        verdicts = dict(zip(slots, found, strict=True))
        return VerifierScores(
            [verdicts[slot] if one.no_answer is None else None for slot, one in enumerate(draws)]
        )


class VerifierEnsemble:
    """Several verifiers that are called with the same candidates, concurrently; the score is their mean.

    Args:
        verifiers: By their names in the records' `scores`.
        weights: Weight of each verifier in the mean, at least 0 and not all 0; only their ratios matter. None
            for equal weights. With weight 0 its scores are only recorded.

    Raises:
        InputError: If there is no verifier, or the weights are not one such number for each.
    """

    def __init__(self, verifiers: Mapping[str, Verifier], weights: Mapping[str, float] | None = None) -> None:
        self._calls = {name: _VerifierCall(one, f"the verifier {name!r}") for name, one in verifiers.items()}
        self._weights = _normalise_weights(verifiers, weights)
        # Equal ratios give equal names, bit for bit, in any order.
        is_equal = len(set(self._weights.values())) == 1
        parts = sorted(self._weights.items())
        method = "+".join(name if is_equal else f"{weight!r}*{name}" for name, weight in parts)
        self.fingerprint = combine_fingerprints(method, {}, verifiers)
        found = {_find_separate_scores(one) for one in verifiers.values()}
        # Whether the scores do not change if a draw rule stops earlier; None if unknown.
        self.separate_scores = False if False in found else None if None in found else True

    @property
    def names(self) -> tuple[str, ...]:
        """The verifiers' names, in the order given."""
        return tuple(self._calls)

    def score(self, given: VerifierInput, config: RunnableConfig) -> Steps[VerifierScores]:
        """Return the mean for each candidate, and the raw scores; no verdict where one verifier has none.

        Raises:
            VerifierError: If a verifier fails, or returns anything but n scores; the error names it.
        """
        outcomes = yield call_each(
            lambda call: run_flow(call.score(given, config)),
            lambda call: arun_flow(call.score(given, config)),
            list(self._calls.values()),
            hold_permits=False,
        )
        columns = [one.verdicts for one in unwrap_outcomes(outcomes)]
        rows = [dict(zip(self.names, row, strict=True)) for row in zip(*columns, strict=True)]
        outputs = [None if None in row.values() else row for row in rows]
        return VerifierScores([None if row is None else self._average(row) for row in outputs], outputs)

    def _average(self, scores: Mapping[str, float]) -> float:
        total = math.fsum(self._weights.values())
        return min(1.0, math.fsum(weight * scores[name] for name, weight in self._weights.items()) / total)


def _find_separate_scores(verifier: Verifier) -> bool | None:
    stated: bool | None = getattr(verifier, "separate_scores", None)
    return is_separate_verifier(compute_fingerprint(verifier)) if stated is None else stated


def _normalise_weights(verifiers: Mapping[str, Any], weights: Mapping[str, float] | None) -> dict[str, float]:
    """Return weights that add up to 1, in the order of the verifiers."""
    stated = dict.fromkeys(verifiers, 1.0) if weights is None else weights
    given = {name: _to_float(one) for name, one in stated.items()}
    is_valid = set(given) == set(verifiers) and all(0 <= one < math.inf for one in given.values())
    if not is_valid or not any(given.values()):
        names = ", ".join(verifiers)
        msg = (
            f"weights are {dict(stated)}; expected a number of at least 0 for each of {names}, and not all 0"
        )
        raise InputError(msg)
    total = math.fsum(given.values())
    return {name: given[name] / total for name in verifiers}


class CandidateScorer:
    """Scores the candidates of a prompt with one verifier or several.

    Args:
        verifier: A verifier, or an ensemble of several.

    Raises:
        VerifierError: If the verifier is neither a Runnable nor a function.
    """

    def __init__(self, verifier: Verifier | VerifierEnsemble) -> None:
        self._verifier = verifier if isinstance(verifier, VerifierEnsemble) else _VerifierCall(verifier)
        self.shares_scores = isinstance(verifier, TextVerifier)
        self._only_computes = True

    def score_without_calls(self, given: VerifierInput) -> VerifierScores | None:
        """Return the scores at once if a verifier only computes; None if it makes a call, or fails.

        No run is traced. Once it has made a call, or there are several, this returns None without trying.
        """
        if not self._only_computes:
            return None
        steps = self.score(given, {})
        try:
            next(steps)
        except StopIteration as end:
            found: VerifierScores = end.value
            return found
        except Exception:  # noqa: BLE001 - `score` meets it again, and explains it
            return None
        steps.close()
        self._only_computes = False
        return None

    def score(self, given: VerifierInput, config: RunnableConfig) -> Steps[VerifierScores]:
        """Return the checked scores, with the raw outputs if there are several verifiers.

        Raises:
            VerifierError: If a verifier fails or returns invalid values.
        """
        return self._verifier.score(given, config)


@dataclass
class IncrementalScorer:
    """The scores and answers of a prompt's candidates, computed when a wave of draws needs them.

    Attributes:
        scorer: Scores the candidates.
        description: Extracts their answers.
        prompt: The prompt.
        config: Config of the runs that extract answers.
        judging: Config of the runs that score.
        scored_separately: Whether scores do not change when further candidates are drawn.
        scores: The scores so far.
        answers: The answers so far, by text.
    """

    scorer: CandidateScorer
    description: Description
    prompt: Any
    config: RunnableConfig
    judging: RunnableConfig
    scored_separately: bool
    scores: VerifierScores = field(default_factory=lambda: VerifierScores([]))
    answers: dict[str, str] = field(default_factory=dict)

    def choose_next_wave(self, rule: DrawRule, draws: list[DrawnCandidate]) -> Steps[int]:
        """Return how many further candidates the draw rule wants; 0 if it stops."""
        if len(draws) == rule.at_most:
            return 0
        # Answers or scores that the rule does not look at are computed after the last draw.
        answers = None
        if rule.needs_answers:
            answers = [(yield from self.description.extract_answers(draws, self.config, self.answers))]
        scores = (yield from self.score(draws)).scores if rule.needs_scores else [0.0] * len(draws)
        return int(rule.choose_next_wave(CandidateBatch.from_arrays(np.array([scores]), answers))[0])

    def score(self, draws: list[DrawnCandidate]) -> Steps[VerifierScores]:
        """Return the scores of all candidates so far.

        A verifier that compares candidates scores all of them again; any other scores new ones only, and no
        text that already has a score if equal texts share one.
        """
        done = len(self.scores.verdicts)
        if done == len(draws):
            return self.scores
        if done and not self.scored_separately:
            done = 0
        known: dict[str, float | None] = {}
        if self.scorer.shares_scores:
            known = {
                one.text: verdict for one, verdict in zip(draws[:done], self.scores.verdicts, strict=False)
            }
        asked, new = [one for one in draws[done:] if one.text not in known], VerifierScores([])
        if asked:
            given = VerifierInput(prompt=self.prompt, candidates=asked)
            new = yield from self.scorer.score(given, self.judging)
        fresh = iter(new.verdicts)
        verdicts = [known[one.text] if one.text in known else next(fresh) for one in draws[done:]]
        outputs = None if new.outputs is None else [*(self.scores.outputs or ())[:done], *new.outputs]
        self.scores = VerifierScores([*self.scores.verdicts[:done], *verdicts], outputs)
        return self.scores

    def score_claims(
        self, claims: list[DrawnCandidate], answers: list[DrawnCandidate]
    ) -> Steps[VerifierScores]:
        """Return the scores of the first answer's claims; the other answers are there for comparison."""
        given = VerifierInput(prompt=self.prompt, candidates=claims, answers=answers)
        return (yield from self.scorer.score(given, self.judging))
