"""Watching the promise where it is served: drift without labels, certified rates with them."""

from __future__ import annotations

from langchain_cfc._internal.optional import require

# Said here, for the store needs it.
require("sqlalchemy", "monitor", "a monitor")

from langchain_cfc.monitor.monitor import CFCMonitor, labels_of, read_labels  # noqa: E402 - see above
from langchain_cfc.monitor.recalibration import Recalibration, recalibrate  # noqa: E402 - see above
from langchain_cfc.monitor.sequential_tests import (  # noqa: E402 - see above
    Label,
    Test,
    Together,
)
from langchain_cfc.monitor.shadow import Side, SideBySide, shadow  # noqa: E402 - see above
from langchain_cfc.monitor.status import EvidenceCurve, Limits, MonitorStatus  # noqa: E402 - see above

__all__ = [
    "CFCMonitor",
    "EvidenceCurve",
    "Label",
    "Limits",
    "MonitorStatus",
    "Recalibration",
    "Side",
    "SideBySide",
    "Test",
    "Together",
    "labels_of",
    "read_labels",
    "recalibrate",
    "shadow",
]
