"""`SequenceProbability`: one minus the probability of the sequence of tokens, or of a token on average."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import numpy as np
import pytest
from langchain_core.messages import AIMessage
from pydantic import BaseModel

from langchain_cfc.errors import VerifierError
from langchain_cfc.execution import CallLimits, ConcurrencyLimiter, apply_limits
from langchain_cfc.sampling import DrawnCandidate
from langchain_cfc.sampling.fingerprints import compute_fingerprint
from langchain_cfc.verifiers import SequenceProbability, VerifierInput
from tests.calls import copies_of
from tests.verifiers import recording


def make_candidate(*logprobs: Any) -> DrawnCandidate:
    """A candidate with one token per log-probability, in the shape that ChatOpenAI returns."""
    content = [{"token": "x", "bytes": [120], "logprob": one, "top_logprobs": []} for one in logprobs]
    return make_message_candidate({"logprobs": {"content": content, "refusal": None}})


def make_message_candidate(metadata: dict[str, Any]) -> DrawnCandidate:
    return DrawnCandidate("x", AIMessage("x", response_metadata=metadata))


def make_input(*candidates: DrawnCandidate) -> VerifierInput:
    return VerifierInput(prompt="the prompt plays no role", candidates=list(candidates))


def score_candidates(*candidates: DrawnCandidate, **settings: Any) -> list[float]:
    return SequenceProbability(**settings).invoke(make_input(*candidates))


def test_sequence_probability_equals_values_computed_by_hand() -> None:
    # Tokens of probability 1/2 and 1/4 make a sequence of probability 1/8.
    assert score_candidates(make_candidate(math.log(0.5), math.log(0.25))) == [
        pytest.approx(0.875, abs=1e-15)
    ]
    assert score_candidates(make_candidate(math.log(0.9))) == [pytest.approx(0.1, abs=1e-15)]
    assert score_candidates(make_candidate(0.0, 0.0)) == [0.0]


class OllamaToken(BaseModel):
    """What the client of Ollama 0.6 returns for each token."""

    token: str
    logprob: float
    top_logprobs: list[Any] = []


@pytest.mark.parametrize(
    "metadata",
    [
        {"logprobs": [{"token": "Li", "logprob": math.log(0.5)}, {"token": "ma", "logprob": math.log(0.25)}]},
        {"logprobs": [OllamaToken.model_validate({"token": "Lima", "logprob": math.log(0.125)})]},
        {"logprobs_result": [{"token": "Lima", "logprob": math.log(0.125), "top_logprobs": []}]},
    ],
)
def test_sequence_probability_reads_the_forms_of_several_providers(metadata: dict[str, Any]) -> None:
    [score] = score_candidates(make_message_candidate(metadata))
    assert score == pytest.approx(0.875, abs=1e-15)


@pytest.mark.parametrize(
    "entry", [{"token": "x"}, {"token": "x", "logprob": None}, {"logprob": "likely"}, {"logprob": 10**400}]
)
def test_sequence_probability_refuses_tokens_without_a_number(entry: dict[str, Any]) -> None:
    with pytest.raises(VerifierError, match="candidate 0: its token log-probabilities cannot be read"):
        score_candidates(make_message_candidate({"logprobs": {"content": [entry]}}))


def test_per_token_probability_equals_values_computed_by_hand() -> None:
    # The geometric mean of 1/2 and 1/8 is 1/4.
    assert score_candidates(make_candidate(math.log(0.5), math.log(0.125)), per_token=True) == [
        pytest.approx(0.75, abs=1e-15)
    ]
    # One token has no length to be freed of.
    assert score_candidates(make_candidate(-0.7), per_token=True) == score_candidates(make_candidate(-0.7))


def test_sequence_probability_ainvoke_equals_invoke() -> None:
    candidates = make_input(make_candidate(-0.3, -1.1), make_candidate(-2.0))
    with apply_limits(CallLimits(ConcurrencyLimiter(1))):
        found = asyncio.run(SequenceProbability().ainvoke(candidates))
    assert found == SequenceProbability().invoke(candidates)


def test_sequence_probability_equals_a_recorded_score() -> None:
    # From the recording shipped with the package: sum -2.644611, score 0.92896702.
    assert score_candidates(make_candidate(-1.5, -1.144611)) == [pytest.approx(0.92896702, abs=5e-9)]


def test_longer_texts_score_higher_unless_per_token() -> None:
    longer = [make_candidate(*[-0.1] * length) for length in (1, 2, 3)]
    by_sum = score_candidates(*longer)
    assert by_sum[0] < by_sum[1] < by_sum[2]
    # Per token they are all the same.
    assert score_candidates(*longer, per_token=True) == pytest.approx([1.0 - math.exp(-0.1)] * 3, abs=1e-15)


def test_impossible_tokens_give_the_worst_score() -> None:
    for per_token in (False, True):
        assert score_candidates(
            make_candidate(-9999.0), make_candidate(-0.1, -math.inf), per_token=per_token
        ) == [1.0, 1.0]


def test_log_probabilities_rounded_above_0_give_score_0() -> None:
    assert score_candidates(make_candidate(1e-7), make_candidate(1e-9, -1e-9)) == [0.0, 0.0]


@pytest.mark.parametrize(
    "candidate",
    [
        make_message_candidate({}),
        make_message_candidate({"logprobs": None}),
        make_message_candidate({"logprobs": {}}),
        make_message_candidate({"logprobs": {"content": None}}),
        make_message_candidate({"logprobs": {"content": []}}),
        make_message_candidate({"logprobs": []}),
        make_message_candidate({"logprobs": [0.5]}),
        make_message_candidate({"logprobs": "none"}),
    ],
)
def test_sequence_probability_refuses_prompts_without_log_probabilities(candidate: DrawnCandidate) -> None:
    # One draw without them has no verdict.
    assert score_candidates(make_candidate(0.0), candidate) == [0.0, None]
    with pytest.raises(VerifierError, match="logprobs=True"):
        score_candidates(candidate, candidate)
    with pytest.raises(VerifierError, match="candidate 0 carries no token log-probabilities"):
        asyncio.run(SequenceProbability().ainvoke(make_input(candidate)))


def test_sequence_probability_names_the_parser_if_there_are_no_messages() -> None:
    with pytest.raises(VerifierError, match="a parser behind the model"):
        score_candidates(DrawnCandidate("x"), DrawnCandidate("y"))


@pytest.mark.parametrize("per_token", [False, True])
@pytest.mark.parametrize("logprobs", [(math.nan,), (-0.1, math.nan), (0.7,), (math.inf,), (0.9, -3.0)])
def test_sequence_probability_refuses_invalid_log_probabilities(
    logprobs: tuple[float, ...], per_token: bool
) -> None:
    # NaN, or probabilities in place of their logarithms: clipped to 0, they would get the best score.
    with pytest.raises(VerifierError, match=r"candidate 0: its token log-probabilities .*of 'x' is "):
        score_candidates(make_candidate(*logprobs), per_token=per_token)


def test_sequence_probability_fingerprint_names_what_is_computed() -> None:
    for verifier, name in (
        (SequenceProbability(), "sequence-probability"),
        (SequenceProbability(per_token=True), "token-probability"),
    ):
        assert compute_fingerprint(verifier) == {"class": "langchain_cfc.SequenceProbability", "id": name}


def test_copied_sequence_probability_scores_alike() -> None:
    verifier = SequenceProbability(per_token=True)
    for copied in copies_of(verifier):
        assert copied.invoke(make_input(make_candidate(-1.0, -2.0))) == verifier.invoke(
            make_input(make_candidate(-1.0, -2.0))
        )


def test_sequence_probability_discriminates_on_the_recording() -> None:
    scores = recording.score_recording(SequenceProbability())
    stated = [[one.score for one in record.candidates] for record in recording.records()]
    np.testing.assert_allclose(scores, stated, rtol=0.0, atol=5e-9)  # the recording has nine digits
    found = recording.compute_discrimination(scores)
    assert found.low > 0.8
    control = recording.compute_discrimination(recording.shuffle_scores(scores, seed=20))
    assert control.low < 0.5 < control.high
