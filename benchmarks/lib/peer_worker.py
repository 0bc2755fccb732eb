"""One peer in its own process: `python -m benchmarks.lib.peer_worker "scipy"`.

It reads requests and writes one event per line. A request names an .npz file, how many of its prompts to ask,
after how many seconds to stop and how long one answer may take. Needs only NumPy and the peer.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import os
import signal
import sys
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from benchmarks.lib.threads import check_threads, limit_threads

Result = TypeVar("Result")
LEAST_PROMPTS = 2  # prompts that are always asked, up to the limit
MOST_TIMEOUTS = 3  # answers that may time out before the rest is skipped

PACKAGES = (
    "numpy",
    "scipy",
    "highspy",
    "cvxpy",
    "clarabel",
    "scikit-learn",
    "conditionalconformal",
    "mapie",
)


def find_peer_versions() -> dict[str, str]:
    """Return the versions of Python and of the installed peers."""
    installed = {one.metadata["Name"].lower(): one.version for one in importlib.metadata.distributions()}
    found = {name: installed[name] for name in PACKAGES if name in installed}
    return {"python": ".".join(map(str, sys.version_info[:3]))} | found


def main() -> None:
    """Serve requests until there are no more."""
    limit_threads()
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what solvers print must not mix with events

    def emit(**event: Any) -> None:
        out.write(json.dumps(event) + "\n")
        out.flush()

    from benchmarks.lib.peers import PEERS

    module, build = PEERS[sys.argv[1]]
    try:
        importlib.import_module(module)
    except ImportError as error:
        emit(event="missing", error=str(error))
        return
    check_threads()
    warnings.simplefilter("ignore")
    emit(event="ready", versions=find_peer_versions())
    for line in sys.stdin:
        _answer_request(build, json.loads(line), emit)


def _answer_request(build: Any, request: dict[str, Any], emit: Callable[..., None]) -> None:
    from benchmarks.lib.problems import Problem

    problem = Problem.load(Path(request["file"]))
    limit, slow = request["limit"], 0

    try:
        ask, seconds = _time_with_limit(partial(build, problem), limit)
    except Exception as error:  # noqa: BLE001 - an error of a peer is a result
        emit(event="prepared", **_describe_error(error))
        emit(event="done")
        return
    try:
        value, more = (None, 0.0) if ask is None else _time_with_limit(partial(ask, problem.mean), limit)
        emit(event="prepared", seconds=seconds + more, value=value)
    except Exception as error:  # noqa: BLE001 - likewise, and it may answer other prompts
        emit(event="prepared", **_describe_error(error))
        if ask is None or isinstance(error, TimeoutError):
            emit(event="done")
            return
    start = time.perf_counter()
    for asked, phi in enumerate(problem.prompts[: request["count"] if ask is not None else 0]):
        if slow == MOST_TIMEOUTS or (
            asked >= LEAST_PROMPTS and time.perf_counter() - start > request["enough"]
        ):
            break
        try:
            value, seconds = _time_with_limit(partial(ask, phi), limit)
        except Exception as error:  # noqa: BLE001 - likewise
            slow += isinstance(error, TimeoutError)
            emit(event="answer", **_describe_error(error))
        else:
            emit(event="answer", seconds=seconds, value=value)
    emit(event="done")


def _describe_error(error: Exception) -> dict[str, str]:
    return {"error": type(error).__name__, "said": str(error)[:200]}


def _time_with_limit(call: Callable[[], Result], limit: float) -> tuple[Result, float]:
    def stop(*_: object) -> None:
        raise TimeoutError

    signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, limit)
    try:
        start = time.perf_counter()
        result = call()
        return result, time.perf_counter() - start
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)


if __name__ == "__main__":
    main()
