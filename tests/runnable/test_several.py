"""Chains whose verifier is an ensemble of several."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from langchain_core.runnables import RunnableLambda

from langchain_cfc import CalibrationArtifact, Candidate, CFCResult, CFCRunnable, PromptRecord, calibrate
from langchain_cfc.candidates import CandidateBatch
from langchain_cfc.decision import decide
from langchain_cfc.errors import FingerprintError, FingerprintWarning, VerifierError
from langchain_cfc.records import Provenance
from langchain_cfc.sampling import DrawnCandidate
from langchain_cfc.sampling.fingerprints import compute_fingerprint
from langchain_cfc.verifiers import VerifierEnsemble
from tests.calls import Invoke
from tests.factories import make_chain
from tests.fakes import N, ScriptedModel

TEXTS = ("0.9 3", "0.1 1", "0.2 2", "0.3 7")


class Part:
    """A verifier that reads its score off the text of a candidate."""

    def __init__(self, name: str, place: int) -> None:
        self.fingerprint = {"id": name}
        self._place = place

    def __call__(self, prompt: Any, candidates: list[DrawnCandidate]) -> list[float]:
        """Return the number at this verifier's place; the second one is in tenths."""
        del prompt
        return [float(one.text.split()[self._place]) / 10**self._place for one in candidates]


HINT, NOISE, MORE = Part("hint", 0), Part("noise", 1), Part("more", 0)
BOTH = {"hint": HINT, "noise": NOISE}


def make_record(number: int) -> PromptRecord:
    generator = np.random.default_rng(zlib.crc32(str(number).encode()))
    correct = generator.random(N) < 0.5
    hints = np.clip(np.where(correct, 0.3, 0.7) + 0.2 * generator.standard_normal(N), 0.0, 1.0)
    return PromptRecord(
        id=str(number),
        input=f"prompt {number}",
        candidates=tuple(
            Candidate(
                text=f"{hints[slot]} {slot}",
                score=0.75 * hints[slot] + 0.25 * slot / 10,
                correct=bool(correct[slot]),
                scores={"hint": float(hints[slot]), "noise": slot / 10},
            )
            for slot in range(N)
        ),
    )


WEIGHTED = VerifierEnsemble(BOTH, {"hint": 3, "noise": 1})


@pytest.fixture(scope="module")
def calibrated() -> CalibrationArtifact:
    """Calibrated on the scores of an ensemble, whose verifiers identify themselves."""
    provenance = Provenance(n=N, generator={"id": "scripted"}, verifier=compute_fingerprint(WEIGHTED))
    return calibrate(map(make_record, range(400)), alpha=0.2, features="1", provenance=provenance)


def chain(artifact: CalibrationArtifact, **fields: Any) -> CFCRunnable:
    model = ScriptedModel(texts=TEXTS)
    return make_chain(
        artifact,
        **{
            "generator": model,
            "generator_id": "scripted",
            "verifier": WEIGHTED,
            **fields,
            "show_rejected": True,
        },
    )


def test_chain_scores_with_the_ensemble_as_in_calibration(
    calibrated: CalibrationArtifact, invoke: Invoke
) -> None:
    result: CFCResult = invoke(chain(calibrated), "x")
    expected = [0.75, 0.1, 0.2, 0.4]
    assert [one.score for one in result.candidates] == pytest.approx(expected)
    scores = [[one.score for one in result.candidates]]
    decided = decide(calibrated, CandidateBatch.from_arrays(scores, [list(TEXTS)]))
    assert [one.accepted for one in result.candidates] == decided.accepted[0].tolist()
    assert result.best == TEXTS[1]


def test_result_holds_the_raw_outputs_of_each_verifier(
    calibrated: CalibrationArtifact, invoke: Invoke
) -> None:
    result = invoke(chain(calibrated), "x")
    assert [one.scores for one in result.candidates] == [
        {"hint": 0.9, "noise": 0.3},
        {"hint": 0.1, "noise": 0.1},
        {"hint": 0.2, "noise": 0.2},
        {"hint": 0.3, "noise": 0.7},
    ]
    again = CFCResult.model_validate_json(result.model_dump_json())
    assert [one.scores for one in again.candidates] == [one.scores for one in result.candidates]


