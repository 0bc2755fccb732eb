"""Selection of the prompts that an artifact may be tested on."""

from __future__ import annotations

from collections.abc import Iterable

from langchain_cfc.artifact.model import CalibrationArtifact
from langchain_cfc.artifact.prefixes import replay_prefixes
from langchain_cfc.candidates import LabelledBatch
from langchain_cfc.errors import CalibrationError, InputError, OverlapError
from langchain_cfc.records import LabelledRecord, tabulate

# Descriptions of the prompts that were selected.
NEW_RECORDS = "all records: none of them was recognised as a calibration record"
HELD_OUT_PART = "the part of the calibration file that was held out"


def tabulate_draws(
    artifact: CalibrationArtifact, records: Iterable[LabelledRecord] | LabelledBatch
) -> LabelledBatch:
    """Tabulate records with the candidates and scores that the artifact would see in serving.

    Args:
        artifact: The artifact.
        records: Labelled records, or a table, with at least n candidates per prompt.

    Returns:
        The prompts with their first n candidates, or with those that the artifact's draw rule draws.

    Raises:
        InputError: If a record cannot be used.
    """
    rule = artifact.draw_rule
    table = tabulate(
        records,
        n=artifact.n if rule is None else None,
        shortened=rule is not None,
        claims=artifact.at_most is not None,
    )
    return replay_prefixes(rule, table, artifact.provenance)


def tabulate_held_out(
    artifact: CalibrationArtifact, records: Iterable[LabelledRecord] | LabelledBatch
) -> tuple[LabelledBatch, str]:
    """Tabulate records as the artifact needs them, and select the prompts that it may be tested on."""
    table = tabulate_draws(artifact, records)
    artifact.check_answers(extracted=bool(table.extracted), failure=InputError)
    return select_held_out(artifact, table)


def name_evaluation(artifact: CalibrationArtifact) -> str:
    """Name the look at an artifact's figures on labelled prompts, for the ledger of attempts."""
    return f"evaluate {artifact.frozen_digest}"


def select_held_out(artifact: CalibrationArtifact, labelled: LabelledBatch) -> tuple[LabelledBatch, str]:
    """Select the prompts that an artifact may be tested on, and describe the selection.

    If all prompts are new, all are used, otherwise only the part that was held out of calibration. One prompt
    of each cluster is kept.
    """
    plan, facts = artifact.calibration.split, artifact.calibration
    which = NEW_RECORDS
    if plan.has_overlap(facts.sketch, labelled.names):
        if plan.test == 0.0:
            msg = (
                "the artifact was calibrated on all of these records: use others, or hold some out: "
                "calibrate with test_fraction=0.3"
            )
            raise OverlapError(msg)
        labelled = labelled.take(plan.list_rows(labelled)["test"])
        which = HELD_OUT_PART
        if plan.has_overlap(facts.sketch, labelled.names):
            msg = (
                "records of the held-out part have ids of calibration records: their clusters have "
                "changed since calibration"
            )
            raise OverlapError(msg)
    labelled = labelled.take(plan.select_one_per_cluster(labelled))
    if len(labelled) == 0:
        msg = "no prompts are left to test on"
        raise CalibrationError(msg)
    return labelled, which
