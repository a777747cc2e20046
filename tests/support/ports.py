"""Ports at which a process of a test may listen some seconds later."""

from __future__ import annotations

import os
import random
import socket
from pathlib import Path

_FIRST = 12_000
_EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")


def find_port() -> int:
    """Return a free port of those that the system gives to no connection by itself, and no other xdist worker takes."""
    last = int(_EPHEMERAL.read_text().split()[0]) if _EPHEMERAL.exists() else 32_768
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    ports = range(_FIRST + worker, last, int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")))
    for port in random.SystemRandom().sample(ports, 100):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError("no port is free")
