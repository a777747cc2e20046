"""The process of a rank that follows: what it says while it loads and follows, and how it ends.

It is this process here, and the test is rank 0. tests/engine/test_ranks.py starts others.
"""

from __future__ import annotations

import gc
import io
import logging
import os
import runpy
import signal
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import zmq
from link_pair import linked, read_next

from seesay.checkpoint import resolve_checkpoint
from seesay.config import EngineConfig
from seesay.device import host_memory, rank_group
from seesay.device.ranks import ALONE, Place
from seesay.engine.core import model_weights
from seesay.engine.core.loading import loading
from seesay.engine.process import kinds
from seesay.engine.process.arrays import make_file
from seesay.engine.process.link import Link, LinkClosedError
from seesay.engine.process.parent import Distant
from seesay.engine.process.ranks import child, rank_messages
from seesay.engine.process.ranks.follower import FollowingRunner
from seesay.engine.process.ranks.led_weights import FollowedWeights
from seesay.engine.process.ranks.rank_store import StoreKeeper
from seesay.engine.process.ranks.stage_runners import LaterStageRunner
from seesay.engine.process.tcp_link import Key
from seesay.errors import CheckpointError

pytestmark = pytest.mark.timeout(60)

START = rank_messages.Follow("folder", {}, 1, logging.WARNING, 60.0)
STOP = rank_messages.Stop()
CPU = torch.device("cpu")


class EndedError(BaseException):
    """In place of the end of the process."""


class Child:
    """This process as that of a rank, and its `Follower`. `far` is rank 0's end of the link. It answers calls
    with their arguments, and raises what is `fails`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, near: Link[Any, Any], far: Link[Any, Any]) -> None:
        self.link, self.far = near, far
        self.distant: Distant | None = None
        self.descriptors: list[int] = []
        self.is_confirmed = False
        self.fails: Exception | None = None
        self.activity = SimpleNamespace(busy_s=7.5)
        self.taken: list[Any] = []
        self._monkeypatch = monkeypatch
        monkeypatch.setattr(child, "Parent", self._connect)

    def run(self, *messages: Any, start: rank_messages.Follow = START) -> int:
        """Run with these messages. Returns the exit status."""
        self._monkeypatch.setattr(child, "_load", self._load)
        for message in (start, *messages):
            self.far.send(message)
        return child.main()

    def read(self, number: int, *, beats: bool = False) -> list[Any]:
        """Messages that were sent, without beats unless they are asked for."""
        found: list[Any] = []
        while len(found) < number:
            message = read_next(self.far)
            if beats or not isinstance(message, rank_messages.Beat):
                found.append(message)
        return found

    def confirm(self) -> None:
        self.is_confirmed = True

    def take(self, message: Any) -> Any:
        self.taken.append(message)
        if self.fails is not None:
            raise self.fails
        return rank_messages.Answer(message.arguments, None) if isinstance(message, rank_messages.Call) else None

    def _connect(self, *, receives: Any) -> Child:
        assert receives == rank_messages.ToFollower
        return self

    def _load(self, start: rank_messages.Follow, parent: Any) -> Any:
        assert self.is_confirmed and not gc.isenabled() and sys.getswitchinterval() == pytest.approx(1e-4)
        assert parent is self
        if isinstance(self.fails, CheckpointError):
            raise self.fails
        return self


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch) -> Iterator[Child]:
    logger, interval_s = logging.getLogger("seesay"), sys.getswitchinterval()
    before = logger.handlers[:], logger.level, logger.propagate
    with linked(rank_messages.ToFollower, rank_messages.ToLeader) as (near, far):
        yield Child(monkeypatch, near, far)
    logger.handlers[:], logger.level, logger.propagate = before
    sys.setswitchinterval(interval_s)
    gc.enable()


def test_a_rank_does_what_it_is_told_until_it_is_enough(process: Child) -> None:
    """Only calls are answered."""
    step = rank_messages.Step((), b"plan", None)
    calls = [rank_messages.Call("count", {"number": number}) for number in (1, 2)]
    assert process.run(calls[0], step, calls[1], STOP) == 0
    assert process.taken == [calls[0], step, calls[1]]
    loaded, *answers = process.read(4)[1:]
    assert loaded == rank_messages.Answer(None, None)
    assert [each.value for each in answers] == [{"number": 1}, {"number": 2}]


def test_what_a_step_was_told_is_forgotten_while_the_next_one_is_waited_for(
    process: Child, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be large."""
    alive: list[bool] = []
    send = process.link.send

    def note(message: Any) -> None:
        if isinstance(message, rank_messages.Answer) and message.value is not None:
            [call] = process.taken
            process.taken.clear()
            alive.append(sys.getrefcount(call) > 2)  # this function's, and that of the argument
        send(message)

    monkeypatch.setattr(process.link, "send", note)
    process.run(rank_messages.Call("count", {"number": 1}), STOP)
    assert alive == [False]


