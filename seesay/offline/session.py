"""A conversation that stores its turns, pictures included."""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any

from seesay.engine.front.choices import check_single
from seesay.engine.front.request_batch import RequestBatch
from seesay.engine.front.response import AnswerBuilder, Response
from seesay.errors import RequestError
from seesay.processors.media.load import load_image
from seesay.values import GenerationRequest, Message, OutputDelta
from seesay.vl.prompts.live_conversation import MAX_FRAMES, LiveConversation

if TYPE_CHECKING:
    from seesay.engine.front.engine import AsyncEngine

_ids = itertools.count(1)


class Session:
    """The turns of one conversation, for `Pipeline.chat` and `Pipeline.stream_infer`.

    response: the last answer.
    engine: computes frames when they are pushed; without one, they are computed with the next question.
    """

    def __init__(self, engine: AsyncEngine | None = None, max_frames: int = MAX_FRAMES) -> None:
        self.id = next(_ids)
        self._conversation = LiveConversation(max_frames)
        self._prefill = _Prefill(engine)
        self._lock = threading.Lock()
        self._response: Response | None = None
        self._generator: weakref.ref[Generator[Response, None, None]] | None = None
        self._history: list[tuple[Any, str]] = []
        self._stop: Callable[[], None] | None = None
        self._is_closed = False

    @property
    def messages(self) -> tuple[Message, ...]:
        """The conversation so far. It does not include turns that failed or whose stream was not read to its end."""
        return self._conversation.messages

    @property
    def response(self) -> Response:
        """The last answer, which may be that of a failed turn. Raises AttributeError before the first and after
        `close`."""
        if self._response is None:
            advice = "it is closed" if self._is_closed else "ask with pipe.chat(prompt, session=session)"
            raise AttributeError(f"session {self.id} has no response: {advice}")
        return self._response

    @property
    def history(self) -> list[tuple[Any, str]]:
        """(prompt as given, answer) of each turn."""
        return list(self._history)

    @property
    def generator(self) -> Generator[Response, None, None] | None:
        """The stream of the running turn. Its reader owns it: dropping it, for example by leaving a loop over it, ends
        the turn."""
        return None if self._generator is None else self._generator()

    @generator.setter
    def generator(self, stream: Generator[Response, None, None]) -> None:
        self._generator = weakref.ref(stream)

    @property
    def is_answering(self) -> bool:
        """Whether a turn is being answered."""
        return self._stop is not None

    def push(self, frame: object, time_s: float | None = None) -> None:
        """Show a frame of a live video: what `load_image` takes, but for a list. It is computed at once, and questions
        that follow are about it, too. May be called while a turn is being answered, and from another thread.

        time_s: when it was seen, which the model reads in front of it; by default the seconds since the session began.
        The prompt holds the newest `max_frames` frames at most (docs/sessions.md). Raises ValueError for a session that
        is closed, and for a time before that of the last frame.
        """
        with self._lock:
            if self._is_closed:
                raise ValueError(f"session {self.id} is closed; create a new one with pipe.session()")
            self._conversation.times.check(time_s)
            load_image(frame)  # refuse what is not a picture now, rather than each question from now on
            self._conversation.push(frame, time_s)
            if (request := self._conversation.make_prefill()) is not None:
                self._prefill.start(request)

    @property
    def num_frames(self) -> int:
        """The frames in the window."""
        return self._conversation.num_frames

    def continue_with(self, request: GenerationRequest, turn: tuple[Message, ...]) -> GenerationRequest:
        """Return a request with the conversation so far, and the frames since, in front of its own messages. Called by
        the pipeline, when a turn has begun."""
        with self._lock:
            return replace(request, prompt=self._conversation.begin_turn(turn))

    def add_times(self, delta: OutputDelta, request: GenerationRequest | RequestError) -> OutputDelta:
        """Return the last delta of an answer with the times of its frames. Called by the pipeline."""
        if isinstance(request, RequestError) or not delta.media:
            return delta
        with self._lock:
            return replace(delta, media=self._conversation.times.add_to(delta.media, request.prompt))

    def begin_turn(self, stop: Callable[[], None]) -> None:
        """Start a turn; `stop` ends it early. Called by the pipeline.

        Raises ValueError if the session is closed or another turn is being answered.
        """
        if self._is_closed:
            raise ValueError(f"session {self.id} is closed; create a new one with pipe.session()")
        if self.is_answering:
            raise ValueError(f"session {self.id} is still answering; finish or close its stream first")
        self._stop = stop

    def end_turn(self, prompt: object, response: Response | None) -> None:
        """End a turn. `response` is None if its stream was abandoned. Called by the pipeline."""
        with self._lock:
            self._stop = None
            self._generator = None
            if response is not None and not self._is_closed:
                self._response = response
            if self._is_closed or response is None or not _counts(response):
                self._conversation.end_turn(None)
                return
            self._conversation.end_turn(response.text)
            self._history.append((prompt, response.text))

    def stop(self) -> None:
        """Stop the running answer. The text generated so far stays part of the conversation."""
        if self._stop is not None:
            self._stop()

    def close(self) -> None:
        """Stop the running answer and delete all turns. A closed session cannot be used again."""
        self.stop()
        self._is_closed = True
        self._conversation.clear()
        self._history.clear()
        self._response = None

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Session(id={self.id}, turns={len(self._history)})"


