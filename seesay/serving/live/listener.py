"""Reads what the client of a live session sends. Waits neither for the engine nor for the client to read."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from typing import TYPE_CHECKING

from seesay.serving.errors import ApiError, bad_request
from seesay.serving.live import live_messages
from seesay.serving.live.inbox import MAX_QUESTIONS, Frame, Question
from seesay.serving.live.live_messages import Ask, Configure, FrameTime, Stop
from seesay.serving.live.outbox import EndError
from seesay.serving.traffic.admission import shutting_down

if TYPE_CHECKING:
    from starlette.websockets import WebSocket

    from seesay.serving.live.session import LiveSession

logger = logging.getLogger("seesay")

_LOOK_S = 0.5
"""How often it is looked whether a session is idle, or the server shuts down."""


class Listener:
    """Puts the frames and questions of a session into its inbox, and decides when it ends."""

    def __init__(self, session: LiveSession) -> None:
        self._session = session
        self._numbers = itertools.count(1)
        self._following_s: float | None = None  # the time of the frame that follows
        self._heard_at = time.monotonic()
        self._is_begun = False

    async def listen(self, socket: WebSocket, *others: asyncio.Task[None]) -> None:
        """Return when the client has gone. others: the other tasks of the session, which end with it; a fault of theirs
        ends the session. Raises `EndError`."""
        receiving = asyncio.create_task(_receive(socket))
        try:
            while True:
                await asyncio.wait((receiving, *others), timeout=_LOOK_S, return_when=asyncio.FIRST_COMPLETED)
                for task in others:
                    if task.done() and not self._is_healthy(task):
                        return
                self._look()
                if receiving.done():
                    content = receiving.result()
                    if content is None:
                        return
                    self._heard_at = time.monotonic()
                    self._hear(content)
                    receiving = asyncio.create_task(_receive(socket))
        finally:
            receiving.cancel()
            await asyncio.gather(receiving, return_exceptions=True)

    def _is_healthy(self, task: asyncio.Task[None]) -> bool:
        """Return False for a task that ended since the client is gone. Raises `EndError` for one that failed."""
        if (fault := task.exception()) is None:
            return False
        if isinstance(fault, EndError):
            raise fault
        request_id = self._session.caller.request_id
        logger.error("%s: a live session failed", request_id, exc_info=fault)
        raise EndError(ApiError.from_error(fault, request_id=request_id), 1011)  # type: ignore[arg-type]

    def _look(self) -> None:
        """Raise `EndError` if nothing has come for long, or the server shuts down and no answer is being written."""
        session, now = self._session, time.monotonic()
        if session.state.gate.is_draining and session.answer is None:
            raise EndError(shutting_down(), 1012)
        idle_s = session.state.settings.live_idle_timeout_s
        if session.is_busy:
            self._heard_at = now
        elif now - self._heard_at > idle_s:
            message = f"no frame and no question came for {idle_s:g} s (live_idle_timeout_s)"
            raise EndError(ApiError(408, message, code="idle_timeout"), 1008)

    def _hear(self, content: str | bytes) -> None:
        try:
            if isinstance(content, bytes):
                self._hear_frame(content)
            else:
                self._hear_text(content)
        except ApiError as error:
            self._session.outbox.say(live_messages.make_error(error))

    def _hear_frame(self, content: bytes) -> None:
        session = self._session
        own_s, self._following_s = self._following_s, None
        time_s = time.monotonic() - session.started_at if own_s is None else own_s
        try:
            live_messages.check_format(content)
            session.window.hold(session.inbox.num_bytes + len(content))
        except ApiError as error:
            session.count_frames("refused")
            session.outbox.say(live_messages.make_error(error, time_s=time_s))
            return
        self._is_begun = True
        session.inbox.put_frame(Frame(content, time_s))

    def _hear_text(self, text: str) -> None:
        match live_messages.read_message(text):
            case Configure() as given:
                self._configure(given)
            case FrameTime() as following:
                self._following_s = following.time_s
            case Ask() as ask:
                self._hear_question(ask)
            case Stop():
                self._session.num_stopped = next(self._numbers)
                self._session.stopping.set()

    def _configure(self, given: Configure) -> None:
        session = self._session
        if self._is_begun:
            raise bad_request("configure must come before the first frame and the first question", "type")
        session.state.check_model(given.model)
        session.window.configure(given.system, given.max_frames)
        session.model = given.model
        session.outbox.say(session.make_ready())

    def _hear_question(self, ask: Ask) -> None:
        session, number = self._session, next(self._numbers)
        question = Question(ask, number, ask.id or f"q{number}")
        self._is_begun = True
        error: ApiError | None = None
        if session.state.gate.is_draining:
            error = shutting_down()
        elif not session.inbox.put_question(question):
            message = f"{MAX_QUESTIONS} questions wait for their answers already; ask when one is answered"
            error = ApiError(429, message, kind="rate_limit_error", code="too_many_questions")
        if error is not None:
            session.outbox.say(live_messages.make_error(error, question_id=question.id))


async def _receive(socket: WebSocket) -> str | bytes | None:
    """Return the next message. None: the client has gone."""
    message = await socket.receive()
    if message["type"] == "websocket.disconnect":
        return None
    text: str | None = message.get("text")
    content: bytes | None = message.get("bytes")
    return content or b"" if text is None else text
