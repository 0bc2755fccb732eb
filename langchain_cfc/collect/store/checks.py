"""Damage noticed: what was read is compared with the digests that were written beside it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from langchain_cfc.collect.stages import Stage
from langchain_cfc.collect.store.digests import (
    draw_checksum,
    draws_digest,
    labels_digest,
    prompt_digest,
    scores_digest,
)
from langchain_cfc.errors import CFCError, StoreError

_ADVICE = ". Go back to a copy of it; `langchain-cfc status --check STORE` looks at all that it holds"


@contextmanager
def damage_reported(name: str) -> Iterator[None]:
    """Turn whatever fails while stored values are read into one error that names the store.

    Raises:
        StoreError: If a value is not of the form in which it was written.
    """
    try:
        yield
    except CFCError:
        raise
    except Exception as error:
        msg = f"{name} is damaged: {type(error).__name__}: {error}{_ADVICE}"
        raise StoreError(msg) from error


def check_prompt(name: str, row: Any) -> None:
    """Check what the dataset says of a prompt.

    Args:
        name: Of the store.
        row: The prompt's.

    Raises:
        StoreError: If it is not what was written.
    """
    _check(name, row.id, prompt_digest(row._mapping), row.digest)  # noqa: SLF001 - SQLAlchemy's public name
    # Every stage that is finished has left its digest.
    left = [row.draws_digest, row.scores_digest, row.labels_digest]
    _check(name, row.id, [said is not None for said in left], [row.stage > stage for stage in range(3)])
    # One bit makes a number of nothing.
    _check(name, row.id, type(row.context), type(None) if row.context is None else str)


def check_draws(name: str, prompt: Any, drawn: Sequence[Any]) -> None:
    """Check the candidates of a prompt that is not finished; arguments as in `check_prompt`."""
    for one in drawn:
        found = draw_checksum(one.prompt, one.slot, one.text, one.data, one.packed)
        _check(name, prompt.id, found, one.checksum)
    if prompt.stage >= Stage.DRAWN:
        said = draws_digest(prompt.position, [one.text for one in drawn], [one.data for one in drawn])
        _check(name, prompt.id, said, prompt.draws_digest)


def check_scores(name: str, prompt: Any, scored: Sequence[Any]) -> None:
    """Check the scores of a prompt that is not finished; arguments as in `check_prompt`."""
    said = scores_digest(prompt.position, [one.score for one in scored], [one.outputs for one in scored])
    _check(name, prompt.id, said, prompt.scores_digest)


def check_finished(name: str, row: Any, columns: Sequence[Sequence[Any]]) -> None:
    """Check all of a finished prompt.

    Args:
        name: Of the store.
        row: The prompt's.
        columns: The columns of its n candidates, as `results.CANDIDATES` orders them.

    Raises:
        StoreError: If it is not what was written.
    """
    check_prompt(name, row)
    _, slots, texts, data, scores, outputs, correct, answers = columns
    position = row.position
    _check(name, row.id, slots, tuple(range(len(slots))))
    _check(name, row.id, draws_digest(position, texts, data), row.draws_digest)
    _check(name, row.id, scores_digest(position, scores, outputs), row.scores_digest)
    _check(name, row.id, labels_digest(position, correct, answers, row.described), row.labels_digest)


def _check(name: str, prompt: Any, found: object, written: object) -> None:
    if found != written:
        msg = f"{name} is damaged: the prompt {prompt!r:.80} is not what was written{_ADVICE}"
        raise StoreError(msg)
