"""A killed collection loses nothing and repeats only calls in flight."""

from __future__ import annotations

import math
import multiprocessing
import os
import random
import signal
import sqlite3
from collections import Counter
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from langchain_cfc_collect.costs import Budget, Stage
from langchain_cfc_collect.store import Store

from integrations.collect.tests.killed import CONCURRENCY, Break, N, collect_by_command
from tests.concurrency import PATIENCE, wait_until
from tests.lengths import repetitions
from tests.serving.openai_bodies import TOKENS_IN, TOKENS_OUT, Answer
from tests.serving.openai_server import Fault, Script, serving

LATENCY = 0.02
# One call of twenty fails.
FAULTS = (Fault("status 429", 0.02), Fault("status 500", 0.015), Fault("dropped", 0.015))


def answers(size: int) -> dict[str, list[Answer]]:
    return {
        f"question {number}": [
            Answer(f"answer {number} {slot}", -0.1 * (slot + 1) - number / 1000) for slot in range(N)
        ]
        for number in range(size)
    }


def check(found: CollectCommand) -> None:
    """Check the tables: every prompt once, complete, and nothing else."""
    with closing(sqlite3.connect(found.path)) as file:
        assert file.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert file.execute("PRAGMA foreign_key_check").fetchall() == []
        tables = {name for (name,) in file.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        assert tables == {"facts", "prompts", "draws", "calls", "batches", "batch_requests"}
        prompts = file.execute("SELECT position, id, stage, error FROM prompts ORDER BY position").fetchall()
        assert prompts == [(k, f'"p{k}"', int(Stage.LABELLED), None) for k in range(found.size)]
        assert file.execute("SELECT count(*) FROM draws").fetchone() == (0,)
        calls = file.execute(
            "SELECT prompt, stage, model, max(drew), sum(input_tokens), sum(output_tokens), sum(answered) "
            "FROM calls WHERE announced = 0 GROUP BY prompt, stage, model ORDER BY prompt"
        )
        paid = (int(Stage.DRAWN), "recorded", 1, N * TOKENS_IN, N * TOKENS_OUT, N)
        assert calls.fetchall() == [(k, *paid) for k in range(found.size)]
    logprobs = {one.text: one.logprob for texts in answers(found.size).values() for one in texts}
    with Store(found.path) as store:
        store.check()
        for number, record in enumerate(store.read_records()):
            for one in record.candidates:
                text = str(one.text)
                assert text.startswith(f"answer {number} ")
                assert one.score == pytest.approx(1 - math.exp(logprobs[text]))
                assert one.correct == (text == f"answer {number} 0")


@dataclass
class CollectCommand:
    """Runs of the command against a server that counts what it gave.

    Attributes:
        path: The store.
        size: Number of prompts.
        max_tokens: The budget; None for none.
        breaking: A deliberate fault, for the negative controls.
        script: What the server was asked, and answered.
        ended: How often a process ended how, by its exit code.
    """

    path: Path
    size: int
    max_tokens: int | None = None
    breaking: Break | None = None
    script: Script = field(default_factory=lambda: Script({}))
    ended: Counter[int] = field(default_factory=Counter)

    @property
    def kills(self) -> int:
        return self.ended[-signal.SIGKILL]

    @property
    def answered(self) -> int:
        return sum(self.script._served.values())

    @property
    def bound(self) -> int:
        """Requests that may have been answered.

        A kill can cost the answers that were not on disk yet. A call begins once all that were answered
        before are, so of those there are at most as many as there are places for calls.
        """
        return self.size * N + self.kills * CONCURRENCY

    def run(self, url: str, number: signal.Signals | None = None, after: int = 0) -> int:
        """Run the command, and send it a signal once `after` more candidates are on disk.

        Returns:
            Its exit code.
        """
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["integrations.collect.tests.killed"])
        process = context.Process(
            target=collect_by_command,
            args=(url, str(self.path), self.size, self.max_tokens, self.breaking),
        )
        process.start()
        if number is not None:
            enough = self._drawn() + after
            wait_until(lambda: self._drawn() >= enough or not process.is_alive())
            if process.exitcode is None and process.pid is not None:
                os.kill(process.pid, number)
        process.join(PATIENCE)
        assert process.exitcode is not None
        self.ended[process.exitcode] += 1
        return process.exitcode

    def _drawn(self) -> int:
        if self.breaking == "late":  # the store does not hold them yet
            return len(self.script.requests)
        try:
            with closing(sqlite3.connect(f"file:{self.path}?mode=ro", uri=True)) as file:
                return int(file.execute("SELECT coalesce(sum(answered), 0) FROM calls").fetchone()[0])
        except sqlite3.OperationalError:  # it is not made yet
            return 0


