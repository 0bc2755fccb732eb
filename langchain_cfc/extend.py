"""What other distributions build on: base classes to implement, and the helpers that go with them.

A verifier, a labeler, a source of examples, a threshold rule, an executor of collections and a reader of a
monitor's metrics are implemented against the names listed here. Everything else that is not in the `__all__`
of a package may change without notice. Importing this module loads nothing; each name is loaded when it is
first used, and some need the extra of their package.
"""

from __future__ import annotations

from langchain_cfc._internal.imports import make_lazy

# Type checkers know this name; to import it would load everything below.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from langchain_cfc._internal.plugins import load_object
    from langchain_cfc.cli._format import report_errors
    from langchain_cfc.collect.costs import Usage
    from langchain_cfc.collect.executor import (
        Components,
        Executor,
        Journal,
        LocalExecutor,
        Outcome,
        RetryPolicy,
        TokenRateLimiter,
    )
    from langchain_cfc.collect.sources import Columns, Row, Rows
    from langchain_cfc.collect.sources.columns import parse_template
    from langchain_cfc.execution import (
        Call,
        ConcurrencyLimiter,
        Steps,
        Target,
        add_tags,
        describe_error,
        redact_errors,
        run_flow,
        set_context_variable,
    )
    from langchain_cfc.labelers.base import (
        BaseLabeler,
        CandidateLabeling,
        Labeler,
        LabelerInput,
        Reads,
        reject_duplicate_keys,
    )
    from langchain_cfc.labelers.judge import JudgeLabels
    from langchain_cfc.labelers.matching import list_text_aliases
    from langchain_cfc.monitor.metrics import MetricsReader
    from langchain_cfc.records.batches import check_records
    from langchain_cfc.sampling import (
        DrawnCandidate,
        resolve_generator,
        walk_runnables,
        without_streaming_and_cache,
    )
    from langchain_cfc.sampling.candidates import Description
    from langchain_cfc.sampling.fingerprints import compute_fingerprint, state_settings
    from langchain_cfc.thresholds.base import ThresholdRule, Thresholds
    from langchain_cfc.verifiers.base import (
        BaseVerifier,
        Verifier,
        VerifierInput,
        combined_fingerprint,
        to_python_scalar,
    )
    from langchain_cfc.verifiers.evaluators import to_evaluator_inputs
    from langchain_cfc.verifiers.model_judge import CRITERION, Mode
    from langchain_cfc.verifiers.p_true import Wording
    from langchain_cfc.verifiers.prompted import TOP_LOGPROBS, Question

__all__ = [
    "CRITERION",
    "TOP_LOGPROBS",
    "BaseLabeler",
    "BaseVerifier",
    "Call",
    "CandidateLabeling",
    "Columns",
    "Components",
    "ConcurrencyLimiter",
    "Description",
    "DrawnCandidate",
    "Executor",
    "Journal",
    "JudgeLabels",
    "Labeler",
    "LabelerInput",
    "LocalExecutor",
    "MetricsReader",
    "Mode",
    "Outcome",
    "Question",
    "Reads",
    "RetryPolicy",
    "Row",
    "Rows",
    "Steps",
    "Target",
    "ThresholdRule",
    "Thresholds",
    "TokenRateLimiter",
    "Usage",
    "Verifier",
    "VerifierInput",
    "Wording",
    "add_tags",
    "check_records",
    "combined_fingerprint",
    "compute_fingerprint",
    "describe_error",
    "list_text_aliases",
    "load_object",
    "parse_template",
    "redact_errors",
    "reject_duplicate_keys",
    "report_errors",
    "resolve_generator",
    "run_flow",
    "set_context_variable",
    "state_settings",
    "to_evaluator_inputs",
    "to_python_scalar",
    "walk_runnables",
    "without_streaming_and_cache",
]

_HOMES = {
    "BaseLabeler": "labelers.base",
    "BaseVerifier": "verifiers.base",
    "CRITERION": "verifiers.model_judge",
    "Call": "execution",
    "CandidateLabeling": "labelers.base",
    "Columns": "collect.sources",
    "Components": "collect.executor",
    "ConcurrencyLimiter": "execution",
    "Description": "sampling.candidates",
    "DrawnCandidate": "sampling",
    "Executor": "collect.executor",
    "Journal": "collect.executor",
    "JudgeLabels": "labelers.judge",
    "Labeler": "labelers.base",
    "LabelerInput": "labelers.base",
    "LocalExecutor": "collect.executor",
    "MetricsReader": "monitor.metrics",
    "Mode": "verifiers.model_judge",
    "Outcome": "collect.executor",
    "Question": "verifiers.prompted",
    "Reads": "labelers.base",
    "RetryPolicy": "collect.executor",
    "Row": "collect.sources",
    "Rows": "collect.sources",
    "Steps": "execution",
    "TOP_LOGPROBS": "verifiers.prompted",
    "Target": "execution",
    "ThresholdRule": "thresholds.base",
    "Thresholds": "thresholds.base",
    "TokenRateLimiter": "collect.executor",
    "Usage": "collect.costs",
    "Verifier": "verifiers.base",
    "VerifierInput": "verifiers.base",
    "Wording": "verifiers.p_true",
    "add_tags": "execution",
    "check_records": "records.batches",
    "combined_fingerprint": "verifiers.base",
    "compute_fingerprint": "sampling.fingerprints",
    "describe_error": "execution",
    "report_errors": "cli._format",
    "list_text_aliases": "labelers.matching",
    "load_object": "_internal.plugins",
    "parse_template": "collect.sources.columns",
    "redact_errors": "execution",
    "reject_duplicate_keys": "labelers.base",
    "resolve_generator": "sampling",
    "run_flow": "execution",
    "set_context_variable": "execution",
    "state_settings": "sampling.fingerprints",
    "to_evaluator_inputs": "verifiers.evaluators",
    "to_python_scalar": "verifiers.base",
    "walk_runnables": "sampling",
    "without_streaming_and_cache": "sampling",
}

__getattr__, __dir__ = make_lazy(globals(), _HOMES)
