"""Ranks that follow in threads of this process: the messages of rank 0 cross as bytes, everything else is real."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import msgspec
from thread_ranks import ThreadRanks, make_ranks

from seesay.device.ranks import Ranks
from seesay.engine.process.ranks import rank_messages
from seesay.engine.process.ranks.follower import Follower, FollowingRunner, PlanFollower
from seesay.engine.process.ranks.followers import Answers, Followers
from seesay.engine.process.ranks.led_runner import LedRunner
from seesay.llm.models.decoder import Decoder
from seesay.llm.running.runner import ModelRunner
from seesay.llm.running.runner_limits import RunnerLimits


class ThreadFollowers(Followers):
    """`Followers` that are threads. What they raise is raised in rank 0 by `give_up`."""

    def __init__(self, runners: Sequence[PlanFollower]) -> None:
        self.size = 1 + len(runners)
        self.error: BaseException | None = None
        self._is_calling = False
        self._answers = Answers(self.size)
        self._told = [queue.SimpleQueue[bytes | None]() for _ in runners]
        weights: Any = _NoWeights()
        for rank, runner in enumerate(runners, start=1):
            threading.Thread(target=self._follow, args=(rank, Follower(runner, weights)), daemon=True).start()

    def tell(self, message: rank_messages.ToFollower) -> None:
        data = msgspec.msgpack.encode(message)
        for told in self._told:
            told.put(data)

    def give_up(self, error: BaseException) -> None:
        raise AssertionError("a rank failed") from self.error or error

    def end(self) -> None:
        """End the threads."""
        for told in self._told:
            told.put(None)

    def _follow(self, rank: int, follower: Follower) -> None:
        decoder = msgspec.msgpack.Decoder[Any](rank_messages.ToFollower)
        while (data := self._told[rank - 1].get()) is not None:
            try:
                answer = follower.take(decoder.decode(data))
            except BaseException as error:
                self.error = self.error or error
                raise
            if answer is not None:
                self._answers.put(rank, answer)


class _NoWeights:
    calls: ClassVar[dict[str, Any]] = {}


def make_led_runner(
    load: Callable[[Ranks | None], Decoder], limits: RunnerLimits, size: int
) -> tuple[LedRunner, ThreadFollowers, list[ModelRunner]]:
    """Return the runner of rank 0 of so many, those who follow it, and the runners of all. `load` loads a slice."""
    ranks: list[ThreadRanks] = make_ranks(size)
    following = [FollowingRunner(load(each), limits, ranks=each) for each in ranks[1:]]
    followers = ThreadFollowers(following)
    led = LedRunner(load(ranks[0]), limits, ranks=ranks[0], followers=followers)
    return led, followers, [led, *following]
