"""`import_samples`: store answers that were drawn elsewhere, to be scored and labelled without the model.

The model behind them is not known. Unless the user names it, their fingerprint says where they come from, and
an artifact that is calibrated on them serves as `unverified`. The store keeps the names and formats of the
files in any case, and lets no run add questions whose answers would come from somewhere else.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from langchain_cfc.errors import StoreError
from langchain_cfc.verifiers.base import VerifierScores
from langchain_cfc_collect.costs import Usage
from langchain_cfc_collect.sources.columns import Columns
from langchain_cfc_collect.sources.samples import Sample, gather_answers, open_answers
from langchain_cfc_collect.stages import Labels
from langchain_cfc_collect.store import Store, rows
from langchain_cfc_collect.store.configurations import IMPORTED
from langchain_cfc_collect.store.dataset import MakeWrites


@dataclass(frozen=True)
class ImportReport:
    """What an import has read and added to the store.

    Attributes:
        prompts: Number of prompts added to the store.
        n: Number of answers of each.
        read_from: What was recognised, in one line.
        has_scores: Whether the answers came with scores.
        has_labels: Whether they came with labels.
    """

    prompts: int
    n: int
    read_from: str
    has_scores: bool
    has_labels: bool


def import_samples(
    samples: Any,
    store: str | os.PathLike[str],
    columns: Columns | Mapping[str, Any] | None = None,
    *,
    answer: str | None = None,
    score: str | None = None,
    label: str | None = None,
    n: int | None = None,
    generator_id: str | None = None,
) -> ImportReport:
    """Store answers that another tool drew, so that `rescore`, `collect` and `calibrate` go on with them.

    Reads `samples_*.jsonl` of lm-evaluation-harness, results of uqlm and promptfoo, and tables with a row for
    each answer or question; what is read is recognised by the columns.

    Args:
        samples: A path or a list of paths (JSON Lines, JSON, CSV, TSV, Parquet), a pandas DataFrame, or rows
            as mappings.
        store: The store: SQLite file, created if it does not exist, or URL of a PostgreSQL database.
        columns: What the columns of question, reference and metadata are called; those left out are guessed.
        answer: Column of the answers; None to guess it.
        score: Column of scores in [0, 1], smaller is better; None to guess it, empty for none.
        label: Column of labels, true or false; None to guess it, empty for none.
        n: Number of answers of each question, of which the first n are used; None for the most frequent one.
        generator_id: The user's name for the model and prompt that drew the answers, as in `Components`; with
            it, a bot that has this id is the calibrated one.

    Returns:
        What was imported.

    Raises:
        RecordError: If a row cannot be read; it names the file, the row, the column and what was expected.
        InputError: If a column cannot be guessed, or a question has fewer than n answers.
        StoreError: If the store holds other answers, or cannot be written.
    """
    given = columns.model_dump(exclude_defaults=True) if isinstance(columns, Columns) else columns or {}
    several = isinstance(samples, list | tuple) and samples and isinstance(samples[0], str | os.PathLike)
    parts = {"answer": answer or None, "score": score, "label": label}
    tables = [open_answers(one, given, parts) for one in (samples if several else [samples])]
    prompts = gather_answers(tables, n)
    answers = [one for _, several in prompts for one in several]
    has_scores = any(one.score is not None for one in answers)
    has_labels = any(one.label is not None for one in answers)
    unnamed = {"unnamed": [f"{one.format} in {one.file}" for one in tables]}
    n = len(prompts[0][1])
    configuration = {
        "n": n,
        "generator": unnamed if generator_id is None else {"id": generator_id},
        # Labels follow scores in a store, so they come with the scores of no verifier.
        **({"verifier": unnamed} if has_scores or has_labels else {}),
        **({"labeler": unnamed} if has_labels else {}),
    }
    makers = ((one, _make_writer(several, has_scores, has_labels)) for one, several in prompts)
    with Store(store, create=True) as opened, opened.lock():
        if opened.configuration and IMPORTED not in opened.configuration:
            msg = f"{opened.name} holds answers that were collected: import others into another store"
            raise StoreError(msg)
        known = opened.configuration.get(IMPORTED, [])
        read = [{"file": one.file, "format": one.format} for one in tables]
        new = [one for one in read if one not in known]
        opened.set_configuration({**configuration, IMPORTED: [*known, *new]})
        added = opened.add_with_stages(makers)
    read_from = "; ".join(one.describe() for one in tables)
    return ImportReport(added, n, read_from, has_scores, has_labels)


def _make_writer(samples: Sequence[Sample], has_scores: bool, has_labels: bool) -> MakeWrites:
    verdicts = [None if one.draw.no_answer else one.score for one in samples]
    labels = [False if one.draw.no_answer else one.label for one in samples]
    return partial(
        rows.insert_stages,
        [one.draw for one in samples],
        VerifierScores(verdicts) if has_scores or has_labels else None,
        Labels(labels) if has_labels else None,
        Usage(),
    )
