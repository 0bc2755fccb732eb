"""What other distributions build on: base classes to implement, and the helpers that go with them.

A verifier, a labeler, a source of examples, a threshold rule, an executor of collections and a reader of a
monitor's metrics are implemented against the names listed here. Everything else that is not in the `__all__`
of a package may change without notice. Importing this module loads nothing; each name is loaded when it is
first used, and some need the extra of their package.
"""

from __future__ import annotations

from langchain_cfc._internal.lazy import make_lazy

# Type checkers know this name; to import it would load everything below.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from langchain_cfc._internal.plugins import load_object
    from langchain_cfc.cli._format import failures_explained
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
        complete,
        described,
        setting,
        tagged,
        unquoted,
    )
    from langchain_cfc.fingerprints import fingerprint, state_settings
    from langchain_cfc.labelers.base import BaseLabeler, Labeler, LabelerInput, Labelling, Reads, unique_keys
    from langchain_cfc.labelers.judge import JudgeLabels
    from langchain_cfc.labelers.matching import text_aliases
    from langchain_cfc.monitor.metrics import Measured
    from langchain_cfc.records.batches import check_records
    from langchain_cfc.sampling import DrawnCandidate, inside, resolved, without_streaming_and_cache
    from langchain_cfc.sampling.description import Description
    from langchain_cfc.thresholds.base import ThresholdRule, Thresholds
    from langchain_cfc.verifiers.base import (
        BaseVerifier,
        Verifier,
        VerifierInput,
        combined_fingerprint,
        plain,
    )
    from langchain_cfc.verifiers.evaluators import evaluator_inputs
    from langchain_cfc.verifiers.model_judge import CRITERION, Mode
    from langchain_cfc.verifiers.p_true import Wording
    from langchain_cfc.verifiers.prompted import TOP_LOGPROBS, Question

__all__ = [
    "CRITERION",
    "TOP_LOGPROBS",
    "BaseLabeler",
    "BaseVerifier",
    "Call",
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
    "Labelling",
    "LocalExecutor",
    "Measured",
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
    "check_records",
    "combined_fingerprint",
    "complete",
    "described",
    "evaluator_inputs",
    "failures_explained",
    "fingerprint",
    "inside",
    "load_object",
    "parse_template",
    "plain",
    "resolved",
    "setting",
    "state_settings",
    "tagged",
    "text_aliases",
    "unique_keys",
    "unquoted",
    "without_streaming_and_cache",
]

_HOMES = {
    "BaseLabeler": "labelers.base",
    "BaseVerifier": "verifiers.base",
    "CRITERION": "verifiers.model_judge",
    "Call": "execution",
    "Columns": "collect.sources",
    "Components": "collect.executor",
    "ConcurrencyLimiter": "execution",
    "Description": "sampling.description",
    "DrawnCandidate": "sampling",
    "Executor": "collect.executor",
    "Journal": "collect.executor",
    "JudgeLabels": "labelers.judge",
    "Labeler": "labelers.base",
    "LabelerInput": "labelers.base",
    "Labelling": "labelers.base",
    "LocalExecutor": "collect.executor",
    "Measured": "monitor.metrics",
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
    "check_records": "records.batches",
    "combined_fingerprint": "verifiers.base",
    "complete": "execution",
    "described": "execution",
    "evaluator_inputs": "verifiers.evaluators",
    "failures_explained": "cli._format",
    "fingerprint": "fingerprints",
    "inside": "sampling",
    "load_object": "_internal.plugins",
    "parse_template": "collect.sources.columns",
    "plain": "verifiers.base",
    "resolved": "sampling",
    "setting": "execution",
    "state_settings": "fingerprints",
    "tagged": "execution",
    "text_aliases": "labelers.matching",
    "unique_keys": "labelers.base",
    "unquoted": "execution",
    "without_streaming_and_cache": "sampling",
}

__getattr__, __dir__ = make_lazy(globals(), _HOMES)
