"""Where a core's process comes from: started by this process, or joined."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import pytest

from seesay.engine.commands import ModelStatus
from seesay.engine.process import kinds, origin
from seesay.engine.process.listener import Connection, accept_connection, open_listener
from seesay.engine.process.origin import JoinedProcess, OwnProcess

START = kinds.Start("folder", {"tp": 1}, {}, 20, 1.0)
STATUS = ModelStatus(epoch=3, asleep=("weights",), level=2, folders=("first", "second"), has_given=True)


@pytest.fixture
def listening() -> Iterator[tuple[socket.socket, str]]:
    listener, address = open_listener()
    yield listener, address
    listener.close()


def test_a_process_is_started_with_the_listener_of_others(
    listening: tuple[socket.socket, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[Any] = []
    monkeypatch.setattr(origin, "ChildProcess", lambda *names, **options: started.append((names, options)))
    for listener, descriptors in ((listening[0], (listening[0].fileno(),)), (None, ())):
        OwnProcess(START, listener).open()
        [(names, options)] = started
        assert names == ("seesay.engine.process.child",)
        assert options == {"receives": kinds.ToFrontend, "descriptors": descriptors}
        started.clear()


def test_a_process_that_is_started_again_has_the_weights_of_the_one_before_and_is_awake() -> None:
    own = OwnProcess(START, None)
    answer = own.answer_hello(STATUS)
    assert answer.status == ModelStatus(epoch=3, folders=("first", "second"), has_given=True)
    assert (answer.folder, answer.engine, answer.log_level, answer.beat_s) == ("folder", {"tp": 1}, 20, 1.0)
    assert own.is_owner and own.read_status() is None  # type: ignore[func-returns-value]


def test_a_process_is_joined_at_its_address(listening: tuple[socket.socket, str]) -> None:
    listener, address = listening
    joined = JoinedProcess(address, None)
    child = joined.open()
    assert isinstance(child, Connection)
    accepted = accept_connection(listener, receives=kinds.ToCore)
    assert accepted is not None
    link, _ = accepted
    try:
        link.send(kinds.Hello())
        assert child.wait(60) and isinstance(child.link.receive(), kinds.Hello)
    finally:
        child.end()
        link.close()


def test_its_owner_is_asked_for_the_status_if_it_can_be() -> None:
    joined = JoinedProcess("nobody", lambda: STATUS)
    assert joined.read_status() is STATUS and not joined.is_owner
    assert isinstance(joined.answer_hello(STATUS), kinds.Join)
    assert JoinedProcess("nobody", None).read_status() is None
