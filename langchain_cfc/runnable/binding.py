"""Check arguments, and that the parts that serve are the parts that were calibrated."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from pydantic import BaseModel, ValidationError

from langchain_cfc.artifact import CalibrationArtifact
from langchain_cfc.errors import CFCError, FingerprintError, FingerprintWarning, InputError
from langchain_cfc.guarantee import Binding
from langchain_cfc.no_answers import Reasoning
from langchain_cfc.sampling.comparison import compare_fingerprints, simplify_model_name
from langchain_cfc.sampling.fingerprints import compute_fingerprint
from langchain_cfc.support.json_text import short_repr
from langchain_cfc.support.suggestions import find_nearest


def make_argument_error(owner: type[BaseModel], refused: ValidationError) -> CFCError:
    """Return the error about the first argument of a class that pydantic refused.

    An unknown argument goes first: it may be a missing one by another name. Its value, which may be a key, is
    not shown.
    """
    details = refused.errors(include_url=False)
    missing = [str(one["loc"][0]) for one in details if one["type"] == "missing" and len(one["loc"]) == 1]
    first = next((one for one in details if one["type"] == "extra_forbidden"), details[0])
    name, raised = str(first["loc"][0]), first.get("ctx", {}).get("error")
    if isinstance(raised, CFCError):
        return raised
    if first["type"] == "extra_forbidden":
        msg = f"{owner.__name__} takes no argument {name!r}"
        likely = find_nearest(name, owner.model_fields) or next(iter(missing), None)
        if likely is not None:
            msg += f"; did you mean {likely}=?"
        elif "artifact" in owner.model_fields and name in CalibrationArtifact.model_fields:
            msg += ": it is fixed by the artifact, so give it to calibrate"
        else:
            own = [one for one in owner.__annotations__ if one in owner.model_fields]
            msg += f"; it takes {', '.join(own)}"
    elif missing:
        given = ", ".join(f"{one}=" for one in missing)
        msg = f"{owner.__name__} lacks {' and '.join(missing)}: pass {given}"
    else:
        wanted = first["msg"].removeprefix("Input should be ")
        msg = f"{name} is {short_repr(first['input'])}; expected {wanted}"
    return InputError(msg)


def check_binding(
    artifact: CalibrationArtifact, parts: Mapping[str, tuple[Any, str | None]], reasoning: Reasoning
) -> Binding:
    """Return whether the serving parts could be verified to be the calibrated ones.

    `parts` maps `generator`, `verifier` and `answer`, and for claims `splitter`, to the part (None if there
    is none) and the id that the user gives it; `reasoning` belongs to the generator. Warns about parts that
    do not state their identity. The binding is `matched`, `unverified` if a part cannot be compared, or
    `unbound` without provenance.

    Raises:
        FingerprintError: If a part differs from the calibrated one.
    """
    has_extractor = parts.get("answer", (None, None))[0] is not None
    artifact.check_answers(extracted=has_extractor, failure=FingerprintError)
    provenance = artifact.provenance
    if provenance is None:
        return "unbound"
    calibrated: dict[str, dict[str, Any] | None] = {name: getattr(provenance, name) for name in parts}
    unknown: dict[str, str] = {}
    vouched: dict[str, str] = {}  # ids of the records that would settle it
    for name, (part, given_id) in parts.items():
        # The extractor determines which answers are blank, even if nothing else uses answers.
        extracted = bool(artifact.calibration.extracted_answers)
        if name == "answer" and part is None and calibrated[name] is None and not extracted:
            continue
        own_reasoning = reasoning if name == "generator" else "strip"
        serving = compute_fingerprint(part, given_id, own_reasoning)
        doubt = compare_fingerprints(name, calibrated[name], serving)
        if doubt is not None:
            unknown[name] = doubt
            recorded = (calibrated[name] or {}).get("id")
            if recorded is not None:
                named = compute_fingerprint(part, recorded, own_reasoning)
                if compare_fingerprints(name, calibrated[name], named) is None:
                    vouched[name] = recorded
    if unknown:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in unknown.items())
        msg = (
            f"cannot verify that {' and '.join(unknown)} are those that the artifact was calibrated for, so "
            f"its guarantees say 'unverified' ({reasons}). {_make_advice(calibrated, unknown, vouched)}"
        )
        warnings.warn(msg, FingerprintWarning, stacklevel=5)
    return "unverified" if unknown else "matched"


def _make_advice(
    calibrated: Mapping[str, Mapping[str, Any] | None], unknown: Iterable[str], vouched: Mapping[str, str]
) -> str:
    """Return advice on what to do about parts that cannot be verified; ids in `vouched` settle it."""
    advice = []
    if vouched:
        ids = ", ".join(f"{name}_id={given!r}" for name, given in vouched.items())
        advice.append(f"If you know that they are the same, pass {ids}")
    has_id = {name: (calibrated[name] or {}).get("id") is not None for name in unknown}
    if nameless := [name for name, named in has_id.items() if not named]:
        ids = ", ".join(f"{name}_id= (on the command line --set {name}.id=NAME)" for name in nameless)
        advice.append(
            f"The records hold no id to compare with: repeat `collect` with {ids}, which "
            "draws nothing again if their store is there, and calibrate again on the records that it writes"
        )
    if other := [name for name, named in has_id.items() if named and name not in vouched]:
        advice.append(
            f"An id does not settle this for {' and '.join(other)}: serve with the settings of the "
            "calibration, or collect with these settings and calibrate again"
        )
    return ". ".join(advice)


class ModelVersionWatcher:
    """Warns once about each model whose reported name did not occur in the calibration records.

    A provider may replace the model behind a name, or a fallback or a router may answer instead; only the
    responses show it. This is drift, which erodes the guarantee gradually, so it only warns, and results list
    the names. Records state a `model_version`, or a list of them if several models draw; without one, nothing
    is compared.
    """

    def __init__(self, artifact: CalibrationArtifact) -> None:
        self._artifact = artifact
        self._reported: set[str] = set()

    def check(self, served: Collection[str]) -> None:
        """Warn about unknown names among those that the models reported while drawing for one prompt."""
        for version in list_other_models(self._artifact, served):
            if (name := simplify_model_name(version)) not in self._reported:
                self._reported.add(name)
                known = {"model_version": _get_model_version(self._artifact)}
                compare_fingerprints("generator", known, {"model_version": version})


def list_other_models(artifact: CalibrationArtifact, served: Collection[str]) -> tuple[str, ...]:
    """Return those of the names that served models report that no calibrated model has; none if unknown."""
    if not served:
        return ()
    stated = _get_model_version(artifact)
    several = stated if isinstance(stated, (list, tuple)) else [stated]
    known = {simplify_model_name(str(name)) for name in several if name is not None}
    return tuple(one for one in served if known and simplify_model_name(one) not in known)


def _get_model_version(artifact: CalibrationArtifact) -> Any:
    generator = artifact.provenance.generator if artifact.provenance is not None else None
    return (generator or {}).get("model_version")
