"""Guarantees and certificates as data, and the sentences that state them."""

from __future__ import annotations

from langchain_cfc.guarantee.certified import (
    Alpha,
    Certificate,
    CertifiedAnswers,
    CertifiedShare,
    Confidence,
    Count,
    CoverageCertificate,
    Delta,
    PeopleCertificate,
    Share,
    TestedCertificate,
    WrongRateCertificate,
    format_bound,
    format_share,
    state_event,
)
from langchain_cfc.guarantee.model import AnsweredBatch, Binding, Guarantee, GuaranteeKind, Weighting
from langchain_cfc.guarantee.paper_pac import PaperPAC

__all__ = [
    "Alpha",
    "AnsweredBatch",
    "Binding",
    "Certificate",
    "CertifiedAnswers",
    "CertifiedShare",
    "Confidence",
    "Count",
    "CoverageCertificate",
    "Delta",
    "Guarantee",
    "GuaranteeKind",
    "PaperPAC",
    "PeopleCertificate",
    "Share",
    "TestedCertificate",
    "Weighting",
    "WrongRateCertificate",
    "format_bound",
    "format_share",
    "state_event",
]
