"""The experiments of the CFC paper: what it published, and what comes of them here."""

from __future__ import annotations

from langchain_cfc.paper.cells import Agreement, Cell
from langchain_cfc.paper.published import PublishedCell, published_cells, published_tables
from langchain_cfc.paper.studies import STUDIES, Pattern, StudyName, StudyReport, reproduce_study
from langchain_cfc.paper.synthetic import SyntheticWorld
from langchain_cfc.paper.synthetic_experiment import SyntheticReport, reproduce_synthetic

__all__ = [
    "STUDIES",
    "Agreement",
    "Cell",
    "Pattern",
    "PublishedCell",
    "StudyName",
    "StudyReport",
    "SyntheticReport",
    "SyntheticWorld",
    "published_cells",
    "published_tables",
    "reproduce_study",
    "reproduce_synthetic",
]
