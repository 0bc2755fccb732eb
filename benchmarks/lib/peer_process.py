"""Peers in their own processes, which can be stopped and may have another NumPy."""

from __future__ import annotations

import contextlib
import json
import queue
import subprocess
import sys
import threading
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.lib.peers import SEPARATE_PACKAGES

ROOT = Path(__file__).resolve().parents[2]
START_SECONDS = 180.0  # seconds that importing a peer may take
GRACE_SECONDS = 5.0  # seconds beyond the limit before a peer that does not stop itself is killed


@dataclass
class Answers:
    """The answers of a peer to one problem.

    Attributes:
        prepared: Seconds to build the model and answer the mean prompt; None if that was not reached.
        base: Its answer for the mean prompt.
        seconds: Seconds of each answer.
        values: (m,) answers in the order of the prompts, None where there was none.
        errors: Number of errors by type.
        stopped: Why it was stopped or not tried, or None.
        at_least: Seconds that the step took at which it was stopped.
    """

    prepared: float | None = None
    base: float | None = None
    seconds: list[float] = field(default_factory=list)
    values: list[float | None] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)
    stopped: str | None = None
    at_least: float | None = None


class PeerProcess:
    """The process of a peer, started at the first request and again after it had to be stopped.

    Peers of `SEPARATE_PACKAGES` need `peer_python`, the interpreter of their own environment.
    """

    def __init__(self, peer: str, peer_python: Path | None) -> None:
        self.peer = peer
        self.versions: dict[str, str] = {}
        elsewhere = peer.split(" ", maxsplit=1)[0] in SEPARATE_PACKAGES
        self._python = peer_python if elsewhere else Path(sys.executable)
        self.missing = None if self._python else "no --peer-python"
        self._process: subprocess.Popen[str] | None = None
        self._events: queue.Queue[dict[str, Any]] = queue.Queue()

    def ask(self, file: Path, *, count: int, enough: float, limit: float) -> Answers:
        """Let the peer answer `count` prompts of a problem, but start none after `enough` seconds.

        Preparation and each answer may take `limit` seconds.
        """
        answers = Answers()
        if not self._start():
            answers.stopped = self.missing
            return answers
        self._send({"file": str(file), "count": count, "enough": enough, "limit": limit})
        while True:
            event = self._next(limit + GRACE_SECONDS)
            if event["event"] == "done":
                return answers
            if event["event"] == "silence":
                answers.stopped, answers.at_least = describe_timeout(limit), limit
            elif event["event"] == "end":
                answers.stopped = "the process ended, perhaps out of memory"
            if event["event"] in {"silence", "end"}:
                self.close()
                return answers
            _add_event(answers, event, limit)

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            for stream in (self._process.stdin, self._process.stdout):
                if stream is not None:
                    with contextlib.suppress(OSError):  # unsent data to a dead process
                        stream.close()
            self._process = None

    def _start(self) -> bool:
        if self.missing is None and self._process is None:
            self._events = queue.Queue()
            command = [str(self._python), "-m", "benchmarks.lib.peer_worker", self.peer]
            self._process = subprocess.Popen(  # noqa: S603 - our own module, in the interpreter that was named
                command,
                cwd=ROOT,
                text=True,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
            threading.Thread(target=_read_events, args=(self._process, self._events), daemon=True).start()
            first = self._next(START_SECONDS)
            if first["event"] == "ready":
                self.versions = first["versions"]
            else:
                self.missing = first.get("error", "the process does not start")
                self.close()
        return self.missing is None

    def _send(self, request: dict[str, Any]) -> None:
        stream = None if self._process is None else self._process.stdin
        if stream is not None:
            stream.write(json.dumps(request) + "\n")
            stream.flush()

    def _next(self, seconds: float) -> dict[str, Any]:
        try:
            return self._events.get(timeout=seconds)
        except queue.Empty:
            return {"event": "silence"}


def describe_timeout(limit: float) -> str:
    """Say that a step was stopped at the limit."""
    return f"too slow: over {limit:g} s"


def _read_events(process: subprocess.Popen[str], events: queue.Queue[dict[str, Any]]) -> None:
    if process.stdout is not None:
        for line in process.stdout:
            events.put(json.loads(line))
    events.put({"event": "end"})


def _add_event(answers: Answers, event: dict[str, Any], limit: float) -> None:
    error = event.get("error")
    if error is not None:
        answers.errors[error] += 1
        slow = error == "TimeoutError"
        if slow:
            answers.at_least = limit
        if event["event"] == "prepared":
            answers.stopped = describe_timeout(limit) if slow else f"{error}: {event['said']}"
        else:
            answers.values.append(None)
    elif event["event"] == "prepared":
        answers.prepared, answers.base = event["seconds"], event["value"]
    else:
        answers.seconds.append(event["seconds"])
        answers.values.append(event["value"])
