"""Records: prompts with their scored and labelled candidates, as files and as arrays."""

from __future__ import annotations

from langchain_cfc.records.arrays import tabulate
from langchain_cfc.records.files import Records, read_records, write_records
from langchain_cfc.records.schema import (
    Candidate,
    Claim,
    ClaimsRecord,
    Example,
    LabelledRecord,
    PromptRecord,
    Provenance,
    require_candidates,
    require_claims,
)

__all__ = [
    "Candidate",
    "Claim",
    "ClaimsRecord",
    "Example",
    "LabelledRecord",
    "PromptRecord",
    "Provenance",
    "Records",
    "read_records",
    "require_candidates",
    "require_claims",
    "tabulate",
    "write_records",
]
