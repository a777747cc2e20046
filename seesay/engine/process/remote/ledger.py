"""The requests of a frontend that have no final output yet: which process has them, and what it was sent for them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass, replace

from seesay.engine.process.kinds import Item, Request
from seesay.engine.process.remote.known_embeddings import KnownEmbeddings
from seesay.engine.token_messages import TokenRequest
from seesay.values import MediaItem


@dataclass(slots=True, eq=False)
class Entry:
    """A request. `receiver`: the process that it is sent to; None while it waits for one. `is_written`: whether that
    process can have it; until then the message waits with others. `sent_hashes`: of the media items whose arrays go
    with it."""

    request: TokenRequest
    receiver: object = None
    is_written: bool = False
    sent_hashes: tuple[bytes, ...] = ()


def name_owner(owner: Hashable) -> bytes | None:
    """Return the name of an owner that is a text or bytes, which mean the same in all frontends; None for others."""
    if isinstance(owner, str):
        return b"s" + owner.encode(errors="surrogatepass")
    return b"b" + owner if isinstance(owner, bytes) else None


class Ledger:
    """Live requests by id, and the `embeddings` that their process has. Not thread-safe."""

    def __init__(self) -> None:
        self.embeddings = KnownEmbeddings()
        self._entries: dict[int, Entry] = {}
        self._owners: dict[Hashable, int] = {}  # owners of live requests → the number that stands for them
        self._num_requests: Counter[Hashable] = Counter()
        self._num_owners = 0

    def add(self, request: TokenRequest) -> Entry:
        """Take a request, which waits."""
        self._entries[request.request_id] = entry = Entry(request)
        if request.owner not in self._owners:
            self._num_owners += 1
            self._owners[request.owner] = self._num_owners
        self._num_requests[request.owner] += 1
        return entry

    def find(self, request_id: int) -> Entry | None:
        """The live request of this id."""
        return self._entries.get(request_id)

    def remove(self, request_id: int) -> bool:
        """Forget a request, whose final output is there. Returns whether it was live."""
        entry = self._entries.pop(request_id, None)
        if entry is None:
            return False
        self.take_back(entry)
        owner = entry.request.owner
        self._num_requests[owner] -= 1
        if not self._num_requests[owner]:
            del self._num_requests[owner], self._owners[owner]
        return True

    def send(self, entry: Entry, receiver: object) -> Request:
        """Note that a request goes to `receiver`, and return what to send. Arrays that it has, or that were sent with
        another request, are left out: it asks for them should it need them."""
        items = []
        for item in entry.request.prompt.items:
            has_arrays = item.has_arrays and item.hash not in self.embeddings
            if has_arrays:
                entry.sent_hashes = (*entry.sent_hashes, item.hash)
                self.embeddings.note_sent(item.hash)
            items.append(Item.of(item, has_arrays=has_arrays))
        entry.receiver = receiver
        owner = name_owner(entry.request.owner)
        return Request.of(
            entry.request, owner=self._owners[entry.request.owner] if owner is None else owner, items=tuple(items)
        )

    def note_written(self, entry: Entry) -> None:
        """Note that the process can have a request. Its arrays are dropped where they can be made again, should the
        process ask for them."""
        entry.is_written = True
        prompt = entry.request.prompt
        if any(item.has_arrays and item.is_reloadable for item in prompt.items):
            items = tuple(item.without_arrays() if item.is_reloadable else item for item in prompt.items)
            entry.request = replace(entry.request, prompt=replace(prompt, items=items))

    def take_back(self, entry: Entry) -> None:
        """Note that no process has this request, or that it has ended."""
        entry.receiver = None
        entry.is_written = False
        self.embeddings.take_back(entry.sent_hashes)
        entry.sent_hashes = ()

    def find_item(self, request_id: int, item_index: int) -> MediaItem | None:
        """A media item of a live request."""
        entry = self._entries.get(request_id)
        return None if entry is None else entry.request.prompt.items[item_index]

    def waiting(self) -> list[Entry]:
        """The requests that no process has, oldest first."""
        return [entry for entry in self._entries.values() if entry.receiver is None]

    def end_receiver(self, receiver: object) -> list[int]:
        """Note that a process has ended. Returns the ids of the requests that it can have had; the others wait."""
        sent = [entry for entry in self._entries.values() if entry.receiver is receiver]
        for entry in sent:
            if not entry.is_written:
                self.take_back(entry)
        return [entry.request.request_id for entry in sent if entry.is_written]

    def all_ids(self) -> list[int]:
        """Ids of all live requests."""
        return list(self._entries)
