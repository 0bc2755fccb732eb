"""From a dataset to calibration records: draw, score and label candidates, and pay for each stage once."""

from __future__ import annotations

from langchain_cfc_collect.bot import abuild_bot, build_bot
from langchain_cfc_collect.calibrating import ChainOptions, acalibrate_chain, calibrate_chain
from langchain_cfc_collect.calls import CallPolicy
from langchain_cfc_collect.collecting import acollect, collect, show_progress
from langchain_cfc_collect.config import CollectionConfig, read_config
from langchain_cfc_collect.costs import Budget, Price, Usage
from langchain_cfc_collect.executor import Components, Executor
from langchain_cfc_collect.human import HumanLabels
from langchain_cfc_collect.importing import ImportReport, import_samples
from langchain_cfc_collect.people import PeopleReport, PeopleSample
from langchain_cfc_collect.rescoring import arescore, rescore
from langchain_cfc_collect.review import (
    ReviewReport,
    create_review_report,
    write_review,
)
from langchain_cfc_collect.run import CollectionOptions, CollectionResult
from langchain_cfc_collect.sources.columns import Columns, Examples, read_examples
from langchain_cfc_collect.sources.files import Row, Rows
from langchain_cfc_collect.sources.templates import parse_template
from langchain_cfc_collect.stages import Journal, Outcome
from langchain_cfc_collect.status import CollectionStatus
from langchain_cfc_collect.store.configurations import make_provenance
from langchain_cfc_collect.store.store import Store

__all__ = [
    "Budget",
    "CallPolicy",
    "ChainOptions",
    "CollectionConfig",
    "CollectionOptions",
    "CollectionResult",
    "CollectionStatus",
    "Columns",
    "Components",
    "Examples",
    "Executor",
    "HumanLabels",
    "ImportReport",
    "Journal",
    "Outcome",
    "PeopleReport",
    "PeopleSample",
    "Price",
    "ReviewReport",
    "Row",
    "Rows",
    "Store",
    "Usage",
    "abuild_bot",
    "acalibrate_chain",
    "acollect",
    "arescore",
    "build_bot",
    "calibrate_chain",
    "collect",
    "create_review_report",
    "import_samples",
    "make_provenance",
    "parse_template",
    "read_config",
    "read_examples",
    "rescore",
    "show_progress",
    "write_review",
]
