"""From an evaluation dataset to calibration records: drawn, scored, labelled, and nothing paid twice.

Importing this package loads nothing; each name below is loaded when it is first used. What touches a store
needs the extra `[collect]`.
"""

from __future__ import annotations

from langchain_cfc._internal.lazy import lazily

# Type checkers know this name; to import it would cost as much as all the rest here.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from langchain_cfc.collect.collecting import (
        CallPolicy,
        Collected,
        Options,
        acollect,
        acollect_on,
        collect,
        progress_bar,
    )
    from langchain_cfc.collect.config import CollectionConfig, read_config
    from langchain_cfc.collect.costs import Budget, Price
    from langchain_cfc.collect.executor import Components, LocalExecutor
    from langchain_cfc.collect.review import ReviewReport, review_report, write_review
    from langchain_cfc.collect.sources.columns import Columns
    from langchain_cfc.collect.sources.reading import Examples, read_examples
    from langchain_cfc.collect.stages import Executor, Journal, Outcome, Usage
    from langchain_cfc.collect.status import CollectionStatus
    from langchain_cfc.collect.store.store import Store

__all__ = [
    "Budget",
    "CallPolicy",
    "Collected",
    "CollectionConfig",
    "CollectionStatus",
    "Columns",
    "Components",
    "Examples",
    "Executor",
    "Journal",
    "LocalExecutor",
    "Options",
    "Outcome",
    "Price",
    "ReviewReport",
    "Store",
    "Usage",
    "acollect",
    "acollect_on",
    "collect",
    "progress_bar",
    "read_config",
    "read_examples",
    "review_report",
    "write_review",
]

_HOMES = {
    "Budget": "costs",
    "CallPolicy": "collecting",
    "Collected": "collecting",
    "CollectionConfig": "config",
    "CollectionStatus": "status",
    "Columns": "sources.columns",
    "Components": "executor",
    "Examples": "sources.reading",
    "Executor": "stages",
    "Journal": "stages",
    "LocalExecutor": "executor",
    "Options": "collecting",
    "Outcome": "stages",
    "Price": "costs",
    "ReviewReport": "review",
    "Store": "store.store",
    "Usage": "stages",
    "acollect": "collecting",
    "acollect_on": "collecting",
    "collect": "collecting",
    "progress_bar": "collecting",
    "read_config": "config",
    "read_examples": "sources.reading",
    "review_report": "review",
    "write_review": "review",
}

__getattr__, __dir__ = lazily(globals(), _HOMES)
