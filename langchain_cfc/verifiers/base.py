"""What a verifier is, and what it returns.

A verifier is set-wise: it sees the prompt and all n candidates, and returns n scores in [0, 1], smaller is
better. A judge that speaks in confidence p is wrapped as 1 - p.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any, TypeAlias, TypedDict

import numpy as np
from langchain_core.runnables import Runnable, RunnableConfig

from langchain_cfc.errors import VerifierError
from langchain_cfc.execution import (
    Call,
    FlowRunnable,
    Steps,
    Target,
    arun_flow,
    call_by_keys,
    call_each,
    describe_error,
    run_flow,
    unwrap_outcomes,
)
from langchain_cfc.fingerprints import compute_fingerprint, is_identified
from langchain_cfc.sampling import DrawnCandidate, without_streaming_and_cache


class VerifierInput(TypedDict):
    """What a verifier that is a Runnable is invoked with: the prompt, and n candidates in draw order."""

    prompt: Any
    candidates: list[DrawnCandidate]


Scores: TypeAlias = Sequence[float]
Verifier: TypeAlias = (
    Runnable[Any, Any]
    | Callable[[Any, list[DrawnCandidate]], Scores]
    | Callable[[Any, list[DrawnCandidate]], Awaitable[Scores]]
)

_HINT = (
    "a verifier returns one score in [0, 1] per candidate, smaller is better; wrap one that judges a "
    "single candidate with langchain_cfc.verifiers.pointwise"
)


class BaseVerifier(FlowRunnable[VerifierInput, list[float]]):
    """A verifier that is a Runnable, written as one flow for the sync and the async path.

    What it calls takes its places within the bounds of the prompt that is served, call by call.

    Attributes:
        fingerprint: What it says of itself, see `langchain_cfc.fingerprints`.
    """

    fingerprint: Mapping[str, Any]

    @abstractmethod
    def scored(self, given: VerifierInput, config: RunnableConfig) -> Steps[list[float]]:
        """Score all candidates of a prompt.

        Args:
            given: The prompt with its n candidates.
            config: Config for whatever is called.

        Returns:
            n scores in [0, 1], smaller is better.

        Raises:
            VerifierError: If a candidate cannot be scored.
        """

    def flow(self, given: VerifierInput, config: RunnableConfig) -> Steps[list[float]]:
        """The same under the name that all flows have."""
        return self.scored(given, config)


def make_verifier_call(verifier: Verifier) -> Call:
    """A verifier as a call with a `VerifierInput`.

    Args:
        verifier: A Runnable on `VerifierInput`, or a function `(prompt, candidates) -> scores`, plain or
            async.

    Returns:
        The call, whose failures are `VerifierError`s.

    Raises:
        VerifierError: If it is neither.
    """
    return Call("verifier", _target(verifier), VerifierError)


def _target(verifier: Verifier) -> Target:
    if isinstance(verifier, Runnable):
        return without_streaming_and_cache(verifier, fresh=False)
    if not callable(verifier):
        msg = f"got a {type(verifier).__name__} as verifier: {_HINT}"
        raise VerifierError(msg)
    return call_by_keys(verifier, ("prompt", "candidates"))


def distinct_texts(candidates: Sequence[DrawnCandidate]) -> list[str]:
    """The texts of some candidates, each once, in draw order: equal texts get one judgement."""
    return list(dict.fromkeys(candidate.text for candidate in candidates))


def check_scores(scores: Any, n: int) -> list[float]:
    """Refuse whatever is not one finite score in [0, 1] per candidate.

    Args:
        scores: What a verifier returned.
        n: Number of candidates.

    Returns:
        n floats.

    Raises:
        VerifierError: If there are not exactly n scores, or one is no number in [0, 1].
    """
    values = _listed(scores, n, "the verifier", _HINT)
    numbers = [_number(value) for value in values]
    for slot, number in enumerate(numbers):
        if not 0.0 <= number <= 1.0:  # NaN fails this as well
            msg = f"the verifier's score of candidate {slot} is {values[slot]!r}: {_HINT}"
            raise VerifierError(msg)
    return numbers


def check_outputs(outputs: Any, n: int, name: str) -> list[float]:
    """Refuse whatever is not one finite raw output per candidate.

    Args:
        outputs: What one of several verifiers returned.
        n: Number of candidates.
        name: The verifier's name, for messages.

    Returns:
        n finite floats.

    Raises:
        VerifierError: If there are not exactly n, or one is no finite number.
    """
    hint = "one of several verifiers returns one finite number per candidate"
    values = _listed(outputs, n, f"the verifier {name!r}", hint)
    numbers = [_number(value) for value in values]
    for slot, number in enumerate(numbers):
        if not math.isfinite(number):
            msg = f"the output of the verifier {name!r} for candidate {slot} is {values[slot]!r}: {hint}"
            raise VerifierError(msg)
    return numbers


def _listed(scores: Any, n: int, who: str, hint: str) -> list[Any]:
    if isinstance(scores, np.ma.MaskedArray):
        msg = f"{who} returned a masked array, whose masked values would count as scores: {hint}"
        raise VerifierError(msg)
    cause: Exception | None = None
    values: list[Any] | None = None
    # The keys of a mapping, the members of a set and the bytes of a text come in no order of candidates.
    if not isinstance(scores, (Mapping, AbstractSet, str, bytes, bytearray)):
        try:
            values = list(scores)
        except Exception as error:  # noqa: BLE001 - a verifier that yields its scores may fail only here
            cause = error
    if values is None:
        reason = f" ({describe_error(cause)})" if cause is not None else ""
        msg = f"{who} returned {type(scores).__name__} instead of {n} scores{reason}: {hint}"
        raise VerifierError(msg) from cause
    if len(values) != n:
        msg = f"{who} returned {len(values)} scores for {n} candidates: {hint}"
        raise VerifierError(msg)
    return values


def _number(value: Any) -> float:
    """A number as a float; NaN for anything else, also for True, which would read as 1.0."""
    if isinstance(value, np.ma.MaskedArray):
        return math.nan
    try:
        # NumPy's and Torch's numbers and booleans become Python's.
        number = value.item() if hasattr(value, "item") else value
        return math.nan if isinstance(number, (bool, str, bytes, bytearray)) else float(number)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        return math.nan


def combined_fingerprint(
    method: str, settings: Mapping[str, Any], parts: Mapping[str, object]
) -> dict[str, Any]:
    """What a verifier says of itself, its settings and its parts.

    Args:
        method: What the verifier is called.
        settings: Whatever changes its scores, each as one plain value.
        parts: By role, what the user gave it.

    Returns:
        The fingerprint. The method is its `id` only if every part says who it is, since an id vouches for all
        of them.
    """
    said = {role: compute_fingerprint(part) for role, part in parts.items()}
    known = all(is_identified(one) for one in said.values())
    flat = {f"{role}.{key}": value for role, one in said.items() for key, value in one.items()}
    return {"id" if known else "method": method, **settings, **flat}


def to_python_scalar(value: Any) -> Any:
    """A number or boolean of NumPy, Torch and the like as Python's own; anything else as it is."""
    try:
        return value.item() if hasattr(value, "item") else value
    except (TypeError, ValueError, RuntimeError):
        # More than one number, or none.
        return value