def test_rank_0_learns_why_a_rank_ends(process: Child, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has arrived when the process ends."""
    closed: list[bool] = []
    close = process.link.close

    def note(*, delivers: bool = False) -> None:
        closed.append(delivers)
        close(delivers=delivers)

    process.fails = ValueError("a bug")
    with monkeypatch.context() as patch:
        patch.setattr(process.link, "close", note)
        assert process.run(rank_messages.Call("count", {})) == 1
    failed = process.read(3)[2]
    assert (failed.name, failed.text) == ("ValueError", "a bug") and closed == [True]


def test_rank_0_learns_why_a_slice_cannot_be_loaded(process: Child) -> None:
    process.fails = CheckpointError("no weights")
    assert process.run() == 1
    failed = process.read(2)[1]
    assert (failed.name, failed.text) == ("CheckpointError", "no weights") and process.taken == []


def test_a_rank_whose_leader_has_gone_ends(process: Child) -> None:
    def leave(message: Any) -> Any:
        process.link.close()
        return rank_messages.Answer(None, None)

    process.take = leave  # type: ignore[method-assign]
    assert process.run(rank_messages.Call("count", {})) == 1
    with pytest.raises(LinkClosedError):
        process.link.send(kinds.Hello())


def test_the_first_message_says_what_to_follow(process: Child) -> None:
    process.far.send(STOP)
    with pytest.raises(TypeError, match="must be Follow, got Stop"):
        child.main()


def test_records_are_sent_to_rank_0(process: Child) -> None:
    process.run(STOP)
    logging.getLogger("seesay.part").info("too little")
    logging.getLogger("seesay.part").warning("a %s", "word")
    assert process.read(3)[2] == kinds.LogRecord("seesay.part", logging.WARNING, "a word")


def test_the_program_ends_with_the_status(process: Child, monkeypatch: pytest.MonkeyPatch) -> None:
    def end(status: int) -> Any:
        raise EndedError(status)

    monkeypatch.setattr(child, "exit_at_once", end)
    monkeypatch.setattr(child, "main", lambda: 3)
    with pytest.raises(EndedError, match="3"):
        child.run()


def test_a_process_without_orders_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    def end(status: int) -> None:
        raise EndedError(status)

    handler, interval_s = signal.getsignal(signal.SIGINT), sys.getswitchinterval()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO()))
    monkeypatch.setattr(os, "_exit", end)
    try:
        with pytest.raises(EndedError, match="1"):
            runpy.run_path(child.__file__, run_name="__main__")
    finally:
        signal.signal(signal.SIGINT, handler)
        sys.setswitchinterval(interval_s)
        gc.enable()


def test_a_rank_beats_as_long_as_it_lives(process: Child) -> None:
    """And says for how long it has been in its step, once it follows. Between two beats it sleeps."""
    beats = rank_messages.Follow("folder", {}, 1, logging.WARNING, 0.01)
    before = threading.enumerate()

    def stop_later() -> None:
        hello, first, *found = process.read(6, beats=True)
        assert (hello, first) == (kinds.Hello(), rank_messages.Beat(0.0))
        while rank_messages.Beat(7.5) not in found:
            found += process.read(1, beats=True)
        assert read_next(process.far) == rank_messages.Beat(7.5)
        process.far.send(STOP)

    leader = threading.Thread(target=stop_later)
    leader.start()
    assert process.run(start=beats) == 0
    leader.join(30)
    process.link.close()
    for thread in [each for each in threading.enumerate() if each not in before]:
        thread.join(30)
        assert not thread.is_alive(), "it ends with the link"


def test_a_rank_sleeps_between_beats(process: Child, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        process.link.close()

    monkeypatch.setattr(time, "sleep", sleep)
    child._Beating(process.link, 2.5)._run()
    assert 2.5 in slept and set(slept) == {2.5}


# --- its slice --------------------------------------------------------------------------------------------------------


class Cycle:
    """Garbage that only a collection finds."""

    def __init__(self) -> None:
        self.itself = self


def is_visited(value: object) -> bool:
    """Whether collections of garbage visit it."""
    return any(each is value for each in gc.get_objects())


class Loading:
    """Notes how a rank joins the others and loads its slice."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.done: list[Any] = []
        self.garbage: list[weakref.ref[Any]] = []
        self.visits_modules = True
        self.runner: Any = None
        monkeypatch.setattr(host_memory, "bound_allocators", lambda: self.done.append("bounded"))
        monkeypatch.setattr(rank_group, "pick_rank_device", self._pick)
        for name in ("join_group", "join_stages"):
            monkeypatch.setattr(rank_group, name, partial(self._join, name))
        monkeypatch.setattr(loading, "load_follower", self._load)
        monkeypatch.setattr(model_weights, "ModelWeights", self._hold)

    def _pick(self, device_type: str, place: Place) -> torch.device:
        self.done.append((device_type, place))
        return CPU

    def _join(self, name: str, meeting: Any, place: Place, device: torch.device, *, timeout_s: float) -> str:
        self.done.append((name, meeting, place, device, timeout_s))
        return name

    def _load(self, model: Any, config: Any, device: torch.device, make_runner: Any, ranks: Any) -> Any:
        self.visits_modules = is_visited(sys.modules)
        self.garbage.append(weakref.ref(Cycle()))
        assert model.checkpoint.path.is_dir() and isinstance(config, EngineConfig) and device is CPU
        self.done.append((make_runner.func, make_runner.keywords, ranks))
        self.runner = make_runner.func.__new__(make_runner.func)
        self.runner.decoder = SimpleNamespace(weights="slice")
        return self.runner

    def _hold(self, model: Any, config: Any, *parts: Any) -> Any:
        assert model.checkpoint.path.is_dir() and isinstance(config, EngineConfig)
        self.done.append(parts)
        nothing: Any = None
        return SimpleNamespace(
            drop=nothing, offload=nothing, restore=nothing, addresses=nothing, open_folder=lambda path: path
        )


@pytest.fixture
def noted(monkeypatch: pytest.MonkeyPatch, process: Child) -> Iterator[Loading]:
    gc.disable()
    gc.unfreeze()
    yield Loading(monkeypatch)
    gc.unfreeze()
    gc.enable()


def make_start(**engine: Any) -> rank_messages.Follow:
    folder = str(resolve_checkpoint("seesay-demo"))
    return rank_messages.Follow(folder, {"device_type": "cpu", "step_timeout_s": 10.0, **engine}, 1, 20, 1.5)


@pytest.mark.parametrize(
    ("engine", "name", "runner", "keyword"),
    [
        ({"tp": 2}, "join_group", FollowingRunner, "ranks"),
        ({"pp": 2}, "join_stages", LaterStageRunner, "stages"),
    ],
)
def test_a_rank_joins_the_others_and_loads_its_slice(
    noted: Loading, process: Child, engine: dict[str, int], name: str, runner: type, keyword: str
) -> None:
    process.descriptors = [make_file("seesay-test")]
    try:
        follower = child._load(make_start(**engine), process)  # type: ignore[arg-type]
    finally:
        os.close(process.descriptors[0])
    place = Place(1, 2)
    bounded, picked, joined, loaded, weights = noted.done
    assert (bounded, picked) == ("bounded", ("cpu", place))
    assert joined[0] == name and joined[1].address is None and joined[2:] == (place, CPU, 3610.0)
    assert loaded == (runner, {keyword: name}, name) and weights == ("slice", None)
    assert follower._runner is noted.runner
    assert isinstance(follower._calls["check_weights"].__self__, FollowedWeights)  # type: ignore[attr-defined]
    assert [each.what for each in process.read(3)] == [
        "opening the model", "waiting for the other ranks", "loading its slice of the weights"
    ]  # fmt: skip
    assert gc.isenabled() and not is_visited(noted.runner) and not noted.visits_modules
    assert noted.garbage[0]() is None, "what loading leaves is collected"


def test_a_rank_elsewhere_meets_the_others_at_a_store_and_sees_its_own_device(noted: Loading, process: Child) -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    keeper = StoreKeeper(context, "127.0.0.1", key := Key.make())
    process.distant = Distant("to", "back", keeper.address, key.public.decode(), "10.0.0.7")
    try:
        child._load(make_start(tp=2), process)  # type: ignore[arg-type]
        picked, joined = noted.done[1:3]
        assert picked == ("cpu", ALONE) and joined[2] == Place(1, 2)
        store, address = joined[1]
        store.set("name", "value")
        assert store.get("name") == b"value" and address == "10.0.0.7"
        store._of_thread.socket.close(linger=0)
    finally:
        keeper.close()
        context.destroy(linger=0)
