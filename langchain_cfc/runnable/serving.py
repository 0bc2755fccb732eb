"""How one prompt is served: draw, score, features, threshold, set or abstention."""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from langchain_core.runnables import RunnableConfig

from langchain_cfc._internal.arrays import FloatArray
from langchain_cfc.artifact import CalibrationArtifact
from langchain_cfc.candidates import CandidateBatch, Scalar, encode_answers, measure_answer
from langchain_cfc.decision import Decisions, decide
from langchain_cfc.errors import FingerprintError, InputError, VerifierError
from langchain_cfc.execution import Progress, Steps, add_tags
from langchain_cfc.guarantee import AnswerPolicy, Guarantee
from langchain_cfc.runnable.binding import ModelVersionWatcher
from langchain_cfc.runnable.result import CFCResult
from langchain_cfc.sampling import DrawnCandidate, Sampler, UsageRecorder
from langchain_cfc.sampling.description import Description
from langchain_cfc.scoring import Combination
from langchain_cfc.verifiers import VerifierEnsemble, VerifierInput
from langchain_cfc.verifiers._prompts import convert_to_calibrated_kind
from langchain_cfc.verifiers.base import SingleVerifierScoring, VerifierScores


class Scoring(Protocol):
    """What scores the candidates of a prompt."""

    def scored(self, given: VerifierInput, config: RunnableConfig) -> Steps[VerifierScores]:
        """Score them; whatever goes wrong is a `VerifierError`."""


class CombinedScoring:
    """The outputs of several verifiers, combined as in calibration."""

    def __init__(self, panel: VerifierEnsemble, combination: Combination) -> None:
        self._panel = panel
        self._combination = combination

    def scored(self, given: VerifierInput, config: RunnableConfig) -> Steps[VerifierScores]:
        """The combined scores, and what they were made of."""
        outputs = yield from self._panel.outputs(given, config)
        raw = np.column_stack([outputs[name] for name in self._combination.names])
        try:
            scores: list[float] = self._combination.score(raw).tolist()
        except InputError as error:
            msg = f"the verifiers' outputs cannot be combined: {error}"
            raise VerifierError(msg) from error
        return VerifierScores.by_several(scores, outputs)


def make_scoring(verifier: Any, artifact: CalibrationArtifact) -> Scoring:
    """What scores candidates for an artifact.

    Args:
        verifier: A verifier, or a `VerifierEnsemble` of several.
        artifact: The calibration artifact; several verifiers need one that combines them.

    Returns:
        The scoring.

    Raises:
        FingerprintError: If the verifiers are not those that the artifact combines.
    """
    combination = artifact.combination
    if combination is None and not isinstance(verifier, VerifierEnsemble):
        return SingleVerifierScoring(verifier)
    wanted = combination.names if combination is not None else ()
    panel = verifier if isinstance(verifier, VerifierEnsemble) else None
    if panel is None or combination is None or set(panel.names) != set(wanted):
        given = f"several verifiers ({', '.join(panel.names)})" if panel is not None else "one verifier"
        needed = f"combines {', '.join(wanted)}: pass these as a mapping by name" if wanted else "takes one"
        msg = f"the artifact {needed}, but verifier= holds {given}"
        raise FingerprintError(msg)
    return CombinedScoring(panel, combination)


