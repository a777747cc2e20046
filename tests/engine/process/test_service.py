"""The core's end of the links to its frontends: who is told what, and what is left of one that ends."""

from __future__ import annotations

import socket
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from link_pair import linked, read_next
from waiting import wait_until

from seesay.encoders.store import EmbeddingStore
from seesay.engine.commands import ModelStatus, ResetCaches, Sleep
from seesay.engine.process import kinds, service
from seesay.engine.process.link import LinkClosedError
from seesay.engine.process.listener import Connection, open_listener
from seesay.engine.process.service import Frontend, Service
from seesay.engine.token_messages import CoreFacts, TokenOutput, TokenRequest
from seesay.engine.watchdog import ENGINE, Fault
from seesay.errors import ErrorCode, RequestError
from seesay.llm.plans.sampling_params import SamplingParams
from seesay.values import EngineStats, MultimodalInput

FACTS = CoreFacts(
    device="cpu", dtype="float32", session_len=64, max_batch_size=4, takes_media=True, resizes_on_device=False
)
SECOND = 1 << 40
"""Added by the core's process to the ids of the second frontend."""
HASH = bytes(32)


class FakeCore:
    """Notes what it is asked for. `on_command` is called with a command."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.embeddings = SimpleNamespace(store=EmbeddingStore(1 << 20))
        self.facts, self.status = FACTS, ModelStatus()
        self.on_command: Callable[[Any], None] = lambda _: None
        self.num_turns = self.num_stats = 0
        self.lost: Fault | None = None

    @property
    def fault(self) -> Fault | None:
        """Asked once in each turn of `Service.run`."""
        self.num_turns += 1
        return self.lost

    def __getattr__(self, name: str) -> Callable[..., None]:
        def note(*arguments: Any) -> None:
            self.calls.append((name, *(sorted(each) if isinstance(each, set) else each for each in arguments)))

        return note

    def start(self, listener: object) -> None:
        self.calls.append(("start",))

    def busy_s(self) -> dict[str, float]:
        return {ENGINE: 1.5}

    def stats(self) -> EngineStats:
        self.num_stats += 1
        return EngineStats(num_running=self.num_stats)

    def is_encoded(self, item_hash: bytes) -> bool:
        return item_hash in self.embeddings.store

    def run_command(self, command: Any) -> None:
        self.calls.append(("run_command", command))
        self.on_command(command)

    def take(self) -> list[tuple[Any, ...]]:
        """What was asked for since the last time."""
        taken, self.calls = self.calls, []
        return taken


class FakeLink:
    """A link whose other end is the test. A message that is an exception is raised when it is received."""

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.done: list[Any] = []
        self.inbox: deque[Any] = deque()
        self.is_broken = self.was_cut = self.is_closed = self.delivered = False

    def send(self, message: Any, done: Any = None) -> None:
        if self.is_broken:
            raise LinkClosedError("broken")
        self.sent.append(message)
        self.done.append(done)

    def has_message(self) -> bool:
        return bool(self.inbox)

    def receive(self) -> Any:
        message = self.inbox.popleft()
        if isinstance(message, Exception):
            raise message
        return message

    def is_cut(self) -> bool:
        return self.was_cut

    def close(self, *, delivers: bool = False) -> None:
        self.is_closed, self.delivered = True, delivers

    def take(self, kind: type | None = None) -> list[Any]:
        """What was sent since the last time, of one kind or all."""
        taken, self.sent = self.sent, []
        return [message for message in taken if kind is None or isinstance(message, kind)]


class Parts:
    """A service of `num` frontends, the messages of which the test hands over."""

    def __init__(self, num: int = 2) -> None:
        core: Any = FakeCore()
        self.core = core
        self.links: list[Any] = [FakeLink() for _ in range(num)]
        self.service: Any = Service(self.links[0], self.core, None, beat_s=60)
        for index in range(1, num):
            self.service._frontends[index] = Frontend(index, self.links[index])
        self.core.embeddings.store.watch(self.service._note)

    def hear(self, index: int, *messages: Any) -> list[tuple[Any, ...]]:
        """Let the service take messages of a frontend; returns what it asked the core for."""
        self.links[index].inbox.extend(messages)
        assert not self.service._hear(self.service._frontends[index])
        calls: list[tuple[Any, ...]] = self.core.take()
        return calls

    def give(self, *outputs: TokenOutput) -> None:
        self.service.on_outputs(outputs)


@pytest.fixture
def parts() -> Parts:
    return Parts()


def make_request(request_id: int, **options: Any) -> kinds.Request:
    prompt = MultimodalInput(token_ids=np.arange(3), positions=np.arange(3), next_position=3, items=())
    owner = options.pop("owner", 7)
    request = TokenRequest(request_id=request_id, prompt=prompt, params=SamplingParams(), **options)
    return kinds.Request.of(request, owner=owner, items=())


def submit(request_id: int, **options: Any) -> kinds.Submit:
    return kinds.Submit(make_request(request_id, **options))


# --- what frontends ask for -------------------------------------------------------------------------------------------


def test_ids_of_frontends_do_not_meet(parts: Parts) -> None:
    for index, first in ((0, 0), (1, SECOND)):
        assert parts.hear(index, kinds.Finish(3, "stop")) == [("finish", first + 3, "stop")]
        assert parts.hear(index, kinds.Abort((3, 4))) == [("abort", (first + 3, first + 4))]
        assert parts.hear(index, kinds.EndGroup(3)) == [("end_group", first + 3)]
        assert parts.hear(index, kinds.ExpectMedia((1, 2))) == [("expect_media", (first + 1, first + 2))]
        assert parts.hear(index, kinds.ForgetMedia((1,))) == [("forget_media", (first + 1,))]
        assert parts.hear(index, kinds.GiveFeatures(3, 1, {"a": [1, [2]]}, None)) == [
            ("give_features", first + 3, 1, {"a": (1, (2,))})
        ]
        assert parts.service._frontends[index].expected == {first + 2}


@pytest.mark.parametrize(("request_id", "is_one"), [(-1, False), (0, True), (SECOND - 1, True), (SECOND, False)])
def test_an_id_that_would_be_another_frontends_is_none(request_id: int, is_one: bool) -> None:
    frontend = Frontend(1, FakeLink())  # type: ignore[arg-type]
    if is_one:
        assert frontend.number(request_id) == SECOND + request_id
        assert frontend.numbers([request_id]) == (SECOND + request_id,)
    else:
        with pytest.raises(AssertionError):
            frontend.number(request_id)


def test_features_that_cannot_be_made_are_an_error(parts: Parts) -> None:
    failure = kinds.Failure(ErrorCode.INVALID_MEDIA, "broken", "messages")
    [(name, number, item_index, error)] = parts.hear(1, kinds.GiveFeatures(3, 1, {}, failure))
    assert (name, number, item_index) == ("give_features", SECOND + 3, 1)
    assert (error.code, error.message, error.param) == (ErrorCode.INVALID_MEDIA, "broken", "messages")


def test_owners_with_a_name_are_the_same_for_all_and_others_are_not(parts: Parts) -> None:
    found = [
        request.owner
        for index in (0, 1)
        for owner in (7, b"name")
        for _, [request] in parts.hear(index, submit(owner == 7, owner=owner))
    ]
    assert found == [(0, 7), b"name", (1, 7), b"name"]


def test_a_request_is_live_until_its_final_output(parts: Parts) -> None:
    frontend = parts.service._frontends[1]
    parts.hear(1, kinds.ExpectMedia((5, 6)))
    [(name, [request])] = parts.hear(1, submit(5, group_id=4, keeps_blocks=True))
    assert (name, request.request_id, request.group_id) == ("submit", SECOND + 5, SECOND + 4)
    assert (frontend.live, frontend.expected, frontend.groups) == ({SECOND + 5}, {SECOND + 6}, {SECOND + 4})
    parts.give(TokenOutput(request_id=SECOND + 5, token_ids=(1,)))
    assert frontend.live == {SECOND + 5}
    parts.give(TokenOutput(request_id=SECOND + 5, finish_reason="stop"))
    assert frontend.live == set()
    parts.hear(1, kinds.EndGroup(4))
    assert frontend.groups == set()


@pytest.mark.parametrize("options", [{"group_id": 4}, {"keeps_blocks": True}, {}])
def test_only_groups_that_keep_blocks_are_ended_with_their_frontend(parts: Parts, options: dict[str, Any]) -> None:
    [(_, [request])] = parts.hear(1, submit(5, **options))
    assert request.group_id == (SECOND + 4 if options.get("group_id") else None)
    assert not parts.service._frontends[1].groups


def test_a_request_that_cannot_be_read_ends_with_an_error_alone(parts: Parts) -> None:
    request = make_request(5)
    request.params = {"max_new_tokens": 0, "nothing": 1}
    parts.hear(1, kinds.ExpectMedia((5,)))
    refused, (name, [taken]) = parts.hear(1, kinds.Submit(request), submit(6))
    assert refused == ("forget_media", [SECOND + 5]) and (name, taken.request_id) == ("submit", SECOND + 6)
    [message] = parts.links[1].take(kinds.Outputs)
    [output] = message.outputs
    assert (output.request_id, output.finish_reason) == (5, "error") and output.error.code is ErrorCode.INTERNAL
    assert parts.service._frontends[1].live == {SECOND + 6} and not parts.service._frontends[1].expected


@pytest.mark.parametrize(("num_messages", "num_taken"), [(63, 63), (64, 64), (65, 64)])
def test_nobody_waits_for_more_than_some_messages_of_another_frontend(
    parts: Parts, num_messages: int, num_taken: int
) -> None:
    assert len(parts.hear(1, *[kinds.Abort((1,))] * num_messages)) == num_taken
    assert len(parts.links[1].inbox) == num_messages - num_taken


# --- ends -------------------------------------------------------------------------------------------------------------


def fill(parts: Parts, index: int) -> None:
    """Let a frontend have two live requests, each of a group, and an expected one."""
    groups = [submit(number, group_id=number, keeps_blocks=True) for number in (5, 6)]
    messages = kinds.ExpectMedia((9,)), *groups
    parts.hear(index, *messages)


ENDS: dict[str, Callable[[Any], object]] = {
    "it leaves": lambda link: link.inbox.append(kinds.Stop()),
    "it dies": lambda link: setattr(link, "was_cut", True),
    "it does not read": lambda link: setattr(link, "is_broken", True),
    "a message that is none": lambda link: link.inbox.append(msgspec.DecodeError("no message")),
    "a message for others": lambda link: link.inbox.append(kinds.Start("", {}, {}, 0, 1.0)),
}


@pytest.mark.parametrize("end", ENDS)
def test_a_frontend_that_ends_loses_its_own_requests_only(end: str) -> None:
    parts = Parts(3)
    for index in range(3):
        fill(parts, index)
    frontend = parts.service._frontends[1]
    ENDS[end](parts.links[1])
    calls = parts.hear(1)
    assert sorted(calls, key=lambda call: (call[0], str(call))) == [
        ("abort", [SECOND + 5, SECOND + 6]), ("end_group", SECOND + 5), ("end_group", SECOND + 6),
        ("forget_media", [SECOND + 9]),
    ]  # fmt: skip
    assert parts.links[1].is_closed and not parts.links[0].is_closed and list(parts.service._frontends) == [0, 2]
    assert frontend.is_lost is (end != "it dies")
    parts.give(TokenOutput(request_id=SECOND + 5, finish_reason="abort"))
    parts.service.on_features_wanted(SECOND + 5, 0)
    parts.service._note(HASH)
    assert [len(link.take(kinds.Outputs)) for link in parts.links] == [0, 0, 0]


def test_the_first_frontend_ends_the_process(parts: Parts) -> None:
    first, other = parts.service._frontends.values()
    parts.links[0].inbox.extend([kinds.Stop(), kinds.Abort((1,))])
    assert parts.service._hear(first) is True and not parts.core.take()
    parts.links[1].inbox.append(kinds.Stop())
    assert parts.service._hear(other) is False


def test_a_first_frontend_that_does_not_read_ends_the_process(parts: Parts) -> None:
    """It starts another one."""
    first = parts.service._first
    assert parts.service._hear(first) is False
    parts.links[0].is_broken = True
    assert parts.service._hear(first) is True and first.is_lost
    assert list(parts.service._frontends) == [0, 1]


def test_messages_of_the_first_frontend_that_cannot_be_read_end_the_process(parts: Parts) -> None:
    parts.links[0].inbox.append(msgspec.DecodeError("no message"))
    with pytest.raises(msgspec.DecodeError):
        parts.service._hear(parts.service._first)


def test_a_frontend_to_which_nothing_can_be_sent_is_lost(parts: Parts) -> None:
    frontend = parts.service._frontends[1]
    parts.links[1].is_broken = True
    frontend.send(kinds.Hello())
    assert frontend.is_lost
    parts.links[1].is_broken = False
    frontend.send(kinds.Hello())
    assert not parts.links[1].sent, "nothing more is sent to it"


def test_folders_of_lost_frontends_are_removed(tmp_path: Any) -> None:
    folder = tmp_path / "sockets"
    folder.mkdir()
    link: Any = FakeLink()
    frontend = Frontend(1, link, folder)
    assert not frontend.has_joined
    frontend.close(delivers=True)
    assert not folder.exists() and link.delivered and frontend.folder is None
    assert Frontend(1, link).has_joined


# --- what frontends are told ------------------------------------------------------------------------------------------


def test_each_frontend_gets_its_own_outputs_in_one_message(parts: Parts) -> None:
    parts.give(
        TokenOutput(request_id=1, token_ids=(1,)),
        TokenOutput(request_id=SECOND + 1, token_ids=(2,)),
        TokenOutput(request_id=1, token_ids=(3,)),
    )
    found = [[message.outputs for message in link.take(kinds.Outputs)] for link in parts.links]
    assert [[[(each.request_id, each.token_ids) for each in one] for one in each] for each in found] == [
        [[(1, (1,)), (1, (3,))]], [[(1, (2,))]]
    ]  # fmt: skip


def test_the_first_answer_of_all_is_followed_by_one_heartbeat(parts: Parts) -> None:
    for _ in range(3):
        parts.give(TokenOutput(request_id=1, token_ids=(1,)))
    assert [len(link.take(kinds.Beat)) for link in parts.links] == [1, 1]


def test_counts_come_with_ends_and_else_now_and_then(parts: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [1000.0]
    monkeypatch.setattr(service, "time", SimpleNamespace(monotonic=lambda: now_s[0]))
    parts.service._has_answered = True

    def count(**options: Any) -> bool:
        parts.give(TokenOutput(request_id=1, **options))
        [message] = parts.links[0].take(kinds.Outputs)
        return message.news.stats is not None

    assert count() and not count()
    now_s[0] += 0.09
    assert not count()
    assert count(finish_reason="stop") and not count()
    now_s[0] += 0.09
    assert not count(), "they came with the end"
    now_s[0] += 0.02
    assert count() and not count()
    parts.service._beat()
    [beat] = parts.links[0].take(kinds.Beat)
    assert beat.news.stats is not None and beat.busy_s == {ENGINE: 1.5}


def test_frontends_are_told_which_embeddings_come_and_go_once(parts: Parts) -> None:
    store = parts.core.embeddings.store

    def read() -> tuple[list[bytes], list[bytes]]:
        parts.service._beat()
        news = [link.take(kinds.Beat)[0].news for link in parts.links]
        assert news[0].encoded == news[1].encoded and news[0].dropped == news[1].dropped
        return list(news[0].encoded), list(news[0].dropped)

    assert read() == ([], [])
    store.begin(HASH)
    assert read() == ([HASH], [])
    store.put(HASH, torch.zeros(2, 2))
    assert read() == ([], []), "it is known"
    store.clear()
    assert read() == ([], [HASH])
    store.begin(HASH)
    store.fail(HASH)
    assert read() == ([], []), "it came and went in between"


def test_a_frontend_that_has_not_joined_gets_no_heartbeats(parts: Parts) -> None:
    parts.service._frontends[1].has_joined = False
    parts.service._beat()
    assert [len(link.take()) for link in parts.links] == [1, 0]
    parts.hear(1, kinds.Join())
    [started] = parts.links[1].take()
    assert started == kinds.Started(FACTS, ModelStatus())
    parts.service._beat()
    assert [len(link.take(kinds.Beat)) for link in parts.links] == [1, 1]


def test_features_are_asked_of_the_frontend_of_the_request(parts: Parts) -> None:
    parts.service.on_features_wanted(SECOND + 5, 2)
    parts.service.on_features_wanted(2 * SECOND + 5, 2)
    parts.service.on_encoding(HASH)
    assert [link.take() for link in parts.links] == [[], [kinds.FeaturesWanted(5, 2)]]


def test_requests_of_outputs_without_memory_end(parts: Parts) -> None:
    parts.give(TokenOutput(request_id=SECOND + 5, token_ids=(1,)), TokenOutput(request_id=SECOND + 6, token_ids=(1,)))
    [done, _] = parts.links[1].done
    parts.links[1].take()
    done(None)
    assert not parts.links[1].take() and not parts.core.take()
    done(OSError(12, "no memory"))
    assert parts.core.take() == [("abort", (SECOND + 5, SECOND + 6))]
    [message] = parts.links[1].take()
    assert [(each.request_id, each.finish_reason) for each in message.outputs] == [(5, "error"), (6, "error")]
    assert all("no memory" in each.error.text for each in message.outputs)


# --- commands ---------------------------------------------------------------------------------------------------------


def do(parts: Parts, command: Any) -> Any:
    """Let the second frontend command something; returns the answer."""
    parts.hear(1, kinds.Do.of(4, command))
    wait_until(lambda: any(isinstance(each, kinds.Done) for each in parts.links[1].sent))
    [done] = [each for each in parts.links[1].sent if isinstance(each, kinds.Done)]
    return done


def test_a_command_is_answered_when_it_is_done_and_its_status_told_to_all(parts: Parts) -> None:
    asleep = ModelStatus(asleep=("weights",), level=1)
    parts.core.on_command = lambda command: setattr(parts.core, "status", asleep)
    done = do(parts, Sleep())
    assert (done.number, done.failure, done.raised) == (4, None, None) and done.news.stats is not None
    assert [link.take(kinds.StatusChanged) for link in parts.links] == [[kinds.StatusChanged(asleep)]] * 2
    do(parts, Sleep())
    assert [link.take(kinds.StatusChanged) for link in parts.links] == [[], []], "it is as it was"


@pytest.mark.parametrize("error", [RequestError(ErrorCode.SLEEPING, "asleep"), OSError("no disk"), KeyboardInterrupt()])
def test_a_command_that_fails_says_so(parts: Parts, error: BaseException) -> None:
    def fail(command: Any) -> None:
        raise error

    parts.core.on_command = fail
    done = do(parts, ResetCaches())
    if isinstance(error, RequestError):
        assert done.failure == kinds.Failure(ErrorCode.SLEEPING, "asleep", None) and done.raised is None
    else:
        assert done.failure is None and done.raised.name == type(error).__name__
    assert not parts.links[0].take(kinds.StatusChanged)


def test_memory_is_returned_to_the_system_when_caches_were_reset(parts: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
    returned = []
    monkeypatch.setattr(service, "return_memory", lambda: returned.append(list(parts.core.calls)))
    do(parts, Sleep())
    assert not returned
    parts.links[1].take()
    do(parts, ResetCaches())
    assert len(returned) == 1


def test_a_command_that_waits_holds_up_nobody(parts: Parts) -> None:
    may_go_on = threading.Event()
    parts.core.on_command = lambda command: may_go_on.wait(60)
    parts.hear(1, kinds.Do.of(4, Sleep()))
    assert ("abort", (SECOND + 1,)) in parts.hear(1, kinds.Abort((1,)))
    assert not parts.links[1].take(kinds.Done)
    may_go_on.set()
    wait_until(lambda: bool(parts.links[1].take(kinds.Done)))


def test_a_command_for_which_no_thread_can_be_started_fails_alone(
    parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert parts.hear(0, kinds.Do.of(4, ResetCaches()), kinds.Abort((1,))) == [("abort", (1,))]
    [done] = parts.links[0].take(kinds.Done)
    assert done.number == 4 and done.failure is None and "can't start new thread" in done.raised.text


# --- the loop ---------------------------------------------------------------------------------------------------------


class Running:
    """A service that runs in a thread; `near` is the first frontend's end of its link."""

    def __init__(self, near: Any, far: Any, listener: Any, beat_s: float) -> None:
        core: Any = FakeCore()
        self.core = core
        self.near = near
        self.results: list[Any] = []
        self.service: Any = Service(far, self.core, listener, beat_s=beat_s)
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()
        assert read_next(near) == kinds.Started(FACTS, ModelStatus())

    def _run(self) -> None:
        try:
            self.results.append(self.service.run())
        except BaseException as error:
            self.results.append(error)

    def read(self, num: int, kind: type) -> list[Any]:
        """Messages of the first frontend, up to `num` of a kind."""
        found: list[Any] = []
        while sum(isinstance(message, kind) for message in found) < num:
            found.append(read_next(self.near))
        return found

    def has_asked(self, *call: Any) -> bool:
        return call in self.core.calls

    def end(self) -> Any:
        self.near.send(kinds.Stop())
        self.thread.join(60)
        return self.results


