"""Calls of models and of the user's own code: sync or async, many at once in one limit, failures typed."""

from __future__ import annotations

from langchain_cfc.calls.bounds import (
    Attempts,
    Bounds,
    Limit,
    RunManager,
    bounded,
    bounded_by,
    bounds,
    child_of,
    limit_of,
    setting,
    sharing_limit,
    tagged,
)
from langchain_cfc.calls.call import Call, Target, by_name, described, unquoted
from langchain_cfc.calls.flow import FlowRunnable
from langchain_cfc.calls.progress import Progress
from langchain_cfc.calls.steps import Step, Steps, acomplete, complete, each, succeeded
from langchain_cfc.calls.timing import ain_time, in_time

__all__ = [
    "Attempts",
    "Bounds",
    "Call",
    "FlowRunnable",
    "Limit",
    "Progress",
    "RunManager",
    "Step",
    "Steps",
    "Target",
    "acomplete",
    "ain_time",
    "bounded",
    "bounded_by",
    "bounds",
    "by_name",
    "child_of",
    "complete",
    "described",
    "each",
    "in_time",
    "limit_of",
    "setting",
    "sharing_limit",
    "succeeded",
    "tagged",
    "unquoted",
]
