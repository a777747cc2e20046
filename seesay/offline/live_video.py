"""Frames that are pushed into a running conversation: a bounded window of the newest ones, each behind its time.

The conversation is the prompt. A frame that is pushed is computed at once, behind the frames before it, which come from
the prefix cache; so a question computes its own words alone. When the window is full, the older half of its frames is
evicted, with the turns before them: the rest is a shorter prompt, whose positions begin at 0 again. It is computed once
more, without encoding a picture again, so a stream costs twice the prefill of its frames, and never more memory.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from seesay.errors import show
from seesay.processors.media.load import load_image
from seesay.values import MediaPart, MediaReport, Message, Modality, TextPart

MAX_FRAMES = 64
Conversation = tuple[Message, ...]


class LiveFrames:
    """The frames of one conversation. Not thread-safe.

    max_frames: most frames of the prompt. compute: gets the conversation when a frame was added.
    """

    def __init__(self, max_frames: int, compute: Callable[[Conversation], None]) -> None:
        if not 2 <= max_frames <= 4096:
            raise ValueError(f"max_frames must be in [2, 4096], got {show(max_frames)}")
        self._max_frames = max_frames
        self._compute = compute
        self._times: dict[int, float] = {}  # by the id of the part, which the conversation holds
        self._waiting: list[MediaPart] = []  # frames since the last turn began
        self._begun: list[MediaPart] = []  # those of the turn that is being answered
        self._started = time.monotonic()
        self._newest_s = -1.0

    def __len__(self) -> int:
        return len(self._times)

    def push(self, frame: object, time_s: float | None, messages: Conversation, *, is_answering: bool) -> Conversation:
        """Add a frame behind a conversation. Returns the conversation, without what was evicted."""
        now_s = time.monotonic() - self._started if time_s is None else time_s
        if isinstance(now_s, bool) or not isinstance(now_s, int | float) or not self._newest_s <= now_s < 1e9:
            raise ValueError(f"time_s must be seconds, at least {max(self._newest_s, 0)}, got {show(time_s)}")
        load_image(frame)  # refuse what is not a picture now, rather than each question from now on
        part = MediaPart(modality=Modality.IMAGE, source=frame)
        self._newest_s = self._times[id(part)] = float(now_s)
        self._waiting.append(part)
        if is_answering:
            if len(self._waiting) > self._max_frames:
                half = self._max_frames // 2
                self._forget(self._waiting[:-half])
                self._waiting = self._waiting[-half:]
            return messages
        messages = self.evict(messages)
        self._compute((*messages, Message(role="user", parts=self._write(self._waiting))))
        return messages

    def begin_turn(self, turn: Sequence[Message]) -> Conversation:
        """Return a turn with the frames that were pushed before it in front."""
        self._begun, self._waiting = self._waiting, []
        if not (self._begun and turn):
            return tuple(turn)
        first, *others = turn
        frames = self._write(self._begun)
        if first.role != "user":
            return (Message(role="user", parts=frames), *turn)
        return (replace(first, parts=(*frames, *first.parts)), *others)

    def clear(self) -> None:
        """Forget all frames."""
        self._times, self._waiting, self._begun = {}, [], []

    def end_turn(self, *, is_kept: bool) -> None:
        """End the turn. One that is not kept leaves its frames to the next one."""
        if not is_kept:
            self._waiting = self._begun + self._waiting
        self._begun = []

    def evict(self, messages: Conversation) -> Conversation:
        """Return a conversation without the older half of the frames, and what came before them, if it is full."""
        if len(self._times) <= self._max_frames:
            return messages
        in_messages = [part for message in messages for part in message.parts if self._is_frame(part)]
        num_evicted = len(self._times) - self._max_frames // 2
        first_kept = min(num_evicted, len(in_messages))
        self._forget(in_messages[:first_kept])
        self._forget(self._waiting[: num_evicted - first_kept])
        self._waiting = self._waiting[num_evicted - first_kept :]
        if first_kept == 0:
            return messages
        system = messages[:1] if messages[0].role == "system" else ()
        if first_kept == len(in_messages):
            return system
        return (*system, *_cut(messages, in_messages[first_kept]))

    def add_times(self, media: Sequence[MediaReport], prompt: object) -> tuple[MediaReport, ...]:
        """Return reports on the media of a prompt, those of frames with their times."""
        parts = [part for message in _messages_of(prompt) for part in message.parts if isinstance(part, MediaPart)]
        if len(parts) != len(media):
            return tuple(media)
        return tuple(
            replace(report, timestamps_s=(self._times[id(part)],)) if id(part) in self._times else report
            for part, report in zip(parts, media, strict=True)
        )

    def _is_frame(self, part: object) -> bool:
        return id(part) in self._times

    def _forget(self, parts: Sequence[object]) -> None:
        for part in parts:
            del self._times[id(part)]

    def _write(self, frames: Sequence[MediaPart]) -> tuple[TextPart | MediaPart, ...]:
        """Return frames as content, each behind its time, in the form that Qwen3-VL was trained with."""
        return tuple(
            part for frame in frames for part in (TextPart(text=f"<{self._times[id(frame)]:.1f} seconds>"), frame)
        )


def _messages_of(prompt: object) -> Iterator[Message]:
    return (message for message in (prompt if isinstance(prompt, tuple) else ()) if isinstance(message, Message))


def _cut(messages: Conversation, first: object) -> Conversation:
    """Return a conversation from the time of a frame on."""
    for index, message in enumerate(messages):
        for place, part in enumerate(message.parts):
            if part is first:
                return (replace(message, parts=message.parts[max(place - 1, 0) :]), *messages[index + 1 :])
    return messages
