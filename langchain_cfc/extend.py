"""Extension interface for other distributions: base classes to implement, and their helpers.

Use the names listed here to implement a verifier, a labeler, or a companion's source of examples, executor
or reader of metrics. Everything else that is not in the `__all__` of a package may change without notice.
Importing this module loads nothing; each name is loaded when it is first used, and some need the extra of
their package.
"""

from __future__ import annotations

from langchain_cfc.support.imports import make_lazy

# Type checkers know this name; importing it would take longer than the rest of this module.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from langchain_cfc.cli.formatting import report_errors
    from langchain_cfc.execution import (
        Call,
        ConcurrencyLimiter,
        Steps,
        Target,
        add_tags,
        describe_error,
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
    from langchain_cfc.records import require_candidates
    from langchain_cfc.records.dataset import check_records
    from langchain_cfc.records.parquet import encode_record
    from langchain_cfc.records.schema import make_provenance
    from langchain_cfc.sampling import (
        DrawnCandidate,
        resolve_generator,
        walk_runnables,
        without_streaming_and_cache,
    )
    from langchain_cfc.sampling.candidates import Description, make_candidate
    from langchain_cfc.sampling.fingerprints import compute_fingerprint, state_settings
    from langchain_cfc.support.plugins import load_object
    from langchain_cfc.support.text import withhold_quotes
    from langchain_cfc.verifiers.base import (
        BaseVerifier,
        Verifier,
        VerifierInput,
        combine_fingerprints,
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
    "ConcurrencyLimiter",
    "Description",
    "DrawnCandidate",
    "JudgeLabels",
    "Labeler",
    "LabelerInput",
    "Mode",
    "Question",
    "Reads",
    "Steps",
    "Target",
    "Verifier",
    "VerifierInput",
    "Wording",
    "add_tags",
    "check_records",
    "combine_fingerprints",
    "compute_fingerprint",
    "describe_error",
    "encode_record",
    "list_text_aliases",
    "load_object",
    "make_candidate",
    "make_provenance",
    "reject_duplicate_keys",
    "report_errors",
    "require_candidates",
    "resolve_generator",
    "run_flow",
    "set_context_variable",
    "state_settings",
    "to_evaluator_inputs",
    "to_python_scalar",
    "walk_runnables",
    "withhold_quotes",
    "without_streaming_and_cache",
]

_NAMES = {
    "support.plugins": ("load_object",),
    "support.text": ("withhold_quotes",),
    "cli.formatting": ("report_errors",),
    "execution": (
        "Call",
        "ConcurrencyLimiter",
        "Steps",
        "Target",
        "add_tags",
        "describe_error",
        "run_flow",
        "set_context_variable",
    ),
    "labelers.base": (
        "BaseLabeler",
        "CandidateLabeling",
        "Labeler",
        "LabelerInput",
        "Reads",
        "reject_duplicate_keys",
    ),
    "labelers.judge": ("JudgeLabels",),
    "labelers.matching": ("list_text_aliases",),
    "records": ("require_candidates",),
    "records.dataset": ("check_records",),
    "records.parquet": ("encode_record",),
    "records.schema": ("make_provenance",),
    "sampling": ("DrawnCandidate", "resolve_generator", "walk_runnables", "without_streaming_and_cache"),
    "sampling.candidates": ("Description", "make_candidate"),
    "sampling.fingerprints": ("compute_fingerprint", "state_settings"),
    "verifiers.base": (
        "BaseVerifier",
        "Verifier",
        "VerifierInput",
        "combine_fingerprints",
        "to_python_scalar",
    ),
    "verifiers.evaluators": ("to_evaluator_inputs",),
    "verifiers.model_judge": ("CRITERION", "Mode"),
    "verifiers.p_true": ("Wording",),
    "verifiers.prompted": ("TOP_LOGPROBS", "Question"),
}

__getattr__, __dir__ = make_lazy(globals(), _NAMES)
