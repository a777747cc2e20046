"""Ranks that follow without processes: a test is at the other end of each link, and says how each rank ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import zmq
from link_pair import make_pair

from seesay.engine.process.ranks import rank_messages


class ScriptedRank:
    """A `RankProcess`. far: its end of the link. `find_end` is called again and again, and returns how it has ended."""

    def __init__(self, executor: ScriptedExecutor, rank: int) -> None:
        self.link, self.far = make_pair(rank_messages.ToLeader, rank_messages.ToFollower)
        self.find_end: Callable[[], str | None] = lambda: None
        self._executor, self._rank = executor, rank

    def register(self, poller: zmq.Poller) -> None:
        self.link.register(poller)

    def kill(self) -> None:
        self._executor.done.append(("kill", self._rank))

    def end(self, timeout_s: float = 0.0) -> None:
        self._executor.on_end(self._rank)
        self._executor.done.append(("end", self._rank, timeout_s))
        self.link.close()
        self.far.close()


class ScriptedExecutor:
    """An `Executor` of `ScriptedRank`s. done: what became of them. on_end: is called
    before a rank is ended. A rank of `fails` cannot be started."""

    is_local = True

    def __init__(self, fails: int | None = None) -> None:
        self.ranks: dict[int, ScriptedRank] = {}
        self.done: list[Any] = []
        self.on_end: Callable[[int], object] = lambda rank: None
        self._fails = fails

    def start(self, rank: int) -> Any:
        if rank == self._fails:
            raise OSError(11, "no more processes")
        self.ranks[rank] = ScriptedRank(self, rank)
        return self.ranks[rank]

    def pick_device(self, device_type: str, place: Any) -> Any:
        raise AssertionError(f"nobody asks for {device_type} as {place}")

    def meet(self) -> Any:
        raise AssertionError("there is nobody to meet")

    def close(self) -> None:
        self.done.append("close")
