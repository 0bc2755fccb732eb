"""Candidates to scores: by one verifier, or by several whose outputs the artifact combines."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from langchain_core.runnables import RunnableConfig

from langchain_cfc.artifact import CalibrationArtifact
from langchain_cfc.calls import Steps
from langchain_cfc.combination import Combination
from langchain_cfc.errors import FingerprintError, InputError, VerifierError
from langchain_cfc.verifiers import Panel, VerifierInput
from langchain_cfc.verifiers.scoring import ByOne, Scored


class Scoring(Protocol):
    """What scores the candidates of a prompt."""

    def scored(self, given: VerifierInput, config: RunnableConfig) -> Steps[Scored]:
        """Score them; whatever goes wrong is a `VerifierError`."""


class BySeveral:
    """The outputs of several verifiers, combined as in calibration."""

    def __init__(self, panel: Panel, combination: Combination) -> None:
        self._panel = panel
        self._combination = combination

    def scored(self, given: VerifierInput, config: RunnableConfig) -> Steps[Scored]:
        """The combined scores, and what they were made of."""
        outputs = yield from self._panel.outputs(given, config)
        raw = np.column_stack([outputs[name] for name in self._combination.names])
        try:
            scores: list[float] = self._combination.score(raw).tolist()
        except InputError as error:
            msg = f"the verifiers' outputs cannot be combined: {error}"
            raise VerifierError(msg) from error
        return Scored.by_several(scores, outputs)


def scoring(verifier: Any, artifact: CalibrationArtifact) -> Scoring:
    """What scores candidates for an artifact.

    Args:
        verifier: A verifier, or a `Panel` of several.
        artifact: The calibration artifact; several verifiers need one that combines them.

    Returns:
        The scoring.

    Raises:
        FingerprintError: If the verifiers are not those that the artifact combines.
    """
    combination = artifact.combination
    if combination is None and not isinstance(verifier, Panel):
        return ByOne(verifier)
    wanted = combination.names if combination is not None else ()
    panel = verifier if isinstance(verifier, Panel) else None
    if panel is None or combination is None or set(panel.names) != set(wanted):
        given = f"several verifiers ({', '.join(panel.names)})" if panel is not None else "one verifier"
        needed = f"combines {', '.join(wanted)}: pass these as a mapping by name" if wanted else "takes one"
        msg = f"the artifact {needed}, but verifier= holds {given}"
        raise FingerprintError(msg)
    return BySeveral(panel, combination)