Judge: TypeAlias = Runnable[Any, Any] | Callable[[Any, str], Any] | Callable[[Any, str], Awaitable[Any]]


class Pointwise(BaseVerifier):
    """Asks a judge about each distinct text of a prompt's candidates, concurrently.

    Made by `pointwise`.
    """

    def __init__(self, judge: Judge) -> None:
        self.name = "pointwise"
        self.judge = judge
        self.fingerprint = compute_fingerprint(judge)
        target = (
            without_streaming_and_cache(judge, fresh=False)
            if isinstance(judge, Runnable)
            else call_by_keys(judge, ("prompt", "candidate"))
        )
        self._call = Call("judge", target, VerifierError)

    def scored(self, given: VerifierInput, config: RunnableConfig) -> Steps[list[float]]:
        """One judgement per distinct text."""
        texts = distinct_texts(given["candidates"])
        pairs = [{"prompt": given["prompt"], "candidate": text} for text in texts]
        by_text = dict(zip(texts, (yield from self._call.each(pairs, config)), strict=True))
        return [by_text[candidate.text] for candidate in given["candidates"]]


def pointwise(judge: Judge) -> Pointwise:
    """A verifier out of something that judges one candidate at a time.

    Args:
        judge: A Runnable on `{"prompt": ..., "candidate": text}`, or a function `(prompt, text) -> score`,
            plain or async; the score lies in [0, 1], smaller is better.

    Returns:
        A verifier; the judgements of a prompt run concurrently, and candidates of one text share one.
    """
    return Pointwise(judge)