def _counts(response: Response) -> bool:
    """Return whether an answer becomes a part of the conversation."""
    if response.finish_reason == "error":
        return False
    return response.finish_reason != "abort" or bool(response.text)


class _Prefill:
    """Computes conversations that go on, so that the next question finds them in the prefix cache; one at a time, so
    that frames which come faster than they are computed do not queue up. Does not keep the engine."""

    def __init__(self, engine: AsyncEngine | None) -> None:
        self._engine = (lambda: None) if engine is None else weakref.ref(engine)
        self._is_running = threading.Lock()

    def start(self, request: GenerationRequest) -> None:
        """Compute a conversation, unless one is being computed."""
        engine = self._engine()
        if engine is None or not self._is_running.acquire(blocking=False):
            return
        try:
            engine.submit_batch([request], self._take)
        except BaseException:
            self._is_running.release()
            raise

    def _take(self, delta: OutputDelta) -> None:
        if delta.finish_reason is not None:
            self._is_running.release()


def check_sessions(sessions: Session | Sequence[Session], num_prompts: int) -> list[Session]:
    """Return the session of each prompt. Raises TypeError and ValueError for other things, another number of them, and
    one session for two prompts."""
    chosen: list[Any] = list(sessions) if isinstance(sessions, list | tuple) else [sessions]
    for session in chosen:
        if not isinstance(session, Session):
            raise TypeError(f"sessions must be a Session or a list of Sessions, got {type(session).__name__}")
    if len(chosen) != num_prompts:
        raise ValueError(f"sessions must have one entry per prompt, got {len(chosen)} for {num_prompts} prompts")
    if len({session.id for session in chosen}) != len(chosen):
        raise ValueError("sessions must be different: the turns of one session are answered one after the other")
    return chosen


def _check_single_answers(requests: Sequence[GenerationRequest | RequestError]) -> None:
    for request in requests:
        if not isinstance(request, RequestError):
            check_single(request.gen_config)


def stream_turns(
    engine: AsyncEngine,
    requests: Sequence[GenerationRequest | RequestError],
    sessions: Sequence[Session],
    prompts: Sequence[object],
    *,
    pieces: bool,
) -> Generator[Response, None, None]:
    """Yield the answers to prompts that continue sessions, and end the turn of each.

    requests: one per prompt, parsed from `prompts`. pieces: yield every piece of an answer, not only complete answers.
    """
    _check_single_answers(requests)
    turns = [_turn_of(request) for request in requests]
    batches: list[RequestBatch] = []
    builders = [AnswerBuilder(index, session.id) for index, session in enumerate(sessions)]
    begun: list[int] = []
    try:
        for index, session in enumerate(sessions):
            session.begin_turn(partial(_abort, batches, index))
            begun.append(index)
        asked = [_continue(session, request, turn) for session, request, turn in zip(sessions, requests, turns)]
        batches.append(RequestBatch(engine, asked))
        with closing(batches[0].deltas()) as deltas:
            for index, received in deltas:
                delta = sessions[index].add_times(received, asked[index])
                piece = builders[index].add(delta)
                if delta.finish_reason is None:
                    if pieces:
                        yield piece
                    continue
                # End the turn before the last piece is yielded: the caller may not ask for another piece.
                answer = builders[index].complete()
                begun.remove(index)
                sessions[index].end_turn(prompts[index], answer)
                yield piece if pieces else answer
    finally:
        for index in begun:
            sessions[index].end_turn(prompts[index], None)


def _turn_of(request: GenerationRequest | RequestError) -> tuple[Message, ...]:
    """Return the messages that a request adds to a conversation. A refused request adds none."""
    if isinstance(request, RequestError):
        return ()
    if isinstance(request.prompt, str):
        raise ValueError("do_preprocess must be True for a session: its turns go through the chat template")
    return tuple(part for part in request.prompt if isinstance(part, Message))


def _continue(
    session: Session, request: GenerationRequest | RequestError, turn: tuple[Message, ...]
) -> GenerationRequest | RequestError:
    """Return the request with the conversation so far in front of its own messages."""
    return request if isinstance(request, RequestError) else session.continue_with(request, turn)


def _abort(batches: Sequence[RequestBatch], index: int) -> None:
    """Abort a request of the batch, once there is one."""
    for batch in batches:
        batch.abort(index)
