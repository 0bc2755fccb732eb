"""Chains with several verifiers, combined as the artifact states."""

from __future__ import annotations

import asyncio
import zlib
from typing import Any

import numpy as np
import pytest
from langchain_core.runnables import RunnableLambda

from langchain_cfc import CalibrationArtifact, Candidate, CFCResult, CFCRunnable, PromptRecord, calibrate
from langchain_cfc.candidates import CandidateBatch
from langchain_cfc.decision import decide
from langchain_cfc.errors import FingerprintError, VerifierError
from langchain_cfc.sampling import DrawnCandidate
from langchain_cfc.verifiers import VerifierEnsemble
from tests.calls import Invoke
from tests.factories import make_chain
from tests.fakes import N, ScriptedModel

TEXTS = ("0.9 3", "0.1 1", "0.2 2", "0.3 7")


def hint(prompt: Any, candidates: list[DrawnCandidate]) -> list[float]:
    """Larger for correct candidates: which way it points is for the fit to find out."""
    del prompt
    return [float(one.text.partition(" ")[0]) for one in candidates]


def noise(prompt: Any, candidates: list[DrawnCandidate]) -> list[float]:
    """Says nothing, on a scale of its own."""
    del prompt
    return [100.0 * float(one.text.partition(" ")[2]) for one in candidates]


def make_record(number: int) -> PromptRecord:
    generator = np.random.default_rng(zlib.crc32(str(number).encode()))
    correct = generator.random(N) < 0.5
    hints = np.clip(np.where(correct, 0.7, 0.3) + 0.2 * generator.standard_normal(N), 0.0, 1.0)
    return PromptRecord(
        id=str(number),
        input=f"prompt {number}",
        candidates=tuple(
            Candidate(
                text=f"{hints[slot]} {slot}",
                score=0.5,
                correct=bool(correct[slot]),
                scores={"hint": float(hints[slot]), "noise": float(100 * generator.random())},
            )
            for slot in range(N)
        ),
    )


@pytest.fixture(scope="module")
def combined() -> CalibrationArtifact:
    """Calibrated on scores that two verifiers make together."""
    return calibrate(map(make_record, range(400)), alpha=0.2, features="1", combine=["hint", "noise"])


def chain(combined: CalibrationArtifact, **fields: Any) -> CFCRunnable:
    model = ScriptedModel(texts=TEXTS)
    return make_chain(
        combined,
        **{"generator": model, "verifier": {"noise": noise, "hint": hint}, "show_rejected": True, **fields},
    )


def test_chain_combines_verifier_outputs_as_in_calibration(
    combined: CalibrationArtifact, invoke: Invoke
) -> None:
    result: CFCResult = invoke(chain(combined), "x")
    assert combined.combination is not None
    draws = [DrawnCandidate(text) for text in TEXTS]
    raw = np.column_stack([hint("x", draws), noise("x", draws)])
    expected = combined.combination.score(raw)
    assert [one.score for one in result.candidates] == expected.tolist()
    decided = decide(combined, CandidateBatch.from_arrays([expected.tolist()], [list(TEXTS)]))
    assert [one.accepted for one in result.candidates] == decided.accepted[0].tolist()
    # The best candidate is the one that the informative verifier likes most, though larger is better there.
    assert result.best == TEXTS[0]


def test_result_holds_the_raw_outputs_of_each_verifier(combined: CalibrationArtifact, invoke: Invoke) -> None:
    outputs = [one.scores for one in invoke(chain(combined), "x").candidates]
    assert outputs == [
        {"hint": 0.9, "noise": 300.0},
        {"hint": 0.1, "noise": 100.0},
        {"hint": 0.2, "noise": 200.0},
        {"hint": 0.3, "noise": 700.0},
    ]
    assert CFCResult.model_validate_json(invoke(chain(combined), "x").model_dump_json()).candidates[0].scores


def test_sync_and_async_verifiers_can_be_combined(combined: CalibrationArtifact, invoke: Invoke) -> None:
    async def met(given: Any) -> list[float]:
        await asyncio.wait_for(asyncio.sleep(0), 1)
        return hint(given["prompt"], given["candidates"])

    both = {
        "hint": RunnableLambda(lambda given: hint(given["prompt"], given["candidates"]), met),
        "noise": noise,
    }
    assert invoke(chain(combined, verifier=both), "x") == invoke(chain(combined), "x")


@pytest.mark.parametrize("broken", [[0.1], [float("nan")] * N, [float("inf")] * N, [True] * N, "abcd", None])
def test_invalid_output_of_one_verifier_is_an_error_that_names_it(
    combined: CalibrationArtifact, broken: Any, invoke: Invoke
) -> None:
    verifier = {"hint": lambda _p, _c: broken, "noise": noise}
    with pytest.raises(VerifierError, match="the verifier 'hint'"):
        invoke(chain(combined, verifier=verifier), "x")


def test_outputs_too_large_to_combine_raise_verifier_error(
    combined: CalibrationArtifact, invoke: Invoke
) -> None:
    verifier = {"hint": lambda _p, _c: [1e308, -1e308, 1e308, 0.0], "noise": noise}
    with pytest.raises(VerifierError, match="cannot be combined"):
        invoke(chain(combined, verifier=verifier), "x")


@pytest.mark.parametrize("verifier", [hint, {"hint": hint}, {"hint": hint, "noise": noise, "more": noise}])
def test_chain_refuses_verifiers_other_than_the_combined_ones(
    combined: CalibrationArtifact, verifier: Any
) -> None:
    with pytest.raises(FingerprintError, match=r"combines hint, noise: pass these as a mapping"):
        chain(combined, verifier=verifier)


@pytest.mark.parametrize(("weights", "mean"), [(None, 0.5), ({"a": 3, "b": 1}, 0.375)])
def test_several_verifiers_without_combination_give_their_mean(
    invoke: Invoke, weights: Any, mean: float
) -> None:
    verifiers: dict[str, Any] = {"a": lambda _p, c: [0.25] * len(c), "b": lambda _p, c: [0.75] * len(c)}
    given = verifiers if weights is None else VerifierEnsemble(verifiers, weights)
    result = invoke(make_chain(verifier=given), "x")
    assert {one.score for one in result.candidates} == {mean}
    with pytest.raises(VerifierError, match=r"'b' returned 1\.5, which cannot be averaged"):
        invoke(make_chain(verifier={**verifiers, "b": lambda _p, c: [1.5] * len(c)}), "x")
