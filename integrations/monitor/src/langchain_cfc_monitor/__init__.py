"""Monitor served results: test for drift without labels, and test certified rates with labels."""

from __future__ import annotations

from langchain_cfc_monitor.monitor import CFCMonitor, parse_labels, read_labels
from langchain_cfc_monitor.observed import Label
from langchain_cfc_monitor.recalibration import Recalibration, recalibrate
from langchain_cfc_monitor.shadow import ShadowComparison, ShadowSide, compare_in_shadow
from langchain_cfc_monitor.stated import StatedLevel
from langchain_cfc_monitor.status import (
    AnsweredShare,
    CombinedTest,
    EvidenceCurve,
    Limits,
    MonitorStatus,
    Test,
)

__all__ = [
    "AnsweredShare",
    "CFCMonitor",
    "CombinedTest",
    "EvidenceCurve",
    "Label",
    "Limits",
    "MonitorStatus",
    "Recalibration",
    "ShadowComparison",
    "ShadowSide",
    "StatedLevel",
    "Test",
    "compare_in_shadow",
    "parse_labels",
    "read_labels",
    "recalibrate",
]