@dataclass(frozen=True)
class ServingPipeline:
    """The parts of a runnable, made ready.

    Attributes:
        artifact: The calibration artifact.
        sampler: What draws the candidates.
        scoring: What scores them.
        description: What tells answers apart and describes the prompt.
        guarantees: By error level.
        versions: What watches which models answer.
        policy: Which sets are answered.
        show_rejected: Whether results hold the texts of rejected candidates.
    """

    artifact: CalibrationArtifact
    sampler: Sampler
    scoring: Scoring
    description: Description
    guarantees: Mapping[str, Guarantee]
    versions: ModelVersionWatcher
    policy: AnswerPolicy
    show_rejected: bool

    def serve(self, prompt: Any, level: str, config: RunnableConfig, progress: Progress) -> Steps[CFCResult]:
        """Serve a prompt.

        Args:
            prompt: Whatever the generator takes.
            level: One of the artifact's error levels, settled before anything is drawn: a later choice would
                void the promise.
            config: Config of child runs. They must stream into no graph: a judge may quote the candidate
                that it rejects.
            progress: Told how far it has come.

        Returns:
            The answer set or the abstention.

        Raises:
            PromptKindError: If the prompt is of another kind than the calibration prompts.
        """
        prompt = convert_to_calibrated_kind(prompt, self.artifact.calibration.prompt_kinds)
        metadata = yield from self.description.metadata(prompt, config)
        witness = UsageRecorder()
        drawing = self.sampler.witnessed(config, witness)
        draws = yield from self.sampler.draws(prompt, self.artifact.n, drawing, progress, witness)
        self.versions.check(witness.versions)
        given = VerifierInput(prompt=prompt, candidates=draws)
        scored = yield from self.scoring.scored(given, add_tags(config, "cfc:verifier"))
        yield progress.step("cfc:scored", {"scores": scored.scores})
        texts = yield from self.description.answers(draws, config)
        result = self._result(
            level, draws=draws, scored=scored, texts=texts, metadata=metadata, witness=witness
        )
        yield progress.step("cfc:decided", {"reason": result.reason, "answers": len(result.answers)})
        return result

    def _uniforms(self) -> FloatArray | None:
        """A random number for one prompt where thresholds are randomised, from a source nobody can steer."""
        if not self.artifact.randomised:
            return None
        return np.array([(secrets.randbits(52) + 0.5) / 2.0**52])

    @cached_property
    def _names(self) -> tuple[str, ...]:
        return self.artifact.feature_map.names

    def _result(
        self,
        level: str,
        *,
        draws: Sequence[DrawnCandidate],
        scored: VerifierScores,
        texts: Sequence[str],
        metadata: Mapping[str, Scalar],
        witness: UsageRecorder,
    ) -> CFCResult:
        """Decide, and say it."""
        matrix = np.array([scored.scores])
        decisions = decide(
            self.artifact,
            CandidateBatch.of(matrix, [texts], [metadata]),
            level,
            policy=self.policy,
            uniforms=self._uniforms(),
        )
        distinct = tuple(dict.fromkeys(texts[slot] for slot in decisions.best_first(0)))
        answers = distinct if decisions.answered[0] else ()
        # Pydantic makes all candidates of plain data at once faster than one by one.
        return CFCResult.model_validate(
            {
                "abstained": not answers,
                "reason": decisions.reason(0),
                "answers": answers,
                "best": answers[0] if answers else None,
                "threshold": float(decisions.thresholds[0]),
                "features": dict(zip(self._names, decisions.features[0].tolist(), strict=True)),
                "metadata": dict(metadata),
                "unknown_categories": self._unknown_categories(decisions),
                "guarantee": self.guarantees[level],
                "candidates": self._candidates(draws, texts, scored, decisions),
                "models": tuple(witness.versions),
                "usage": None if witness.usage is None else dict(witness.usage),
            }
        )

    def _unknown_categories(self, decisions: Decisions) -> tuple[str, ...]:
        """The metadata keys whose category flagged the prompt."""
        if self.artifact.threshold_rule == "marginal":  # it looks at no features
            return ()
        return self.artifact.feature_map.unknown_keys(decisions.features[0])

    def _candidates(
        self,
        draws: Sequence[DrawnCandidate],
        texts: Sequence[str],
        scored: VerifierScores,
        decisions: Decisions,
    ) -> tuple[dict[str, Any], ...]:
        """The fields of each `ScoredCandidate`."""
        inside: list[bool] = decisions.accepted[0].tolist()
        levels: list[float] = decisions.levels[0].tolist()
        shown = [True] * len(inside) if self.show_rejected else inside
        codes = encode_answers(texts)
        return tuple(
            {
                "slot": slot,
                "score": scored.scores[slot],
                "scores": scored.outputs[slot] if scored.outputs is not None else None,
                "level": level if level < math.inf else None,
                "accepted": inside[slot],
                "text": draws[slot].text if shown[slot] else None,
                "data": draws[slot].data if shown[slot] else None,
                "answer": texts[slot] if self.description.extracts and shown[slot] else None,
                "same_as": codes[slot],
                "length": measure_answer(texts[slot]),
            }
            for slot, level in enumerate(levels)
        )
