"""A conversation into which frames of a live video are pushed: a bounded window of the newest ones, each behind its
time.

The conversation is the prompt. What was pushed is computed before the next frame or question comes, and is then found
in the prefix cache; so a question computes its own words alone. When the window is full, the older half of its frames
is evicted, with the turns before them: the rest is a shorter prompt, whose positions begin at 0 again. It is computed
once more, without encoding a picture again, so a stream costs twice the prefill of its frames, and never more memory.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

from seesay.config import GenerationConfig
from seesay.errors import show
from seesay.values import GenerationRequest, MediaPart, MediaReport, Message, Modality, TextPart

MAX_FRAMES = 64
Messages = tuple[Message, ...]


class LiveConversation:
    """The turns of a conversation, and the frames among them. Not thread-safe.

    max_frames: most frames of the prompt. messages: the turns so far, without those that were not answered.
    """

    def __init__(self, max_frames: int = MAX_FRAMES, messages: Messages = ()) -> None:
        if isinstance(max_frames, bool) or not isinstance(max_frames, int) or not 2 <= max_frames <= 4096:
            raise ValueError(f"max_frames must be in [2, 4096], got {show(max_frames)}")
        self.messages = messages
        self.max_frames = max_frames
        self._times: dict[int, float] = {}  # by the id of the part, which the conversation holds
        self._waiting: list[MediaPart] = []  # frames since the last turn began
        self._begun: list[MediaPart] = []  # those of the turn that is being answered
        self._turn: Messages | None = None  # the one that is being answered
        self._started = time.monotonic()
        self._newest_s = 0.0

    @property
    def num_frames(self) -> int:
        """The frames in the window."""
        return len(self._times)

    @property
    def sources(self) -> Iterator[object]:
        """The frames in the window, as they were pushed."""
        turns = (*self.messages, *(self._turn or ()))
        in_turns = (part for message in turns for part in message.parts if self._is_frame(part))
        return (part.source for part in (*in_turns, *self._waiting) if isinstance(part, MediaPart))

    @property
    def is_answering(self) -> bool:
        """Whether a turn is being answered."""
        return self._turn is not None

    def check_time(self, time_s: object) -> float:
        """Return the time of the next frame, for None the seconds since the conversation began. Raises ValueError for
        what is no time, and for one before that of the last frame."""
        now_s = time.monotonic() - self._started if time_s is None else time_s
        if isinstance(now_s, bool) or not isinstance(now_s, int | float) or not self._newest_s <= now_s < 1e9:
            raise ValueError(f"time_s must be seconds, at least {self._newest_s:g}, got {show(time_s)}")
        return float(now_s)

    def push(self, frame: object, time_s: float | None = None) -> None:
        """Add a frame, whatever a `MediaPart` may have as its source, which the caller knows to be a picture. During a
        turn it waits for the next one. Raises ValueError as `check_time` does."""
        self._newest_s = self.check_time(time_s)
        part = MediaPart(modality=Modality.IMAGE, source=frame)
        self._times[id(part)] = self._newest_s
        self._waiting.append(part)
        if not self.is_answering:
            self._evict()
        elif len(self._waiting) > self.max_frames:
            half = self.max_frames // 2
            self._forget(self._waiting[:-half])
            self._waiting = self._waiting[-half:]

    def make_prefill(self) -> GenerationRequest | None:
        """Return the request that computes the frames which wait for a turn, so that the next question finds them in
        the prefix cache. None if there is nothing to compute, or a turn is being answered."""
        if self.is_answering or not self._waiting:
            return None
        prompt = (*self.messages, Message(role="user", parts=self._write(self._waiting)))
        config = GenerationConfig(max_new_tokens=1)
        return GenerationRequest(prompt=prompt, gen_config=config, wants_answer=False, streams=False)

    def begin_turn(self, turn: Sequence[Message]) -> Messages:
        """Begin a turn, with the frames that were pushed before it in front. Returns the prompt."""
        self._begun, self._waiting = self._waiting, []
        self._turn = self._with_frames(tuple(turn))
        return (*self.messages, *self._turn)

    def end_turn(self, answer: str | None) -> None:
        """End the turn. None: it is not kept, and leaves its frames to the next one."""
        turn, self._turn = self._turn or (), None
        if answer is None:
            self._waiting = self._begun + self._waiting
        else:
            self.messages = (*self.messages, *turn, Message(role="assistant", parts=(TextPart(text=answer),)))
        self._begun = []
        self._evict()

    def add_times(self, media: Sequence[MediaReport], prompt: object) -> tuple[MediaReport, ...]:
        """Return reports on the media of a prompt, those of frames with their times."""
        parts = [part for message in _messages_of(prompt) for part in message.parts if isinstance(part, MediaPart)]
        if len(parts) != len(media):
            return tuple(media)
        return tuple(
            replace(report, timestamps_s=(self._times[id(part)],)) if id(part) in self._times else report
            for part, report in zip(parts, media, strict=True)
        )

    def clear(self) -> None:
        """Forget all frames and turns."""
        self.messages = ()
        self._times, self._waiting, self._begun = {}, [], []

    def _evict(self) -> None:
        """Leave out the older half of the frames, and what came before them, if the window is full."""
        if len(self._times) <= self.max_frames:
            return
        in_messages = [part for message in self.messages for part in message.parts if self._is_frame(part)]
        num_evicted = len(self._times) - self.max_frames // 2
        first_kept = min(num_evicted, len(in_messages))
        self._forget(in_messages[:first_kept])
        self._forget(self._waiting[: num_evicted - first_kept])
        self._waiting = self._waiting[num_evicted - first_kept :]
        if first_kept == 0:
            return
        system = self.messages[:1] if self.messages[0].role == "system" else ()
        rest = () if first_kept == len(in_messages) else _cut(self.messages, in_messages[first_kept])
        self.messages = (*system, *rest)

    def _is_frame(self, part: object) -> bool:
        return id(part) in self._times

    def _forget(self, parts: Sequence[object]) -> None:
        for part in parts:
            del self._times[id(part)]

    def _with_frames(self, turn: Messages) -> Messages:
        """Return a turn with its frames in front."""
        if not (self._begun and turn):
            return turn
        first, *others = turn
        frames = self._write(self._begun)
        if first.role != "user":
            return (Message(role="user", parts=frames), *turn)
        return (replace(first, parts=(*frames, *first.parts)), *others)

    def _write(self, frames: Sequence[MediaPart]) -> tuple[TextPart | MediaPart, ...]:
        """Return frames as content, each behind its time, in the form that Qwen3-VL was trained with."""
        return tuple(
            part for frame in frames for part in (TextPart(text=f"<{self._times[id(frame)]:.1f} seconds>"), frame)
        )


def _messages_of(prompt: object) -> Iterator[Message]:
    return (message for message in (prompt if isinstance(prompt, tuple) else ()) if isinstance(message, Message))


def _cut(messages: Messages, first: object) -> Messages:
    """Return a conversation from the time of a frame on."""
    for index, message in enumerate(messages):
        for place, part in enumerate(message.parts):
            if part is first:
                return (replace(message, parts=message.parts[max(place - 1, 0) :]), *messages[index + 1 :])
    return messages
