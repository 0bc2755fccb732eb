"""What a verifier is, and what it returns.

A verifier is set-wise: it sees the prompt and all n candidates, and returns n scores in [0, 1], smaller is
better. A judge that speaks in confidence p is wrapped as 1 - p.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, TypeAlias, TypedDict

from langchain_core.runnables import Runnable, RunnableConfig, RunnableLambda
from langchain_core.runnables.utils import is_async_callable

from langchain_cfc.calls import Target
from langchain_cfc.errors import VerifierError
from langchain_cfc.sampling import Draw


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
    "single candidate with langchain_cfc.verifiers.pairwise"
)


def verifier_target(verifier: Verifier) -> Target:
    """A verifier as something that takes a `VerifierInput`.

    Args:
        verifier: A Runnable on `VerifierInput`, or a function `(prompt, candidates) -> scores`, plain or
            async.

    Returns:
        The Runnable, or a function of one argument.

    Raises:
        VerifierError: If it is neither.
    """
    if isinstance(verifier, Runnable):
        return verifier
    if not callable(verifier):
        msg = f"got a {type(verifier).__name__} as verifier: {_HINT}"
        raise VerifierError(msg)
    function: Callable[[Any, list[Draw]], Any] = verifier
    return lambda given: function(given["prompt"], given["candidates"])


def pairwise(
    judge: Runnable[Any, Any] | Callable[[Any, str], float] | Callable[[Any, str], Awaitable[float]],
) -> Runnable[Any, Any]:
    """A verifier out of something that judges one candidate at a time.

    Args:
        judge: A Runnable on `{"prompt": ..., "candidate": text}`, or a function `(prompt, text) -> score`,
            plain or async; the score lies in [0, 1], smaller is better.

    Returns:
        A verifier; the n judgements of a prompt run concurrently.
    """
    one = judge if isinstance(judge, Runnable) else _of_pair(judge)

    def inputs(given: VerifierInput) -> list[dict[str, Any]]:
        return [{"prompt": given["prompt"], "candidate": c.text} for c in given["candidates"]]

    def call(given: VerifierInput, config: RunnableConfig) -> Any:
        return one.batch(inputs(given), config)

    async def acall(given: VerifierInput, config: RunnableConfig) -> Any:
        return await one.abatch(inputs(given), config)

    return RunnableLambda(call, acall, name="pairwise")


def _of_pair(function: Callable[[Any, str], Any]) -> Runnable[Any, Any]:
    def call(pair: dict[str, Any]) -> Any:
        return function(pair["prompt"], pair["candidate"])

    async def acall(pair: dict[str, Any]) -> Any:
        return await function(pair["prompt"], pair["candidate"])

    # RunnableLambda looks at the function it is given, and would take `call` for plain.
    return RunnableLambda(acall) if is_async_callable(function) else RunnableLambda(call)


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
    values = _listed(scores, n)
    if len(values) != n:
        msg = f"the verifier returned {len(values)} scores for {n} candidates: {_HINT}"
        raise VerifierError(msg)
    return [_checked_score(slot, value) for slot, value in enumerate(values)]


def _listed(scores: Any, n: int) -> list[Any]:
    cause: Exception | None = None
    # The keys of a mapping, the members of a set and the bytes of a text come in no order of candidates.
    if not isinstance(scores, (Mapping, AbstractSet, str, bytes, bytearray)):
        try:
            return list(scores)
        except Exception as error:  # noqa: BLE001 - a verifier that yields its scores may fail only here
            cause = error
    reason = f" ({type(cause).__name__}: {cause})" if cause is not None else ""
    msg = f"the verifier returned {type(scores).__name__} instead of {n} scores{reason}: {_HINT}"
    raise VerifierError(msg) from cause


def _checked_score(slot: int, value: Any) -> float:
    try:
        # NumPy's and Torch's numbers and booleans become Python's, of which True would read as 1.0.
        number = value.item() if hasattr(value, "item") else value
        score = math.nan if isinstance(number, (bool, str, bytes, bytearray)) else float(number)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        score = math.nan
    if not 0.0 <= score <= 1.0:  # NaN fails this as well
        msg = f"the verifier's score of candidate {slot} is {value!r}: {_HINT}"
        raise VerifierError(msg)
    return score
