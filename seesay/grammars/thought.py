"""The thought with which an answer begins: where it ends, and how many tokens it has, found from the answer's tokens.

Markers are found in the bytes that the tokens stand for, however the model cuts them into tokens, and by their token
ids where the vocabulary has a token for them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from copy import copy
from enum import Enum, auto

from seesay.values import ThoughtRule

_SPACE = b" \t\r\n"


class Phase(Enum):
    """Where an answer is: before a thought that may still begin, in it, or behind it."""

    BEFORE = auto()
    INSIDE = auto()
    BEHIND = auto()


class ThoughtTracker:
    """Follows the tokens of one answer until its thought is over.

    phase: after the tokens that were followed. num_tokens: tokens of the thought, without its markers. num_inside:
    tokens since the thought began, with those of its end marker. stop: where the phase is BEHIND, the number of tokens
    of the answer before the text that follows the thought; 0 where there was no thought.
    """

    def __init__(self, rule: ThoughtRule, spell: Callable[[int], bytes]) -> None:
        """`spell` returns the bytes of a token, and none for a special token."""
        self.rule = rule
        self.phase = Phase.INSIDE if rule.is_open else Phase.BEFORE
        self.num_followed = 0
        self.num_inside = 0
        self.stop = 0
        self._num_marker_tokens = 0
        self._spell = spell
        self._begin, self._end = rule.begin.encode(), rule.end.encode()
        self._tail = b""  # bytes that may be the beginning of the next marker
        self._begun_ids: tuple[int, ...] = ()  # tokens that begin the marker, of which special ones have no bytes
        self._lengths: deque[int] = deque(maxlen=len(self._end))  # of the last tokens, in bytes

    def fork(self) -> ThoughtTracker:
        """Return a copy that follows other tokens from here on."""
        other = copy(self)
        other._lengths = self._lengths.copy()
        return other

    @property
    def is_over(self) -> bool:
        """Whether the thought has ended, or did not come."""
        return self.phase is Phase.BEHIND

    @property
    def num_tokens(self) -> int:
        return self.num_inside - self._num_marker_tokens

    @property
    def begun_end(self) -> bytes:
        """Return the beginning of the end marker with which the thought ends so far."""
        sizes = range(min(len(self._tail), len(self._end) - 1), 0, -1)
        return next((self._end[:size] for size in sizes if self._tail.endswith(self._end[:size])), b"")

    def follow(self, token_ids: Iterable[int]) -> None:
        """Take the next tokens of the answer. Those behind the thought are ignored."""
        for token_id in token_ids:
            if self.phase is Phase.BEHIND:
                return
            self.num_followed += 1
            if self.phase is Phase.INSIDE:
                self._take_inside(token_id)
            else:
                self._take_before(token_id)

    def _take_before(self, token_id: int) -> None:
        text = (self._tail + self._spell(token_id)).lstrip(_SPACE)
        begun_ids = (*self._begun_ids, token_id) if self._begun_ids or not self._tail else ()
        if text.startswith(self._begin):
            self.phase, self._tail = Phase.INSIDE, b""
            if len(text) > len(self._begin):
                self._take_bytes(text[len(self._begin) :])
        elif begun_ids and begun_ids == self.rule.begin_ids:
            self.phase, self._tail = Phase.INSIDE, b""
        elif begun_ids and begun_ids == self.rule.begin_ids[: len(begun_ids)]:
            self._begun_ids, self._tail = begun_ids, text
        elif self._begin.startswith(text):
            self._tail = text
        else:
            self.phase = Phase.BEHIND

    def _take_inside(self, token_id: int) -> None:
        self.num_inside += 1
        if self.rule.end_ids == (token_id,):
            self._finish(num_marker_tokens=1)
        else:
            self._take_bytes(self._spell(token_id))

    def _take_bytes(self, data: bytes) -> None:
        """Look for the end marker in the bytes of a token behind those of the tokens before."""
        if not data:
            return
        self._lengths.append(len(data))
        text = self._tail + data
        begin = text.find(self._end)
        if begin < 0:
            self._tail = text[len(text) - len(self._end) + 1 :] if len(text) >= len(self._end) else text
            return
        start, num_marker_tokens = len(text), 0
        for length in reversed(self._lengths):
            start -= length
            if start < begin:
                break
            num_marker_tokens += 1
        self._finish(num_marker_tokens=min(num_marker_tokens, self.num_inside))

    def _finish(self, *, num_marker_tokens: int) -> None:
        self.phase, self.stop = Phase.BEHIND, self.num_followed
        self._num_marker_tokens = num_marker_tokens
