"""A cluster of nodes on this machine."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest
import ray
from ray.cluster_utils import Cluster

from integrations.ray.tests.working import add_node
from tests.lengths import LONG


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """Three nodes with two processors each, one in the quick tier, to which this process is connected."""
    # Workers import what these tests share as well.
    os.environ["PYTHONPATH"] = os.pathsep.join(sys.path)
    # Ray's workers let all else go first, and on a busy machine that is for minutes.
    os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112 - Ray spells it so
    started = Cluster()
    for _ in range(3 if LONG else 1):
        add_node(started)
    ray.init(address=started.address, log_to_driver=False, logging_level="ERROR")
    try:
        yield started
    finally:
        ray.shutdown()
        started.shutdown()
