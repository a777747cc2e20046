"""Messages between two processes that may be on different machines: MessagePack over ZeroMQ's TCP, encrypted (CURVE).

A listener's public key is the password. It goes to the other process by another way, never over these connections:
without it nothing can be asked of the listener, and nothing that either end says can be read. Nothing is pickled.
"""

from __future__ import annotations

import threading
from typing import Generic, NamedTuple, TypeVar

import msgspec
import zmq

from seesay.engine.process.writer import Done, LinkClosedError

S = TypeVar("S")
R = TypeVar("R")

_MAX_MESSAGES = 1 << 16
"""More messages than this do not wait for a process that reads none."""
_BEAT_MS = 5_000
"""A connection over which nothing has come for twice this long is made anew."""
_LAST_WORDS_S = 2.0
_CONNECT_MS = 30_000
"""Longest wait for the other process to connect before the first message to it. It may be heard before it can hear."""


class Key(NamedTuple):
    """A listener's pair of keys. `public` is known to those who may connect."""

    public: bytes
    secret: bytes

    @classmethod
    def make(cls) -> Key:
        return cls(*zmq.curve_keypair())


class TcpLink(Generic[S, R]):
    """One end of a link: sends messages of the type S, receives those of the type (or union) R.

    `send` may be called from any thread, `receive` from one at a time. Messages hold no arrays.
    """

    def __init__(self, incoming: zmq.Socket[bytes], outgoing: zmq.Socket[bytes], *, receives: object) -> None:
        """Take two sockets of one context, of `listen` or `connect`."""
        self._incoming, self._outgoing = incoming, outgoing
        self._decoder: msgspec.msgpack.Decoder[R] = msgspec.msgpack.Decoder(receives)
        self._lock = threading.Lock()
        self._is_closed = self._is_connected = False

    def send(self, message: S, done: Done | None = None) -> None:
        """Send a message, the first one once the other process has connected, and others without waiting for it. Raises
        `LinkClosedError`. `done` as of `Link.send`."""
        payload = msgspec.msgpack.encode(message)
        with self._lock:
            if self._is_closed:
                raise LinkClosedError("the link is closed")
            if not self._is_connected and not self._outgoing.poll(_CONNECT_MS, zmq.POLLOUT):
                raise LinkClosedError("the other process does not connect")
            self._is_connected = True
            try:
                self._outgoing.send(payload, zmq.NOBLOCK)
            except zmq.Again:
                raise LinkClosedError("the other process takes no messages") from None
        if done is not None:
            done(None)

    def wait(self, timeout_s: float | None) -> bool:
        """Wait for a message. Returns whether there is one."""
        return bool(self._incoming.poll(None if timeout_s is None else max(0, int(1000 * timeout_s))))

    def register(self, poller: zmq.Poller) -> None:
        """Let `poller` wait for messages."""
        poller.register(self._incoming, zmq.POLLIN)

    def receive(self) -> R:
        """Return the next message; call it when `wait` reports one. Raises `msgspec.DecodeError`."""
        return self._decoder.decode(self._incoming.recv(zmq.NOBLOCK))

    def close(self, *, delivers: bool = False) -> None:
        """End the link; with `delivers`, what was sent goes out first, for a moment at most."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            self._outgoing.close(linger=int(1000 * _LAST_WORDS_S) if delivers else 0)
        self._incoming.close(linger=0)


def listen(context: zmq.Context[zmq.Socket[bytes]], kind: int, host: str, key: Key) -> tuple[zmq.Socket[bytes], str]:
    """Return a socket that listens on a free port, and its address for those who know the key."""
    end = _make_socket(context, kind)
    end.curve_server = True
    end.curve_publickey, end.curve_secretkey = key
    port = end.bind_to_random_port(f"tcp://{_bracket(host)}")
    return end, f"tcp://{_bracket(host)}:{port}"


def connect(context: zmq.Context[zmq.Socket[bytes]], kind: int, address: str, public_key: bytes) -> zmq.Socket[bytes]:
    """Return a socket that is connected to a listener's address."""
    end = _make_socket(context, kind)
    end.curve_publickey, end.curve_secretkey = zmq.curve_keypair()
    end.curve_serverkey = public_key
    end.connect(address)
    return end


def _make_socket(context: zmq.Context[zmq.Socket[bytes]], kind: int) -> zmq.Socket[bytes]:
    end = context.socket(kind)
    end.setsockopt(zmq.SNDHWM, _MAX_MESSAGES)
    end.setsockopt(zmq.RCVHWM, _MAX_MESSAGES)
    end.setsockopt(zmq.IPV6, True)
    end.setsockopt(zmq.HEARTBEAT_IVL, _BEAT_MS)
    return end


def _bracket(host: str) -> str:
    return f"[{host}]" if ":" in host else host
