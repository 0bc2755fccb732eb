"""A collection that is killed at any moment loses nothing, and pays twice for what was in flight only."""

from __future__ import annotations

import math
import multiprocessing
import random
import signal
import sqlite3
import time
from collections import Counter
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from langchain_cfc.collect.stages import Stage
from langchain_cfc.collect.store import Store
from tests.calls.parts import until
from tests.collect.killed import AT_ONCE, Break, N, collected
from tests.lengths import repetitions
from tests.serving.openai_bodies import TOKENS_IN, TOKENS_OUT, Answer
from tests.serving.openai_server import Fault, Script, serving

LATENCY = 0.02
# One call of twenty fails.
FAULTS = (Fault("status 429", 0.02), Fault("status 500", 0.015), Fault("dropped", 0.015))


@dataclass(frozen=True)
class Survived:
    """What became of a collection.

    Attributes:
        path: The store.
        size: Number of prompts.
        kills: How often it was killed.
        script: What the server was asked, and answered.
    """

    path: Path
    size: int
    kills: int
    script: Script

    @property
    def answered(self) -> int:
        """Requests that were answered whole."""
        return sum(self.script._served.values())

    @property
    def bound(self) -> int:
        """Requests that may have been answered.

        A kill can cost the answers for prompts that were begun and whose draws were not on disk yet. Of
        those there are at most so many as are under way, and for each at most n were answered: a call that
        succeeded is not made again within a run.
        """
        return self.size * N + self.kills * AT_ONCE * N


def answers(size: int) -> dict[str, list[Answer]]:
    return {
        f"question {number}": [
            Answer(f"answer {number} {slot}", -0.1 * (slot + 1) - number / 1000) for slot in range(N)
        ]
        for number in range(size)
    }


def survived(path: Path, size: int, kills: int, breaking: Break | None = None) -> Survived:
    """Collect in processes that are killed, each one going on where the one before it was stopped.

    The moments are spread over the run: when so many prompts are finished as a random number says, and then
    up to a tenth of a second later. Where two numbers are close, that is while the next process starts.
    """
    chance = random.Random(20)  # noqa: S311 - moments, no secrets
    script = Script(answers(size), faults=(Fault("slow", seconds=LATENCY), *FAULTS), seed=5)
    moments = sorted(chance.randrange(size - AT_ONCE) for _ in range(kills))
    context = multiprocessing.get_context("forkserver")
    # What takes a second to import is imported once.
    context.set_forkserver_preload(["tests.collect.killed"])
    finished = context.Value("i", 0)
    with serving(script, keep_alive=True, own_process=True) as url:

        def begun() -> Any:
            process = context.Process(target=collected, args=(url, str(path), size, finished, breaking))
            process.start()
            return process

        for moment in moments:
            process = begun()
            until(lambda process=process, moment=moment: finished.value >= moment or not process.is_alive())  # type: ignore[misc]
            time.sleep(chance.uniform(0.0, 0.1))
            process.kill()
            process.join()
            assert process.exitcode == -signal.SIGKILL, f"it ended by itself with {process.exitcode}"
        process = begun()
        process.join(60)
        assert process.exitcode == 0, f"it ended with {process.exitcode}"
    return Survived(path, size, kills, script)


def check(found: Survived) -> None:
    """Every prompt once, with all that belongs to it, and nothing else, by the tables themselves."""
    with closing(sqlite3.connect(found.path)) as file:
        assert file.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert file.execute("PRAGMA foreign_key_check").fetchall() == []
        tables = {name for (name,) in file.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        assert tables == {"facts", "prompts", "draws", "scores", "labels", "calls"}
        prompts = file.execute("SELECT position, id, stage, error FROM prompts ORDER BY position").fetchall()
        assert prompts == [(k, f"p{k}", int(Stage.LABELLED), None) for k in range(found.size)]
        for table in ("draws", "scores", "labels"):
            rows = file.execute(f"SELECT prompt, slot FROM {table} ORDER BY prompt, slot").fetchall()  # noqa: S608 - ours
            assert rows == [(k, slot) for k in range(found.size) for slot in range(N)]
        calls = file.execute("SELECT prompt, stage, model, drew, input_tokens, output_tokens FROM calls")
        paid = (int(Stage.DRAWN), "recorded", 1, N * TOKENS_IN, N * TOKENS_OUT)
        assert sorted(calls.fetchall()) == [(k, *paid) for k in range(found.size)]
    logprobs = {one.text: one.logprob for texts in answers(found.size).values() for one in texts}
    with Store(found.path) as store:
        for number, record in enumerate(store.records()):
            for one in record.candidates:
                text = str(one.text)
                assert text.startswith(f"answer {number} ")
                assert one.score == pytest.approx(1 - math.exp(logprobs[text]))
                assert one.correct == (text == f"answer {number} 0")


@pytest.mark.slow
def test_kills_lose_nothing_and_cost_what_was_in_flight(tmp_path: Path) -> None:
    found = survived(tmp_path / "store.db", size=250, kills=repetitions(50, share=0.3))
    check(found)
    struck = Counter({kind: count for kind, count in found.script.struck.items() if kind != "slow"})
    assert set(struck) == {"status 429", "status 500", "dropped"}
    assert found.answered <= found.bound
    # The bound says something: a run that kept nothing would have asked for half of all after every kill.
    assert found.bound < found.kills * found.size * N / 2 / 4
    # What the store holds was answered, and what failed was asked again.
    assert len(found.script.requests) >= found.answered + struck.total() >= found.size * N


@pytest.mark.slow
def test_stages_that_are_not_written_at_once_do_not_survive(tmp_path: Path) -> None:
    # What is half there cannot be written again.
    with pytest.raises(AssertionError, match="ended by itself with 1"):
        check(survived(tmp_path / "store.db", size=120, kills=20, breaking="torn"))


@pytest.mark.slow
def test_stages_that_are_written_late_are_paid_for_again(tmp_path: Path) -> None:
    found = survived(tmp_path / "store.db", size=150, kills=8, breaking="late")
    check(found)
    assert found.answered > found.bound
