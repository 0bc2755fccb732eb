"""Sequence probability: the probability of a candidate under the model that drew it."""

from __future__ import annotations

import math

from langchain_core.runnables import RunnableConfig

from langchain_cfc.errors import VerifierError
from langchain_cfc.execution import Steps, describe_error
from langchain_cfc.sampling import DrawnCandidate
from langchain_cfc.verifiers.base import BaseVerifier, VerifierInput, read_token_logprobs

# The most by which rounding can lift a sum of log-probabilities above 0.
_ROUND_OFF = 1e-3


class SequenceProbability(BaseVerifier):
    """Score = 1 - exp(sum of the candidate's token log-probabilities); needs no further call.

    The score lies in [0, 1], and smaller is better: 0 is a candidate that the model was certain to give. The
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

    def __repr__(self) -> str:
        """State whether the mean is taken."""
        return f"SequenceProbability({'per_token=True' if self.per_token else ''})"

    def flow(self, given: VerifierInput, config: RunnableConfig) -> Steps[list[float]]:
        """Score each candidate by its own log-probabilities; the prompt is not used."""
        del config
        yield from ()  # nothing is called
        return [self._score(slot, candidate) for slot, candidate in enumerate(given["candidates"])]

    def _score(self, slot: int, candidate: DrawnCandidate) -> float:
        tokens = read_token_logprobs(candidate.message)
        if not tokens:
            msg = (
                f"candidate {slot} carries no token log-probabilities: ask the model for them, for example "
                "ChatOpenAI(logprobs=True). If they were asked for, its server does not return them: use "
                "another verifier"
            )
            raise VerifierError(msg)
        try:
            total = math.fsum(float(token["logprob"]) for token in tokens)
        except (KeyError, OverflowError, TypeError, ValueError) as error:
            msg = (
                f"candidate {slot}: its token log-probabilities cannot be read ({describe_error(error)}); "
                "expected a number `logprob` for each token"
            )
            raise VerifierError(msg) from error
        # Written so that NaN fails it as well; a probability in place of its logarithm would look certain.
        if not total <= _ROUND_OFF:
            msg = (
                f"candidate {slot}: its token log-probabilities add up to {total}, which is not a "
                "log-probability"
            )
            raise VerifierError(msg)
        # Servers round, and a sum of 1e-7 would give a score below 0.
        return 1.0 - math.exp(min(0.0, total / len(tokens) if self.per_token else total))