class VerifierEnsemble:
    """Asks several verifiers about the same candidates, at the same time.

    Args:
        verifiers: By the names that the records' `scores` have. Raw outputs may be any finite numbers.
    """

    def __init__(self, verifiers: Mapping[str, Verifier]) -> None:
        self._calls = {name: make_verifier_call(verifier) for name, verifier in verifiers.items()}
        self.fingerprint = combined_fingerprint("+".join(verifiers), {}, verifiers)

    @property
    def names(self) -> tuple[str, ...]:
        """The verifiers' names, in the order given."""
        return tuple(self._calls)

    def outputs(self, given: VerifierInput, config: RunnableConfig) -> Steps[dict[str, list[float]]]:
        """The raw outputs of each verifier.

        Args:
            given: The prompt with its n candidates.
            config: Config for whatever is called.

        Returns:
            By name, n finite numbers.

        Raises:
            VerifierError: If one fails, or returns anything else; it is named.
        """
        names = list(self._calls)
        found = yield call_each(
            lambda name: run_flow(self._calls[name].one(given, config)),
            lambda name: arun_flow(self._calls[name].one(given, config)),
            names,
            hold_places=False,
        )
        n = len(given["candidates"])
        named = dict(zip(names, unwrap_outcomes(found), strict=True))
        return {name: check_outputs(outputs, n, name) for name, outputs in named.items()}


@dataclass(frozen=True)
class VerifierScores:
    """The scores of n candidates.

    Attributes:
        scores: n verifier scores in [0, 1], smaller is better.
        outputs: For each candidate the raw outputs of several verifiers by name; None where there is one.
    """

    scores: Sequence[float]
    outputs: Sequence[Mapping[str, float]] | None = None

    @classmethod
    def by_several(cls, scores: Sequence[float], outputs: Mapping[str, Sequence[float]]) -> VerifierScores:
        """Scores with what they were made of.

        Args:
            scores: n scores in [0, 1].
            outputs: By verifier, n raw outputs.

        Returns:
            Both, the outputs by candidate.
        """
        rows = zip(*outputs.values(), strict=True)
        return cls(scores, [dict(zip(outputs, row, strict=True)) for row in rows])


class SingleVerifierScoring:
    """The scores of one verifier.

    Args:
        verifier: A Runnable or a function.

    Raises:
        VerifierError: If it is neither.
    """

    def __init__(self, verifier: Verifier) -> None:
        self._call = make_verifier_call(verifier)

    def scored(self, given: VerifierInput, config: RunnableConfig) -> Steps[VerifierScores]:
        """The verifier's scores, checked.

        Raises:
            VerifierError: If it fails, or returns anything but n scores in [0, 1].
        """
        scores = yield from self._call.one(given, config)
        return VerifierScores(check_scores(scores, len(given["candidates"])))


class FirstVerifierScoring:
    """The scores of the first of several verifiers, with the raw outputs of all.

    Args:
        panel: The verifiers.
    """

    def __init__(self, panel: VerifierEnsemble) -> None:
        self._panel = panel

    def scored(self, given: VerifierInput, config: RunnableConfig) -> Steps[VerifierScores]:
        """The first one's outputs as scores, checked.

        Raises:
            VerifierError: If one fails, or the first returns anything but n scores in [0, 1].
        """
        outputs = yield from self._panel.outputs(given, config)
        scores = check_scores(outputs[self._panel.names[0]], len(given["candidates"]))
        return VerifierScores.by_several(scores, outputs)
