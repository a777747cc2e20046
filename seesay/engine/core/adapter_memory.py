"""Which adapters are in host memory: others are in their files alone, and are read again when a request comes for
them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Set
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from seesay.engine.core.live_request import LiveRequest

Read = TypeVar("Read")


@dataclass(frozen=True, slots=True)
class AdapterMoves(Generic[Read]):
    """Changes to the adapters in host memory, in this order: `leaving` are dropped, `come` were read and are
    added."""

    leaving: tuple[int, ...]
    come: tuple[tuple[int, Future[Read]], ...]


class AdapterMemory(Generic[Read]):
    """At most `limit` adapters are in host memory; 0: all. Used by the loop's thread; `read` by one of its own.

    An adapter that no request uses makes room for one that a request waits for: that which was used longest ago. Where
    requests use all of them, then for each adapter that waits, the one that came first takes no more requests, so that
    it leaves when its present ones have ended: none waits for ever, and others go on.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._there: list[int] = []  # in the order in which they came
        self._uses: dict[int, None] = {}  # the same, by their last uses
        self._reading: dict[int, Future[Read]] = {}
        self._full: Set[int] = frozenset()
        self._admitted: Set[int] = frozenset()
        self._threads: ThreadPoolExecutor | None = None

    def try_add(self, adapter_id: int) -> bool:
        """Take an adapter that was loaded, if there is room; else it stays in its file."""
        if self._limit and len(self._there) + len(self._reading) >= self._limit:
            return False
        self._add(adapter_id)
        return True

    @property
    def is_reading(self) -> bool:
        """Whether adapters are read."""
        return bool(self._reading)

    def forget(self, adapter_id: int) -> None:
        """Forget an adapter that is unloaded."""
        self._reading.pop(adapter_id, None)
        if adapter_id in self._uses:
            del self._uses[adapter_id]
            self._there.remove(adapter_id)

    def take(self, request: LiveRequest) -> bool:
        """Return whether the adapter of a request is in memory, and takes it; else the request has to wait."""
        adapter_id = request.sequence.adapter_id
        if not adapter_id or not self._limit:
            return True
        is_admitted = request.request_id in self._admitted or adapter_id not in self._full
        if adapter_id not in self._uses or not is_admitted:
            return False
        self._uses[adapter_id] = self._uses.pop(adapter_id)
        return True

    def plan_moves(
        self, used: Set[int], wanted: Iterable[int], *, read: Callable[[int], Read], wake: Callable[[], None]
    ) -> AdapterMoves[Read]:
        """Make room for adapters that requests wait for, begin to read them, and return what is to be done before
        `find_ready`. used: adapters that stay. wanted: those of requests that wait. read: returns an adapter, in a
        thread of its own, which then calls `wake`."""
        come = self._take_read()
        used = used | {adapter_id for adapter_id, _ in come}
        waiting = [each for each in dict.fromkeys(wanted) if each not in self._uses and each not in self._reading]
        leaving: list[int] = []
        while waiting and self._make_room(used, leaving):
            self._read(waiting.pop(0), read, wake)
        self._full = frozenset([each for each in self._there if each in used][: len(waiting)])
        return AdapterMoves(tuple(leaving), come)

    def find_ready(self, adapter_ids: Iterable[int], held: Iterable[LiveRequest]) -> list[LiveRequest]:
        """Return which of the requests that wait need not any more: those of adapters that came, and of those that take
        requests again. `take` takes them."""
        come = frozenset(adapter_ids)
        ready = [
            each
            for each in held
            if (found := each.sequence.adapter_id) in come or (found in self._uses and found not in self._full)
        ]
        self._admitted = frozenset(each.request_id for each in ready)
        return ready

    def close(self) -> None:
        """Read nothing any more."""
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)

    def _take_read(self) -> tuple[tuple[int, Future[Read]], ...]:
        """Add the adapters that have been read meanwhile, and return them."""
        come = tuple((adapter_id, found) for adapter_id, found in self._reading.items() if found.done())
        for adapter_id, _ in come:
            del self._reading[adapter_id]
            self._add(adapter_id)
        return come

    def _add(self, adapter_id: int) -> None:
        self._there.append(adapter_id)
        self._uses[adapter_id] = None

    def _make_room(self, used: Set[int], leaving: list[int]) -> bool:
        """Return whether one more adapter has room, for which another may leave."""
        if len(self._there) + len(self._reading) < self._limit:
            return True
        unused = next((each for each in self._uses if each not in used), None)
        if unused is None:
            return False
        self.forget(unused)
        leaving.append(unused)
        return True

    def _read(self, adapter_id: int, read: Callable[[int], Read], wake: Callable[[], None]) -> None:
        if self._threads is None:
            self._threads = ThreadPoolExecutor(1, thread_name_prefix="seesay-adapters")
        found = self._reading[adapter_id] = self._threads.submit(read, adapter_id)
        found.add_done_callback(lambda _: wake())
