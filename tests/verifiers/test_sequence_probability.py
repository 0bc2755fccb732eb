"""`SequenceProbability`: one minus the probability of the sequence of tokens, or of a token on average."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import numpy as np
import pytest
from langchain_core.messages import AIMessage

from langchain_cfc.errors import VerifierError
from langchain_cfc.execution import CallLimits, ConcurrencyLimiter, apply_limits
from langchain_cfc.fingerprints import compute_fingerprint
from langchain_cfc.sampling import DrawnCandidate
from langchain_cfc.verifiers import SequenceProbability, VerifierInput
from tests.calls import copies_of
from tests.verifiers import recorded


def drawn(*logprobs: Any) -> DrawnCandidate:
    """A candidate with one token per log-probability, in the shape that ChatOpenAI returns."""
    content = [{"token": "x", "bytes": [120], "logprob": one, "top_logprobs": []} for one in logprobs]
    return said({"logprobs": {"content": content, "refusal": None}})


def said(metadata: dict[str, Any]) -> DrawnCandidate:
    return DrawnCandidate("x", AIMessage("x", response_metadata=metadata))


def given(*candidates: DrawnCandidate) -> VerifierInput:
    return VerifierInput(prompt="the prompt plays no role", candidates=list(candidates))


def scored(*candidates: DrawnCandidate, **settings: Any) -> list[float]:
    return SequenceProbability(**settings).invoke(given(*candidates))


def test_computed_by_hand() -> None:
    # Tokens of probability 1/2 and 1/4 make a sequence of probability 1/8.
    assert scored(drawn(math.log(0.5), math.log(0.25))) == [pytest.approx(0.875, abs=1e-15)]
    assert scored(drawn(math.log(0.9))) == [pytest.approx(0.1, abs=1e-15)]
    assert scored(drawn(0.0, 0.0)) == [0.0]


def test_per_token_computed_by_hand() -> None:
    # The geometric mean of 1/2 and 1/8 is 1/4.
    assert scored(drawn(math.log(0.5), math.log(0.125)), per_token=True) == [pytest.approx(0.75, abs=1e-15)]
    # One token has no length to be freed of.
    assert scored(drawn(-0.7), per_token=True) == scored(drawn(-0.7))


def test_the_async_path_gives_the_same() -> None:
    candidates = given(drawn(-0.3, -1.1), drawn(-2.0))
    with apply_limits(CallLimits(ConcurrencyLimiter(1))):
        found = asyncio.run(SequenceProbability().ainvoke(candidates))
    assert found == SequenceProbability().invoke(candidates)


def test_the_recorded_sum_of_a_local_model() -> None:
    # From the recording shipped with the package: sum -2.644611, score 0.92896702.
    assert scored(drawn(-1.5, -1.144611)) == [pytest.approx(0.92896702, abs=5e-9)]


def test_a_longer_text_is_never_more_probable() -> None:
    longer = [drawn(*[-0.1] * length) for length in (1, 2, 3)]
    by_sum = scored(*longer)
    assert by_sum[0] < by_sum[1] < by_sum[2]
    # Per token they are all the same.
    assert scored(*longer, per_token=True) == pytest.approx([1.0 - math.exp(-0.1)] * 3, abs=1e-15)


def test_impossible_tokens_give_the_worst_score() -> None:
    for per_token in (False, True):
        assert scored(drawn(-9999.0), drawn(-0.1, -math.inf), per_token=per_token) == [1.0, 1.0]


def test_rounding_above_zero_stays_a_score() -> None:
    assert scored(drawn(1e-7), drawn(1e-9, -1e-9)) == [0.0, 0.0]


@pytest.mark.parametrize(
    "candidate",
    [
        DrawnCandidate("x"),
        said({}),
        said({"logprobs": None}),
        said({"logprobs": {}}),
        said({"logprobs": {"content": None}}),
        said({"logprobs": {"content": []}}),
    ],
)
def test_a_candidate_without_log_probabilities_is_refused(candidate: DrawnCandidate) -> None:
    with pytest.raises(VerifierError, match="candidate 1 carries no token log-probabilities") as failure:
        scored(drawn(-0.1), candidate)
    assert "logprobs=True" in str(failure.value)
    with pytest.raises(VerifierError, match="candidate 0 carries no token log-probabilities"):
        asyncio.run(SequenceProbability().ainvoke(given(candidate)))


@pytest.mark.parametrize("per_token", [False, True])
@pytest.mark.parametrize("logprobs", [(math.nan,), (-0.1, math.nan), (0.7,), (math.inf,), (0.9, 0.8)])
def test_what_is_no_log_probability_never_looks_certain(logprobs: tuple[float, ...], per_token: bool) -> None:
    # NaN, or probabilities in place of their logarithms: clipped to 0, they would get the best score.
    with pytest.raises(VerifierError, match="candidate 0: its token log-probabilities add up to"):
        scored(drawn(*logprobs), per_token=per_token)


def test_it_says_what_it_is() -> None:
    assert compute_fingerprint(SequenceProbability()) == {"id": "sequence-probability"}
    assert compute_fingerprint(SequenceProbability(per_token=True)) == {"id": "token-probability"}
    assert repr(SequenceProbability()) == "SequenceProbability()"
    assert repr(SequenceProbability(per_token=True)) == "SequenceProbability(per_token=True)"


def test_copies_score_alike() -> None:
    verifier = SequenceProbability(per_token=True)
    for copied in copies_of(verifier):
        assert copied.invoke(given(drawn(-1.0, -2.0))) == verifier.invoke(given(drawn(-1.0, -2.0)))


def test_it_tells_right_from_wrong_on_the_recording() -> None:
    scores = recorded.scored(SequenceProbability())
    stated = [[one.score for one in record.candidates] for record in recorded.records()]
    np.testing.assert_allclose(scores, stated, rtol=0.0, atol=5e-9)  # the recording has nine digits
    found = recorded.told_apart(scores)
    assert found.low > 0.8
    control = recorded.told_apart(recorded.shuffled(scores, seed=20))
    assert control.low < 0.5 < control.high
