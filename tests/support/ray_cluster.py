"""A Ray cluster of several nodes on this machine."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest


@contextmanager
def ray_cluster(num_nodes: int, num_cpus: int = 1) -> Iterator[Any]:
    """Run a cluster of so many nodes, the head among them. Processes that are started meanwhile find it."""
    pytest.importorskip("ray", reason="the extra `ray` is not installed")
    from ray.cluster_utils import Cluster

    sizes: dict[str, Any] = {"num_cpus": num_cpus, "object_store_memory": 100 << 20, "include_dashboard": False}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))  # what tests can import, nodes can
        cluster = Cluster(initialize_head=True, head_node_args=sizes)
        try:
            sizes.pop("include_dashboard")
            for _ in range(num_nodes - 1):
                cluster.add_node(**sizes)
            cluster.wait_for_nodes()
            patch.setenv("RAY_ADDRESS", cluster.address)
            yield cluster
        finally:
            cluster.shutdown()
            os.environ.pop("RAY_ADDRESS", None)
