"""The shared state that frontend processes share: answers their questions, and asks all of them where that takes them
all.

Knows nothing of processes: it takes messages of frontends by index, and gives messages to `send`.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from seesay.engine.process.kinds import Do, Hello, StartFailed
from seesay.serving.errors import ApiError
from seesay.serving.frontends import state_messages as messages
from seesay.serving.frontends.state_messages import History
from seesay.serving.stored.response_store import ResponseStore
from seesay.serving.stored.sessions import Session, SessionStore
from seesay.serving.traffic.metric_sums import Family, Sample, add_up, keep_totals

GATHER_S = 2.0
"""The figures of a frontend that does not give new ones for so long are its latest."""
RESET_S = 60.0
"""The caches of a frontend are waited for no longer."""


_Gathering = messages.GatherFigures | messages.ResetCaches | messages.AbortRequests


@dataclass(slots=True)
class _Round:
    """A question to several frontends, on behalf of one of them. num_aborted: what they answered so far."""

    asker: int
    question: _Gathering
    left: set[int]
    deadline_s: float
    num_aborted: int = 0


@dataclass(slots=True)
class _Frontend:
    """A frontend, for as long as its process lives. `figures`: the latest of its own."""

    is_listening: bool = False
    is_silent: bool = False
    figures: list[Family] = field(default_factory=list)
    turns: dict[int, Session] = field(default_factory=dict)  # by the number of the question that began them
    unfinished: dict[tuple[bytes, str], messages.StoreResponse] = field(default_factory=dict)  # by owner and id

    @property
    def is_up(self) -> bool:
        return self.is_listening and not self.is_silent


class StateServer:
    """Stored responses and sessions of all frontends, as bytes, and their figures."""

    def __init__(
        self,
        num_frontends: int,
        max_responses: int,
        send: Callable[[int, messages.ToFrontend], None],
        *,
        count_engine_restarts: Callable[[], int],
        gather_s: float = GATHER_S,
        reset_s: float = RESET_S,
    ) -> None:
        """`send` sends a message to a frontend, and must not raise when it has ended. `count_engine_restarts` returns
        how often the engine process was started again, which frontends do not know. Frontends are waited for no longer
        than `gather_s` for figures and `reset_s` for a reset."""
        self._gather_s = gather_s
        self._reset_s = reset_s
        self._num_frontends = num_frontends
        self._send = send
        self._count_engine_restarts = count_engine_restarts
        self._responses: ResponseStore[bytes] = ResponseStore(max_responses)
        self._sessions = SessionStore()
        self._frontends: dict[int, _Frontend] = {}
        self._ended: dict[int, list[Family]] = {}  # totals of processes that have ended, by index of the frontend
        self._num_restarts = 0
        self._rounds: dict[int, _Round] = {}
        self._numbers = itertools.count(1)

    def join(self, index: int) -> None:
        """A frontend has been told to start."""
        self._frontends[index] = _Frontend()

    def leave(self, index: int) -> None:
        """A frontend has ended: keep what it counted, and let others answer its sessions."""
        frontend = self._frontends.pop(index, None)
        if frontend is None:
            return
        self._num_restarts += 1
        self._ended[index] = add_up([self._ended.get(index, []), keep_totals(frontend.figures)])
        for session in frontend.turns.values():
            self._sessions.end(session)
        for place, question in frontend.unfinished.items():
            if question.if_lost is not None and self._responses.get(*place) is not None:
                self._responses.put(*place, question.if_lost, question.num_bytes)
                self._responses.add_events(*place, (), is_last=True)
        for number in [number for number, found in self._rounds.items() if found.asker == index]:
            del self._rounds[number]
        for number in list(self._rounds):
            self._note_answer(number, index)

    def note_silence(self, index: int, *, is_silent: bool) -> None:
        """A frontend has stopped responding, or responds again. One that does not is not waited for."""
        self._frontends[index].is_silent = is_silent
        if is_silent:
            for number in list(self._rounds):
                self._note_answer(number, index)

    @property
    def next_deadline_s(self) -> float:
        """Return the `time.monotonic` reading at which `end_late_rounds` is due."""
        return min((found.deadline_s for found in self._rounds.values()), default=float("inf"))

    def end_late_rounds(self) -> None:
        """Answer those who have waited long enough for other frontends."""
        now_s = time.monotonic()
        for number in [number for number, found in self._rounds.items() if found.deadline_s <= now_s]:
            self._answer_round(self._rounds.pop(number))

    def take(self, index: int, message: messages.ToSupervisor) -> None:
        """Answer a message of a frontend that has joined."""
        frontend = self._frontends[index]
        match message:
            case messages.Figures(families, number):
                frontend.figures = families
                self._note_answer(number, index)
            case messages.Listening():
                frontend.is_listening = True
            case messages.CachesReset(number):
                self._note_answer(number, index)
            case messages.RequestsAborted(number, num):
                self._note_answer(number, index, num_aborted=num)
            case messages.GatherFigures(_, own):
                frontend.figures = own  # what was once told stays counted, also when the frontend ends now
                self._ask_all(index, message)
            case messages.ResetCaches() | messages.AbortRequests():
                self._ask_all(index, message)
            case Hello() | StartFailed() | messages.Beat() | Do():
                raise TypeError(f"{type(message).__name__} is not expected now")
            case _:
                try:
                    self._send(index, self._answer(index, frontend, message))
                except ApiError as error:
                    self._send(index, messages.Refused.of(message.number, error))

    def _answer(self, index: int, frontend: _Frontend, question: messages.Question) -> messages.ToFrontend:
        """Return the answer to a question about responses or sessions. Raises `ApiError`."""
        match question:
            case messages.AboutResponse():
                _note_unfinished(self._frontends.values(), frontend, question)
                return _answer_about_response(self._responses, question)
            case messages.BeginTurn(number, key):
                session = self._sessions.begin(key, lambda: self._send(index, messages.CancelTurn(number)))
                frontend.turns[number] = session
                kept = session.conversation
                counts = (kept.num_tokens, kept.num_prompt_tokens, kept.num_bytes)
                return messages.BegunTurn(number, History(kept.messages or b"", *counts))
            case messages.EndTurn(_, begun, history):
                if (running := frontend.turns.pop(begun, None)) is not None:
                    self._sessions.end(running, None if history is None else history.keep(history.messages))
            case messages.CancelSession(_, key):
                self._sessions.cancel(key)
            case messages.ForgetSession(_, key):
                self._sessions.forget(key)
            case _:
                raise TypeError(f"{type(question).__name__} is not a question of a frontend")
        return messages.Done(question.number)

    # --- what all frontends are asked ---------------------------------------------------------------------------------

    def _ask_all(self, asker: int, question: _Gathering) -> None:
        """Ask the frontends for figures, those of the asker excepted, for their caches to be reset, or for requests to
        be ended."""
        is_reset = isinstance(question, messages.ResetCaches)
        asked = {index for index, frontend in self._frontends.items() if frontend.is_up}
        if isinstance(question, messages.GatherFigures):
            asked.discard(asker)
        own, deadline_s = next(self._numbers), time.monotonic() + (self._reset_s if is_reset else self._gather_s)
        self._rounds[own] = found = _Round(asker, question, asked, deadline_s)
        for index in list(asked):
            self._send(index, _pass_on(question, own))
        if not found.left:
            self._answer_round(self._rounds.pop(own))

    def _note_answer(self, number: int | None, index: int, *, num_aborted: int = 0) -> None:
        if number is not None and (found := self._rounds.get(number)) is not None:
            found.num_aborted += num_aborted
            found.left.discard(index)
            if not found.left:
                self._answer_round(self._rounds.pop(number))

    def _answer_round(self, found: _Round) -> None:
        number = found.question.number
        if isinstance(found.question, messages.ResetCaches):
            self._send(found.asker, messages.Done(number))
            return
        if isinstance(found.question, messages.AbortRequests):
            self._send(found.asker, messages.AbortedRequests(number, found.num_aborted))
            return
        figures = [
            *(frontend.figures for frontend in self._frontends.values()),
            *self._ended.values(),
            self._own_figures(),
        ]
        self._send(found.asker, messages.GatheredFigures(number, figures))

    def _own_figures(self) -> list[Family]:
        answering = {index for index, frontend in self._frontends.items() if frontend.is_up}
        up = [
            Sample("seesay_front_up", {"front": str(index)}, float(index in answering))
            for index in range(self._num_frontends)
        ]
        restarts = [Sample("seesay_front_restarts_total", {}, float(self._num_restarts))]
        engine_restarts = [Sample("seesay_engine_restarts_total", {}, float(self._count_engine_restarts()))]
        return [
            Family("seesay_front_up", "gauge", "whether a frontend process answers", up),
            Family(
                "seesay_front_restarts", "counter", "frontend processes that ended and were started again", restarts
            ),
            Family("seesay_engine_restarts", "counter", "engine processes that died or hung", engine_restarts),
        ]


def _pass_on(question: _Gathering, number: int) -> messages.ToFrontend:
    """Return what a frontend is asked in the round of this number."""
    match question:
        case messages.AbortRequests(_, turn, rid):
            return messages.DoAbort(number, turn, rid)
        case messages.ResetCaches():
            return messages.DoReset(number)
        case messages.GatherFigures():
            return messages.WantFigures(number)


def _note_unfinished(frontends: Iterable[_Frontend], frontend: _Frontend, question: messages.AboutResponse) -> None:
    """Note who computes a response, where it is stored now; nobody does once it is stored as it is."""
    if not isinstance(question, messages.StoreResponse):
        return
    place = (question.owner, question.response_id)
    for each in frontends:
        each.unfinished.pop(place, None)
    if question.if_lost is not None:
        frontend.unfinished[place] = question


def _answer_about_response(store: ResponseStore[bytes], question: messages.AboutResponse) -> messages.ToFrontend:
    match question:
        case messages.FindResponse(number, owner, response_id):
            return messages.FoundResponse(number, store.get(owner, response_id))
        case messages.StoreResponse(_, owner, response_id, stored, num_bytes):
            store.put(owner, response_id, stored, num_bytes)
        case messages.DeleteResponse(_, owner, response_id):
            store.delete(owner, response_id)
        case messages.AddEvents(_, owner, response_id, events, is_last):
            store.add_events(owner, response_id, events, is_last=is_last)
        case messages.ReadEvents(number, owner, response_id, start):
            found = store.read_events(owner, response_id, start)
            if found is None:
                return messages.FoundEvents(number, None, is_over=True)
            return messages.FoundEvents(number, found.events, found.is_over)
    return messages.Done(question.number)
