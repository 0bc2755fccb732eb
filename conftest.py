"""What all tests of the repository share: pages are run as tests, too, and none is timed."""

from __future__ import annotations

import gc
import os

# As many processes as cores run tests; threads of linear algebra beside them would only wait for each other.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from hypothesis import settings

from tests.lengths import repetitions

pytest_plugins = ["tests.clients", "tests.pages"]

# A machine that is busy fails no test, and the quick tier draws fewer examples.
settings.register_profile("untimed", deadline=None, max_examples=repetitions(100, share=0.2))
settings.load_profile("untimed")


def pytest_xdist_auto_num_workers() -> int:
    """Return one more than there are cores: tests wait for processes, servers and disks, too."""
    return (os.cpu_count() or 1) + 1


def pytest_sessionstart() -> None:
    """Do not look for garbage while tests are collected: it takes half of the time and finds none."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Collect the garbage that tests make from here on."""
    gc.freeze()
    gc.enable()
