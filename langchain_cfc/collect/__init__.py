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
        Collected,
        Options,
        Pace,
        acollect,
        acollect_on,
        collect,
        progress_bar,
    )
    from langchain_cfc.collect.config import CollectionConfig, read_config
    from langchain_cfc.collect.costs import Budget, Price
    from langchain_cfc.collect.executor import LocalBench, Parts
    from langchain_cfc.collect.review import ReviewReport, review_report, write_review
    from langchain_cfc.collect.sources.columns import Columns
    from langchain_cfc.collect.sources.reading import Examples, read_examples
    from langchain_cfc.collect.stages import Bench, Journal, Outcome, Paid
    from langchain_cfc.collect.status import Standing
    from langchain_cfc.collect.store.store import Store

__all__ = [
    "Bench",
    "Budget",
    "Collected",
    "CollectionConfig",
    "Columns",
    "Examples",
    "Journal",
    "LocalBench",
    "Options",
    "Outcome",
    "Pace",
    "Paid",
    "Parts",
    "Price",
    "ReviewReport",
    "Standing",
    "Store",
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
    "Bench": "stages",
    "Budget": "costs",
    "Collected": "collecting",
    "CollectionConfig": "config",
    "Columns": "sources.columns",
    "Examples": "sources.reading",
    "Journal": "stages",
    "LocalBench": "executor",
    "Options": "collecting",
    "Outcome": "stages",
    "Pace": "collecting",
    "Paid": "stages",
    "Parts": "executor",
    "Price": "costs",
    "ReviewReport": "review",
    "Standing": "status",
    "Store": "store.store",
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
