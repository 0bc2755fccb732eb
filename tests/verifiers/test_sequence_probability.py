"""`SequenceProbability`: one minus the probability of the whole sequence of tokens."""

from __future__ import annotations

import math
from typing import Any

import pytest
from langchain_core.messages import AIMessage

from langchain_cfc.errors import VerifierError
from langchain_cfc.fingerprints import fingerprint
from langchain_cfc.sampling import Draw
from langchain_cfc.verifiers import SequenceProbability


def drawn(*logprobs: Any) -> Draw:
    """A candidate with one token per log-probability, in the shape that ChatOpenAI returns."""
    content = [{"token": "x", "bytes": [120], "logprob": one, "top_logprobs": []} for one in logprobs]
    return said({"logprobs": {"content": content, "refusal": None}})


def said(metadata: dict[str, Any]) -> Draw:
    return Draw("x", AIMessage("x", response_metadata=metadata))


def scored(*candidates: Draw) -> list[float]:
    return SequenceProbability()("the prompt plays no role", list(candidates))


def test_computed_by_hand() -> None:
    # Tokens of probability 1/2 and 1/4 make a sequence of probability 1/8.
    assert scored(drawn(math.log(0.5), math.log(0.25))) == [pytest.approx(0.875, abs=1e-15)]
    assert scored(drawn(math.log(0.9))) == [pytest.approx(0.1, abs=1e-15)]
    assert scored(drawn(0.0, 0.0)) == [0.0]


def test_the_recorded_sum_of_a_local_model() -> None:
    # From the recording shipped with the package: sum -2.644611, score 0.92896702.
    assert scored(drawn(-1.5, -1.144611)) == [pytest.approx(0.92896702, abs=5e-9)]


def test_a_longer_text_is_never_more_probable() -> None:
    assert scored(drawn(-0.1), drawn(-0.1, -0.1), drawn(-0.1, -0.1, -0.1)) == sorted(
        scored(drawn(-0.1), drawn(-0.1, -0.1), drawn(-0.1, -0.1, -0.1))
    )


def test_impossible_tokens_give_the_worst_score() -> None:
    assert scored(drawn(-9999.0), drawn(-0.1, -math.inf)) == [1.0, 1.0]


def test_rounding_above_zero_stays_a_score() -> None:
    assert scored(drawn(1e-7), drawn(1e-9, -1e-9)) == [0.0, 0.0]


@pytest.mark.parametrize(
    "candidate",
    [
        Draw("x"),
        said({}),
        said({"logprobs": None}),
        said({"logprobs": {}}),
        said({"logprobs": {"content": None}}),
        said({"logprobs": {"content": []}}),
    ],
)
def test_a_candidate_without_log_probabilities_is_refused(candidate: Draw) -> None:
    with pytest.raises(VerifierError, match="candidate 1 carries no token log-probabilities") as failure:
        scored(drawn(-0.1), candidate)
    assert "logprobs=True" in str(failure.value)


@pytest.mark.parametrize("logprobs", [(math.nan,), (-0.1, math.nan), (0.7,), (math.inf,), (0.9, 0.8)])
def test_what_is_no_log_probability_never_looks_certain(logprobs: tuple[float, ...]) -> None:
    # NaN, or probabilities in place of their logarithms: clipped to 0, they would get the best score.
    with pytest.raises(VerifierError, match="candidate 0: its token log-probabilities add up to"):
        scored(drawn(*logprobs))


def test_it_says_what_it_is() -> None:
    assert fingerprint(SequenceProbability()) == {"id": "sequence-probability"}
