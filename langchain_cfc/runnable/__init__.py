"""The runnable: draw, score, features, threshold, set or abstention."""

from __future__ import annotations

from langchain_cfc.runnable.cfc import CFCRunnable
from langchain_cfc.runnable.chat_arguments import configure_chain, find_cfc_runnable
from langchain_cfc.runnable.chat_model import CFCChatModel
from langchain_cfc.runnable.policies import ABSTAIN_MESSAGE, Answer, OrElse
from langchain_cfc.runnable.preview import AnswerCluster, Preview, PreviewedQuestion, preview_answers
from langchain_cfc.runnable.result import CFCResult, ScoredCandidate

__all__ = [
    "ABSTAIN_MESSAGE",
    "Answer",
    "AnswerCluster",
    "CFCChatModel",
    "CFCResult",
    "CFCRunnable",
    "OrElse",
    "Preview",
    "PreviewedQuestion",
    "ScoredCandidate",
    "configure_chain",
    "find_cfc_runnable",
    "preview_answers",
]
