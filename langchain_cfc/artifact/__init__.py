"""The calibration artifact: mathematics on one side, LangChain on the other; neither knows the other."""

from __future__ import annotations

from langchain_cfc.artifact.facts import AttainableGroup, CalibrationFacts
from langchain_cfc.artifact.files import looks_like_artifact
from langchain_cfc.artifact.model import THRESHOLD_RULES, CalibrationArtifact, LevelState, ThresholdRuleName
from langchain_cfc.artifact.packed import PackedArray

__all__ = [
    "THRESHOLD_RULES",
    "AttainableGroup",
    "CalibrationArtifact",
    "CalibrationFacts",
    "LevelState",
    "PackedArray",
    "ThresholdRuleName",
    "looks_like_artifact",
]
