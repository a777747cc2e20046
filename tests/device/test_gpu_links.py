"""How GPUs are linked, as `seesay check_env` tells it."""

from __future__ import annotations

import pytest

from seesay.device import gpu_links

TOPOLOGY = """
\tGPU0\tGPU1\tGPU2\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID
GPU0\t X \tNV18\tSYS\tPIX\t0-47\t0\t\tN/A
GPU1\tNV18\t X \tSYS\tSYS\t0-47\t0\t\tN/A
GPU2\tSYS\tSYS\t X \tSYS\t48-95\t1\t\tN/A
NIC0\tPIX\tSYS\tSYS\t X

Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes
"""


def test_the_matrix_of_the_driver_is_read() -> None:
    links = gpu_links._read_topology(TOPOLOGY)
    assert links == {(0, 1): "NV18", (0, 2): "SYS", (1, 2): "SYS"}
    assert gpu_links._group(links) == "NV18: 0-1; SYS: 0-2, 1-2"
    assert not gpu_links._read_topology("GPU0\t X \t0-47\t0\n") and not gpu_links._read_topology("no devices")


def test_peers_reach_each_other_in_both_directions() -> None:
    one_way = {(0, 1), (1, 0), (1, 2)}
    assert gpu_links._describe_peers(1, lambda *_: True) is None
    assert gpu_links._describe_peers(2, lambda *_: True) == "yes"
    assert gpu_links._describe_peers(4, lambda *_: True) == "yes (all 6 pairs)"
    assert gpu_links._describe_peers(3, lambda one, other: (one, other) in one_way) == "yes: 0-1; no: 0-2, 1-2"


def test_without_the_tool_of_the_driver_nothing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert gpu_links.describe_topology() is None
