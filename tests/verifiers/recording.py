"""The recording as verifiers see it, and what their scores are worth there."""

from __future__ import annotations

from functools import cache

import numpy as np
from langchain_core.messages import AIMessage

from langchain_cfc.records import PromptRecord
from langchain_cfc.sampling import DrawnCandidate
from langchain_cfc.scoring import Discrimination, compute_auroc
from langchain_cfc.support.arrays import BoolArray, FloatArray
from langchain_cfc.verifiers import BaseVerifier, VerifierInput
from tests.recordings import list_facts

# An interval of this level misses 0.5 once in ten thousand times where scores tell nothing: for one control
# with a fixed seed, that is the chance that a change of seed or of numpy makes a false alarm.
CONFIDENCE = 0.9999


@cache
def records() -> list[PromptRecord]:
    return list_facts()


@cache
def correct() -> BoolArray:
    return np.array([[one.correct for one in record.candidates] for record in records()])


def recorded_input(record: PromptRecord) -> VerifierInput:
    """A recorded prompt; each candidate carries its log-probability as that of one token."""
    draws = []
    for one in record.candidates:
        tokens = [{"token": one.text, "logprob": (one.scores or {})["sequence_logprob"]}]
        message = AIMessage(str(one.text), response_metadata={"logprobs": {"content": tokens}})
        draws.append(DrawnCandidate(str(one.text), message))
    return VerifierInput(prompt=record.input, candidates=draws)


def score_recording(verifier: BaseVerifier) -> FloatArray:
    """(N, n) scores of all recorded candidates."""
    return np.array([verifier.invoke(recorded_input(record)) for record in records()])


def compute_discrimination(scores: FloatArray) -> Discrimination:
    found = compute_auroc(scores, correct(), CONFIDENCE)
    assert found is not None
    return found


def shuffle_scores(scores: FloatArray, seed: int) -> FloatArray:
    """The scores of other prompts in another order: as much alike within a prompt, but of no meaning."""
    generator = np.random.default_rng(seed)
    return np.asarray(generator.permuted(generator.permutation(scores), axis=1), dtype=np.float64)
