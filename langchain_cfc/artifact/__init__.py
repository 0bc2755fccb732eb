"""The calibration artifact: mathematics on one side, LangChain on the other; neither knows the other."""

from __future__ import annotations

from langchain_cfc.artifact.facts import (
    AttainableGroup,
    CalibrationFacts,
    CertifiedPolicy,
    Confidence,
    PackedArray,
    Ridge,
    ThresholdRuleName,
    TradeOff,
    Watched,
    likelihood_ratios,
    quantities,
    threshold_rule,
)
from langchain_cfc.artifact.files import looks_like_artifact
from langchain_cfc.artifact.held_out import HELD_OUT_PART, held_out
from langchain_cfc.artifact.model import CalibrationArtifact, LevelState, SelfCheck

__all__ = [
    "HELD_OUT_PART",
    "AttainableGroup",
    "CalibrationArtifact",
    "CalibrationFacts",
    "CertifiedPolicy",
    "Confidence",
    "LevelState",
    "PackedArray",
    "Ridge",
    "SelfCheck",
    "ThresholdRuleName",
    "TradeOff",
    "Watched",
    "held_out",
    "likelihood_ratios",
    "looks_like_artifact",
    "quantities",
    "threshold_rule",
]
