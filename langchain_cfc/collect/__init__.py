"""Collect calibration records from a dataset: draw, score and label candidates, and pay for each stage once.

Importing this package loads nothing; each name below is loaded when it is first used. The store needs the
extra `[collect]`.
"""

from __future__ import annotations

from langchain_cfc._internal.imports import make_lazy

# Type checkers know this name; importing it would take longer than the rest of this module.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from langchain_cfc.collect.collecting import (
        CallPolicy,
        CollectionOptions,
        CollectionResult,
        acollect,
        collect,
        show_progress,
    )
    from langchain_cfc.collect.config import CollectionConfig, read_config
    from langchain_cfc.collect.costs import Budget, Price, Usage
    from langchain_cfc.collect.executor import Components, Executor, Journal, LocalExecutor, Outcome
    from langchain_cfc.collect.people import PeopleReport, PeopleSample
    from langchain_cfc.collect.rescoring import arescore, rescore
    from langchain_cfc.collect.review import (
        ReviewReport,
        create_review_report,
        read_people_claims,
        write_review,
    )
    from langchain_cfc.collect.sources.columns import Columns, Examples, read_examples
    from langchain_cfc.collect.status import CollectionStatus
    from langchain_cfc.collect.store.store import Store

__all__ = [
    "Budget",
    "CallPolicy",
    "CollectionConfig",
    "CollectionOptions",
    "CollectionResult",
    "CollectionStatus",
    "Columns",
    "Components",
    "Examples",
    "Executor",
    "Journal",
    "LocalExecutor",
    "Outcome",
    "PeopleReport",
    "PeopleSample",
    "Price",
    "ReviewReport",
    "Store",
    "Usage",
    "acollect",
    "arescore",
    "collect",
    "create_review_report",
    "read_config",
    "read_examples",
    "read_people_claims",
    "rescore",
    "show_progress",
    "write_review",
]

_NAMES = {
    "collecting": (
        "CallPolicy",
        "CollectionOptions",
        "CollectionResult",
        "acollect",
        "collect",
        "show_progress",
    ),
    "config": ("CollectionConfig", "read_config"),
    "costs": ("Budget", "Price", "Usage"),
    "executor": ("Components", "Executor", "Journal", "LocalExecutor", "Outcome"),
    "people": ("PeopleReport", "PeopleSample"),
    "rescoring": ("arescore", "rescore"),
    "review": ("ReviewReport", "create_review_report", "read_people_claims", "write_review"),
    "sources.columns": ("Columns", "Examples", "read_examples"),
    "status": ("CollectionStatus",),
    "store.store": ("Store",),
}

__getattr__, __dir__ = make_lazy(globals(), _NAMES)
