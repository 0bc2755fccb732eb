"""Records: prompts with their scored and labelled candidates, as files and as arrays."""

from __future__ import annotations

from langchain_cfc.records.arrays import tabulate, tabulate_raw, with_scores
from langchain_cfc.records.files import Records, read_records, write_records
from langchain_cfc.records.parquet import parquet_schema
from langchain_cfc.records.schema import Candidate, Example, PromptRecord, Provenance

__all__ = [
    "Candidate",
    "Example",
    "PromptRecord",
    "Provenance",
    "Records",
    "parquet_schema",
    "read_records",
    "tabulate",
    "tabulate_raw",
    "with_scores",
    "write_records",
]
