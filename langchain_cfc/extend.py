"""Extension interface for other distributions: helpers to write a verifier, a labeler or a companion.

The base classes are in `langchain_cfc.verifiers` and `langchain_cfc.labelers`, what calls models in
`langchain_cfc.execution` and `langchain_cfc.sampling`. Everything that is neither listed here nor in the
`__all__` of a package may change without notice.
"""

from __future__ import annotations

from langchain_cfc.sampling.candidates import Description, make_candidate
from langchain_cfc.sampling.fingerprints import compute_fingerprint, state_settings
from langchain_cfc.sampling.token_counts import read_usage, sum_usage
from langchain_cfc.support.files import is_replaceable
from langchain_cfc.support.plugins import load_object
from langchain_cfc.support.text import withhold_quotes
from langchain_cfc.verifiers.base import (
    CandidateScorer,
    VerifierScores,
    combine_fingerprints,
    to_python_scalar,
)
from langchain_cfc.verifiers.evaluators import to_evaluator_inputs
from langchain_cfc.verifiers.model_judge import CRITERION, TOP_LOGPROBS, Mode
from langchain_cfc.verifiers.prompted import Question

__all__ = [
    "CRITERION",
    "TOP_LOGPROBS",
    "CandidateScorer",
    "Description",
    "Mode",
    "Question",
    "VerifierScores",
    "combine_fingerprints",
    "compute_fingerprint",
    "is_replaceable",
    "load_object",
    "make_candidate",
    "read_usage",
    "state_settings",
    "sum_usage",
    "to_evaluator_inputs",
    "to_python_scalar",
    "withhold_quotes",
]