def run_command_under_signals(
    path: Path, size: int, kills: int, terminations: int = 0, breaking: Break | None = None
) -> CollectCommand:
    """Run the command to its end through signals, after numbers of candidates drawn at random."""
    chance = random.Random(8)  # noqa: S311 - moments, no secrets
    numbers = [signal.SIGKILL] * kills + [signal.SIGTERM] * terminations
    chance.shuffle(numbers)
    script = Script(answers(size), faults=(Fault("slow", seconds=5 * LATENCY), *FAULTS), seed=5)
    is_late = breaking == "late"
    command = CollectCommand(path, size, breaking=breaking, script=script)
    with serving(script, keep_alive=True, own_process=not is_late) as url:
        for number in numbers:
            # So that nearly all of them fall into the work.
            command.run(url, number, 1 + chance.randrange(max(1, size * N // (2 * len(numbers)))))
        for _ in range(3):
            if command.run(url) == 0:
                break
    return command


@pytest.mark.long
def test_signals_cost_a_collection_only_calls_in_flight(tmp_path: Path) -> None:
    kills = repetitions(50, share=0.6)
    found = run_command_under_signals(tmp_path / "store.db", 250, kills, terminations=10)
    check(found)
    # SIGTERM ends it in good order (1: prompts are left; 130: before any was begun), and costs nothing.
    assert set(found.ended) <= {0, 1, 130, -signal.SIGKILL}
    assert found.kills >= 2 * kills / 3
    struck = Counter({kind: count for kind, count in found.script.struck.items() if kind != "slow"})
    assert set(struck) == {"status 429", "status 500", "dropped"}
    assert found.answered <= found.bound
    # Control: a run that kept nothing would ask for half of all requests after every kill.
    assert found.bound < found.kills * found.size * N / 2 / 4
    # What was announced and never received is at most as much, and no less than what was paid for again.
    with Store(found.path) as store:
        unanswered = store.track_budget(Budget()).unanswered
    assert found.answered - found.size * N <= unanswered
    # What the store holds was answered, and what failed was asked again.
    assert len(found.script.requests) >= found.answered + struck.total() >= found.size * N


@pytest.mark.long
def test_control_stages_written_in_parts_do_not_survive_kills(tmp_path: Path) -> None:
    # A request that is counted without its answer is counted again when it is repeated.
    found = run_command_under_signals(tmp_path / "store.db", 120, kills=20, breaking="torn")
    with pytest.raises(AssertionError):
        check(found)


@pytest.mark.long
def test_control_stages_written_late_are_paid_for_again(tmp_path: Path) -> None:
    found = run_command_under_signals(tmp_path / "store.db", 150, kills=8, breaking="late")
    check(found)
    assert found.answered > found.bound


TOKENS = TOKENS_IN + TOKENS_OUT


def run_crash_loop(path: Path, budget: int, faults: tuple[Fault, ...]) -> int:
    """Kill the command again and again until it ends by itself, since its budget is used up.

    Returns:
        Tokens that the server gave.
    """
    chance = random.Random(4)  # noqa: S311 - moments, no secrets
    script = Script(answers(400), faults=(Fault("slow", seconds=LATENCY), *faults), seed=5)
    command = CollectCommand(path, 400, budget)
    with serving(script, keep_alive=True, own_process=True) as url:
        for _ in range(60):
            if command.run(url, signal.SIGKILL, chance.randrange(40)) == 1:
                break
        else:
            command.run(url)
    assert command.ended[1] == 1
    # Dropped and truncated responses were paid for as well.
    lost = sum(script.struck[kind] for kind in ("dropped", "truncated", "no choices"))
    return TOKENS * (sum(script._served.values()) + lost)


@pytest.mark.long
@pytest.mark.parametrize(
    "faults", [(), (Fault("dropped", 0.15), Fault("truncated", 0.1), Fault("no choices", 0.05))]
)
def test_budget_is_kept_through_a_crash_loop(tmp_path: Path, faults: tuple[Fault, ...]) -> None:
    budget = 600 * TOKENS
    given = run_crash_loop(tmp_path / "store.db", budget, faults)
    assert given <= budget + CONCURRENCY * TOKENS
    # Control: a good part of the budget was used.
    assert given >= budget / 4


@pytest.mark.long
def test_budget_is_kept_where_answers_get_lost(tmp_path: Path) -> None:
    script = Script(answers(60), faults=(Fault("dropped", 0.15), Fault("truncated", 0.1)), seed=5)
    budget = 100 * TOKENS
    with serving(script, keep_alive=True, own_process=True) as url:
        assert CollectCommand(tmp_path / "store.db", 60, budget).run(url) == 1
    given = TOKENS * (sum(script._served.values()) + script.struck["dropped"] + script.struck["truncated"])
    # What prompts that were under way together lost beyond the dearest before them: a few requests.
    assert budget / 2 <= given <= budget + CONCURRENCY * TOKENS
