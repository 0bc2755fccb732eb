"""`CFCRunnable` and `CFCChatModel`: serve a generator with conformal answer sets."""

from __future__ import annotations

from langchain_cfc.runnable.answering import ABSTAIN_MESSAGE, Answer, OrElse
from langchain_cfc.runnable.cfc import CFCRunnable
from langchain_cfc.runnable.chat_arguments import changes_generator, configure_chain, find_cfc_runnable
from langchain_cfc.runnable.chat_model import CFCChatModel
from langchain_cfc.runnable.result import CFCResult, ClaimsResult, ScoredCandidate, ScoredClaim, read_result

__all__ = [
    "ABSTAIN_MESSAGE",
    "Answer",
    "CFCChatModel",
    "CFCResult",
    "CFCRunnable",
    "ClaimsResult",
    "OrElse",
    "ScoredCandidate",
    "ScoredClaim",
    "changes_generator",
    "configure_chain",
    "find_cfc_runnable",
    "read_result",
]
