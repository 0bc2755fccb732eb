"""Sequence probability: the probability of a candidate under the model that drew it."""

from __future__ import annotations

import math
from codecs import getincrementaldecoder
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from langchain_core.runnables import RunnableConfig

from langchain_cfc.errors import VerifierError
from langchain_cfc.execution import Steps, describe_error
from langchain_cfc.no_answers import find_answer_spans, strip_reasoning
from langchain_cfc.sampling import DrawnCandidate
from langchain_cfc.verifiers.base import BaseVerifier, VerifierInput, read_logprob, read_token_logprobs

# A space in SentencePiece; a space and a line break in byte-level vocabularies.
_SIGNS = str.maketrans("\u2581\u0120\u010a", "  \n")


def select_answer_tokens(candidate: DrawnCandidate) -> list[Mapping[str, Any]]:
    """Return the provider's entries for the tokens of a candidate's answer, without those of its reasoning.

    All entries are returned if the text holds no reasoning, or the tokens do not spell the text.
    """
    tokens = read_token_logprobs(candidate.message)
    whole, places = locate_tokens(tokens)
    spans = find_answer_spans(whole)
    if candidate.text == whole or not spans or strip_reasoning(whole) != candidate.text:
        return tokens
    return [
        token
        for token, (start, end) in zip(tokens, places, strict=True)
        if whole[start:end].strip() and any(start < stop and first < end for first, stop in spans)
    ]


def locate_tokens(tokens: Sequence[Mapping[str, Any]]) -> tuple[str, list[tuple[int, int]]]:
    """Return the text that tokens spell, and the start and end of each in its characters."""
    # A character may be spread over several tokens, and belongs to each of them.
    decoder = getincrementaldecoder("utf-8")("replace")
    text, places = "", []
    for one in tokens:
        start = len(text)
        text += decoder.decode(_encode_token(one))
        is_unfinished = bool(decoder.getstate()[0])
        places.append((start, len(text) + is_unfinished))
    return text + decoder.decode(b"", final=True), places


def _encode_token(entry: Mapping[str, Any]) -> bytes:
    """Return the bytes that a provider lists for a token, or those of its text if there are none."""
    listed = entry.get("bytes")
    with suppress(TypeError, ValueError):  # no numbers of bytes
        if isinstance(listed, (list, bytes)) and listed:
            return bytes(listed)
    return str(entry.get("token", "")).encode(errors="replace")


def align_tokens(text: str, tokens: Sequence[Mapping[str, Any]]) -> list[tuple[int, int]] | None:
    """Return where each token is in a text that they spell among others; None if they do not spell it.

    Servers also list tokens before and after the text, such as those that end it, and strip spaces. Some list
    them as vocabularies write them, with signs for spaces and bytes.
    """
    for listed in (
        tokens,
        [{"token": str(one.get("token", "")).translate(_SIGNS).replace("<0x0A>", "\n")} for one in tokens],
    ):
        spelled, places = locate_tokens(listed)
        begins = {one for start, end in places for one in (start, end - len(spelled[start:end].lstrip()))}
        at = max((one for one in begins if spelled.startswith(text, one)), default=-1)
        if at >= 0:
            return [(start - at, end - at) for start, end in places]
    return None


class SequenceProbability(BaseVerifier):
    """Score = 1 - exp(sum of the candidate's token log-probabilities); needs no further call.

    The score lies in [0, 1], and smaller is better: 0 is a candidate that the model was certain to give.
    Tokens of reasoning that is removed from the text are left out: the score is the probability of the answer
    given the reasoning. With them, any long reasoning would score 1, whatever the answer. The
    generator must return token log-probabilities in `response_metadata`, as `ChatOpenAI(logprobs=True)`,
    `ChatOllama(logprobs=True)` and `ChatVertexAI(logprobs=True)` do.

    Args:
        per_token: Whether to use the mean of the log-probabilities instead of their sum, that is, the
            geometric mean of the tokens' probabilities, so that long candidates do not score worse for being
            long. Malinin and Gales (2021, "Uncertainty estimation in autoregressive structured prediction")
            compare the two.
    """

    def __init__(self, *, per_token: bool = False) -> None:
        self.name = "sequence-probability"
        self.per_token = per_token
        self.fingerprint = {"id": "token-probability" if per_token else "sequence-probability"}

    def flow(self, given: VerifierInput, config: RunnableConfig) -> Steps[list[float | None]]:
        """Score each candidate by its own log-probabilities; the prompt is not used.

        An answer without usable log-probabilities has no verdict. If that holds for every answer, the cause
        is the server or the settings, which is an error.
        """
        del config
        yield from ()  # nothing is called
        found = [
            None if candidate.no_answer is not None else self._score(slot, candidate)
            for slot, candidate in enumerate(given["candidates"])
        ]
        errors = [one for one in found if isinstance(one, VerifierError)]
        if errors and not any(isinstance(one, float) for one in found):
            if all(one.message is None for one in given.get("answers") or given["candidates"]):
                msg = (
                    "no token log-probabilities: a parser behind the model (such as StrOutputParser) removes "
                    "the messages that carry them. End the chain with the chat model, and pass the parser as "
                    "answer="
                )
                raise VerifierError(msg)
            raise errors[0]
        return [one if isinstance(one, float) else None for one in found]

    def _score(self, slot: int, candidate: DrawnCandidate) -> float | VerifierError:
        """Return the score of an answer, or why it has none."""
        tokens = select_answer_tokens(candidate)
        if not tokens:
            msg = (
                f"candidate {slot} carries no token log-probabilities: ask for them, as by "
                "ChatOpenAI(logprobs=True). If the server does not return them, use "
                "SelfConsistency()"
            )
            return VerifierError(msg)
        if not tokens[0].get("is_placed", True):
            msg = (
                f"candidate {slot}: its tokens, such as {tokens[0].get('token')!r}, do not spell the answer, "
                "so none belongs to a claim: have the server list them as text, or use SelfConsistency()"
            )
            return VerifierError(msg)
        try:
            total = math.fsum(map(read_logprob, tokens))
        except (KeyError, OverflowError, TypeError, ValueError) as error:
            msg = (
                f"candidate {slot}: its token log-probabilities cannot be read ({describe_error(error)}); "
                "expected a number `logprob` of at most 0 for each token"
            )
            return VerifierError(msg)
        # Servers round, and a sum of 1e-7 would give a score below 0.
        return 1.0 - math.exp(min(0.0, total / len(tokens) if self.per_token else total))
