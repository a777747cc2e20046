"""Both ends of a link in one process: a test plays the process at the other end."""

from __future__ import annotations

import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from seesay.engine.process.link import Limits, Link, choose_folder


def make_pair(near: Any, far: Any, limits: Limits = Limits()) -> tuple[Link[Any, Any], Link[Any, Any]]:  # noqa: B008
    """Return the end that receives messages of the kinds `near` and sends within `limits`, and the other one, which
    receives `far`."""
    folder = choose_folder()
    folder.mkdir(mode=0o700)
    ours, theirs = socket.socketpair()
    link: Link[Any, Any] = Link(folder, ours, receives=near, is_child=False, limits=limits)
    other: Link[Any, Any] = Link(folder, theirs, receives=far, is_child=True)
    for sender, receiver in ((link, other), (other, link)):  # connected, so that the sockets need no names
        sender._outgoing.send(b"")
        assert receiver.wait(60)
        receiver._incoming.recv()
    shutil.rmtree(folder)
    return link, other


@contextmanager
def linked(near: Any, far: Any, limits: Limits = Limits()) -> Iterator[tuple[Link[Any, Any], Link[Any, Any]]]:  # noqa: B008
    """`make_pair`, closed in the end."""
    pair = make_pair(near, far, limits)
    try:
        yield pair
    finally:
        for link in pair:
            link.close()


def read_next(link: Link[Any, Any], timeout_s: float = 60) -> Any:
    """The next message."""
    assert link.wait(timeout_s), "no message came"
    return link.receive()
