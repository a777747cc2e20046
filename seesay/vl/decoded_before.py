"""What is remembered of encoded pictures and clips that were decoded before: all but their pixels. With an embedding at
hand they are not decoded again."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from seesay.values import MediaSize
from seesay.vl.family import Features


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenMedia:
    """`key` and `size` are those of `PreparedMedia`. `told` are the features that are no arrays, `arrays` the names of
    those that are."""

    key: bytes
    size: MediaSize
    told: Features
    arrays: frozenset[str]

    @classmethod
    def of(cls, key: bytes, size: MediaSize, features: Features) -> SeenMedia:
        arrays = frozenset(name for name, value in features.items() if isinstance(value, np.ndarray))
        told = {name: value for name, value in features.items() if name not in arrays}
        return cls(key=key, size=size, told=told, arrays=arrays)


class SeenContents:
    """`SeenMedia` by a hash of the encoded content and all that decides what becomes of it; of the `limit` that were
    asked for last. Thread-safe."""

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


class FeaturesOnDemand(Mapping[str, Any]):
    """Features whose arrays are made by `load` when the first of them is asked for."""

    def __init__(self, seen: SeenMedia, load: Callable[[], Features]) -> None:
        self._seen = seen
        self._load = load
        self._loaded: Features | None = None

    def __getitem__(self, name: str) -> Any:
        if name not in self._seen.arrays:
            return self._seen.told[name]
        if self._loaded is None:
            self._loaded = self._load()
        return self._loaded[name]

    def __contains__(self, name: object) -> bool:
        return name in self._seen.arrays or name in self._seen.told

    def __iter__(self) -> Iterator[str]:
        yield from self._seen.told
        yield from self._seen.arrays

    def __len__(self) -> int:
        return len(self._seen.told) + len(self._seen.arrays)
