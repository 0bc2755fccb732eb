"""One peer in its own process: `python -m benchmarks.worker "scipy"`, requests in, one event per line out.

A request names an .npz file, how many of its prompts to ask, after how many seconds to stop asking and how
long one answer may take. Runs in any environment that has NumPy and the peer.
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

from benchmarks.one_thread import check_threads, one_thread

Result = TypeVar("Result")
LEAST = 2  # prompts that are asked however long they take, up to the limit
PATIENCE = 3  # answers that may take too long before the rest is left

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


def versions() -> dict[str, str]:
    """Python and what is installed of the packages that matter."""
    installed = {one.metadata["Name"].lower(): one.version for one in importlib.metadata.distributions()}
    found = {name: installed[name] for name in PACKAGES if name in installed}
    return {"python": ".".join(map(str, sys.version_info[:3]))} | found


def main() -> None:
    """Serve requests until there are no more."""
    one_thread()
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever a solver prints is no event

    def emit(**event: Any) -> None:
        out.write(json.dumps(event) + "\n")
        out.flush()

    from benchmarks.peers import MODULES

    module, build = MODULES[sys.argv[1]]
    try:
        importlib.import_module(module)
    except ImportError as error:
        emit(event="missing", error=str(error))
        return
    check_threads()
    warnings.simplefilter("ignore")
    emit(event="ready", versions=versions())
    for line in sys.stdin:
        _serve(build, json.loads(line), emit)


def _serve(build: Any, request: dict[str, Any], emit: Callable[..., None]) -> None:
    from benchmarks.problems import Problem

    problem = Problem.load(Path(request["file"]))
    limit, slow = request["limit"], 0

    try:
        ask, seconds = _timed(partial(build, problem), limit)
    except Exception as error:  # noqa: BLE001 - whatever a peer does wrong is a finding, not our failure
        emit(event="prepared", **_said(error))
        emit(event="done")
        return
    try:
        value, more = (None, 0.0) if ask is None else _timed(partial(ask, problem.mean), limit)
        emit(event="prepared", seconds=seconds + more, value=value)
    except Exception as error:  # noqa: BLE001 - likewise; it may answer other prompts
        emit(event="prepared", **_said(error))
        if ask is None or isinstance(error, TimeoutError):
            emit(event="done")
            return
    start = time.perf_counter()
    for asked, phi in enumerate(problem.prompts[: request["count"] if ask is not None else 0]):
        if slow == PATIENCE or (asked >= LEAST and time.perf_counter() - start > request["enough"]):
            break
        try:
            value, seconds = _timed(partial(ask, phi), limit)
        except Exception as error:  # noqa: BLE001 - likewise
            slow += isinstance(error, TimeoutError)
            emit(event="answer", **_said(error))
        else:
            emit(event="answer", seconds=seconds, value=value)
    emit(event="done")


def _said(error: Exception) -> dict[str, str]:
    return {"error": type(error).__name__, "said": str(error)[:200]}


def _timed(call: Callable[[], Result], limit: float) -> tuple[Result, float]:
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
