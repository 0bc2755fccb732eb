"""Peak memory of fitting one problem: `python -m benchmarks.memory FILE` prints it as JSON.

Two figures, for each misses something: what Python and NumPy allocated (LAPACK's workspace is not seen), and
how far resident memory rose (Linux tells; the allocator's reserves are seen too).
"""

from __future__ import annotations

import json
import sys
import tracemalloc
from pathlib import Path

from benchmarks.one_thread import one_thread


def resident(what: str) -> int | None:
    """Bytes of `VmRSS`, resident now, or `VmHWM`, the most since the last reset; None where unknown."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith(what + ":")), None)


def main() -> None:
    """Fit twice: once watched from outside, once traced."""
    one_thread()
    from benchmarks.ours import rule_for
    from benchmarks.problems import KINDS, Problem, made

    small = made(next(iter(KINDS)), 3, 1000, 1)
    rule_for(small).fit(small.features, small.scores).threshold(small.mean)  # imports and first uses
    problem = Problem.load(Path(sys.argv[1]))
    mean = problem.mean
    before = resident("VmRSS")
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    except OSError:
        before = None
    rule = rule_for(problem).fit(problem.features, problem.scores)
    rule.threshold(mean)
    peak = resident("VmHWM")
    del rule
    tracemalloc.start()
    start, _ = tracemalloc.get_traced_memory()
    rule_for(problem).fit(problem.features, problem.scores).threshold(mean)
    _, traced = tracemalloc.get_traced_memory()
    grown = None if before is None or peak is None else max(peak - before, 0)
    print(json.dumps({"traced": traced - start, "resident": grown}))


if __name__ == "__main__":
    main()
