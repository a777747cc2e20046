"""One core serves several frontends: the one that started its process, and those that come in by the listener.

A frontend knows nothing of the others. Ids of requests are its own, and a frontend that ends loses its own requests
only. An owner that is a text or bytes is the same in all frontends; others are different in each.
"""

from __future__ import annotations

import logging
import shutil
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import zmq

from seesay.device.host_memory import MemoryReturn, return_memory
from seesay.engine.commands import ResetCaches
from seesay.engine.failures import explain
from seesay.engine.process import kinds
from seesay.engine.process.failures import describe_failure
from seesay.engine.process.link import Link, LinkClosedError
from seesay.engine.process.listener import accept_connection
from seesay.engine.process.writer import Done
from seesay.errors import RequestError

if TYPE_CHECKING:
    from seesay.engine.core.loop import EngineLoop
    from seesay.engine.token_messages import TokenOutput

logger = logging.getLogger("seesay")

STATS_S = 0.1
"""The counts are sent with outputs no more often than this, and whenever a request ends."""
_MAX_MESSAGES = 64
"""Messages of one frontend that are taken before those of the next one."""
_ID_BITS = 40
"""Of a request's number in the core: the rest is the frontend's."""


class Frontend:
    """One frontend as the core's process knows it. `index` is never used again by another one."""

    def __init__(self, index: int, link: Link[kinds.ToFrontend, kinds.ToCore], folder: Path | None = None) -> None:
        self.index = index
        self.link = link
        self.folder = folder  # of its sockets, until it has joined
        self.live: set[int] = set()  # its requests in the core
        self.expected: set[int] = set()  # its requests that are expected there
        self.groups: set[int] = set()  # its groups for which more requests may come
        self.has_joined = folder is None
        self.is_lost = False
        self.changed: deque[bytes] = deque()  # hashes whose embedding has come or gone since the last news
        self._told: set[bytes] = set()  # hashes of which it knows that their embedding is there
        self._lock = threading.Lock()  # news are sent in the order in which they are made
        self._stats_at_s = 0.0

    def number(self, request_id: int) -> int:
        """The core's number of one of its requests."""
        assert 0 <= request_id < 1 << _ID_BITS, request_id
        return self.index << _ID_BITS | request_id

    def numbers(self, request_ids: Iterable[int]) -> tuple[int, ...]:
        return tuple(map(self.number, request_ids))

    def tell(
        self,
        make: Callable[[kinds.News], kinds.ToFrontend],
        core: EngineLoop,
        *,
        with_stats: bool | None = None,
        done: Done | None = None,
    ) -> None:
        """Send a message that carries the news, with the counts or (None) where they are due. `done` as of
        `Link.send`."""
        with self._lock:
            now_s = time.monotonic()
            is_due = now_s - self._stats_at_s >= STATS_S if with_stats is None else with_stats
            if is_due:
                self._stats_at_s = now_s
            changed = {self.changed.popleft() for _ in range(len(self.changed))}
            there = {item_hash for item_hash in changed if core.is_encoded(item_hash)}
            encoded, dropped = there - self._told, (changed - there) & self._told
            self._told |= encoded
            self._told -= dropped
            self.send(make(kinds.News(tuple(encoded), tuple(dropped), core.stats() if is_due else None)), done)

    def send(self, message: kinds.ToFrontend, done: Done | None = None) -> None:
        """Send a message, without waiting for the frontend; one that takes none is lost."""
        try:
            if not self.is_lost:
                self.link.send(message, done)
        except LinkClosedError:
            self.is_lost = True

    def leave(self, core: EngineLoop) -> None:
        """End what only this frontend waits for, and its link."""
        core.forget_media(self.expected)
        core.abort(list(self.live))
        for group_id in self.groups:
            core.end_group(group_id)
        self.close()

    def close(self, *, delivers: bool = False) -> None:
        """End the link, and remove what the frontend may have left behind."""
        self.link.close(delivers=delivers)
        self.remove_folder()

    def remove_folder(self) -> None:
        """Remove the names of its sockets. Connected sockets need none."""
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)
            self.folder = None


