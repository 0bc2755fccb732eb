"""Remove the chat messages of labelled prompts from a store, and give their space back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from sqlalchemy import select

from langchain_cfc.collect.costs import Stage
from langchain_cfc.collect.store import rows, schema
from langchain_cfc.collect.store.store import Store

_prompts, _draws = schema.prompts, schema.draws
# Prompts whose messages are in memory at a time: with log-probabilities, a message has some 20 kB.
_PROMPTS_AT_ONCE = 50


@dataclass(frozen=True)
class ShrinkResult:
    """What became of a store that was shrunk."""

    candidates: int  # number of candidates whose message was removed
    bytes_before: int  # size of the store
    bytes_after: int


def shrink_store(store: Store) -> ShrinkResult:
    """Remove the messages that no later stage reads, and give their space back.

    Only labelled prompts lose the messages of their candidates; text and data stay, and so do all records.
    Whatever interrupts it, the store opens, and another call goes on.

    No run may be working on the store, and SQLite needs as much free space as it has afterwards. Raises
    `StoreError` if a candidate is damaged, or the store is in use or cannot be written.
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
    """Yield the draws of labelled prompts that hold messages, by position, once they are found undamaged."""
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
