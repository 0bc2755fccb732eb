"""Is what serves what was calibrated?"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from typing import Any

from langchain_cfc.artifact import CalibrationArtifact
from langchain_cfc.errors import FingerprintError, FingerprintWarning
from langchain_cfc.fingerprints import compare_fingerprints, fingerprint
from langchain_cfc.guarantee import Binding


def bind(artifact: CalibrationArtifact, parts: Mapping[str, tuple[Any, str | None]]) -> Binding:
    """Compare what serves with what was calibrated.

    Args:
        artifact: The calibration artifact.
        parts: `generator`, `verifier` and `answer`, each with the id that the user gives it; a part is None
            where there is none.

    Returns:
        How far they are known to be the same.

    Raises:
        FingerprintError: If one of them is another.

    Warns:
        FingerprintWarning: If one of them does not say what it is.
    """
    _check_extractor(artifact, given=parts["answer"][0] is not None)
    provenance = artifact.provenance
    if provenance is None:
        return "unbound"
    calibrated = {
        "generator": provenance.generator,
        "verifier": provenance.verifier,
        "answer": provenance.answer,
    }
    unknown = []
    for name, (part, given_id) in parts.items():
        if name == "answer" and part is None and calibrated[name] is None:
            continue
        if compare_fingerprints(name, calibrated[name], fingerprint(part, given_id)) == "unverified":
            unknown.append(name)
    if unknown:
        ids = ", ".join(f"{name}_id={(calibrated[name] or {}).get('id')!r}" for name in unknown)
        msg = (
            f"nothing says for sure whether {' and '.join(unknown)} are those that the artifact was "
            f"calibrated for, and the guarantee will say so. If they are, state it: {ids}"
        )
        warnings.warn(msg, FingerprintWarning, stacklevel=5)
    return "unverified" if unknown else "matched"


def _check_extractor(artifact: CalibrationArtifact, *, given: bool) -> None:
    """Distinct answers must be told apart as in calibration, wherever the decision depends on them."""
    extracted = bool(artifact.calibration.extracted_answers)
    if artifact.needs_answers and extracted != given:
        named = artifact.provenance.answer if artifact.provenance is not None else None
        was = (
            f"with the answer extractor {named or 'of its records'}"
            if extracted
            else "without an answer extractor"
        )
        msg = (
            f"the artifact was calibrated {was}, and its set rule, features or policy look at distinct "
            f"answers: {'pass that extractor as answer=' if extracted else 'leave answer= out'}"
        )
        raise FingerprintError(msg)


class VersionWatch:
    """Warns, once for each, of models that answer under another name than when calibrated.

    A served model may be replaced behind its name, a fallback or a router may answer in its stead; only the
    responses tell. That is drift, which voids the promise slowly: it warns, and results hold the names.

    Args:
        artifact: The calibration artifact; nothing is watched where its records do not state a
            `model_version`, or a list of them where several models draw.
    """

    def __init__(self, artifact: CalibrationArtifact) -> None:
        calibrated = (artifact.provenance.generator or {}) if artifact.provenance is not None else {}
        said = calibrated.get("model_version")
        self._calibrated = said
        self._told = set(said) if isinstance(said, (list, tuple)) else {said}

    def check(self, served: Iterable[str]) -> None:
        """Compare the names that models gave themselves while they drew for one prompt."""
        if self._calibrated is None:
            return
        for version in served:
            if version not in self._told:
                self._told.add(version)
                known = {"model_version": self._calibrated}
                compare_fingerprints("generator", known, {"model_version": version})
