"""Call models and user code, sync or async, concurrently within a shared limit, with typed errors."""

from __future__ import annotations

from langchain_cfc.execution.failures import (
    PERMANENT_FAILURES,
    FailureKind,
    classify_failure,
    describe_error,
    is_permanent,
    is_raised_in_model,
    list_causes,
)
from langchain_cfc.execution.langgraph_compat import detach_from_graph
from langchain_cfc.execution.limits import (
    CallLimits,
    ConcurrencyLimiter,
    add_tags,
    apply_config_limits,
    apply_limits,
    get_current_limits,
    set_context_variable,
)
from langchain_cfc.execution.steps import (
    Call,
    FlowRunnable,
    Step,
    Steps,
    Target,
    arun_flow,
    call_each,
    run_flow,
    unwrap_outcomes,
)

__all__ = [
    "PERMANENT_FAILURES",
    "Call",
    "CallLimits",
    "ConcurrencyLimiter",
    "FailureKind",
    "FlowRunnable",
    "Step",
    "Steps",
    "Target",
    "add_tags",
    "apply_config_limits",
    "apply_limits",
    "arun_flow",
    "call_each",
    "classify_failure",
    "describe_error",
    "detach_from_graph",
    "get_current_limits",
    "is_permanent",
    "is_raised_in_model",
    "list_causes",
    "run_flow",
    "set_context_variable",
    "unwrap_outcomes",
]
