"""`CFCRunnable` and `CFCChatModel`: serve a generator with conformal answer sets.

Importing this package loads nothing; each name is loaded when it is first used.
"""

from __future__ import annotations

from langchain_cfc.support.imports import make_lazy

# Type checkers know this name; importing it from `typing` would cost as much as the rest of this module.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from langchain_cfc.runnable.answering import ABSTAIN_MESSAGE, Answer, OrElse
    from langchain_cfc.runnable.batch import BatchResult
    from langchain_cfc.runnable.cfc import CFCRunnable
    from langchain_cfc.runnable.chat_arguments import changes_generator, configure_chain, find_cfc_runnable
    from langchain_cfc.runnable.chat_model import CFCChatModel
    from langchain_cfc.runnable.decision_store import DecisionStore
    from langchain_cfc.runnable.redraws import detach_register
    from langchain_cfc.runnable.result import (
        CFCResult,
        ClaimsResult,
        ScoredCandidate,
        ScoredClaim,
        read_result,
    )

__all__ = [
    "ABSTAIN_MESSAGE",
    "Answer",
    "BatchResult",
    "CFCChatModel",
    "CFCResult",
    "CFCRunnable",
    "ClaimsResult",
    "DecisionStore",
    "OrElse",
    "ScoredCandidate",
    "ScoredClaim",
    "changes_generator",
    "configure_chain",
    "detach_register",
    "find_cfc_runnable",
    "read_result",
]

_NAMES = {
    "answering": ("ABSTAIN_MESSAGE", "Answer", "OrElse"),
    "batch": ("BatchResult",),
    "cfc": ("CFCRunnable",),
    "chat_arguments": ("changes_generator", "configure_chain", "find_cfc_runnable"),
    "chat_model": ("CFCChatModel",),
    "decision_store": ("DecisionStore",),
    "redraws": ("detach_register",),
    "result": ("CFCResult", "ClaimsResult", "ScoredCandidate", "ScoredClaim", "read_result"),
}

__getattr__, __dir__ = make_lazy(globals(), _NAMES)
