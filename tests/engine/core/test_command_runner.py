"""Commands on their way to the loop: which are done at once, which wait, and who waits for them."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from seesay.engine.commands import Command, LoadAdapter, ResetCaches, Sleep, UnloadAdapter, UpdateWeights, WakeUp
from seesay.engine.core.command_runner import CommandRunner
from seesay.engine.core.inbox import Inbox
from seesay.engine.core.live_request import LiveRequest
from seesay.engine.core.live_requests import Awaited, LiveRequests
from seesay.engine.core.request_ends import RequestEnds
from seesay.engine.core.waiting_commands import WaitingCommands
from seesay.engine.token_messages import TokenRequest
from seesay.errors import CheckpointError, ErrorCode, RequestError
from seesay.llm.plans.sampling_params import SamplingParams
from seesay.values import MultimodalInput

MOST_TURNS = 3
"""Turns of a loop behind which a command that is not done fails a test."""


class Part:
    """A runner among parts that note what they are told: those of `fails` raise. The requests 1 and 2 are live, and 3
    waits; 1 and 3 have adapter 7."""

    def __init__(self) -> None:
        self.noted: list[Any] = []
        self.fails: dict[str, Exception] = {}
        self.leaving: int | None = None
        self.inbox, self.waiting, self.requests = Inbox(), WaitingCommands(), LiveRequests()
        for request_id, adapter_id, awaited in ((1, 7, None), (2, 0, None), (3, 7, Awaited.GRAMMAR)):
            self.requests.add(make_live(request_id, adapter_id), awaited)
        scheduler: Any = SimpleNamespace(
            forget_prefixes=lambda: self.note("prefixes"), finish=lambda number, *_: self.note("finish", number)
        )
        embeddings: Any = SimpleNamespace(store=SimpleNamespace(clear=lambda: self.note("embeddings")))
        adapters: Any = SimpleNamespace(read=self._read, take=self._take)
        self.runner = CommandRunner(
            self.inbox,
            self.waiting,
            scheduler=scheduler,
            embeddings=embeddings,
            adapters=adapters,
            requests=self.requests,
            ends=RequestEnds(scheduler, self.requests, lambda _: None),
            forget_answers=lambda: self.note("answers"),
        )

    def note(self, *what: Any) -> None:
        self.noted.append(what if len(what) > 1 else what[0])
        if what[0] in self.fails:
            raise self.fails[what[0]]

    def _read(self, command: LoadAdapter) -> str:
        self.note("read", command.folder)
        return f"content of {command.folder}"

    def _take(self, command: Command, adapter: Any, done: Future[None]) -> int | None:
        self.note("take", command, adapter)
        done.set_result(None)
        return self.leaving

    def run(self, command: Command) -> None:
        """Give a command from another thread, while the loop does what came."""
        turns = iter([self.inbox.drain] * MOST_TURNS)

        def is_alive() -> bool:
            next(turns)(wait=False)
            return True

        self.runner.run(command, is_own_thread=False, is_alive=is_alive)

    def give(self, command: Command) -> None:
        """Give a command from the loop's own thread, which then does it."""
        self.runner.run(command, is_own_thread=True, is_alive=lambda: True)

    def ended(self) -> list[tuple[int, Any]]:
        return [(output.request_id, output.finish_reason) for output in self.requests.take_outputs()]


def make_live(request_id: int, adapter_id: int) -> LiveRequest:
    prompt = MultimodalInput(token_ids=np.arange(3), positions=np.arange(3), next_position=3)
    request = TokenRequest(request_id=request_id, prompt=prompt, params=SamplingParams(), adapter_id=adapter_id)
    return LiveRequest.make(request)


@pytest.fixture
def part() -> Part:
    return Part()


def test_caches_are_emptied_while_requests_are_alive(part: Part) -> None:
    part.run(ResetCaches())
    assert part.noted == ["prefixes", "embeddings", "answers"] and not part.waiting and part.ended() == []


def test_the_loops_own_thread_does_not_wait(part: Part) -> None:
    part.give(ResetCaches())
    assert not part.noted, "the loop comes to it"
    part.inbox.drain(wait=False)
    assert part.noted == ["prefixes", "embeddings", "answers"]


