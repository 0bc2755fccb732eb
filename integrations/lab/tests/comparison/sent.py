"""Functions that tests run in other processes. Each of these imports this module, so it imports little."""

from __future__ import annotations

import os
import signal

import numpy as np


def compute_squared(number: int) -> tuple[int, float]:
    """A result that depends on the number alone."""
    return number, float(np.random.default_rng(number).random(3).sum()) ** 2


def read_threads(number: int) -> tuple[int, str | None, int]:
    """What the process was told of its threads, and which process it is."""
    return number, os.environ.get("OPENBLAS_NUM_THREADS"), os.getpid()


def kill_at_two(number: int) -> int:
    if number == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return number
