"""Monitor served results: test for drift without labels, and test certified rates with labels."""

from __future__ import annotations

from langchain_cfc._internal.imports import require

# Checked first, so that a missing extra is reported before the store imports SQLAlchemy.
require("sqlalchemy", "monitor", "a monitor")

from langchain_cfc.monitor.monitor import CFCMonitor, parse_labels, read_labels  # noqa: E402 - see above
from langchain_cfc.monitor.observed import Label  # noqa: E402 - see above
from langchain_cfc.monitor.recalibration import Recalibration, recalibrate  # noqa: E402 - see above
from langchain_cfc.monitor.shadow import ShadowComparison, ShadowSide, compare_in_shadow  # noqa: E402 - see above
from langchain_cfc.monitor.stated import StatedLevel  # noqa: E402 - see above
from langchain_cfc.monitor.status import (  # noqa: E402 - see above
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
