"""A collection through batches by the code of the command line, in a process that tests kill."""

from __future__ import annotations

import os
import signal
import sqlite3
import threading
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from langchain_cfc_collect.batches import batcher, submission
from langchain_cfc_collect.store import batches
from langchain_openai import ChatOpenAI

from integrations.collect.tests.killed import make_settings, run_collect_command
from integrations.collect.tests.sharing import shorten_retry_waits, skip_trial
from langchain_cfc.verifiers import ModelJudge

N, CONCURRENCY = 5, 8
# Next to a store whose batches are not written: what was submitted.
SUBMITTED = ".submitted"
COUNTS = {
    "prompts": "SELECT count(*) FROM prompts",
    "batches": "SELECT count(*) FROM batches",
    "draws": "SELECT :n * count(*) FROM prompts WHERE stage > 0",
    "scores": "SELECT :n * count(*) FROM prompts WHERE stage > 1",
}


@dataclass(frozen=True)
class Moment:
    """When a process is killed.

    Attributes:
        what: Of what the store must hold how many.
        count: So many.
        seconds: So many seconds later.
    """

    what: str
    count: int
    seconds: float


def count_stored(path: Path, what: str) -> int:
    """Return how many of something are stored."""
    if what == "submitted":
        log = path.with_suffix(SUBMITTED)
        return len(log.read_text().splitlines()) if log.exists() else 0
    try:
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as file:
            return int(file.execute(COUNTS[what], {"n": N}).fetchone()[0])
    except sqlite3.OperationalError:  # it is not made yet
        return 0


def kill_this_process(path: Path, moment: Moment) -> None:
    """Wait for the moment, and kill this process; run in a thread of it, so that load delays both alike."""
    while count_stored(path, moment.what) < moment.count:
        time.sleep(0.01)
    time.sleep(moment.seconds)
    os.kill(os.getpid(), signal.SIGKILL)


def make_judge(**arguments: Any) -> ModelJudge:
    """A verifier that asks a model at the server."""
    return ModelJudge(ChatOpenAI(**arguments), mode="line")


def collect_by_command(url: str, path: str, size: int, killed: Moment | None, *, forgets: bool) -> None:
    """Start or resume the collection; `forgets` does not record submitted batches, as a control."""
    os.environ["NO_PROXY"] = "127.0.0.1"
    if killed is not None:
        threading.Thread(target=kill_this_process, args=(Path(path), killed), daemon=True).start()
    arguments = {"model": "chat-1", "base_url": f"{url}/v1", "api_key": "none", "max_retries": 0}
    settings = make_settings(
        path,
        size,
        arguments,
        n=N,
        verifier={"factory": "integrations.collect.tests.batched:make_judge", "arguments": arguments},
        run={"concurrency": CONCURRENCY, "batch": True},
        prices={"*": {"input": 1000.0, "output": 10_000.0}},
    )
    quiet = mock.patch.object(batcher, "_QUIET_SECONDS", 0.1)
    pace = mock.patch.multiple(submission, _FIRST_WAIT=0.05, _LONGEST_WAIT=0.2)

    def forget_id(number: int, provider_id: str) -> list[Any]:
        with Path(path).with_suffix(SUBMITTED).open("a") as log:
            log.write(f"{number} {provider_id}\n")
        return []

    forget = mock.patch.multiple(
        batches,
        insert_batch=mock.Mock(return_value=[]) if forgets else batches.insert_batch,
        set_id=forget_id if forgets else batches.set_id,
    )
    with shorten_retry_waits(), skip_trial(), quiet, pace, forget:
        run_collect_command(settings)
