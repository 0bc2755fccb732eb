"""Which prompts an artifact may be tested on."""

from __future__ import annotations

from typing import Literal

from langchain_cfc.artifact.model import CalibrationArtifact
from langchain_cfc.candidates import LabelledBatch
from langchain_cfc.errors import CalibrationError, InputError, OverlapError

_FLAGS = {"test": "test_fraction", "certification": "certification_fraction"}
# Which prompts of the records were taken, in words.
NEW_RECORDS = "all records: none of them was recognised as a calibration record"
HELD_OUT_PART = "the part of the calibration file that was held out"
_USES = {"test": "evaluate on other records", "certification": "certify on other records"}


def held_out(
    artifact: CalibrationArtifact,
    labelled: LabelledBatch,
    part: Literal["test", "certification"] = "test",
) -> tuple[LabelledBatch, str]:
    """The prompts that an artifact may be tested on, and which they are in words."""
    plan, facts = artifact.calibration.split, artifact.calibration
    which = NEW_RECORDS
    if plan.meets(facts.sketch, labelled.names):
        if facts.sampled and labelled.weights is None:
            msg = (
                "these are the records that the artifact was calibrated on, of which some were likelier to "
                "be labelled than others, and they come without the weights that say so: give the same table"
            )
            raise InputError(msg)
        if part == "certification" and artifact.spent:
            msg = (
                "the part of these records held out for certificates has chosen the artifact's level or its "
                "policy, and cannot judge what it chose: certify on other records"
            )
            raise OverlapError(msg)
        if part == "certification" and artifact.shift is not None:
            msg = (
                "these records come from where the artifact was calibrated, and it promises something for "
                "where it is served: certify on records from there"
            )
            raise OverlapError(msg)
        if getattr(plan, part) == 0.0:
            flag = _FLAGS[part]
            msg = (
                "these are the records that the artifact was calibrated on, and none were held out: "
                f"{_USES[part]}, or calibrate with {flag} (on the command line "
                f"--{flag.replace('_', '-')}) above 0"
            )
            raise OverlapError(msg)
        labelled = labelled.take(plan.rows(labelled)[part])
        which = HELD_OUT_PART
        if plan.meets(facts.sketch, labelled.names):
            msg = (
                "records of the held-out part carry ids of calibration records: their clusters have "
                "changed since calibration"
            )
            raise OverlapError(msg)
    labelled = plan.fair(labelled.take(plan.one_per_cluster(labelled)))
    if len(labelled) == 0:
        msg = "no prompts are left to test on"
        raise CalibrationError(msg)
    return labelled, which
