"""Token ids of one growing sequence."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


class TokenBuffer:
    """int64 token ids with room for more behind them. Writing costs O(1) per token."""

    __slots__ = ("_room", "num_tokens")

    def __init__(self, token_ids: npt.NDArray[np.int64], *, num_spare: int) -> None:
        """Copy `token_ids`; `num_spare` more fit before the buffer grows."""
        self.num_tokens = len(token_ids)
        self._room = np.empty(self.num_tokens + num_spare, dtype=np.int64)
        self._room[: self.num_tokens] = token_ids

    @property
    def ids(self) -> npt.NDArray[np.int64]:
        """All tokens, int64 [num_tokens]. A view: do not write to it."""
        return self._room[: self.num_tokens]

    def append(self, token_id: int) -> None:
        start = self.num_tokens
        if start < len(self._room):
            self._room[start] = token_id
            self.num_tokens = start + 1
        else:
            self.write(start, (token_id,))

    def write(self, start: int, token_ids: tuple[int, ...]) -> None:
        """Let `token_ids` be the last tokens, from position `start`, which is at most `num_tokens`."""
        assert start <= self.num_tokens, (start, self.num_tokens)
        stop = start + len(token_ids)
        if stop > len(self._room):
            room = np.empty(2 * stop, dtype=np.int64)
            room[:start] = self._room[:start]
            self._room = room
        if len(token_ids) == 1:  # most calls, and a third of the time that a slice takes
            self._room[start] = token_ids[0]
        else:
            self._room[start:stop] = token_ids
        self.num_tokens = stop
