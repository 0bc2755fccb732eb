"""Find the labels that scores contradict, which reveal mistakes of a labeler first, in both directions."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from sqlalchemy import func, select

from langchain_cfc.support.json_text import short_repr
from langchain_cfc_collect.store import schema
from langchain_cfc_collect.store.store import Store
from langchain_cfc_collect.store.tables import SELECT_CANDIDATES, SELECT_CLAIMS, is_same_slot

# Number of answers to show for each label, few enough for people to read.
MAX_DOUBTFUL_LABELS = 3
_prompts, _draws, _claims = schema.prompts, schema.draws, schema.claims
_scores, _labels = schema.scores, schema.labels


@dataclass(frozen=True)
class LabelledAnswer:
    """Candidate or claim with its label, its prompt and its reference."""

    prompt: Any
    answer: str  # the extracted answer, if there is an answer extractor; otherwise the text
    reference: Any
    correct: bool

    def __str__(self) -> str:
        """Return one line that shows the answer next to its reference."""
        answer, reference = short_repr(self.answer), short_repr(self.reference)
        return f"answer {answer}, reference {reference}, prompt {short_repr(self.prompt)}"


def read_doubtful_labels(store: Store, most: int = MAX_DOUBTFUL_LABELS) -> list[LabelledAnswer]:
    """Return the labels that the scores contradict most, at most one per prompt for each label.

    First come the best-scored candidates or claims that are labelled wrong, then the worst-scored ones that
    are labelled right. Either the verifier errs or the labeler. People who saw only answers labelled wrong
    would correct mistakes in one direction, and a certificate would be too good.
    """
    return [*_read_contradicted(store, most, correct=False), *_read_contradicted(store, most, correct=True)]


def _read_contradicted(store: Store, most: int, *, correct: bool) -> list[LabelledAnswer]:
    has_label = _labels.c.correct.is_(correct)
    extreme = func.max(_scores.c.score) if correct else func.min(_scores.c.score)
    chosen = (
        select(_labels.c.prompt, extreme.label("score"))
        .join_from(_labels, _scores, is_same_slot(_labels, _scores))
        .where(has_label)
        .group_by(_labels.c.prompt)
        .order_by(extreme.desc() if correct else extreme, _labels.c.prompt)
        .limit(most)
        .subquery()
    )
    is_claims = store.unit == "claims"
    table, selected = (_claims, SELECT_CLAIMS) if is_claims else (_draws, SELECT_CANDIDATES)
    score = chosen.c.score
    query = (
        selected.add_columns(_prompts.c.input, _prompts.c.reference)
        .join(chosen, chosen.c.prompt == table.c.prompt)
        .join(_prompts, _prompts.c.position == table.c.prompt)
        .where(has_label, _scores.c.score == score)
        .order_by(None)
        .order_by(score.desc() if correct else score, table.c.prompt, table.c.slot)
    )
    with schema.report_damage(store.name):
        rows = store.read_rows(query)
    found: dict[int, LabelledAnswer] = {}
    for row in rows:
        answer = row.text if row.answer is None else row.answer
        known = LabelledAnswer(json.loads(row.input), answer, json.loads(row.reference), correct)
        found.setdefault(row.prompt, known)
    return list(found.values())
