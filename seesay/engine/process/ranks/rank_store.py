"""Where ranks on several machines meet: torch's store of names and values, which rank 0 keeps, over encrypted sockets.

torch's own `TCPStore` lets in whoever connects.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from datetime import timedelta

import msgspec
import zmq
from torch._C._distributed_c10d import Store
from torch.distributed import DistStoreError

from seesay.engine.process.tcp_link import Key, connect, listen

_WAIT_S = 300.0
_POLL_MS = 500


class Question(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """What a rank asks the keeper: to 'set' a value, to 'add' an amount to a number, to 'wait' for a value and return
    it, to 'check' whether there is one."""

    does: str
    name: str
    value: bytes = b""
    amount: int = 0


Answer = bytes | int | bool | None
_Asker = list[bytes]


class StoreKeeper:
    """Keeps the values, in a thread, until it is closed."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], host: str, key: Key) -> None:
        self._socket, self.address = listen(context, zmq.ROUTER, host, key)
        self._values: dict[str, bytes] = {}
        self._waiting: defaultdict[str, list[_Asker]] = defaultdict(list)
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="seesay-rank-store", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread."""
        self._is_closed = True
        self._thread.join()

    def _run(self) -> None:
        decoder = msgspec.msgpack.Decoder(Question)
        while not self._is_closed:
            if self._socket.poll(_POLL_MS):
                *asker, question = self._socket.recv_multipart()
                self._take(asker, decoder.decode(question))
        self._socket.close(linger=0)

    def _take(self, asker: _Asker, question: Question) -> None:
        name = question.name
        match question.does:
            case "set":
                self._put(name, question.value)
                self._answer(asker, None)
            case "add":
                number = int(self._values.get(name, b"0")) + question.amount
                self._put(name, str(number).encode())
                self._answer(asker, number)
            case "check":
                self._answer(asker, name in self._values)
            case _:
                if name in self._values:
                    self._answer(asker, self._values[name])
                else:
                    self._waiting[name].append(asker)

    def _put(self, name: str, value: bytes) -> None:
        self._values[name] = value
        for asker in self._waiting.pop(name, ()):
            self._answer(asker, value)

    def _answer(self, asker: _Asker, answer: Answer) -> None:
        self._socket.send_multipart([*asker, msgspec.msgpack.encode(answer)])


class RankStore(Store):
    """A rank's view of what a `StoreKeeper` keeps. Used by torch, from any of its threads."""

    def __init__(self, address: str, public_key: bytes) -> None:
        super().__init__()
        self._address, self._public_key = address, public_key
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context.instance()
        self._of_thread = threading.local()
        self._timeout_s = _WAIT_S

    def set_timeout(self, timeout: timedelta) -> None:
        self._timeout_s = timeout.total_seconds()

    def set(self, name: str, value: str | bytes) -> None:
        self._ask(Question("set", name, value.encode() if isinstance(value, str) else bytes(value)))

    def get(self, name: str) -> bytes:
        value = self._ask(Question("wait", name))
        assert isinstance(value, bytes)
        return value

    def add(self, name: str, amount: int) -> int:
        number = self._ask(Question("add", name, amount=amount))
        assert isinstance(number, int)
        return number

    def check(self, names: list[str]) -> bool:
        return all(self._ask(Question("check", name)) for name in names)

    def wait(self, names: list[str], timeout: timedelta | None = None) -> None:
        until_s = time.monotonic() + (self._timeout_s if timeout is None else timeout.total_seconds())
        for name in names:
            self._ask(Question("wait", name), until_s - time.monotonic())

    def _ask(self, question: Question, timeout_s: float | None = None) -> Answer:
        """Return the answer. Raises torch's error of a store that does not have it in time."""
        socket: zmq.Socket[bytes] | None = getattr(self._of_thread, "socket", None)
        if socket is None:
            socket = self._of_thread.socket = connect(self._context, zmq.REQ, self._address, self._public_key)
        socket.send(msgspec.msgpack.encode(question))
        limit_s = self._timeout_s if timeout_s is None else timeout_s
        if not socket.poll(max(0, int(1000 * limit_s))):
            self._of_thread.socket = None  # its answer may still come
            socket.close(linger=0)
            raise DistStoreError(f"rank 0 did not learn {question.name!r} within {limit_s:.0f} s")
        answer: Answer = msgspec.msgpack.decode(socket.recv(), type=Answer)
        return answer
