"""Processes for measurements, with one BLAS thread: two on 3 x 3 matrices cost milliseconds."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import TypeVar

Found = TypeVar("Found")

VARIABLES = (
    "OPENBLAS_NUM_THREADS",
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NUMEXPR_NUM_THREADS",
)


def limit_threads() -> None:
    """Limit this process and its children to one thread; to be called before NumPy is imported."""
    if "numpy" in sys.modules and any(os.environ.get(name) != "1" for name in VARIABLES[:2]):
        msg = f"NumPy was imported before the threads were limited: set {' and '.join(VARIABLES[:2])} to 1"
        raise SystemExit(msg)
    os.environ.update(dict.fromkeys(VARIABLES, "1"))


def check_threads() -> None:
    """Exit if BLAS has more threads than one, as far as threadpoolctl can see."""
    if os.environ.get(VARIABLES[0]) != "1":
        msg = f"set {VARIABLES[0]}=1: the figures are for one thread"
        raise SystemExit(msg)
    try:
        pools = importlib.import_module("threadpoolctl").threadpool_info()
    except ImportError:  # it comes with scikit-learn; without it only the variables are checked
        return
    busy = [pool["internal_api"] for pool in pools if pool["user_api"] == "blas" and pool["num_threads"] > 1]
    if busy:
        msg = f"more than one thread in {', '.join(busy)}: the figures are for one"
        raise SystemExit(msg)


def measure_splits(measure: Callable[[int], Found], splits: int, jobs: int) -> list[Found]:
    """Return what `measure` finds for the seed of each split, in several processes for several jobs."""
    if jobs > 1:
        with ProcessPoolExecutor(jobs) as pool:
            return list(pool.map(measure, range(splits)))
    return [measure(seed) for seed in range(splits)]
