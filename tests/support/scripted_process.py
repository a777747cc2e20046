"""An engine process without a process, for the frontend's half of it: a test says what it sends, when it is silent and
how it ends, and reads what was sent to it. Nothing here waits."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from seesay.engine.commands import ModelStatus
from seesay.engine.process import kinds
from seesay.engine.process.link import LinkClosedError
from seesay.engine.token_messages import CoreFacts

FACTS = CoreFacts(
    device="cuda:0", dtype="bfloat16", session_len=99, max_batch_size=4, takes_media=True, resizes_on_device=False
)
NO_NEWS = kinds.News((), (), None)
QUIET = object()
"""In a script: a wait ends without a message."""


class ScriptedChild:
    """A `Child` and its link. script: messages in their order, `QUIET`, and functions, which are called in place of a
    wait that ends without a message. At its end, the process has ended as `ends` says, if that is not None; else it is
    silent. has_ended: it ends before its messages are read. dones: what is to be called for each message of `sent`.
    on_wait: is told how long each wait without a message takes."""

    def __init__(self, *script: Any, ends: str | None = "status 3", pid: int | None = None) -> None:
        self.pid = pid
        self.script = deque(script)
        self.sent: list[Any] = []
        self.dones: list[Any] = []
        self.waits: list[tuple[float, tuple[int, ...]]] = []
        self.is_broken = self.has_ended = False
        self.num_ended = 0
        self.on_wait: Callable[[float], object] = lambda timeout_s: None
        self.on_send: Callable[[Any], object] = lambda message: None
        self._ends = ends
        # One object is both, as far as its user can tell.
        self.link: Any = _Link(self)

    def wait(self, timeout_s: float, *others: int) -> bool:
        self.waits.append((timeout_s, others))
        if not self.script:
            self.on_wait(timeout_s)
            return False
        if self.script[0] is QUIET or callable(self.script[0]):
            step = self.script.popleft()
            if step is QUIET:
                self.on_wait(timeout_s)
            else:
                step()
            return False
        return True

    def find_end(self) -> str | None:
        return self._ends if self.has_ended or not self.script else None

    def end(self, timeout_s: float = 0.0) -> None:
        self.num_ended += 1


class _Link:
    def __init__(self, child: ScriptedChild) -> None:
        self._child = child
        self.waits: list[float] = []

    @property
    def is_broken(self) -> bool:
        return self._child.is_broken

    def send(self, message: Any, done: Any = None) -> None:
        if self._child.is_broken:
            raise LinkClosedError("the link is closed")
        self._child.on_send(message)
        self._child.sent.append(message)
        self._child.dones.append(done)

    def wait(self, timeout_s: float) -> bool:
        self.waits.append(timeout_s)
        return self._child.wait(timeout_s)

    def receive(self) -> Any:
        message = self._child.script.popleft()
        if isinstance(message, Exception):
            raise message
        return message


class ScriptedOrigin:
    """An `Origin` whose processes are those of `opens`, one after the other; an exception is raised. known: the status
    that its owner knows."""

    def __init__(self, opens: Iterable[Any] = (), *, is_owner: bool = True) -> None:
        self.opens = deque(opens)
        self.is_owner = is_owner
        self.known: ModelStatus | None = None
        self.num_opened = 0

    def open(self) -> Any:
        self.num_opened += 1
        found = self.opens.popleft()
        if isinstance(found, BaseException):
            raise found
        return found

    def answer_hello(self, status: ModelStatus) -> Any:
        return "hello", status

    def read_status(self) -> ModelStatus | None:
        return self.known
