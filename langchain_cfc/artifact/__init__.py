"""The calibration artifact: everything that serving needs from a calibration, as data."""

from __future__ import annotations

from langchain_cfc.artifact.attempt_files import open_attempts
from langchain_cfc.artifact.attempts import AttemptLedger, PlannedAttempt, Previous
from langchain_cfc.artifact.batch import BatchScores
from langchain_cfc.artifact.content import LevelState
from langchain_cfc.artifact.facts import (
    AttainableGroup,
    Attempt,
    CalibrationFacts,
    CertifiedBot,
    PackedArray,
    Promise,
    ReferenceHistogram,
    TradeOff,
    make_threshold_rule,
)
from langchain_cfc.artifact.files import looks_like_artifact
from langchain_cfc.artifact.held_out import (
    HELD_OUT_PART,
    name_evaluation,
    select_held_out,
    tabulate_draws,
    tabulate_held_out,
)
from langchain_cfc.artifact.model import CalibrationArtifact
from langchain_cfc.artifact.prefixes import (
    check_first_wave,
    has_separate_scores,
    replay_prefixes,
)

__all__ = [
    "HELD_OUT_PART",
    "AttainableGroup",
    "Attempt",
    "AttemptLedger",
    "BatchScores",
    "CalibrationArtifact",
    "CalibrationFacts",
    "CertifiedBot",
    "LevelState",
    "PackedArray",
    "PlannedAttempt",
    "Previous",
    "Promise",
    "ReferenceHistogram",
    "TradeOff",
    "check_first_wave",
    "has_separate_scores",
    "looks_like_artifact",
    "make_threshold_rule",
    "name_evaluation",
    "open_attempts",
    "replay_prefixes",
    "select_held_out",
    "tabulate_draws",
    "tabulate_held_out",
]
