"""The conversation of a live session, and the memory that its frames take, which counts as that of request bodies."""

from __future__ import annotations

from typing import TYPE_CHECKING

from seesay.serving.errors import bad_request
from seesay.values import Message, TextPart
from seesay.vl.prompts.live_conversation import MAX_FRAMES, LiveConversation

if TYPE_CHECKING:
    from collections.abc import Hashable

    from seesay.serving.traffic.admission import Gate


class Window:
    """A `LiveConversation` whose frames are bytes.

    turn: whose bytes they are (`auth.turn_of`). most: the largest window that may be configured.
    """

    def __init__(self, gate: Gate, turn: Hashable, *, most: int) -> None:
        self._gate, self._turn, self._most = gate, turn, most
        self._num_held = 0
        self.conversation = LiveConversation(min(MAX_FRAMES, most))

    def configure(self, system: str | None, max_frames: int | None) -> None:
        """Begin anew, with a system prompt and a size. Raises `ApiError` 400 for one above the limit."""
        if max_frames is not None and max_frames > self._most:
            raise bad_request(f"max_frames must be at most {self._most}, got {max_frames}", "max_frames")
        messages = () if system is None else (Message(role="system", parts=(TextPart(text=system),)),)
        self.conversation = LiveConversation(max_frames or min(MAX_FRAMES, self._most), messages)

    def check_time(self, time_s: float) -> None:
        """Raise `ApiError` 400 for a time before that of the last frame."""
        try:
            self.conversation.times.check(time_s)
        except ValueError as error:
            raise bad_request(str(error), "time_s") from None

    def hold(self, num_waiting: int) -> None:
        """Count the bytes of the frames in the window, and those that wait for it. Raises `ApiError` 429 where the
        server holds too many; then the count is as before."""
        num_bytes = num_waiting + self._num_bytes
        if num_bytes > self._num_held:
            self._gate.take_bytes(self._turn, num_bytes - self._num_held)
        else:
            self._gate.give_back_bytes(self._turn, self._num_held - num_bytes)
        self._num_held = num_bytes

    def close(self) -> None:
        """Forget all frames."""
        self.conversation.clear()
        self.hold(0)

    @property
    def _num_bytes(self) -> int:
        return sum(len(source) for source in self.conversation.sources if isinstance(source, bytes))
