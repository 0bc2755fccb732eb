"""Conditional Factuality Control for LangChain: answer with a guarantee, or abstain.

Importing this package loads nothing; each name below is loaded when it is first used.
"""

from __future__ import annotations

from langchain_cfc.support import __version__
from langchain_cfc.support.imports import make_lazy

# Type checkers know this name; importing it from `typing` would cost as much as the rest of this module.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from langchain_cfc.artifact import CalibrationArtifact
    from langchain_cfc.calibration import calibrate
    from langchain_cfc.errors import CFCError
    from langchain_cfc.evaluation import evaluate
    from langchain_cfc.features import FeatureMap
    from langchain_cfc.guarantee import Guarantee
    from langchain_cfc.records import Candidate, PromptRecord, read_records, write_records
    from langchain_cfc.runnable import CFCChatModel, CFCResult, CFCRunnable

__all__ = [
    "CFCChatModel",
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

_NAMES = {
    "artifact": ("CalibrationArtifact",),
    "calibration": ("calibrate",),
    "errors": ("CFCError",),
    "evaluation": ("evaluate",),
    "features": ("FeatureMap",),
    "guarantee": ("Guarantee",),
    "records": ("Candidate", "PromptRecord", "read_records", "write_records"),
    "runnable": ("CFCChatModel", "CFCResult", "CFCRunnable"),
}


__getattr__, __dir__ = make_lazy(globals(), _NAMES)
