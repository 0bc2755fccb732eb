"""Monitor served results: test for drift without labels, and test certified rates with labels."""

from __future__ import annotations

from langchain_cfc_monitor.callbacks import ResultCallback
from langchain_cfc_monitor.monitor import CFCMonitor, read_labels
from langchain_cfc_monitor.observed import Label, parse_label
from langchain_cfc_monitor.recalibration import Recalibration, recalibrate
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
    "ResultCallback",
    "Test",
    "parse_label",
    "read_labels",
    "recalibrate",
]