@pytest.mark.parametrize(
    "verifier",
    [
        VerifierEnsemble({"noise": NOISE, "hint": HINT}, {"noise": 0.5, "hint": 1.5}),
        VerifierEnsemble(BOTH, {"hint": 6, "noise": 2}),
    ],
)
def test_chain_accepts_the_calibrated_ensemble(
    calibrated: CalibrationArtifact, verifier: VerifierEnsemble
) -> None:
    assert chain(calibrated, verifier=verifier).guarantee.binding == "matched"


@pytest.mark.parametrize(
    "verifier",
    [
        HINT,
        BOTH,  # equal weights
        VerifierEnsemble(BOTH, {"hint": 1, "noise": 3}),
        VerifierEnsemble({"hint": HINT}),
        VerifierEnsemble({"hint": HINT, "noise": MORE}, {"hint": 3, "noise": 1}),
        VerifierEnsemble({"hint": NOISE, "noise": HINT}, {"hint": 3, "noise": 1}),
        VerifierEnsemble({"hint": HINT, "other": NOISE}, {"hint": 3, "other": 1}),
        VerifierEnsemble({**BOTH, "more": MORE}, {"hint": 3, "noise": 1, "more": 0}),
    ],
)
def test_chain_refuses_another_ensemble_than_the_calibrated_one(
    calibrated: CalibrationArtifact, verifier: Any
) -> None:
    with pytest.raises(FingerprintError, match="verifier"):
        chain(calibrated, verifier=verifier)


def test_ensemble_with_an_unnamed_verifier_is_unverified(calibrated: CalibrationArtifact) -> None:
    unnamed: dict[str, Any] = {**BOTH, "noise": lambda _prompt, candidates: [0.5] * len(candidates)}
    with pytest.warns(FingerprintWarning):
        made = chain(calibrated, verifier=VerifierEnsemble(unnamed, {"hint": 3, "noise": 1}))
    assert made.guarantee.binding == "unverified"


def test_sync_and_async_verifiers_can_be_in_one_ensemble(invoke: Invoke) -> None:
    async def met(given: Any) -> list[float]:
        await asyncio.wait_for(asyncio.sleep(0), 1)
        return HINT(given["prompt"], given["candidates"])

    runnable = RunnableLambda(lambda given: HINT(given["prompt"], given["candidates"]), met)
    found, expected = (
        invoke(make_chain(generator=ScriptedModel(texts=TEXTS), verifier=verifier), "x")
        for verifier in ({**BOTH, "hint": runnable}, BOTH)
    )
    assert [one.score for one in found.candidates] == [one.score for one in expected.candidates]


@pytest.mark.parametrize("broken", [[0.1], [float("nan")] * N, [float("inf")] * N, [True] * N, "abcd", None])
def test_invalid_output_of_one_verifier_is_an_error_that_names_it(broken: Any, invoke: Invoke) -> None:
    verifier = {"hint": lambda _p, _c: broken, "noise": NOISE}
    with pytest.raises(VerifierError, match="the verifier 'hint'"):
        invoke(make_chain(generator=ScriptedModel(texts=TEXTS), verifier=verifier), "x")


@pytest.mark.parametrize(("weights", "mean"), [(None, 0.5), ({"a": 3, "b": 1}, 0.375)])
def test_score_of_several_verifiers_is_their_mean(
    invoke: Invoke, weights: Mapping[str, float] | None, mean: float
) -> None:
    verifiers: dict[str, Any] = {"a": lambda _p, c: [0.25] * len(c), "b": lambda _p, c: [0.75] * len(c)}
    given = verifiers if weights is None else VerifierEnsemble(verifiers, weights)
    result = invoke(make_chain(verifier=given), "x")
    assert {one.score for one in result.candidates} == {mean}
    with pytest.raises(VerifierError, match=r"'b': the score of candidate 0 is 1\.5"):
        invoke(make_chain(verifier={**verifiers, "b": lambda _p, c: [1.5] * len(c)}), "x")
