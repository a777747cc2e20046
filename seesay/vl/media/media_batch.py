"""Pictures that requests of one call share."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING

from seesay.processors.media.picture import Picture
from seesay.vl.media.feature_cache import count_bytes

if TYPE_CHECKING:
    from seesay.vl.media.media_items import OpenItem, PreparedMedia


MAX_BYTES = 128 << 20
"""Of features that a call keeps for those of its requests that are still to be prepared."""


class MediaBatch:
    """The pictures of requests that were given in one call. The very same object, in several of them, is prepared once,
    as long as the pictures prepared since it was last used have no more than `max_bytes` of features.

    Lives no longer than that call, since an object may change later. Thread-safe.
    """

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._lock = threading.Lock()
        self._max_bytes = max_bytes
        self._num_bytes = 0
        # Bytes of the features that are complete, the least recently used first.
        self._sizes: OrderedDict[tuple[object, ...], int] = OrderedDict()
        self._begun: dict[tuple[object, ...], tuple[OpenItem, Future[PreparedMedia]]] = {}

    def share(self, item: OpenItem, begin: Callable[[OpenItem], Future[PreparedMedia]]) -> Future[PreparedMedia]:
        """Return the preparation of `item`; `begin` starts it, unless it has been started before."""
        if not isinstance(item.media, Picture):
            return begin(item)
        key = (*item.media.identity, item.preprocessing_key)
        with self._lock:
            if key not in self._begun:
                future = begin(item)
                self._begun[key] = item, future  # the item keeps the object alive, so that its id stays unique
            else:
                future = self._begun[key][1]
                if key in self._sizes:
                    self._sizes.move_to_end(key)
        future.add_done_callback(lambda done: self._count(key, done))
        return future

    def _count(self, key: tuple[object, ...], future: Future[PreparedMedia]) -> None:
        """Count the bytes of a prepared picture, and forget the least recently used ones where they are too many."""
        if future.cancelled() or future.exception() is not None:
            return
        num_bytes = count_bytes(future.result().features)
        with self._lock:
            if key not in self._begun or key in self._sizes:
                return
            self._sizes[key] = num_bytes
            self._num_bytes += num_bytes
            while self._num_bytes > self._max_bytes:
                oldest, freed = self._sizes.popitem(last=False)
                del self._begun[oldest]
                self._num_bytes -= freed
