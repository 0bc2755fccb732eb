"""A killed collection through batches submits and pays for nothing twice."""

from __future__ import annotations

import multiprocessing
import random
import signal
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from langchain_cfc_collect.costs import Budget
from langchain_cfc_collect.store import Store

from integrations.collect.tests.batch_server import TOKENS_IN, TOKENS_OUT, Faults, Log, serve_in_process
from integrations.collect.tests.batched import (
    CONCURRENCY,
    COUNTS,
    Moment,
    N,
    collect_by_command,
    count_stored,
)

FAULTS = Faults(errors=0.1, repeated=0.02, live=0.05, refused=0.03, dropped=0.03)
TOKENS = TOKENS_IN + TOKENS_OUT


@dataclass
class Killed:
    """What became of a collection whose processes were killed.

    Attributes:
        path: The store.
        log: What the server was asked, and charged for.
        ended: How often a process ended how, by its exit code.
        steps: What the store held after each process.
    """

    path: Path
    log: Log = field(default_factory=Log)
    ended: Counter[int] = field(default_factory=Counter)
    steps: Counter[str] = field(default_factory=Counter)


def choose_moments(size: int) -> list[Moment]:
    """Thirty moments: around both submissions, while they are waited for, and all through what follows."""
    chance = random.Random(7)  # noqa: S311 - moments, no secrets
    counts = [sorted(chance.randrange(1, size * N) for _ in range(9)) for _ in range(2)]
    latest = [
        *[("prompts", 1, 1.0)] * 2,
        *[("batches", 1, 2.0)] * 4,
        *(("draws", count, 0.1) for count in counts[0]),
        *[("batches", 2, 2.0)] * 6,
        *(("scores", count, 0.1) for count in counts[1]),
    ]
    return [Moment(what, count, chance.uniform(0.0, seconds)) for what, count, seconds in latest]


def collect_under_kills(path: Path, size: int, moments: list[Moment], *, forgets: bool = False) -> Killed:
    """Run the command to its end, in processes that are killed."""
    found = Killed(path)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["integrations.collect.tests.batched"])
    with serve_in_process(5.0, FAULTS, found.log) as url:
        for killed in [*moments, None]:
            process = context.Process(
                target=collect_by_command, args=(url, str(path), size, killed), kwargs={"forgets": forgets}
            )
            process.start()
            process.join()
            assert process.exitcode is not None
            found.ended[process.exitcode] += 1
            found.steps[", ".join(f"{count_stored(path, what)} {what}" for what in COUNTS)] += 1
    return found


@pytest.mark.long
def test_thirty_kills_of_a_batched_collection_submit_nothing_twice(tmp_path: Path) -> None:
    size = 2000
    moments = choose_moments(size)
    found = collect_under_kills(tmp_path / "store.db", size, moments)
    log, ended = found.log, found.ended
    lines, live = log.lines.total(), log.live.total()
    print(f"\n{ended=} {found.steps=} {log.submitted=} {lines=} {live=} {log.struck=} {log.control=}")  # noqa: T201 - the figures
    assert ended == {0: 1, -signal.SIGKILL: len(moments)}
    with Store(found.path) as store:
        store.check()
        records = list(store.read_records())
        usage, batched = store.read_usage(), store.read_usage(batched=True)
        unanswered = store.track_budget(Budget()).unanswered
    assert [record.id for record in records] == [f"p{number}" for number in range(size)]
    for number, record in enumerate(records):
        texts = {str(one.text) for one in record.candidates}
        assert len(texts) == len(record.candidates) == N
        assert {one.rpartition(" ")[0] for one in texts} == {f"answer {number}"}
    # A draw and a score for each candidate, each in one batch alone.
    requests = 2 * size * N
    assert sum(log.submitted) == requests
    assert lines == requests - log.struck["errors"]
    assert batched.tokens == lines * TOKENS
    # Live calls in flight are all that a kill can cost.
    assert usage.tokens == requests * TOKENS
    assert 0 <= live - (requests - lines) <= unanswered <= len(moments) * CONCURRENCY


@pytest.mark.long
def test_control_unrecorded_batches_are_paid_for_again_after_each_kill(tmp_path: Path) -> None:
    moments = [Moment("submitted", count, 0.25) for count in (1, 2, 3)]
    found = collect_under_kills(tmp_path / "store.db", 100, moments, forgets=True)
    # The draws once more after each kill.
    assert sum(found.log.submitted) == (2 + 3) * 100 * N
