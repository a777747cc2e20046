"""Requests that come: which are computed, which wait, and which end before they begin."""

from __future__ import annotations

import queue
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from seesay.engine.core.inbox import Inbox
from seesay.engine.core.live_requests import Awaited, LiveRequests
from seesay.engine.core.outbox import Outbox
from seesay.engine.core.request_ends import RequestEnds
from seesay.engine.core.request_intake import RequestIntake
from seesay.engine.token_messages import TokenOutput, TokenRequest
from seesay.engine.watchdog import ENGINE, Fault
from seesay.errors import ErrorCode, RequestError
from seesay.llm.plans.sampling_params import SamplingParams
from seesay.values import MultimodalInput

ASLEEP = RequestError(ErrorCode.SLEEPING, "it sleeps")
BROKEN = RequestError(ErrorCode.INVALID_REQUEST, "broken")


class Intake:
    """A `RequestIntake` among parts that note what they are told; a test says what they answer."""

    def __init__(self) -> None:
        self.noted: list[tuple[str, Any]] = []
        self.refusal: RequestError | None = None
        self.has_adapter = True
        self.grammar: Future[Any] | None = None
        self.fails: dict[str, Exception] = {}
        self.inbox, self.outbox, self.requests = Inbox(), Outbox(), LiveRequests()
        self.commands: list[str] = []
        listener: Any = SimpleNamespace()
        self.outbox.listener = listener
        scheduler: Any = SimpleNamespace(
            prepare=lambda sequence: self.note("prepare", sequence.seq_id),
            add=lambda sequence: self.note("add", sequence.seq_id),
            finish=lambda request_id, *_: self.note("finish", request_id),
        )
        embeddings: Any = SimpleNamespace(
            forget=lambda ids: self.note("forget", ids), note_arrival=lambda number: self.note("arrival", number)
        )
        adapters: Any = SimpleNamespace(
            places=SimpleNamespace(memory=SimpleNamespace(take=lambda request: self.has_adapter))
        )
        grammars: Any = SimpleNamespace(take=self._take_grammar)
        imports: Any = SimpleNamespace(find=self._import)
        commands: Any = self.commands
        self.intake = RequestIntake(
            self.inbox,
            self.outbox,
            imports=imports,
            scheduler=scheduler,
            embeddings=embeddings,
            adapters=adapters,
            commands=commands,
            grammars=grammars,
            requests=self.requests,
            ends=RequestEnds(scheduler, self.requests, lambda number: self.note("drop", number)),
            find_refusal=lambda request: self.refusal,
            begin=lambda request: self.note("begin", request.request_id),
        )

    def note(self, name: str, what: Any) -> None:
        self.noted.append((name, what))
        if name in self.fails:
            raise self.fails[name]

    def _import(self, processors: Any) -> tuple[()]:
        self.note("import", processors)
        return ()

    def _take_grammar(self, request: Any) -> Future[Any] | None:
        self.note("grammar", request.request_id)
        return None if self.grammar is None or self.grammar.done() else self.grammar

    def submit(self, *request_ids: int) -> None:
        prompt = MultimodalInput(token_ids=np.arange(3), positions=np.arange(3), next_position=3)
        self.intake.submit(
            [TokenRequest(request_id=number, prompt=prompt, params=SamplingParams()) for number in request_ids]
        )

    def run(self) -> list[TokenOutput]:
        """Do what the loop's thread does; return the outputs."""
        self.inbox.drain(wait=False)
        return self.requests.take_outputs()

    def count(self, name: str) -> int:
        return sum(found == name for found, _ in self.noted)

    def held(self, awaited: Awaited) -> list[int]:
        return list(self.requests.held[awaited])


@pytest.fixture
def intake() -> Intake:
    return Intake()