@contextmanager
def running(beat_s: float, listener: Any = None) -> Iterator[Running]:
    with linked(kinds.ToFrontend, kinds.ToCore) as (near, far):
        service = Running(near, far, listener, beat_s)
        try:
            yield service
        finally:
            service.end()


def test_heartbeats_come_at_their_rate_whatever_else_comes() -> None:
    """One at the start, and none for each message."""
    with running(beat_s=600) as service:
        for number in range(20):
            service.near.send(kinds.Abort((number,)))
            wait_until(partial(service.has_asked, "abort", (number,)))
        service.core.on_command = lambda command: None
        service.near.send(kinds.Do.of(1, ResetCaches()))
        messages = service.read(1, kinds.Done)
        assert [type(message) for message in messages] == [kinds.Beat, kinds.Done]
        assert service.core.num_turns <= 2 + 21, "each turn waits for a message"


def test_an_idle_process_rests_between_heartbeats() -> None:
    """A turn of its loop ends with a heartbeat or a message: it does not turn without either."""
    with running(beat_s=0.02) as service:
        service.read(5, kinds.Beat)
        before = service.core.num_turns
        service.read(20, kinds.Beat)
        assert service.core.num_turns - before < 20 * 5
        assert len(service.core.take()) == 1, "nothing but `start`"


