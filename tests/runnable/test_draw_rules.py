"""Serving by a draw rule: the same draws, thresholds and sets as deciding on prefixes of the recording."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest
from langchain_core.messages.ai import UsageMetadata

from langchain_cfc import CalibrationArtifact, Candidate, CFCRunnable, PromptRecord, calibrate
from langchain_cfc.artifact import tabulate_draws
from langchain_cfc.decision import decide
from langchain_cfc.errors import AttainabilityWarning, FingerprintError
from langchain_cfc.records import Provenance
from langchain_cfc.sampling import DrawnCandidate
from langchain_cfc.verifiers import from_evaluator
from tests.calls import Invoke
from tests.fakes import ScriptedModel, answer_of, score_of, text_from_hash, verify
from tests.lengths import mostly_long

N = 8
RULES = [
    "lead(2, at_most=8)",
    "lead(3, rounds=3+1+4)",
    "below(0.2, at_most=8)",
    "below(0.2, rounds=2+3+3)",
    "agree(0.6, rounds=2+2+4)",
]
USAGE = UsageMetadata(input_tokens=10, output_tokens=2, total_tokens=12)
SEPARATE_SCORES = Provenance(n=N, verifier={"id": "own"}, answer={"id": "own"}, separate_scores=True)

pytestmark = pytest.mark.filterwarnings(
    f"ignore::{AttainabilityWarning.__module__}.{AttainabilityWarning.__name__}",
    "ignore::langchain_cfc.errors.FingerprintWarning",
)


def make_records(numbers: Sequence[int]) -> list[PromptRecord]:
    """Return records of what the scripted model says in each slot of a prompt, with its scores."""
    records = []
    for number in numbers:
        prompt = f"question {number}"
        texts = [text_from_hash(prompt, slot) for slot in range(N)]
        scores = [score_of(text) for text in texts]
        candidates = tuple(
            Candidate(text=text, answer=answer_of(text), score=score, correct=answer_of(text) == "answer 0")
            for text, score in zip(texts, scores, strict=True)
        )
        records.append(PromptRecord(id=prompt, input=prompt, candidates=candidates))
    return records


@cache
def make_calibration_records() -> list[PromptRecord]:
    return make_records(range(10_000, 10_300))


@cache
def make_artifact(draws: str) -> CalibrationArtifact:
    return calibrate(
        make_calibration_records(),
        alpha="0.4",
        features="hat(mean_score, 3)",
        draws=draws,
        provenance=SEPARATE_SCORES,
        allow_unattainable=True,
    )


def make_chain(artifact: CalibrationArtifact, **fields: Any) -> CFCRunnable:
    parts = {"verifier": verify, "answer": answer_of, "verifier_id": "own", "answer_id": "own"}
    generator = ScriptedModel(usage=USAGE)
    return CFCRunnable(**{"generator": generator, "artifact": artifact, **parts, **fields})


def check_against_offline(draws: str, size: int) -> None:
    """Compare every draw, level, threshold and set, to the bit, by sync and by async calls."""
    artifact = make_artifact(draws)
    table = tabulate_draws(artifact, make_records(range(size)))
    offline, counts = decide(artifact, table.draws), table.draws.counts
    chain = make_chain(artifact)
    prompts = [f"question {number}" for number in range(size)]
    served = [*chain.batch(prompts[::2]), *asyncio.run(chain.abatch(prompts[1::2]))]
    assert len(set(counts.tolist())) > 1
    for row, result in zip([*range(0, size, 2), *range(1, size, 2)], served, strict=True):
        count = int(counts[row])
        assert len(result.candidates) == count
        assert result.usage is not None
        assert result.usage["total_tokens"] == 12 * count
        assert [one.score for one in result.candidates] == table.draws.scores[row, :count].tolist()
        assert [one.accepted for one in result.candidates] == offline.accepted[row, :count].tolist()
        assert result.threshold == offline.thresholds[row]
        assert tuple(result.features.values()) == tuple(offline.features[row].tolist())
        assert result.reason == offline.find_reason(row)


@mostly_long("draws", RULES, quick=3)
def test_chain_with_draw_rule_decides_like_decide_on_recorded_prefixes(draws: str) -> None:
    check_against_offline(draws, 20)


@pytest.mark.long
@pytest.mark.parametrize("draws", RULES)
def test_draw_rule_serves_two_thousand_prompts_like_decide(draws: str) -> None:
    check_against_offline(draws, 2_000)


def test_draw_rule_requests_whole_waves_and_then_stops(invoke: Invoke) -> None:
    model = ScriptedModel(texts=("a|0.3", "a|0.4", "b|0.1", "a|0.2", *["c|0.9"] * 4))
    result = invoke(make_chain(make_artifact("lead(2, rounds=3+1+4)"), generator=model), "x")
    assert len(model.drawn) == len(result.candidates) == 4
    assert [one.slot for one in result.candidates] == [0, 1, 2, 3]
    assert result.guarantee.target_coverage == 0.6


def test_draw_rule_on_scores_scores_each_distinct_text_once(invoke: Invoke) -> None:
    asked: list[str] = []

    def judge(prompt: Any, text: str) -> float:
        del prompt
        asked.append(text)
        return score_of(text)

    model = ScriptedModel(texts=("a|0.3", "b|0.4", "a|0.3", "c|0.1", *["d|0.9"] * 4))
    chain = make_chain(
        make_artifact("below(0.2, at_most=8)"),
        generator=model,
        verifier=from_evaluator(judge, higher_is_better=False),
    )
    assert [one.score for one in invoke(chain, "x").candidates] == [0.3, 0.4, 0.3, 0.1]
    assert asked == ["a|0.3", "b|0.4", "c|0.1"]


def test_draw_rule_on_answers_scores_after_the_last_draw(invoke: Invoke) -> None:
    sizes: list[int] = []

    def verifier(prompt: Any, candidates: list[DrawnCandidate]) -> list[float]:
        sizes.append(len(candidates))
        return verify(prompt, candidates)

    model = ScriptedModel(texts=("a|0.3", "b|0.4", "a|0.3", "a|0.1", *["d|0.9"] * 4))
    invoke(make_chain(make_artifact("lead(2, at_most=8)"), generator=model, verifier=verifier), "x")
    assert sizes == [4]


def test_draw_rule_on_answers_requires_the_calibrated_extractor() -> None:
    artifact = make_artifact("lead(2, at_most=8)")
    with pytest.raises(FingerprintError, match="look at distinct answers"):
        make_chain(artifact, answer=None, answer_id=None)
    # One on scores alone does not, though the records name an extractor.
    assert not make_artifact("below(0.2, at_most=8)").needs_answers
    assert np.isfinite(make_chain(artifact).invoke("question 1").candidates[0].score)
