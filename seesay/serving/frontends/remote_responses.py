"""The stored responses as a frontend process sees them: in the process that started it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from seesay.serving.frontends import state_messages as messages
from seesay.serving.stored.response_store import StoredEvents, StoredResponse

Ask = Callable[[Callable[[int], messages.Asked]], Awaitable[Any]]
"""Asks a question, which is made of its number, and returns the answer."""


class RemoteResponses:
    """`SharedResponses` in another process."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask

    async def find(self, owner: bytes, response_id: str) -> StoredResponse | None:
        answer = await self._ask(lambda number: messages.FindResponse(number, owner, response_id))
        return None if answer.stored is None else messages.decode_response(answer.stored)

    async def store(
        self, owner: bytes, response_id: str, stored: StoredResponse, *, if_lost: StoredResponse | None = None
    ) -> None:
        data, num_bytes = messages.encode_response(stored), stored.num_bytes
        lost = None if if_lost is None else messages.encode_response(if_lost)
        await self._ask(lambda number: messages.StoreResponse(number, owner, response_id, data, num_bytes, lost))

    async def delete(self, owner: bytes, response_id: str) -> None:
        await self._ask(lambda number: messages.DeleteResponse(number, owner, response_id))

    async def add_events(self, owner: bytes, response_id: str, events: Sequence[bytes], *, is_last: bool) -> None:
        added = list(events)
        await self._ask(lambda number: messages.AddEvents(number, owner, response_id, added, is_last))

    async def read_events(self, owner: bytes, response_id: str, start: int) -> StoredEvents | None:
        found = await self._ask(lambda number: messages.ReadEvents(number, owner, response_id, start))
        return None if found.events is None else StoredEvents(events=found.events, is_over=found.is_over)
