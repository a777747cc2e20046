"""A conversation into which frames of a live video are pushed: a bounded window of the newest ones, each behind its
time.

The conversation is the prompt. What was pushed is computed before the next frame or question comes, and is then found
in the prefix cache; so a question computes its own words alone. When the window is full, the older half of its frames
is evicted, with the turns before them: the rest is a shorter prompt, whose positions begin at 0 again. It is computed
once more, without encoding a picture again, so a stream costs twice the prefill of its frames, and never more memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from seesay.config import GenerationConfig
from seesay.errors import show
from seesay.values import GenerationRequest, MediaPart, Message, Modality, TextPart
from seesay.vl.prompts.frame_times import FrameTimes

MAX_FRAMES = 64
Messages = tuple[Message, ...]


class LiveConversation:
    """The turns of a conversation, and the frames among them. Not thread-safe.

    max_frames: most frames of the prompt. messages: the turns so far, without those that were not answered. times:
    those of the frames in the window.
    """

    def __init__(self, max_frames: int = MAX_FRAMES, messages: Messages = ()) -> None:
        if isinstance(max_frames, bool) or not isinstance(max_frames, int) or not 2 <= max_frames <= 4096:
            raise ValueError(f"max_frames must be in [2, 4096], got {show(max_frames)}")
        self.messages = messages
        self.max_frames = max_frames
        self.times = FrameTimes()
        self._waiting: list[MediaPart] = []  # frames since the last turn began
        self._begun: list[MediaPart] = []  # those of the turn that is being answered
        self._turn: Messages | None = None  # the one that is being answered

    @property
    def num_frames(self) -> int:
        """The frames in the window."""
        return len(self.times)

    @property
    def sources(self) -> Iterator[object]:
        """The frames in the window, as they were pushed."""
        turns = (*self.messages, *(self._turn or ()))
        in_turns = (part for message in turns for part in message.parts if part in self.times)
        return (part.source for part in (*in_turns, *self._waiting) if isinstance(part, MediaPart))

    @property
    def is_answering(self) -> bool:
        """Whether a turn is being answered."""
        return self._turn is not None

    def push(self, frame: object, time_s: float | None = None) -> None:
        """Add a frame, whatever a `MediaPart` may have as its source, which the caller knows to be a picture. During a
        turn it waits for the next one. Raises ValueError as `FrameTimes.check` does."""
        part = MediaPart(modality=Modality.IMAGE, source=frame)
        self.times.add(part, time_s)
        self._waiting.append(part)
        if not self.is_answering:
            self._evict()
        elif len(self._waiting) > self.max_frames:
            half = self.max_frames // 2
            self.times.forget(self._waiting[:-half])
            self._waiting = self._waiting[-half:]

    def make_prefill(self) -> GenerationRequest | None:
        """Return the request that computes the frames which wait for a turn, so that the next question finds them in
        the prefix cache. None if there is nothing to compute, or a turn is being answered."""
        if self.is_answering or not self._waiting:
            return None
        prompt = (*self.messages, Message(role="user", parts=self.times.write(self._waiting)))
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

    def clear(self) -> None:
        """Forget all frames and turns."""
        self.messages = ()
        self._waiting, self._begun = [], []
        self.times.clear()

    def _evict(self) -> None:
        """Leave out the older half of the frames, and what came before them, if the window is full."""
        if len(self.times) <= self.max_frames:
            return
        in_messages = [part for message in self.messages for part in message.parts if part in self.times]
        num_evicted = len(self.times) - self.max_frames // 2
        first_kept = min(num_evicted, len(in_messages))
        self.times.forget(in_messages[:first_kept])
        self.times.forget(self._waiting[: num_evicted - first_kept])
        self._waiting = self._waiting[num_evicted - first_kept :]
        if first_kept == 0:
            return
        system = self.messages[:1] if self.messages[0].role == "system" else ()
        rest = () if first_kept == len(in_messages) else _cut(self.messages, in_messages[first_kept])
        self.messages = (*system, *rest)

    def _with_frames(self, turn: Messages) -> Messages:
        """Return a turn with its frames in front."""
        if not (self._begun and turn):
            return turn
        first, *others = turn
        frames = self.times.write(self._begun)
        if first.role != "user":
            return (Message(role="user", parts=frames), *turn)
        return (replace(first, parts=(*frames, *first.parts)), *others)


def _cut(messages: Messages, first: object) -> Messages:
    """Return a conversation from the time of a frame on."""
    for index, message in enumerate(messages):
        for place, part in enumerate(message.parts):
            if part is first:
                return (replace(message, parts=message.parts[max(place - 1, 0) :]), *messages[index + 1 :])
    return messages
