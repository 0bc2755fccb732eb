"""What a verifier is, and what it returns.

A verifier is set-wise: it sees the prompt and all n candidates, and returns n scores in [0, 1], smaller is
better. A judge that speaks in confidence p is wrapped as 1 - p.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeAlias, TypedDict

from langchain_core.runnables import Runnable, RunnableConfig, RunnableLambda

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
    "a verifier returns one score in [0, 1] per candidate, smaller is better; wrap one that judges a single "
    "candidate with langchain_cfc.verifiers.pairwise"
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


def pairwise(judge: Runnable[Any, Any] | Callable[[Any, str], float]) -> Runnable[Any, Any]:
    """A verifier out of something that judges one candidate at a time.

    Args:
        judge: A Runnable on `{"prompt": ..., "candidate": text}`, or a function `(prompt, text) -> score`;
            the score lies in [0, 1], smaller is better.

    Returns:
        A verifier; the n judgements of a prompt run concurrently.
    """
    one = judge if isinstance(judge, Runnable) else RunnableLambda(_of_pair(judge))

    def inputs(given: VerifierInput) -> list[dict[str, Any]]:
        return [{"prompt": given["prompt"], "candidate": c.text} for c in given["candidates"]]

    def call(given: VerifierInput, config: RunnableConfig) -> Any:
        return one.batch(inputs(given), config)

    async def acall(given: VerifierInput, config: RunnableConfig) -> Any:
        return await one.abatch(inputs(given), config)

    return RunnableLambda(call, acall, name="pairwise")


def _of_pair(function: Callable[[Any, str], float]) -> Callable[[dict[str, Any]], float]:
    return lambda pair: function(pair["prompt"], pair["candidate"])


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
    try:
        values = list(scores)
    except TypeError as error:
        msg = f"the verifier returned {type(scores).__name__} instead of {n} scores: {_HINT}"
        raise VerifierError(msg) from error
    if len(values) != n:
        msg = f"the verifier returned {len(values)} scores for {n} candidates: {_HINT}"
        raise VerifierError(msg)
    return [_checked_score(slot, value) for slot, value in enumerate(values)]


def _checked_score(slot: int, value: Any) -> float:
    score = math.nan
    if not isinstance(value, (bool, str)):  # True would read as 1.0, and "0.3" as 0.3
        try:
            score = float(value)
        except (TypeError, ValueError):
            score = math.nan
    if not 0.0 <= score <= 1.0:  # NaN fails this as well
        msg = f"the verifier's score of candidate {slot} is {value!r}: {_HINT}"
        raise VerifierError(msg)
    return score
