"""A verifier out of something that judges one candidate at a time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from langchain_core.runnables import Runnable, RunnableConfig

from langchain_cfc.calls import Call, Steps, by_name
from langchain_cfc.errors import VerifierError
from langchain_cfc.fingerprints import fingerprint
from langchain_cfc.sampling import quiet
from langchain_cfc.verifiers.base import BaseVerifier, VerifierInput, distinct_texts

Judge: TypeAlias = Runnable[Any, Any] | Callable[[Any, str], Any] | Callable[[Any, str], Awaitable[Any]]


class Pointwise(BaseVerifier):
    """Asks a judge about each distinct text of a prompt's candidates, concurrently.

    Made by `pointwise`.
    """

    def __init__(self, judge: Judge) -> None:
        self.name = "pointwise"
        self.judge = judge
        self.fingerprint = fingerprint(judge)
        target = (
            quiet(judge, fresh=False)
            if isinstance(judge, Runnable)
            else by_name(judge, ("prompt", "candidate"))
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