@pytest.mark.parametrize(
    "command", [Sleep(), WakeUp(), UpdateWeights(folder="a")], ids=lambda each: type(each).__name__
)
def test_others_wait_until_no_request_is_alive(part: Part, command: Command) -> None:
    part.give(command)
    part.inbox.drain(wait=False)
    assert part.waiting and part.ended() == [] and not part.noted
    control: Any = SimpleNamespace(run=part.note)
    part.waiting.run(control)
    assert part.noted == [command]


@pytest.mark.parametrize(
    "command",
    [Sleep(running="abort"), UpdateWeights(folder="a", running="abort")],
    ids=lambda each: type(each).__name__,
)
def test_requests_are_aborted_where_a_command_says_so(part: Part, command: Command) -> None:
    part.give(command)
    part.inbox.drain(wait=False)
    assert part.ended() == [(1, "abort"), (2, "abort")] and part.noted == [("finish", 1), ("finish", 2)]
    assert part.waiting and [each.request_id for each in part.requests.iterate()] == [3], "it computes nothing"


def test_one_that_fails_is_told_and_ends_the_loops_turn(part: Part) -> None:
    part.fails["embeddings"] = ZeroDivisionError("odd")
    caught, turns = [], iter(range(MOST_TURNS))

    def is_alive() -> bool:
        next(turns)
        try:
            part.inbox.drain(wait=False)
        except ZeroDivisionError as error:
            caught.append(error)
        return True

    with pytest.raises(ZeroDivisionError, match="odd"):
        part.runner.run(ResetCaches(), is_own_thread=False, is_alive=is_alive)
    assert caught == [part.fails["embeddings"]] and "answers" not in part.noted


def test_a_command_whose_aborts_fail_waits_no_more(part: Part) -> None:
    part.fails["finish"] = ZeroDivisionError("odd")
    part.give(Sleep(running="abort"))
    with pytest.raises(ZeroDivisionError):
        part.inbox.drain(wait=False)
    assert not part.waiting, "its future has the error already"


def test_a_loop_that_ends_meanwhile_answers_nobody(part: Part) -> None:
    lives = iter([True, False])
    with pytest.raises(RequestError, match="the engine is closed") as raised:
        part.runner.run(Sleep(), is_own_thread=False, is_alive=lambda: next(lives))
    assert raised.value.code is ErrorCode.CLOSED


def test_a_command_is_done_while_the_loop_is_alive_and_not_before(part: Part) -> None:
    """The loop has other things to do at first."""
    turns = iter(range(MOST_TURNS))

    def is_alive() -> bool:
        if next(turns) > 0:
            part.inbox.drain(wait=False)
        return True

    part.runner.run(ResetCaches(), is_own_thread=False, is_alive=is_alive)
    assert part.noted == ["prefixes", "embeddings", "answers"]


def test_one_that_was_done_as_the_loop_ended_is_done(part: Part) -> None:
    def is_alive() -> bool:
        part.inbox.drain(wait=False)
        return False

    part.runner.run(ResetCaches(), is_own_thread=False, is_alive=is_alive)
    assert part.noted == ["prefixes", "embeddings", "answers"]


def test_adapters_are_read_where_they_are_named_and_taken_in_the_loop(part: Part) -> None:
    load = LoadAdapter(name="a", folder="f")
    part.give(load)
    assert part.noted == [("read", "f")], "the loop does not read files"
    part.inbox.drain(wait=False)
    assert part.noted[1:] == [("take", load, "content of f")] and part.ended() == [] and not part.waiting
    part.run(UnloadAdapter(name="a"))
    assert part.noted[2:] == [("take", UnloadAdapter(name="a"), None)] and part.ended() == []


def test_requests_of_an_adapter_that_leaves_are_aborted_wherever_they_are(part: Part) -> None:
    part.leaving = 7
    part.run(UnloadAdapter(name="a", running="abort"))
    assert part.ended() == [(1, "abort"), (3, "abort")] and list(part.requests.by_id) == [2]


def test_an_adapter_that_cannot_be_read_troubles_no_loop(part: Part) -> None:
    part.fails["read"] = CheckpointError("bad: is no adapter")
    with pytest.raises(CheckpointError, match="is no adapter"):
        part.run(LoadAdapter(name="a", folder="f"))
    assert part.noted == [("read", "f")] and not part.inbox.drain(wait=False)
