"""What a client has sent and the session has not taken yet: frames and questions, in order. Bounded."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

from seesay.serving.live.live_messages import Ask

MAX_FRAMES = 8
MAX_QUESTIONS = 8


@dataclass(frozen=True, slots=True)
class Frame:
    """A picture as it came, and when it was seen."""

    content: bytes
    time_s: float


@dataclass(frozen=True, slots=True)
class Question:
    """A question, with its number in the session, and the id that its answer has."""

    ask: Ask
    number: int
    id: str


class Dropped(NamedTuple):
    """Frames that were dropped since the last look: the times of the newest ones, and how many. total: all so far."""

    times_s: tuple[float, ...]
    number: int
    total: int


class Inbox:
    """Frames and questions of one session. When frames come faster than they are taken, the oldest are dropped."""

    def __init__(self, max_frames: int = MAX_FRAMES, max_questions: int = MAX_QUESTIONS) -> None:
        self._items: deque[Frame | Question] = deque()
        self._max_frames, self._max_questions = max_frames, max_questions
        self._num_frames = 0
        self._dropped: deque[float] = deque(maxlen=max_frames)
        self._num_told = 0
        self._is_filled = asyncio.Event()
        self.num_dropped = 0
        self.num_bytes = 0

    @property
    def num_frames(self) -> int:
        """The frames that wait."""
        return self._num_frames

    @property
    def is_empty(self) -> bool:
        return not self._items

    def put_frame(self, frame: Frame) -> None:
        """Add a frame. Drops the oldest one that waits if there are too many."""
        self._items.append(frame)
        self._num_frames += 1
        self.num_bytes += len(frame.content)
        if self._num_frames > self._max_frames:
            oldest = next(item for item in self._items if isinstance(item, Frame))
            self._items.remove(oldest)
            self._forget(oldest)
            self.num_dropped += 1
            self._dropped.append(oldest.time_s)
        self._is_filled.set()

    def put_question(self, question: Question) -> bool:
        """Add a question. Returns whether there was room."""
        if len(self._items) - self._num_frames >= self._max_questions:
            return False
        self._items.append(question)
        self._is_filled.set()
        return True

    async def take(self) -> Frame | Question:
        """Return the next item, when there is one."""
        while not self._items:
            self._is_filled.clear()
            await self._is_filled.wait()
        item = self._items.popleft()
        if isinstance(item, Frame):
            self._forget(item)
        return item

    def begins_with_frame(self) -> bool:
        """Whether the next item is a frame that waits."""
        return bool(self._items) and isinstance(self._items[0], Frame)

    def take_dropped(self) -> Dropped | None:
        """Return which frames were dropped since the last call. None: none were."""
        if not self._dropped:
            return None
        dropped = Dropped(tuple(self._dropped), self.num_dropped - self._num_told, self.num_dropped)
        self._dropped.clear()
        self._num_told = self.num_dropped
        return dropped

    def _forget(self, frame: Frame) -> None:
        self._num_frames -= 1
        self.num_bytes -= len(frame.content)