class _Commands:
    """Runs the commands of frontends, each in a thread, and tells all of `list_frontends()` what they change."""

    def __init__(self, core: EngineLoop, list_frontends: Callable[[], Iterable[Frontend]]) -> None:
        self._core = core
        self._list_frontends = list_frontends
        self._told_status = core.status
        self._lock = threading.Lock()  # the last status sent is the last that was set

    def send_started(self, frontend: Frontend) -> None:
        """Tell a frontend what it works with. A change of the status is sent before this, or after it."""
        with self._lock:
            frontend.send(kinds.Started(self._core.facts, self._core.status))

    def begin(self, frontend: Frontend, message: kinds.Do) -> None:
        """Do what a frontend asks for in a thread."""
        thread = threading.Thread(target=self._do, args=(frontend, message), name="seesay-command", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # the system starts no thread now
            frontend.tell(partial(kinds.Done, message.number, None, describe_failure(error)), self._core)

    def _do(self, frontend: Frontend, message: kinds.Do) -> None:
        """Do what a frontend asks for, and tell it how that ended."""
        failure: kinds.Failure | None = None
        raised: kinds.StartFailed | None = None
        try:
            command = message.restore()
            self._core.run_command(command)
            if isinstance(command, ResetCaches):
                return_memory()
        except RequestError as error:
            failure = kinds.Failure.of(error)
        except BaseException as error:
            raised = describe_failure(error)
        with self._lock:
            status = self._core.status
            if status != self._told_status:
                self._told_status = status
                for other in self._list_frontends():
                    other.send(kinds.StatusChanged(status))
        frontend.tell(partial(kinds.Done, message.number, failure, raised), self._core, with_stats=True)


class Service:
    """Asks `core` for what frontends ask for, and tells them what it says: a `CoreListener`. The process ends with the
    frontend of `link`; `listener` lets others in."""

    def __init__(
        self,
        link: Link[kinds.ToFrontend, kinds.ToCore],
        core: EngineLoop,
        listener: socket.socket | None,
        *,
        beat_s: float,
    ) -> None:
        self._core = core
        self._listener = listener
        self._beat_s = beat_s
        self._first = Frontend(0, link)
        self._frontends: dict[int, Frontend] = {0: self._first}
        self._num_frontends = 1
        self._has_answered = False
        self._commands = _Commands(core, lambda: list(self._frontends.values()))
        self._memory_return = MemoryReturn()

    def run(self) -> bool:
        """Serve until the first frontend says that it is enough. Returns False where the core has given up before: this
        process must be replaced by another one."""
        self._core.embeddings.store.watch(self._note)
        self._core.start(self)
        self._commands.send_started(self._first)
        poller, next_beat_s, is_stopped = _make_poller(self._frontends.values(), self._listener), 0.0, False
        while not is_stopped and self._core.fault is None:
            if time.monotonic() >= next_beat_s:
                next_beat_s = time.monotonic() + self._beat_s
                self._beat()
                self._memory_return.return_if_due()
            # Rounded up: a wait that ends before the beat is due would be followed by one of no time, again and again.
            ready = dict(poller.poll(max(0, int(1000 * (next_beat_s - time.monotonic())) + 1)))
            num_frontends = len(self._frontends)
            if self._listener is not None and self._listener.fileno() in ready:
                self._let_in(self._listener)
            for frontend in list(self._frontends.values()):
                is_stopped |= self._hear(frontend)
            if len(self._frontends) != num_frontends:
                poller = _make_poller(self._frontends.values(), self._listener)
        self._core.close()
        for frontend in self._frontends.values():
            frontend.close(delivers=True)
        return is_stopped

    def _beat(self) -> None:
        """Tell all frontends that this process lives, and its counts."""
        for frontend in [frontend for frontend in self._frontends.values() if frontend.has_joined]:
            frontend.tell(partial(kinds.Beat, self._core.busy_s()), self._core, with_stats=True)

    def _let_in(self, listener: socket.socket) -> None:
        """Take a frontend that has connected."""
        found = accept_connection(listener, receives=kinds.ToCore)
        if found is None:
            logger.warning("a connection to the engine process was refused")
            return
        frontend = Frontend(self._num_frontends, *found)
        self._num_frontends += 1
        frontend.changed.extend(self._core.embeddings.store.keys())
        self._frontends = {**self._frontends, frontend.index: frontend}  # others read it: see `_note`
        frontend.send(kinds.Hello())

    def _hear(self, frontend: Frontend) -> bool:
        """Take the messages of a frontend that are there, but for those that other frontends and the heartbeat would
        have to wait for. Returns whether all is to end."""
        try:
            for _ in range(_MAX_MESSAGES):
                if not frontend.link.has_message():
                    break
                message = frontend.link.receive()
                if isinstance(message, kinds.Stop):
                    if frontend is self._first:
                        return True
                    frontend.is_lost = True
                    break
                self._take(frontend, message)
                del message  # the pixels in it are the core's to keep
        except Exception:
            if frontend is self._first:
                raise
            logger.exception("a frontend of the engine process is disconnected: its messages cannot be decoded")
            frontend.is_lost = True
        frontend.is_lost |= frontend.link.is_broken
        if frontend is self._first:  # what it was not told is lost: it starts another process
            return frontend.is_lost
        if frontend.is_lost or frontend.link.is_cut():
            others = dict(self._frontends)
            del others[frontend.index]
            self._frontends = others  # as in `_let_in`
            frontend.leave(self._core)
        return False

    def _take(self, frontend: Frontend, message: kinds.ToCore) -> None:
        core = self._core
        match message:
            case kinds.Submit(request):
                self._submit(frontend, request)
            case kinds.Finish(request_id, reason):
                core.finish(frontend.number(request_id), reason)
            case kinds.Abort(request_ids):
                core.abort(frontend.numbers(request_ids))
            case kinds.EndGroup(group_id):
                frontend.groups.discard(number := frontend.number(group_id))
                core.end_group(number)
            case kinds.ExpectMedia(request_ids):
                frontend.expected.update(numbers := frontend.numbers(request_ids))
                core.expect_media(numbers)
            case kinds.ForgetMedia(request_ids):
                frontend.expected.difference_update(numbers := frontend.numbers(request_ids))
                core.forget_media(numbers)
            case kinds.GiveFeatures(request_id, item_index, features, error):
                given = kinds.restore_features(features) if error is None else error.restore()
                core.give_features(frontend.number(request_id), item_index, given)
            case kinds.Do():
                self._commands.begin(frontend, message)
            case kinds.Join():
                frontend.remove_folder()
                self._commands.send_started(frontend)
                frontend.has_joined = True
            case _:
                raise TypeError(f"{type(message).__name__} is not expected now")

    def _submit(self, frontend: Frontend, request: kinds.Request) -> None:
        number = frontend.number(request.request_id)
        frontend.expected.discard(number)
        try:
            owner = request.owner if isinstance(request.owner, bytes) else (frontend.index, request.owner)
            group_id = None if request.group_id is None else frontend.number(request.group_id)
            restored = replace(request.restore(), request_id=number, owner=owner, group_id=group_id)
        except Exception as error:
            failure = kinds.Failure.of(explain(error))
            output = kinds.Output(request.request_id, (), None, "error", None, failure, None, None)
            frontend.tell(partial(kinds.Outputs, (output,)), self._core)
            self._core.forget_media([number])
        else:
            frontend.live.add(number)
            if restored.group_id is not None and restored.keeps_blocks:
                frontend.groups.add(restored.group_id)
            self._core.submit([restored])

    # --- called by the core -------------------------------------------------------------------------------------------

    def on_outputs(self, outputs: Sequence[TokenOutput]) -> None:
        """Send all outputs of a step, each frontend its own, in one message."""
        by_frontend: dict[int, list[TokenOutput]] = {}
        for output in outputs:
            by_frontend.setdefault(output.request_id >> _ID_BITS, []).append(output)
        for index, mine in by_frontend.items():
            frontend = self._frontends.get(index)
            if frontend is None:  # it has ended
                continue
            ended = [output.request_id for output in mine if output.finish_reason is not None]
            frontend.live.difference_update(ended)
            sent = tuple(kinds.Output.of(output, output.request_id - frontend.number(0)) for output in mine)
            frontend.tell(
                partial(kinds.Outputs, sent),
                self._core,
                with_stats=True if ended else None,
                done=partial(self._end_unsent, frontend, sent),
            )
        if not self._has_answered:  # a process that dies before that is not started again for ever
            self._has_answered = True
            self._beat()

    def _end_unsent(self, frontend: Frontend, outputs: Sequence[kinds.Output], error: OSError | None) -> None:
        """End the requests of outputs for whose arrays there was no memory. Called by the writer of the link."""
        if error is not None:
            ids = dict.fromkeys(output.request_id for output in outputs)
            self._core.abort(frontend.numbers(ids))
            failure = kinds.Failure.of(explain(error))
            ended = tuple(kinds.Output(number, (), None, "error", None, failure, None, None) for number in ids)
            frontend.tell(partial(kinds.Outputs, ended), self._core)

    def on_features_wanted(self, request_id: int, item_index: int) -> None:
        """Ask the frontend of the request for them."""
        frontend = self._frontends.get(request_id >> _ID_BITS)
        if frontend is not None:
            frontend.send(kinds.FeaturesWanted(request_id - frontend.number(0), item_index))

    def on_encoding(self, item_hash: bytes) -> None:
        """Nothing: frontends learn it from the news of the embedding store."""

    def _note(self, item_hash: bytes) -> None:
        """An embedding has come or gone. Called by the store, under its lock."""
        for frontend in self._frontends.values():
            frontend.changed.append(item_hash)


def _make_poller(frontends: Iterable[Frontend], listener: socket.socket | None) -> zmq.Poller:
    poller = zmq.Poller()
    for frontend in frontends:
        frontend.link.register(poller)
    if listener is not None:
        poller.register(listener.fileno(), zmq.POLLIN)
    return poller
