"""Pictures that requests of one call share."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING

from seesay.processors.media.picture import Picture

if TYPE_CHECKING:
    from seesay.vl.media.media_items import OpenItem, PreparedMedia


class MediaBatch:
    """The pictures of requests that were given in one call. The very same object, in several of them, is prepared once.

    Lives no longer than that call, since an object may change later. Thread-safe.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._begun: dict[tuple[object, ...], tuple[OpenItem, Future[PreparedMedia]]] = {}

    def share(self, item: OpenItem, begin: Callable[[OpenItem], Future[PreparedMedia]]) -> Future[PreparedMedia]:
        """Return the preparation of `item`; `begin` starts it, unless it has been started before."""
        if not isinstance(item.media, Picture):
            return begin(item)
        key = (*item.media.identity, item.preprocessing_key)
        with self._lock:
            if key not in self._begun:
                self._begun[key] = item, begin(item)  # the item keeps the object alive, so that its id stays unique
            return self._begun[key][1]
