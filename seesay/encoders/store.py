"""The cache of embeddings, by the hash of what they were made from. Thread-safe; never reads a tensor's values.

Pinned embeddings stay. Unpinned ones are kept up to a limit in bytes; the least recently used are evicted first. Of
several callers that want the same missing embedding at once, one of them encodes it.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable
from enum import Enum
from typing import TYPE_CHECKING

from seesay.values import EngineStats

if TYPE_CHECKING:
    from torch import Tensor


class Lookup(Enum):
    """The state of an embedding: stored, being encoded, or missing. The caller that `EmbeddingStore.begin` answers with
    MISSING must encode it."""

    READY = "ready"
    IN_FLIGHT = "in flight"
    MISSING = "missing"


class EmbeddingStore:
    """Keeps embeddings [R, hidden] by 32-byte hash; `limit_bytes` bounds the unpinned ones (0 keeps none)."""

    def __init__(self, limit_bytes: int) -> None:
        assert limit_bytes >= 0
        self.limit_bytes = limit_bytes
        self._lock = threading.Lock()
        self._on_change: Callable[[bytes], None] = lambda _key: None
        self._entries: dict[bytes, Tensor] = {}
        self._unpinned: OrderedDict[bytes, None] = OrderedDict()  # the least recently used first
        self._pins: dict[bytes, set[Hashable]] = {}
        self._in_flight: set[bytes] = set()
        self._leaving: set[bytes] = set()  # pinned keys whose embedding is dropped with its last pin
        self._pinned_bytes = 0
        self._unpinned_bytes = 0
        self._total_hits = 0
        self._total_misses = 0
        self._total_evictions = 0

    def watch(self, on_change: Callable[[bytes], None]) -> None:
        """Call `on_change(key)` from now on when `key in store` may have changed. It must be quick and must not use the
        store, whose lock is held."""
        with self._lock:
            self._on_change = on_change

    def keys(self) -> list[bytes]:
        """The keys that are in the store: see `__contains__`."""
        with self._lock:
            return [*self._entries.keys() | self._in_flight]

    def __contains__(self, key: bytes) -> bool:
        """Return whether the embedding is stored or being encoded. Does not count as a use."""
        with self._lock:
            return key in self._entries or key in self._in_flight

    def begin(self, key: bytes, *, can_encode: bool = True) -> Lookup:
        """Ask for an embedding. After MISSING the caller must call `put` or `fail`. Without `can_encode` it need not,
        and MISSING changes nothing."""
        with self._lock:
            found = self._find(key)
            if found is Lookup.MISSING and not can_encode:
                return found
            if found is Lookup.MISSING:
                self._total_misses += 1
                self._in_flight.add(key)
                self._on_change(key)
            else:
                self._total_hits += 1
                self._touch(key)
            return found

    def find(self, key: bytes) -> Lookup:
        """Return the state of an embedding. Does not count as a use."""
        with self._lock:
            return self._find(key)

    def _find(self, key: bytes) -> Lookup:
        if key in self._in_flight:
            return Lookup.IN_FLIGHT
        return Lookup.READY if key in self._entries else Lookup.MISSING

    def put(self, key: bytes, embedding: Tensor) -> None:
        """Store an encoded embedding. The store owns the tensor from now on; it must not share memory with others."""
        with self._lock:
            self._in_flight.discard(key)
            self._add(key, embedding)

    def lend(self, key: bytes, embedding: Tensor) -> None:
        """Let `get` return an embedding that is still being computed, and may fail. `put` or `fail` must follow; until
        then it counts as being encoded."""
        with self._lock:
            assert key in self._in_flight
            self._add(key, embedding)

    def _add(self, key: bytes, embedding: Tensor) -> None:
        if key in self._entries:
            return
        self._entries[key] = embedding
        if key in self._pins:
            self._pinned_bytes += embedding.nbytes
        else:
            self._unpinned[key] = None
            self._unpinned_bytes += embedding.nbytes
            self._evict()
        self._on_change(key)

    def fail(self, key: bytes) -> None:
        """Note that encoding failed: the next `begin` returns MISSING again. An embedding that was lent is dropped."""
        with self._lock:
            self._in_flight.discard(key)
            embedding = self._entries.pop(key, None)
            if embedding is not None:
                if key in self._unpinned:
                    del self._unpinned[key]
                    self._unpinned_bytes -= embedding.nbytes
                else:
                    self._pinned_bytes -= embedding.nbytes
            self._on_change(key)

    def get(self, key: bytes) -> Tensor | None:
        """Return the embedding, or None if it is not stored."""
        with self._lock:
            if key in self._entries:
                self._touch(key)
            return self._entries.get(key)

    def pin(self, key: bytes, holder: Hashable) -> None:
        """Keep an embedding, stored now or later, until `holder` unpins it. Pinning again has no effect."""
        with self._lock:
            holders = self._pins.setdefault(key, set())
            holders.add(holder)
            if key in self._unpinned:
                del self._unpinned[key]
                self._unpinned_bytes -= self._entries[key].nbytes
                self._pinned_bytes += self._entries[key].nbytes

    def clear(self) -> None:
        """Drop all embeddings; pinned ones are dropped with their last pin."""
        with self._lock:
            self._leaving = set(self._pins)
            for key in self._unpinned:
                del self._entries[key]
                self._on_change(key)
            self._unpinned.clear()
            self._unpinned_bytes = 0

    def unpin(self, key: bytes, holder: Hashable) -> None:
        """Release the pin of `holder`. Without such a pin this does nothing."""
        with self._lock:
            holders = self._pins.get(key)
            if holders is None or holder not in holders:
                return
            holders.remove(holder)
            if holders:
                return
            del self._pins[key]
            if key in self._entries:
                self._pinned_bytes -= self._entries[key].nbytes
                if key in self._leaving:
                    del self._entries[key]
                    self._on_change(key)
                else:
                    self._unpinned[key] = None
                    self._unpinned_bytes += self._entries[key].nbytes
                    self._evict()
            self._leaving.discard(key)

    def unpin_all(self) -> None:
        """Release all pins."""
        with self._lock:
            held = [(key, holder) for key, holders in self._pins.items() for holder in holders]
        for key, holder in held:
            self.unpin(key, holder)

    def stats(self) -> EngineStats:
        """Return the counts of embeddings. A hit is a `begin` that found the embedding stored or being encoded; a miss
        is one that had it encoded."""
        with self._lock:
            return EngineStats(
                num_embeddings=len(self._entries),
                embedding_bytes=self._pinned_bytes + self._unpinned_bytes,
                pinned_embedding_bytes=self._pinned_bytes,
                total_embedding_hits=self._total_hits,
                total_embedding_misses=self._total_misses,
                total_embedding_evictions=self._total_evictions,
            )

    def _touch(self, key: bytes) -> None:
        if key in self._unpinned:
            self._unpinned.move_to_end(key)

    def _evict(self) -> None:
        while self._unpinned_bytes > self.limit_bytes:
            key, _ = self._unpinned.popitem(last=False)
            self._unpinned_bytes -= self._entries.pop(key).nbytes
            self._total_evictions += 1
            self._on_change(key)

    def check_integrity(self) -> None:
        """Assert all invariants."""
        with self._lock:
            assert self._unpinned.keys() == self._entries.keys() - self._pins.keys()
            assert self._unpinned_bytes == self._measure(self._unpinned)
            assert self._pinned_bytes == self._measure(self._entries.keys() & self._pins.keys())
            assert self._unpinned_bytes <= self.limit_bytes
            assert all(self._pins.values())

    def _measure(self, keys: Iterable[bytes]) -> int:
        """Return the bytes of these entries."""
        return sum(self._entries[key].nbytes for key in keys)
