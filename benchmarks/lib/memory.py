"""Peak memory of fitting one problem: `python -m benchmarks.lib.memory FILE` prints it as JSON.

There are two figures, because each misses something: what Python and NumPy allocated (without LAPACK's
workspace), and the rise of resident memory (on Linux; it includes the allocator's reserves).
"""

from __future__ import annotations

import json
import sys
import tracemalloc
from pathlib import Path

from benchmarks.lib.threads import limit_threads


def read_memory(what: str) -> int | None:
    """Return the bytes of `VmRSS`, resident now, or `VmHWM`, the peak since a reset; None if unknown."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith(what + ":")), None)


def main() -> None:
    """Fit twice: once for resident memory, once traced."""
    limit_threads()
    from benchmarks.lib.problems import KINDS, Problem, make_problem, make_rule

    small = make_problem(next(iter(KINDS)), 3, 1000, 1)
    make_rule(small).fit(small.features, small.scores).threshold(small.mean)  # imports and first uses
    problem = Problem.load(Path(sys.argv[1]))
    mean = problem.mean
    before = read_memory("VmRSS")
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    except OSError:
        before = None
    rule = make_rule(problem).fit(problem.features, problem.scores)
    rule.threshold(mean)
    peak = read_memory("VmHWM")
    del rule
    tracemalloc.start()
    start, _ = tracemalloc.get_traced_memory()
    make_rule(problem).fit(problem.features, problem.scores).threshold(mean)
    _, traced = tracemalloc.get_traced_memory()
    grown = None if before is None or peak is None else max(peak - before, 0)
    print(json.dumps({"traced": traced - start, "resident": grown}))


if __name__ == "__main__":
    main()
