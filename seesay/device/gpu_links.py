"""How the GPUs of this machine are linked: which reach each other's memory, and over what."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping
from itertools import combinations

from seesay.device.cuda import find_peers

Pair = tuple[int, int]
_TIMEOUT_S = 10.0


def describe_peers() -> str | None:
    """Return which of torch's GPUs reach each other's memory; None with less than two."""
    return _describe_peers(*find_peers())


def _describe_peers(count: int, reaches: Callable[[int, int], bool]) -> str | None:
    pairs = list(combinations(range(count), 2))
    if not pairs:
        return None
    found = {pair: "yes" if reaches(*pair) and reaches(*reversed(pair)) else "no" for pair in pairs}
    return _group(found)


def describe_topology() -> str | None:
    """Return what links the driver's GPUs, in its own numbers and words (NV: NVLink, PIX, PXB, PHB, NODE, SYS: PCIe,
    ever farther apart); None with less than two, or where the driver's tool is missing."""
    try:
        done = subprocess.run(
            ["nvidia-smi", "topo", "-m"], capture_output=True, text=True, check=True, timeout=_TIMEOUT_S
        )
    except (OSError, subprocess.SubprocessError):
        return None
    links = _read_topology(done.stdout)
    return _group(links) if links else None


def _read_topology(text: str) -> dict[Pair, str]:
    """Return the link of each pair of GPUs in the matrix that nvidia-smi prints: a row per GPU, X on its diagonal."""
    rows = [line.split() for line in text.splitlines() if line.startswith("GPU") and "X" in line.split()]
    return {(row, column): rows[row][1 + column] for row, column in combinations(range(len(rows)), 2)}


def _group(links: Mapping[Pair, str]) -> str:
    """Return the pairs of each kind of link, or that all are of one."""
    kinds = dict.fromkeys(links.values())
    if len(kinds) == 1:
        return f"{next(iter(kinds))} (all {len(links)} pairs)" if len(links) > 1 else next(iter(kinds))
    pairs = {kind: [f"{one}-{other}" for (one, other), found in links.items() if found == kind] for kind in kinds}
    return "; ".join(f"{kind}: {', '.join(found)}" for kind, found in pairs.items())
