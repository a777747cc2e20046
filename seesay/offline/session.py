"""A conversation that stores its turns, pictures included."""

from __future__ import annotations

import itertools
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
from seesay.values import GenerationRequest, Message, TextPart

if TYPE_CHECKING:
    from seesay.engine.front.engine import AsyncEngine

_ids = itertools.count(1)


class Session:
    """The turns of one conversation, for `Pipeline.chat` and `Pipeline.stream_infer`.

    response: the last answer.
    messages: the conversation so far. It does not include turns that failed or whose stream was not read to its end.
    """

    def __init__(self) -> None:
        self.id = next(_ids)
        self.messages: tuple[Message, ...] = ()
        self._response: Response | None = None
        self._generator: weakref.ref[Generator[Response, None, None]] | None = None
        self._history: list[tuple[Any, str]] = []
        self._stop: Callable[[], None] | None = None
        self._is_closed = False

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

    def begin_turn(self, stop: Callable[[], None]) -> None:
        """Start a turn; `stop` ends it early. Called by the pipeline.

        Raises ValueError if the session is closed or another turn is being answered.
        """
        if self._is_closed:
            raise ValueError(f"session {self.id} is closed; create a new one with pipe.session()")
        if self.is_answering:
            raise ValueError(f"session {self.id} is still answering; finish or close its stream first")
        self._stop = stop

    def end_turn(self, prompt: object, turn: tuple[Message, ...], response: Response | None) -> None:
        """End a turn. `response` is None if its stream was abandoned. Called by the pipeline."""
        self._stop = None
        self._generator = None
        if response is None or self._is_closed:
            return
        self._response = response
        if response.finish_reason == "error" or (response.finish_reason == "abort" and not response.text):
            return
        answer = Message(role="assistant", parts=(TextPart(text=response.text),))
        self.messages = (*self.messages, *turn, answer)
        self._history.append((prompt, response.text))

    def stop(self) -> None:
        """Stop the running answer. The text generated so far stays part of the conversation."""
        if self._stop is not None:
            self._stop()

    def close(self) -> None:
        """Stop the running answer and delete all turns. A closed session cannot be used again."""
        self.stop()
        self._is_closed = True
        self.messages = ()
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
    for request in requests:
        if not isinstance(request, RequestError):
            check_single(request.gen_config)
    turns = [_turn_of(request) for request in requests]
    batch = RequestBatch(engine, [_continue(s, r, turn) for s, r, turn in zip(sessions, requests, turns)])
    builders = [AnswerBuilder(index, session.id) for index, session in enumerate(sessions)]
    begun: list[int] = []
    try:
        for index, session in enumerate(sessions):
            session.begin_turn(partial(batch.abort, index))
            begun.append(index)
        with closing(batch.deltas()) as deltas:
            for index, delta in deltas:
                piece = builders[index].add(delta)
                if delta.finish_reason is None:
                    if pieces:
                        yield piece
                    continue
                # End the turn before the last piece is yielded: the caller may not ask for another piece.
                answer = builders[index].complete()
                begun.remove(index)
                sessions[index].end_turn(prompts[index], turns[index], answer)
                yield piece if pieces else answer
    finally:
        for index in begun:
            sessions[index].end_turn(prompts[index], turns[index], None)


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
    return request if isinstance(request, RequestError) else replace(request, prompt=(*session.messages, *turn))
