"""Remove the chat messages of labelled prompts from a store, and free their disk space."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from sqlalchemy import select

from langchain_cfc_collect.costs import Stage
from langchain_cfc_collect.store import rows, schema
from langchain_cfc_collect.store.store import Store

_prompts, _draws = schema.prompts, schema.draws
# Number of prompts whose messages are in memory at a time: a message with log-probabilities has about 20 kB.
_PROMPTS_AT_ONCE = 50


@dataclass(frozen=True)
class ShrinkResult:
    """Result of shrinking a store: removed messages, and sizes."""

    candidates: int  # number of candidates whose message was removed
    bytes_before: int  # size of the store before
    bytes_after: int  # size of the store after


def shrink_store(store: Store) -> ShrinkResult:
    """Remove the messages that no later stage reads, and free their disk space.

    Only candidates of labelled prompts lose their messages; text and data stay, and records do not change.
    After an interruption the store is still valid, and another call continues.

    No run may be working on the store, and SQLite needs as much free disk space as the shrunk store takes.
    Raises `StoreError` if a candidate is damaged, or the store is in use or cannot be written.
    """
    with store.lock(), schema.report_damage(store.name):
        before, candidates = store.measure_size(), 0
        for page in _read_pages(store):
            writes = [
                rows.strip_draws(position, [(one.slot, one.text, one.data) for one in draws])
                for position, draws in page.items()
            ]
            store.write(rows.combine_writes(writes))
            candidates += sum(map(len, page.values()))
        store.reclaim_space()
        return ShrinkResult(candidates, before, store.measure_size())


def _read_pages(store: Store) -> Iterator[dict[int, Sequence[Any]]]:
    """Yield, by position, the draws of labelled prompts that have a message, after checking their digests."""
    has_message = (_draws.c.packed.is_not(None), _draws.c.packed != schema.STRIPPED)
    after = -1
    while True:
        positions = (
            select(_draws.c.prompt)
            .join(_prompts, _prompts.c.position == _draws.c.prompt)
            .where(_draws.c.prompt > after, _prompts.c.stage == int(Stage.LABELLED), *has_message)
            .distinct()
            .order_by(_draws.c.prompt)
            .limit(_PROMPTS_AT_ONCE)
        )
        found = [row.prompt for row in store.read_rows(positions)]
        if not found:
            return
        after = found[-1]
        prompts = store.read_rows(select(_prompts).where(_prompts.c.position.in_(found)))
        known = {row.position: row for row in prompts}
        draws = store.read_rows(
            select(_draws).where(_draws.c.prompt.in_(found)).order_by(_draws.c.prompt, _draws.c.slot)
        )
        page: dict[int, Sequence[Any]] = {}
        for position, group in groupby(draws, key=lambda row: row.prompt):
            every = list(group)
            schema.check_draws(store.name, known[position], every)
            page[position] = [one for one in every if one.packed]
        yield page
