"""Sequence probability: how probable the model itself found the candidate."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

from langchain_cfc.errors import VerifierError
from langchain_cfc.sampling import Draw


class SequenceProbability:
    """Score = 1 - exp(sum of the token log-probabilities) of the draw itself; costs no further call.

    The generator must return token log-probabilities, such as `ChatOpenAI(logprobs=True)` does, in
    `response_metadata["logprobs"]["content"]`.
    """

    fingerprint: ClassVar[Mapping[str, str]] = {"id": "sequence-probability"}

    def __call__(self, prompt: Any, candidates: list[Draw]) -> list[float]:
        """One score in [0, 1] per candidate, smaller is better; `prompt` plays no role.

        Raises:
            VerifierError: If a candidate carries no log-probabilities, or something else in their place.
        """
        del prompt
        return [_score(slot, candidate) for slot, candidate in enumerate(candidates)]


# The most by which rounding can lift a sum of log-probabilities above 0.
_ROUNDING = 1e-3


def _score(slot: int, candidate: Draw) -> float:
    metadata = candidate.message.response_metadata if candidate.message is not None else {}
    tokens = (metadata.get("logprobs") or {}).get("content")
    if not tokens:
        msg = (
            f"candidate {slot} carries no token log-probabilities: ask the model for them, for example "
            "ChatOpenAI(logprobs=True)"
        )
        raise VerifierError(msg)
    total = math.fsum(token["logprob"] for token in tokens)
    # Written so that NaN fails it as well; a probability in place of its logarithm would look certain.
    if not total <= _ROUNDING:
        msg = f"candidate {slot}: its token log-probabilities add up to {total}, which is no log-probability"
        raise VerifierError(msg)
    # Servers round, and a sum of 1e-7 would give a score below 0.
    return 1.0 - math.exp(min(0.0, total))