def test_the_process_ends_with_its_first_frontend() -> None:
    with running(beat_s=600) as service:
        assert service.end() == [True]
        assert service.core.take() == [("start",), ("close",)]


def test_the_process_ends_when_its_core_has_given_up() -> None:
    """Another one must be started: it says so."""
    with running(beat_s=0.02) as service:
        service.core.lost = Fault(ENGINE, "lost")
        service.thread.join(60)
        assert service.results == [False] and ("close",) in service.core.calls


def test_frontends_come_and_go_while_it_runs() -> None:
    """Each has a number of its own, learns of the embeddings that are there, and is told of what happens from then."""
    listener, address = open_listener()
    with listener, running(600, listener) as service:
        service.core.embeddings.store.begin(HASH)
        for number in (1, 2):
            guest: Connection[Any, Any] = Connection(address, receives=kinds.ToFrontend)
            assert isinstance(read_next(guest.link), kinds.Hello)
            folder = guest._folder
            guest.link.send(kinds.Join())
            assert isinstance(read_next(guest.link), kinds.Started) and not folder.exists()
            guest.link.send(submit(5))
            wait_until(lambda: any(call[0] == "submit" for call in service.core.calls))
            [[_, [request]]] = [call for call in service.core.take() if call[0] == "submit"]
            assert request.request_id == number * SECOND + 5
            service.service.on_outputs([TokenOutput(request_id=request.request_id, token_ids=(3,))])
            while not isinstance(message := read_next(guest.link), kinds.Outputs):
                pass
            assert message.news.encoded == (HASH,) and message.outputs[0].request_id == 5
            guest.end()
            wait_until(partial(service.has_asked, "abort", [request.request_id]))


def test_the_process_ends_its_links_to_all_frontends() -> None:
    listener, address = open_listener()
    with listener, running(600, listener) as service:
        guest: Connection[Any, Any] = Connection(address, receives=kinds.ToFrontend)
        assert isinstance(read_next(guest.link), kinds.Hello)
        assert service.end() == [True]
        wait_until(lambda: guest.find_end() is not None)
        guest.end()


def test_a_connection_that_is_no_frontend_is_refused_and_others_are_served() -> None:
    listener, address = open_listener()
    with listener, running(600, listener) as service:
        with socket.socket(socket.AF_UNIX) as stranger:
            stranger.connect("\0" + address)
        service.near.send(kinds.Abort((1,)))
        wait_until(lambda: ("abort", (1,)) in service.core.calls)
        assert list(service.service._frontends) == [0]
