"""The stored responses and conversations that all frontends of a server share, as its routes see them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from seesay.serving.stored.response_store import ResponseStore, StoredEvents, StoredResponse


class SharedResponses(Protocol):
    """Stored responses, by owner and id. All methods are called in one event loop."""

    async def find(self, owner: bytes, response_id: str) -> StoredResponse | None:
        """Return a stored response of this owner."""
        ...

    async def store(
        self, owner: bytes, response_id: str, stored: StoredResponse, *, if_lost: StoredResponse | None = None
    ) -> None:
        """Store a response, so that later requests find it. `if_lost`: what takes its place if this process ends before
        the response is stored again; its stream ends then."""
        ...

    async def delete(self, owner: bytes, response_id: str) -> None:
        """Delete a stored response."""
        ...

    async def add_events(self, owner: bytes, response_id: str, events: Sequence[bytes], *, is_last: bool) -> None:
        """Add events to the stream of a response that is stored. `is_last`: they end it."""
        ...

    async def read_events(self, owner: bytes, response_id: str, start: int) -> StoredEvents | None:
        """Return the events of a stored response of this owner from number `start` on."""
        ...


class LocalResponses:
    """The stored responses of a server that has one process."""

    def __init__(self, max_responses: int) -> None:
        self._store: ResponseStore[StoredResponse] = ResponseStore(max_responses)

    async def find(self, owner: bytes, response_id: str) -> StoredResponse | None:
        return self._store.get(owner, response_id)

    async def store(
        self, owner: bytes, response_id: str, stored: StoredResponse, *, if_lost: StoredResponse | None = None
    ) -> None:
        del if_lost  # what is stored ends with this process
        self._store.put(owner, response_id, stored, stored.num_bytes)

    async def delete(self, owner: bytes, response_id: str) -> None:
        self._store.delete(owner, response_id)

    async def add_events(self, owner: bytes, response_id: str, events: Sequence[bytes], *, is_last: bool) -> None:
        self._store.add_events(owner, response_id, events, is_last=is_last)

    async def read_events(self, owner: bytes, response_id: str, start: int) -> StoredEvents | None:
        return self._store.read_events(owner, response_id, start)
