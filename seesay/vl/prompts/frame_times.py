"""The times of the frames of a live video, which the model reads in front of them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

from seesay.errors import show
from seesay.values import MediaPart, MediaReport, Message, TextPart


class FrameTimes:
    """The times of frames in seconds, which do not decrease. A frame is a part of a message, which somebody else holds
    while its time is here. Not thread-safe."""

    def __init__(self) -> None:
        self._times: dict[int, float] = {}  # by the id of the part
        self._started = time.monotonic()
        self._newest_s = 0.0

    def __len__(self) -> int:
        return len(self._times)

    def __contains__(self, part: object) -> bool:
        return id(part) in self._times

    def check(self, time_s: object) -> float:
        """Return the time of the next frame, for None the seconds since the first time could be added. Raises
        ValueError for what is no time, and for one before that of the last frame."""
        now_s = time.monotonic() - self._started if time_s is None else time_s
        if isinstance(now_s, bool) or not isinstance(now_s, int | float) or not self._newest_s <= now_s < 1e9:
            raise ValueError(f"time_s must be seconds, at least {self._newest_s:g}, got {show(time_s)}")
        return float(now_s)

    def add(self, frame: MediaPart, time_s: float | None) -> None:
        """Add the time of a frame. Raises ValueError as `check` does."""
        self._times[id(frame)] = self._newest_s = self.check(time_s)

    def forget(self, frames: Sequence[object]) -> None:
        for frame in frames:
            del self._times[id(frame)]

    def clear(self) -> None:
        """Forget all frames. The next one may not be older than the last one was."""
        self._times = {}

    def write(self, frames: Sequence[MediaPart]) -> tuple[TextPart | MediaPart, ...]:
        """Return frames as content, each behind its time, in the form that Qwen3-VL was trained with."""
        return tuple(
            part for frame in frames for part in (TextPart(text=f"<{self._times[id(frame)]:.1f} seconds>"), frame)
        )

    def add_to(self, media: Sequence[MediaReport], prompt: object) -> tuple[MediaReport, ...]:
        """Return reports on the media of a prompt, those of frames with their times."""
        parts = [part for message in _messages_of(prompt) for part in message.parts if isinstance(part, MediaPart)]
        if len(parts) != len(media):
            return tuple(media)
        return tuple(
            replace(report, timestamps_s=(self._times[id(part)],)) if part in self else report
            for part, report in zip(parts, media, strict=True)
        )


def _messages_of(prompt: object) -> Iterator[Message]:
    return (message for message in (prompt if isinstance(prompt, tuple) else ()) if isinstance(message, Message))
