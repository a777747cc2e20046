"""The cache of preprocessed features: addressed by content, limited in bytes."""

from __future__ import annotations

import threading
from collections import OrderedDict

from seesay.values import EngineStats
from seesay.vl.family import Features


def count_bytes(features: Features) -> int:
    """Return the bytes of all features; 64 for each that is not an array."""
    return sum(getattr(value, "nbytes", 64) for value in features.values())


class FeatureCache:
    """Features by content key, limited in bytes; the least recently used leave first. Thread-safe."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._entries: OrderedDict[bytes, tuple[Features, int]] = OrderedDict()
        self._used_bytes = 0
        self._total_hits = 0
        self._total_misses = 0
        self._lock = threading.Lock()

    def stats(self) -> EngineStats:
        """Return the counts of cached features. A hit saved preprocessing."""
        with self._lock:
            return EngineStats(
                num_features=len(self._entries),
                feature_bytes=self._used_bytes,
                total_feature_hits=self._total_hits,
                total_feature_misses=self._total_misses,
            )

    def __contains__(self, key: bytes) -> bool:
        with self._lock:
            return key in self._entries

    def get(self, key: bytes) -> Features | None:
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                self._total_misses += 1
                return None
            self._total_hits += 1
            self._entries.move_to_end(key)
            return entry[0]

    def put(self, key: bytes, features: Features) -> None:
        """Keep features, unless they alone are larger than the cache."""
        size = count_bytes(features)
        if size > self._limit_bytes:
            return
        with self._lock:
            if key in self._entries:
                return
            self._entries[key] = (features, size)
            self._used_bytes += size
            while self._used_bytes > self._limit_bytes:
                _, (_, freed) = self._entries.popitem(last=False)
                self._used_bytes -= freed

    def clear(self) -> None:
        """Forget all features; the counts since the start stay."""
        with self._lock:
            self._entries.clear()
            self._used_bytes = 0
