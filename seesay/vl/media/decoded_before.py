"""Remembers all but the pixels of encoded pictures and videos that were decoded before. While their embedding is cached
they are not decoded again."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass

import numpy as np

from seesay.values import MediaSize
from seesay.vl.family import Features


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenMedia:
    """`key` and `size` are those of `PreparedMedia`. `told` are the features that are not arrays."""

    key: bytes
    size: MediaSize
    told: Features

    @classmethod
    def of(cls, key: bytes, size: MediaSize, features: Features) -> SeenMedia:
        told = {name: value for name, value in features.items() if not isinstance(value, np.ndarray)}
        return cls(key=key, size=size, told=told)


class SeenContents:
    """`SeenMedia` by a hash of the encoded content and of all options that decide its features. Keeps the `limit` most
    recently used entries. Thread-safe."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._entries: OrderedDict[bytes, SeenMedia] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, content_key: bytes) -> SeenMedia | None:
        with self._lock:
            if content_key in self._entries:
                self._entries.move_to_end(content_key)
            return self._entries.get(content_key)

    def clear(self) -> None:
        with self._lock:
            self._entries.clear()

    def put(self, content_key: bytes, seen: SeenMedia) -> None:
        with self._lock:
            self._entries[content_key] = seen
            if len(self._entries) > self._limit:
                self._entries.popitem(last=False)
