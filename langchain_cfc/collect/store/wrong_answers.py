"""Find answers that are labelled wrong despite a good score, which reveal mistakes of a labeler first."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from sqlalchemy import func, select

from langchain_cfc.collect.store import schema
from langchain_cfc.collect.store.store import Store
from langchain_cfc.collect.store.tables import SELECT_CANDIDATES, SELECT_CLAIMS, is_same_slot
from langchain_cfc.records._json import short_repr

# Number of wrong answers to show, few enough for people to read.
MAX_WRONG_ANSWERS = 3
_prompts, _draws, _claims = schema.prompts, schema.draws, schema.claims
_scores, _labels = schema.scores, schema.labels


@dataclass(frozen=True)
class WrongAnswer:
    """Candidate or claim that is labelled wrong, with its prompt and reference."""

    prompt: Any
    answer: str  # the extracted answer, if there is an answer extractor; otherwise the text
    reference: Any

    def __str__(self) -> str:
        """Return one line that shows the answer next to its reference."""
        answer, reference = short_repr(self.answer), short_repr(self.reference)
        return f"answer {answer}, reference {reference}, prompt {short_repr(self.prompt)}"


def read_wrong_answers(store: Store, most: int = MAX_WRONG_ANSWERS) -> list[WrongAnswer]:
    """Return the best-scored candidates or claims that are labelled wrong, at most one per prompt.

    The verifier considers these correct. So either the model is sure of a wrong answer, or the labeler errs.
    """
    lowest = (
        select(_labels.c.prompt, func.min(_scores.c.score).label("score"))
        .join_from(_labels, _scores, is_same_slot(_labels, _scores))
        .where(_labels.c.correct.is_(False))
        .group_by(_labels.c.prompt)
        .order_by("score", _labels.c.prompt)
        .limit(most)
        .subquery()
    )
    is_claims = store.unit == "claims"
    table, selected = (_claims, SELECT_CLAIMS) if is_claims else (_draws, SELECT_CANDIDATES)
    query = (
        selected.add_columns(_prompts.c.input, _prompts.c.reference)
        .join(lowest, lowest.c.prompt == table.c.prompt)
        .join(_prompts, _prompts.c.position == table.c.prompt)
        .where(_labels.c.correct.is_(False), _scores.c.score == lowest.c.score)
        .order_by(None)
        .order_by(lowest.c.score, table.c.prompt, table.c.slot)
    )
    with schema.report_damage(store.name):
        rows = store.read_rows(query)
    found: dict[int, WrongAnswer] = {}
    for row in rows:
        answer = row.text if row.answer is None else row.answer
        found.setdefault(row.prompt, WrongAnswer(json.loads(row.input), answer, json.loads(row.reference)))
    return list(found.values())
