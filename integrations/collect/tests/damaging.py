"""Stores with prompts at every stage, and ways to damage their files."""

from __future__ import annotations

import random
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

from langchain_cfc_collect.costs import ModelCalls, Stage, Usage
from langchain_cfc_collect.stages import Labels
from langchain_cfc_collect.store import Store, rows
from langchain_cfc_collect.store.calls import insert_calls
from langchain_core.messages import AIMessage

from integrations.collect.tests.sharing import tabulate_store
from langchain_cfc.errors import CFCError, DrawError
from langchain_cfc.records import Example
from langchain_cfc.sampling import DrawnCandidate
from langchain_cfc.verifiers.base import VerifierScores

N = 3
# Bytes of one of SQLite's pages.
PAGE = 4096
CONFIGURATION: dict[str, Any] = {
    "n": N,
    "generator": {"model": "a", "temperature": 0.7},
    "verifier": {"id": "v"},
    "labeler": {},
    "answer": None,
}


def example(number: int) -> Example:
    return Example(
        id=f"p{number}",
        input=f"What is the number {number}?",
        reference=[f"{number}"],
        metadata={"topic": "ab"[number % 2], "length": number},
        cluster=f"c{number // 2}",
    )


def draws(number: int) -> list[DrawnCandidate]:
    tokens = [{"token": f"t{k}", "logprob": -0.01 * k, "bytes": [k]} for k in range(20)]
    said = {"model_name": "model-1", "logprobs": {"content": tokens}}
    return [
        DrawnCandidate(
            f"It is {number + slot}.", AIMessage(f"It is {number + slot}.", response_metadata=said)
        )
        for slot in range(N)
    ]


def make_store(path: Path, size: int) -> None:
    """Make a store: a fifth of its prompts is at an earlier stage, has failed, or is drawn in part."""
    chance = random.Random(1)  # noqa: S311 - a simulation
    paid = Usage((ModelCalls("model-1", True, 30, 12, N),))
    with Store(path, create=True) as store:
        store.set_configuration(CONFIGURATION)
        store.add(example(number) for number in range(size))
        for number in range(size):
            some, charge = draws(number), insert_calls(number, Stage.DRAWN, paid)
            if number % 20 == 3:
                store.write([rows.insert_draw(number, 1, some[1]), *charge])
                continue
            if number % 20 == 7:
                store.write([*rows.set_error(number, Stage.DRAWN, DrawError("no")), *charge])
                continue
            store.write([*rows.insert_draws(number, some), *charge])
            if number % 20 == 11:
                continue
            scores = VerifierScores(
                [chance.random() for _ in range(N)], [{"p": chance.random()} for _ in range(N)]
            )
            store.write(rows.insert_scores(number, scores))
            if number % 20 == 15:
                continue
            answers = [f"{number + slot}" for slot in range(N)]
            labels = Labels([chance.random() < 0.5 for _ in range(N)], answers, {"easy": number % 3 == 0})
            store.write(rows.insert_labels(number, labels, keep_messages=True))
    with closing(sqlite3.connect(path)) as file:
        file.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def read_contents(path: Path) -> tuple[Any, ...]:
    """All that calibration, export and a further run read of a store."""
    with Store(path) as store:
        table = tabulate_store(store)
        arrays = (table.draws.scores, table.correct, table.draws.answer_codes, table.draws.lengths)
        return (
            [None if one is None else one.tobytes() for one in arrays],
            table.ids,
            table.clusters,
            [dict(row) for row in table.draws.metadata],
            list(store.read_records()),
            store.read_provenance(),
            list(store.read_unfinished()),
        )


def flip_bits(size: int, count: int, seed: int) -> Iterator[Callable[[bytearray], None]]:
    """Single bits, spread evenly over a file of so many bytes."""
    chance = random.Random(seed)  # noqa: S311 - a simulation
    for number in range(count):
        at = chance.randrange(number * size // count, (number + 1) * size // count)
        bit = 1 << chance.randrange(8)

        def flip(content: bytearray, at: int = at, bit: int = bit) -> None:
            content[at] ^= bit

        yield flip


def overwrite_pages(size: int, count: int, seed: int) -> Iterator[Callable[[bytearray], None]]:
    """Whole pages that hold zeros, noise or what stands on another page."""
    chance = random.Random(seed)  # noqa: S311 - a simulation
    pages = size // PAGE
    for number in range(count):
        at, other = chance.randrange(pages) * PAGE, chance.randrange(pages) * PAGE
        yield partial(_overwrite, at, other, (bytes(PAGE), chance.randbytes(PAGE), None)[number % 3])


def _overwrite(at: int, other: int, filling: bytes | None, content: bytearray) -> None:
    """Put bytes, or those of another page, in place of a page."""
    content[at : at + PAGE] = content[other : other + PAGE] if filling is None else filling


def count_outcomes(path: Path, damage: Iterator[Callable[[bytearray], None]]) -> Counter[str]:
    """How often a damaged copy is read as the original, refused, or neither.

    Returns:
        Counts of `same`, `refused`, `silent` (something else was read) and of untyped errors by name.
    """
    original, reference = path.read_bytes(), read_contents(path)
    copy, found = path.with_name("damaged.db"), Counter[str]()
    for change in damage:
        content = bytearray(original)
        change(content)
        for beside in path.parent.glob("damaged.db*"):
            beside.unlink()
        copy.write_bytes(content)
        try:
            found["same" if read_contents(copy) == reference else "silent"] += 1
        except CFCError:
            found["refused"] += 1
        except Exception as error:  # noqa: BLE001 - what is counted
            found[f"untyped {type(error).__name__}: {error}"] += 1
    return found
