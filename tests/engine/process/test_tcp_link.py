"""Who does not know a listener's key is not heard, and hears nothing."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest
import zmq

from seesay.engine.process.ranks import rank_messages
from seesay.engine.process.tcp_link import Key, TcpLink, connect, listen
from seesay.engine.process.writer import LinkClosedError

pytestmark = pytest.mark.timeout(120)
Context = zmq.Context[zmq.Socket[bytes]]
HOST, TEXT = "127.0.0.1", "the weights are in a folder"


@pytest.fixture
def context() -> Iterator[Context]:
    context: Context = zmq.Context()
    yield context
    context.destroy(linger=0)


def start(key: Key, context: Context) -> tuple[TcpLink[rank_messages.ToFollower, rank_messages.ToLeader], str, str]:
    """Return rank 0's end, and the addresses of its messages to and from a follower."""
    outgoing, to = listen(context, zmq.PUSH, HOST, key)
    incoming, back = listen(context, zmq.PULL, HOST, key)
    return TcpLink(incoming, outgoing, receives=rank_messages.ToLeader), to, back


def join(
    public_key: bytes, to: str, back: str, context: Context
) -> TcpLink[rank_messages.ToLeader, rank_messages.ToFollower]:
    incoming, outgoing = connect(context, zmq.PULL, to, public_key), connect(context, zmq.PUSH, back, public_key)
    return TcpLink(incoming, outgoing, receives=rank_messages.ToFollower)


def test_both_ends_hear_each_other(context: Context) -> None:
    leader, to, back = start(key := Key.make(), context)
    follower = join(key.public, to, back, context)
    leader.send(rank_messages.Call("profile", {"number": 7}))
    assert follower.wait(60) and follower.receive() == rank_messages.Call("profile", {"number": 7})
    follower.send(rank_messages.Beat(1.5))
    assert leader.wait(60) and leader.receive() == rank_messages.Beat(1.5)
    leader.close()
    with pytest.raises(LinkClosedError):
        leader.send(rank_messages.Stop())
    follower.close()


@pytest.mark.parametrize("knows", ["nothing", "another key"])
def test_strangers_are_not_heard_and_hear_nothing(context: Context, knows: str) -> None:
    leader, to, back = start(key := Key.make(), context)
    strangers = list[zmq.Socket[bytes]]()
    for kind, address in ((zmq.PULL, to), (zmq.PUSH, back)):
        if knows == "nothing":
            strangers.append(context.socket(kind))
            strangers[-1].connect(address)
        else:
            strangers.append(connect(context, kind, address, Key.make().public))
    listening, speaking = strangers
    speaking.send(msgspec.msgpack.encode(rank_messages.Beat(99.0)))
    follower = join(key.public, to, back, context)
    for _ in range(2):  # messages go to all that are connected, in turn
        leader.send(rank_messages.Call(TEXT, {}))
        assert follower.wait(60) and follower.receive() == rank_messages.Call(TEXT, {})
    follower.send(rank_messages.Beat(1.0))
    assert leader.wait(60) and leader.receive() == rank_messages.Beat(1.0)
    assert not leader.wait(0.5) and not listening.poll(0)
    for end in (leader, follower):
        end.close()
    for socket_ in strangers:
        socket_.close(linger=0)


def test_the_first_message_waits_for_the_connection(context: Context) -> None:
    """Rank 0 may hear a rank that does not hear it yet."""
    leader, to, back = start(key := Key.make(), context)
    with ThreadPoolExecutor(1) as threads:
        sent = threads.submit(leader.send, rank_messages.Stop())
        with pytest.raises(TimeoutError):
            sent.result(0.2)
        follower = join(key.public, to, back, context)
        sent.result(60)
    assert follower.wait(60) and follower.receive() == rank_messages.Stop()
    leader.close()
    follower.close()


def test_nothing_can_be_read_on_the_way(context: Context) -> None:
    leader, to, back = start(key := Key.make(), context)
    seen, address = _relay(to)
    follower = join(key.public, address, back, context)
    leader.send(rank_messages.Call(TEXT, {}))
    assert follower.wait(60) and follower.receive() == rank_messages.Call(TEXT, {})
    assert len(seen) > len(TEXT) and TEXT.encode() not in seen
    leader.close()
    follower.close()


def test_what_is_no_message_raises(context: Context) -> None:
    """Also what would be one for the other end, and what pickle would load."""
    leader, _, back = start(key := Key.make(), context)
    speaking = connect(context, zmq.PUSH, back, key.public)
    for data in (b"", b"\x80\x04K\x01.", msgspec.msgpack.encode(rank_messages.Stop())):
        speaking.send(data)
        assert leader.wait(60)
        with pytest.raises(msgspec.DecodeError):
            leader.receive()
    leader.close()
    speaking.close(linger=0)


def _relay(address: str) -> tuple[bytearray, str]:
    """Return what goes over one connection to `address`, and the address by which to reach it."""
    host, port = address.removeprefix("tcp://").split(":")
    listener, seen = socket.create_server((HOST, 0)), bytearray()

    def copy(source: socket.socket, target: socket.socket) -> None:
        try:
            while data := source.recv(1 << 16):
                seen.extend(data)
                target.sendall(data)
        except OSError:
            pass
        finally:
            for end in (source, target):
                end.close()

    def serve() -> None:
        near, _ = listener.accept()
        listener.close()
        far = socket.create_connection((host, int(port)))
        threading.Thread(target=copy, args=(far, near), daemon=True).start()
        copy(near, far)

    threading.Thread(target=serve, daemon=True).start()
    return seen, f"tcp://{HOST}:{listener.getsockname()[1]}"
