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
    floor_text,
    share_text,
)
from langchain_cfc.guarantee.model import Binding, Guarantee, GuaranteeKind, Weighting
from langchain_cfc.guarantee.words import (
    NOT_CERTIFIABLE,
    NOT_PROMISED,
    answering,
    assumptions,
    certified_only,
    counted,
    guarantee_kind,
    not_promised,
    promise,
    with_confidence,
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
    "answering",
    "assumptions",
    "certified_only",
    "counted",
    "floor_text",
    "guarantee_kind",
    "not_promised",
    "promise",
    "share_text",
    "with_confidence",
]
