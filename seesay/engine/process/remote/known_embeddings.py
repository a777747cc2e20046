"""The embeddings that an engine process has or makes, as far as a frontend knows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable


class KnownEmbeddings:
    """Hashes of media items. encoded: those that the process has told of. The arrays of others are on their way to it.
    Not thread-safe."""

    def __init__(self) -> None:
        self.encoded: set[bytes] = set()
        self._sent: Counter[bytes] = Counter()

    def __contains__(self, item_hash: bytes) -> bool:
        """Whether the embedding of this item is there or being made, or its arrays have been sent to be encoded."""
        return item_hash in self.encoded or item_hash in self._sent

    def note_sent(self, item_hash: bytes) -> None:
        """Note that a request is sent with the arrays of this item."""
        self._sent[item_hash] += 1

    def take_back(self, item_hashes: Iterable[bytes]) -> None:
        """Note that the process has the arrays of these items no more from a request."""
        for item_hash in item_hashes:
            self._sent[item_hash] -= 1
            if not self._sent[item_hash]:
                del self._sent[item_hash]

    def update(self, encoded: Iterable[bytes], dropped: Iterable[bytes]) -> None:
        """Take what the process tells of its embeddings."""
        self.encoded.update(encoded)
        self.encoded.difference_update(dropped)
