"""Conditional Factuality Control for LangChain: answer with a guarantee, or abstain.

Importing this package loads nothing; each name below is loaded when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from langchain_cfc._version import __version__

if TYPE_CHECKING:
    from langchain_cfc.artifact import CalibrationArtifact
    from langchain_cfc.calibration import calibrate
    from langchain_cfc.errors import CFCError
    from langchain_cfc.evaluation import evaluate
    from langchain_cfc.features import FeatureMap
    from langchain_cfc.guarantee import Guarantee
    from langchain_cfc.records import Candidate, PromptRecord, read_records, write_records
    from langchain_cfc.runnable import CFCResult, CFCRunnable

__all__ = [
    "CFCError",
    "CFCResult",
    "CFCRunnable",
    "CalibrationArtifact",
    "Candidate",
    "FeatureMap",
    "Guarantee",
    "PromptRecord",
    "__version__",
    "calibrate",
    "evaluate",
    "read_records",
    "write_records",
]

_HOMES = {
    "CFCError": "errors",
    "CFCResult": "runnable",
    "CFCRunnable": "runnable",
    "CalibrationArtifact": "artifact",
    "Candidate": "records",
    "FeatureMap": "features",
    "Guarantee": "guarantee",
    "PromptRecord": "records",
    "calibrate": "calibration",
    "evaluate": "evaluation",
    "read_records": "records",
    "write_records": "records",
}


def __getattr__(name: str) -> Any:
    """Load a public name when it is first used (PEP 562)."""
    if name not in _HOMES:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    value = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """The public names, loaded or not."""
    return sorted({*globals(), *__all__})
