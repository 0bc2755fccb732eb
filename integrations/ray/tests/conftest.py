"""A cluster of three nodes on this machine."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest
import ray
from ray.cluster_utils import Cluster

from integrations.ray.tests.working import add_node


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """Three nodes with two processors each, to which this process is connected."""
    # Workers import what these tests share as well.
    os.environ["PYTHONPATH"] = os.pathsep.join(sys.path)
    # Ray's workers let all else go first, and on a busy machine that is for minutes.
    os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112 - Ray spells it so
    started = Cluster()
    for _ in range(3):
        add_node(started)
    ray.init(address=started.address, log_to_driver=False, logging_level="ERROR")
    try:
        yield started
    finally:
        ray.shutdown()
        started.shutdown()
