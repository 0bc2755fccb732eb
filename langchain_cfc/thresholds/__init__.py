"""Threshold rules: from calibration data to the threshold of a new prompt. Arrays in, arrays out."""

from __future__ import annotations

from langchain_cfc.thresholds.certificate import Certificate
from langchain_cfc.thresholds.conditional import WINDOW, ConditionalThreshold
from langchain_cfc.thresholds.grouped import GroupedThreshold
from langchain_cfc.thresholds.learned import LearnedThreshold
from langchain_cfc.thresholds.levels import (
    Level,
    alpha_text,
    confident_rank,
    conformal_rank,
    delta_text,
    exact_tau,
)
from langchain_cfc.thresholds.marginal import MarginalThreshold
from langchain_cfc.thresholds.rule import ThresholdRule, Thresholds

__all__ = [
    "WINDOW",
    "Certificate",
    "ConditionalThreshold",
    "GroupedThreshold",
    "LearnedThreshold",
    "Level",
    "MarginalThreshold",
    "ThresholdRule",
    "Thresholds",
    "alpha_text",
    "confident_rank",
    "conformal_rank",
    "delta_text",
    "exact_tau",
]
