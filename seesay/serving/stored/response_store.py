"""Stored responses, which their owners may continue by id. In memory, limited in number and size, with LRU eviction."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from seesay.values import MediaPart, Message

_MAX_BYTES = 256 << 20
_BYTES_PER_ENTRY = 4096  # objects around the texts

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredResponse:
    """A response as it was sent, and the conversation up to it, without instructions. Or a conversation, and the
    numbers of the items that it has no more."""

    body: dict[str, Any]
    messages: tuple[Message, ...]
    deleted_items: tuple[int, ...] = ()

    @property
    def num_bytes(self) -> int:
        """Approximate size in memory, most of it pictures in data URLs."""
        parts = [part for message in self.messages for part in message.parts]
        texts = [str(part.source) if isinstance(part, MediaPart) else part.text for part in parts]
        texts += [str(message.extra) for message in self.messages if message.extra]
        return _BYTES_PER_ENTRY + 2 * sum(map(len, texts))


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredEvents:
    """Events of a stream, from some number on. is_over: whether no more will follow."""

    events: list[bytes]
    is_over: bool


@dataclass(slots=True)
class _Entry(Generic[T]):
    stored: T
    num_bytes: int
    events: list[bytes] = field(default_factory=list)
    is_over: bool = False


class ResponseStore(Generic[T]):
    """Hold at most `max_entries` responses and `max_bytes` bytes, with the events of those that are streamed in the
    background. Only the owner of a response (`auth.owner_of`) finds it."""

    def __init__(self, max_entries: int, max_bytes: int = _MAX_BYTES) -> None:
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._entries: OrderedDict[tuple[bytes, str], _Entry[T]] = OrderedDict()

    def get(self, owner: bytes, response_id: str) -> T | None:
        """Return the response, and mark it as recently used. None if it is unknown or was evicted."""
        entry = self._touch(owner, response_id)
        return None if entry is None else entry.stored

    def put(self, owner: bytes, response_id: str, stored: T, num_bytes: int) -> None:
        """Store a response of that size, or replace it and keep its events. Evicts the least recently used ones."""
        entry = self._touch(owner, response_id)
        if entry is None:
            self._entries[owner, response_id] = _Entry(stored, num_bytes)
            self._num_bytes += num_bytes
        else:
            num_bytes += sum(map(len, entry.events))
            self._num_bytes += num_bytes - entry.num_bytes
            entry.stored, entry.num_bytes = stored, num_bytes
        self._evict()

    def add_events(self, owner: bytes, response_id: str, events: Sequence[bytes], *, is_last: bool) -> None:
        """Add events to a response, if it is still there. `is_last`: they end its stream."""
        entry = self._touch(owner, response_id)
        if entry is None:
            return
        num_bytes = sum(map(len, events))
        entry.events += events
        entry.is_over |= is_last
        entry.num_bytes += num_bytes
        self._num_bytes += num_bytes
        self._evict()

    def read_events(self, owner: bytes, response_id: str, start: int) -> StoredEvents | None:
        """Return the events of a response from number `start` on. None if it is unknown or was evicted."""
        entry = self._touch(owner, response_id)
        return None if entry is None else StoredEvents(events=entry.events[start:], is_over=entry.is_over)

    def delete(self, owner: bytes, response_id: str) -> bool:
        """Delete a response. Returns whether it was stored."""
        entry = self._entries.pop((owner, response_id), None)
        if entry is not None:
            self._num_bytes -= entry.num_bytes
        return entry is not None

    def _touch(self, owner: bytes, response_id: str) -> _Entry[T] | None:
        entry = self._entries.get((owner, response_id))
        if entry is not None:
            self._entries.move_to_end((owner, response_id))
        return entry

    def _evict(self) -> None:
        while self._entries and (len(self._entries) > self._max_entries or self._num_bytes > self._max_bytes):
            _, entry = self._entries.popitem(last=False)
            self._num_bytes -= entry.num_bytes
