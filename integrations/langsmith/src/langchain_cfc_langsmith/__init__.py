"""LangSmith for langchain-cfc: datasets, feedback and experiments.

- `collect` reads datasets: `langchain-cfc collect --source langsmith:my-dataset`, or `read_dataset_rows`.
- `FeedbackHandler` writes the decision about a served prompt to its run, in the background.
- `read_feedback_labels` reads people's feedback on served results as labels for a monitor:
  `langchain-cfc monitor labels artifact.json monitor.db langsmith:correct`.
- `Experiment` measures a `CFCRunnable` under `langsmith.evaluate`, using the package's own `evaluate`.
"""

from __future__ import annotations

from langchain_cfc_langsmith.experiment import Experiment
from langchain_cfc_langsmith.feedback import FeedbackHandler
from langchain_cfc_langsmith.labels import plugged_labels, read_feedback_labels
from langchain_cfc_langsmith.scores import make_scores
from langchain_cfc_langsmith.source import make_row, read_dataset_rows, source_rows

__all__ = [
    "Experiment",
    "FeedbackHandler",
    "make_row",
    "make_scores",
    "plugged_labels",
    "read_dataset_rows",
    "read_feedback_labels",
    "source_rows",
]
