"""What a verifier is, and what it returns.

A verifier is set-wise: it sees the prompt and all n candidates, and returns n scores in [0, 1], smaller is
better. A judge that speaks in confidence p is wrapped as 1 - p.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, TypeAlias, TypedDict

import numpy as np
from langchain_core.runnables import Runnable, RunnableConfig

from langchain_cfc.calls import Call, FlowRunnable, Steps, Target, by_name, described
from langchain_cfc.errors import VerifierError
from langchain_cfc.sampling import Draw, quiet


class VerifierInput(TypedDict):
    """What a verifier that is a Runnable is invoked with: the prompt, and n candidates in draw order."""

    prompt: Any
    candidates: list[Draw]


Scores: TypeAlias = Sequence[float]
Verifier: TypeAlias = (
    Runnable[Any, Any] | Callable[[Any, list[Draw]], Scores] | Callable[[Any, list[Draw]], Awaitable[Scores]]
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


def verifier_call(verifier: Verifier) -> Call:
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
        return quiet(verifier, fresh=False)
    if not callable(verifier):
        msg = f"got a {type(verifier).__name__} as verifier: {_HINT}"
        raise VerifierError(msg)
    return by_name(verifier, ("prompt", "candidates"))


def distinct_texts(candidates: Sequence[Draw]) -> list[str]:
    """The texts of some candidates, each once, in draw order: equal texts get one judgement."""
    return list(dict.fromkeys(candidate.text for candidate in candidates))


def checked_scores(scores: Any, n: int) -> list[float]:
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


def checked_outputs(outputs: Any, n: int, name: str) -> list[float]:
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
        reason = f" ({described(cause)})" if cause is not None else ""
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
