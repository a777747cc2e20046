"""What the tasks of one live session share."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from seesay.serving.live.inbox import Inbox
from seesay.serving.live.live_messages import make_ready
from seesay.serving.live.outbox import Outbox

if TYPE_CHECKING:
    from seesay.serving.live.window import Window
    from seesay.serving.requests.caller import Caller
    from seesay.serving.requests.state import ServerState

MAX_FRAME_BYTES = 8 << 20
MAX_FRAME_PIXELS = 16_000_000
MAX_FRAMES_PER_S = 30.0
"""A session takes no more in the long run."""


@dataclass(slots=True)
class LiveSession:
    """The session of one client.

    model: the name that its client gave. stopping: set when the client stops the answer that is being written.
    num_stopped: questions up to this number are not answered any more. answer: the task that writes one.
    """

    state: ServerState
    caller: Caller
    window: Window
    inbox: Inbox = field(default_factory=Inbox)
    outbox: Outbox = field(default_factory=Outbox)
    model: str | None = None
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    num_stopped: int = 0
    answer: asyncio.Task[None] | None = None
    started_at: float = field(default_factory=time.monotonic)

    @property
    def is_busy(self) -> bool:
        """Whether an answer is being written, or something waits to be taken."""
        return self.answer is not None or not self.inbox.is_empty

    def make_ready(self) -> dict[str, object]:
        """Return the message that says how the session is set up."""
        return make_ready(
            model=self.state.name_model(self.model),
            max_frames=self.window.conversation.max_frames,
            max_frame_bytes=MAX_FRAME_BYTES,
            max_frame_pixels=min(MAX_FRAME_PIXELS, self.state.settings.media.max_pixels),
            max_frames_per_s=MAX_FRAMES_PER_S,
            idle_timeout_s=self.state.settings.live_idle_timeout_s,
            request_id=self.caller.request_id,
        )

    def count_frames(self, result: Literal["taken", "dropped", "refused"], number: int = 1) -> None:
        """Count frames in the server's metrics."""
        self.state.metrics.observe_live_frames(result, number)
