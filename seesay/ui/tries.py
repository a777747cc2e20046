"""How often a visitor may try an API key: a few times a minute per network, and no more for all together, so that keys
cannot be guessed."""

from __future__ import annotations

import ipaddress
import threading
import time
from collections import deque
from collections.abc import Callable

WINDOW_S = 60.0
MAX_PER_NETWORK = 5
MAX_IN_ALL = 100


class Tries:
    """Counts the tries of the last `WINDOW_S` seconds. Thread-safe. `now` returns seconds of a clock that never goes
    back."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._lock = threading.Lock()
        self._recent: deque[tuple[float, str]] = deque()  # at most MAX_IN_ALL

    def begin(self, address: str) -> float:
        """Count a try, and return 0; or return in how many seconds the next one is allowed."""
        network = find_network(address)
        with self._lock:
            now = self._now()
            while self._recent and self._recent[0][0] <= now - WINDOW_S:
                self._recent.popleft()
            own = [at for at, other in self._recent if other == network]
            begun = [*own[:1]] if len(own) >= MAX_PER_NETWORK else []
            if len(self._recent) >= MAX_IN_ALL:
                begun.append(self._recent[0][0])
            if begun:
                return max(begun) + WINDOW_S - now
            self._recent.append((now, network))
            return 0.0

    def forgive(self, address: str) -> None:
        """Forget the last try from this address: its key was right."""
        network = find_network(address)
        with self._lock:
            for index in range(len(self._recent) - 1, -1, -1):
                if self._recent[index][1] == network:
                    del self._recent[index]
                    return


def find_network(address: str) -> str:
    """Return an IPv4 address as it is, and the /64 network of an IPv6 address, all of which is usually one client's."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return ""
    if isinstance(found, ipaddress.IPv6Address):
        if found.ipv4_mapped is not None:
            return str(found.ipv4_mapped)
        return str(ipaddress.ip_network((found, 64), strict=False))
    return str(found)
