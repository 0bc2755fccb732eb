"""Threshold rules: from calibration data to the threshold of a new prompt. Arrays in, arrays out."""

from __future__ import annotations

from langchain_cfc.thresholds.base import (
    CAP,
    Level,
    ThresholdRule,
    Thresholds,
    compute_confident_rank,
    compute_conformal_rank,
    compute_tau,
    format_alpha,
)
from langchain_cfc.thresholds.certificate import Certificate
from langchain_cfc.thresholds.conditional import ConditionalThreshold
from langchain_cfc.thresholds.order_statistics import GroupedThreshold

__all__ = [
    "CAP",
    "Certificate",
    "ConditionalThreshold",
    "GroupedThreshold",
    "Level",
    "ThresholdRule",
    "Thresholds",
    "compute_confident_rank",
    "compute_conformal_rank",
    "compute_tau",
    "format_alpha",
]
