"""Takes the frames and questions of a live session in order: computes frames at once, and answers questions.

An answer is a task of its own, so that frames are taken while it is written.
"""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from seesay.errors import RequestError
from seesay.processors.media.load import load_image
from seesay.serving.errors import ApiError
from seesay.serving.live import live_messages
from seesay.serving.live.answer import LiveAnswer
from seesay.serving.live.inbox import MAX_FRAMES as MAX_WAITING_FRAMES
from seesay.serving.live.inbox import Frame, Question
from seesay.serving.live.session import MAX_FRAME_BYTES, MAX_FRAME_PIXELS, MAX_FRAMES_PER_S, LiveSession
from seesay.serving.requests.answer_reading import AnswerReading
from seesay.serving.requests.submission import deltas_until
from seesay.serving.requests.tools import Tools
from seesay.values import GenerationRequest, Message, TextPart

if TYPE_CHECKING:
    from seesay.config import MediaLimits

logger = logging.getLogger("seesay")


class Worker:
    """The work of one session."""

    def __init__(self, session: LiveSession) -> None:
        self._session = session
        self._state = session.state
        self._put = session.outbox.put
        self._limits = limit_frames(session.state.settings.media)

    async def work(self) -> None:
        """Take what comes, until it is cancelled."""
        inbox, pace = self._session.inbox, _Pace(MAX_FRAMES_PER_S, MAX_WAITING_FRAMES)
        try:
            while True:
                item = await inbox.take()
                if isinstance(item, Question):
                    await self._begin_answer(item)
                    continue
                await pace.wait()
                is_taken = await self._take_frame(item)
                await self._tell_dropped()
                if is_taken and not inbox.begins_with_frame():
                    await self._prefill()
        finally:
            if (answer := self._session.answer) is not None:
                answer.cancel()
                await asyncio.gather(answer, return_exceptions=True)

    async def _take_frame(self, frame: Frame) -> bool:
        """Add a frame to the window, and say so. Returns False for one that is refused."""
        window, inbox = self._session.window, self._session.inbox
        try:
            window.check_time(frame.time_s)
            # A picture that cannot be decoded would make each question fail from now on.
            await asyncio.to_thread(partial(load_image, frame.content, limits=self._limits))
            window.conversation.push(frame.content, frame.time_s)
        except (RequestError, ApiError) as error:
            self._session.count_frames("refused")
            await self._put(live_messages.make_error(ApiError.from_error(error), time_s=frame.time_s))
            return False
        finally:
            window.hold(inbox.num_bytes)
        self._session.count_frames("taken")
        await self._put(live_messages.make_taken(frame.time_s, num_frames=window.conversation.num_frames))
        return True

    async def _tell_dropped(self) -> None:
        if (dropped := self._session.inbox.take_dropped()) is not None:
            self._session.count_frames("dropped", dropped.number)
            await self._put(live_messages.make_dropped(dropped.times_s, num_dropped=dropped.total))

    async def _prefill(self) -> None:
        """Compute the frames that wait for a question."""
        request = self._session.window.conversation.make_prefill()
        if request is None or self._state.gate.is_draining:
            return
        request = replace(request, adapter_name=self._session.model)
        try:
            async with aclosing(self._state.answering.deltas([request], caller=self._session.caller)) as deltas:
                async for _ in deltas:
                    pass
        except ApiError as error:
            await self._put(live_messages.make_error(error))

    async def _begin_answer(self, question: Question) -> None:
        session = self._session
        if session.answer is not None:
            await asyncio.wait((session.answer,))
        session.stopping.clear()
        session.answer = asyncio.create_task(self._answer(question))

    async def _answer(self, question: Question) -> None:
        session, text = self._session, None
        try:
            request, answer = self._read(question)
            if question.number < session.num_stopped:
                session.stopping.set()
            deltas = self._state.answering.deltas(
                [request], caller=session.caller, names=question.ask.field_names("text")
            )
            async with aclosing(deltas_until(deltas, session.stopping)) as until_stopped:
                async for delta in until_stopped:
                    if (message := answer.add(delta)) is not None:
                        await self._put(message)
            text = answer.text if answer.last is not None else answer.text or None
            media = () if answer.last is None else answer.last.media
            end = answer.make_end(session.window.conversation.times.add_to(media, request.prompt))
        except Exception as error:
            if not isinstance(error, ApiError):
                logger.exception("%s: a question of a live session failed", session.caller.request_id)
            told = ApiError.from_error(error, request_id=session.caller.request_id)
            end = live_messages.make_error(told, question_id=question.id)
        finally:
            session.window.conversation.end_turn(text)
            session.answer = None
        await self._put(end)

    def _read(self, question: Question) -> tuple[GenerationRequest, LiveAnswer]:
        """Return the request of a question, whose turn has begun. Raises `ApiError`."""
        ask, engine = question.ask, self._state.engine
        names = ask.field_names("text")
        reading = AnswerReading.choose(engine, Tools(), None, names)
        config = self._state.defaults.make_config(
            max_new_tokens=ask.max_tokens, names=names, **{**ask.sampling(), "response_format": reading.grammar}
        )
        turn = Message(role="user", parts=(TextPart(text=ask.text),))
        request = GenerationRequest(
            prompt=self._session.window.conversation.begin_turn((turn,)),
            gen_config=config,
            kept_tokens=reading.kept_tokens,
            template_options=dict(reading.template_options),
            enable_thinking=ask.enable_thinking,
            adapter_name=self._session.model,
            streams=True,
        )
        try:
            engine.check_thinking(request)
        except RequestError as error:
            raise names.explain(error) from error
        return request, LiveAnswer(question.id, reading)


class _Pace:
    """Lets `per_s` items pass in the long run, and `at_once` of them without waiting."""

    def __init__(self, per_s: float, at_once: int) -> None:
        self._per_s, self._at_once = per_s, at_once
        self._left, self._counted_at = float(at_once), time.monotonic()

    async def wait(self) -> None:
        """Return when the next one may pass."""
        now = time.monotonic()
        self._left = min(self._at_once, self._left + (now - self._counted_at) * self._per_s) - 1
        self._counted_at = now
        if self._left < 0:
            await asyncio.sleep(-self._left / self._per_s)


def limit_frames(limits: MediaLimits) -> MediaLimits:
    """Return the limits of one frame, which are narrower than those of a picture in a request."""
    return replace(
        limits,
        max_bytes=min(limits.max_bytes, MAX_FRAME_BYTES),
        max_pixels=min(limits.max_pixels, MAX_FRAME_PIXELS),
    )