def test_requests_are_prepared_where_they_come_and_admitted_in_the_loop(intake: Intake) -> None:
    intake.submit(1, 2)
    assert [name for name, _ in intake.noted] == ["import", "prepare"] * 2 and not intake.requests.by_id
    assert intake.run() == []
    assert list(intake.requests.by_id) == [1, 2]
    assert intake.noted[4:8] == [("arrival", 1), ("grammar", 1), ("add", 1), ("begin", 1)]


def test_a_closed_engine_takes_none(intake: Intake) -> None:
    ended: queue.SimpleQueue[TokenOutput] = queue.SimpleQueue()
    intake.outbox.listener = SimpleNamespace(on_outputs=lambda outputs: [*map(ended.put, outputs)])
    intake.outbox.give_up(Fault(ENGINE, "it hangs"))
    intake.submit(1)
    assert ended.get(timeout=60).request_id == 1 and not intake.noted and intake.run() == []


@pytest.mark.parametrize("part", ["import", "prepare"])
def test_one_that_cannot_be_prepared_ends_alone(intake: Intake, part: str) -> None:
    intake.fails[part] = BROKEN
    intake.submit(1)
    del intake.fails[part]
    intake.submit(2)
    [output] = intake.run()
    assert (output.request_id, output.error) == (1, BROKEN) and list(intake.requests.by_id) == [2]
    assert ("arrival", 1) in intake.noted, "nobody waits for its pictures"


def test_behind_a_command_all_wait(intake: Intake) -> None:
    intake.commands.append("update")
    intake.submit(1)
    assert intake.run() == [] and intake.held(Awaited.COMMANDS) == [1] and not intake.count("arrival")
    intake.commands.clear()
    for request in intake.requests.take_held(Awaited.COMMANDS):
        intake.intake.admit(request)
    assert list(intake.requests.by_id) == [1]


def test_what_is_refused_ends_and_its_pictures_are_not_waited_for(intake: Intake) -> None:
    intake.refusal = ASLEEP
    intake.submit(1)
    [output] = intake.run()
    assert (output.error, output.finish_reason) == (ASLEEP, "error") and ("forget", [1]) in intake.noted
    assert not intake.requests.by_id and not intake.count("arrival")


def test_one_whose_adapter_is_in_its_file_waits(intake: Intake) -> None:
    intake.has_adapter = False
    intake.submit(1)
    assert intake.run() == [] and intake.held(Awaited.ADAPTER) == [1] and not intake.count("grammar")


def test_one_whose_grammar_is_compiled_waits_for_it(intake: Intake) -> None:
    intake.grammar = Future()
    intake.submit(1)
    assert intake.run() == [] and intake.held(Awaited.GRAMMAR) == [1] and not intake.count("add")
    intake.grammar.set_result(None)
    assert intake.held(Awaited.GRAMMAR) == [1], "the loop's thread goes on with it"
    assert intake.run() == []
    assert intake.held(Awaited.GRAMMAR) == [] and list(intake.requests.by_id) == [1] and intake.count("begin") == 1


def test_a_grammar_that_cannot_be_compiled_ends_its_request(intake: Intake) -> None:
    intake.grammar = Future()
    intake.submit(1)
    intake.run()
    intake.grammar.set_exception(BROKEN)
    [output] = intake.run()
    assert (output.request_id, output.error) == (1, BROKEN)
    assert not list(intake.requests.iterate())


def test_one_that_ended_meanwhile_does_not_go_on(intake: Intake) -> None:
    intake.grammar = Future()
    intake.submit(1)
    intake.run()
    assert intake.requests.take(1) is not None
    intake.grammar.set_result(None)
    assert intake.run() == [] and not intake.requests.by_id


@pytest.mark.parametrize("part", ["grammar", "add", "begin"])
def test_what_fails_where_it_begins_ends_it(intake: Intake, part: str) -> None:
    intake.fails[part] = ValueError("odd")
    intake.submit(1)
    [output] = intake.run()
    assert output.finish_reason == "error" and "odd" in str(output.error)
    assert ("finish", 1) in intake.noted and not intake.requests.by_id
