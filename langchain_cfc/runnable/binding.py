"""Check that the parts that serve are the parts that were calibrated."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from typing import Any

from langchain_cfc.artifact import CalibrationArtifact
from langchain_cfc.errors import FingerprintError, FingerprintWarning
from langchain_cfc.guarantee import Binding
from langchain_cfc.sampling.fingerprints import compare_fingerprints, compute_fingerprint, explain_doubt


def check_binding(artifact: CalibrationArtifact, parts: Mapping[str, tuple[Any, str | None]]) -> Binding:
    """Return how far the parts that serve are known to be those that were calibrated.

    `parts` are `generator`, `verifier` and `answer`, and for claims `splitter`, each with the id that the
    user gives it; a part is None where there is none. Warns of parts that do not state their identity.

    Raises:
        FingerprintError: If one of them is another.
    """
    _check_extractor(artifact, given=parts["answer"][0] is not None)
    provenance = artifact.provenance
    if provenance is None:
        return "unbound"
    calibrated: dict[str, dict[str, Any] | None] = {name: getattr(provenance, name) for name in parts}
    unknown: dict[str, str] = {}
    for name, (part, given_id) in parts.items():
        # Which answers are blank depends on the extractor, even where nothing else looks at answers.
        extracted = bool(artifact.calibration.extracted_answers)
        if name == "answer" and part is None and calibrated[name] is None and not extracted:
            continue
        serving = compute_fingerprint(part, given_id)
        if compare_fingerprints(name, calibrated[name], serving) == "unverified":
            unknown[name] = explain_doubt(calibrated[name], serving) or ""
    if unknown:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in unknown.items())
        msg = (
            f"cannot verify that {' and '.join(unknown)} are those that the artifact was calibrated for, so "
            f"its guarantees say 'unverified' ({reasons}). {_advise(calibrated, unknown)}"
        )
        warnings.warn(msg, FingerprintWarning, stacklevel=5)
    return "unverified" if unknown else "matched"


def _advise(calibrated: Mapping[str, Mapping[str, Any] | None], unknown: Iterable[str]) -> str:
    """Return what the user can do about parts that cannot be verified."""
    by_id = {name: (calibrated[name] or {}).get("id") for name in unknown}
    known = [f"{name}_id={given!r}" for name, given in by_id.items() if given is not None]
    advice = [f"If you know that they are the same, pass {', '.join(known)}"] if known else []
    if nameless := [f"{name}_id=" for name, given in by_id.items() if given is None]:
        advice.append(
            f"The records hold no id to vouch by: collect with {', '.join(nameless)} and calibrate again"
        )
    return ". ".join(advice)


def _check_extractor(artifact: CalibrationArtifact, *, given: bool) -> None:
    """Require the extractor of calibration wherever the decision depends on distinct answers."""
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


class ModelVersionWatcher:
    """Warns, once for each, of models that answer under another name than when calibrated.

    A served model may be replaced behind its name, or a fallback or a router may answer in its place; only
    the responses show it. That is drift, which voids the guarantee gradually: it warns, and results hold the
    names. It is for artifacts whose records state a `model_version`, or a list of them where several models
    draw.
    """

    def __init__(self, artifact: CalibrationArtifact) -> None:
        self._calibrated = _get_model_version(artifact)
        self._known = set(list_calibrated_models(artifact))

    def check(self, served: Iterable[str]) -> None:
        """Compare the names that models gave themselves while they drew for one prompt."""
        for version in served:
            if version not in self._known:
                self._known.add(version)
                known = {"model_version": self._calibrated}
                compare_fingerprints("generator", known, {"model_version": version})


def list_calibrated_models(artifact: CalibrationArtifact) -> frozenset[str]:
    """Return the names that the models of the calibration records gave themselves; empty if unknown."""
    stated = _get_model_version(artifact)
    several = stated if isinstance(stated, (list, tuple)) else [stated]
    return frozenset(str(name) for name in several if name is not None)


def _get_model_version(artifact: CalibrationArtifact) -> Any:
    generator = artifact.provenance.generator if artifact.provenance is not None else None
    return (generator or {}).get("model_version")
