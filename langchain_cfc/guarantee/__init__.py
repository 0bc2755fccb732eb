"""Guarantees and certificates as data, and the sentences that state them."""

from __future__ import annotations

from langchain_cfc.guarantee.certified import (
    Alpha,
    AnswerPolicy,
    Certificate,
    CertifiedAnswers,
    CertifiedShare,
    Count,
    CoverageCertificate,
    Delta,
    Share,
    WrongRateCertificate,
    format_bound,
    format_share,
)
from langchain_cfc.guarantee.model import Binding, Guarantee, GuaranteeKind, Weighting
from langchain_cfc.guarantee.words import (
    NOT_CERTIFIABLE,
    NOT_PROMISED,
    count_weightings,
    find_guarantee_kind,
    format_least,
    list_assumptions,
    list_exclusions,
    reduce_to_certificate,
    restrict_to_policy,
    state_confidence,
    state_guarantee,
)

__all__ = [
    "NOT_CERTIFIABLE",
    "NOT_PROMISED",
    "Alpha",
    "AnswerPolicy",
    "Binding",
    "Certificate",
    "CertifiedAnswers",
    "CertifiedShare",
    "Count",
    "CoverageCertificate",
    "Delta",
    "Guarantee",
    "GuaranteeKind",
    "Share",
    "Weighting",
    "WrongRateCertificate",
    "count_weightings",
    "find_guarantee_kind",
    "format_bound",
    "format_least",
    "format_share",
    "list_assumptions",
    "list_exclusions",
    "reduce_to_certificate",
    "restrict_to_policy",
    "state_confidence",
    "state_guarantee",
]
