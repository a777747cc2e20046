"""The processes of the ranks that follow: started, told what to do, and watched while rank 0 may be stuck itself."""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import msgspec
import zmq

from seesay.engine.process.failures import restore_failure
from seesay.engine.process.kinds import Hello, LogRecord, StartFailed
from seesay.engine.process.link import LinkClosedError
from seesay.engine.process.ranks import rank_messages
from seesay.engine.process.ranks.executor import Executor, RankProcess
from seesay.engine.process.ranks.waits import Waits
from seesay.engine.process.waker import Waker
from seesay.engine.watchdog import ENGINE, find_hung
from seesay.errors import SeesayError, describe
from seesay.system.liveness import LIMIT_S, Silence

logger = logging.getLogger("seesay")

T = TypeVar("T")

MEETINGS = frozenset(["profile", "warm_up", "record_graphs", "restore_graphs", "measure_step_costs"])
"""Calls in which the ranks exchange tensors: a rank that fails leaves the others waiting."""
_POLL_MS = 500
_END_S = 5.0
_LAST_WORDS_S = 0.2
_VERDICT_S = 2.0
"""An exchange fails when another rank dies, a moment before its death is noticed."""
_FIRST_WORD_S = 120.0


class Answers:
    """Those of ranks 1 … size - 1. `put` is called by another thread than `wait`."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._queues = {rank: queue.SimpleQueue[rank_messages.Answer]() for rank in range(1, size)}

    def put(self, rank: int, answer: rank_messages.Answer) -> None:
        """Take the answer of a rank."""
        self._queues[rank].put(answer)

    def wait(self) -> list[Any]:
        """Wait for an answer of each rank, and return what is in them, in their order. Raises the first error."""
        found = [answers.get() for answers in self._queues.values()]
        for rank, answer in zip(self._queues, found, strict=True):
            if answer.failure is not None:
                raise _restore(rank, self._size, answer.failure)
        return [answer.value for answer in found]


def _restore(rank: int, size: int, failure: StartFailed) -> Exception:
    """Return the exception of a follower, whose text names it."""
    return restore_failure(msgspec.structs.replace(failure, text=f"rank {rank} of {size}: {failure.text}"))


class Followers:
    """Ranks 1 … size - 1. `tell` and `call` are used by one thread at a time.

    A follower that dies, hangs or fails ends the model: `lose` is called once, with the reason, from any thread, and is
    not expected to return. `executor` starts them.
    """

    def __init__(
        self,
        start: rank_messages.Follow,
        size: int,
        *,
        lose: Callable[[Exception], None],
        executor: Executor,
        first_word_s: float = _FIRST_WORD_S,
    ) -> None:
        """Start the processes from a thread that lives as long as they shall. first_word_s: one that says nothing for
        so long after its start hangs. Raises `OSError`, `ConfigError`."""
        self.size = size
        self.executor = executor
        self._lose = lose
        self._start = start
        self._children: dict[int, RankProcess] = {}
        self._answers, self._waits = Answers(size), Waits(size)
        self._silence, self._unheard = Silence(LIMIT_S), Silence(first_word_s)
        self._step_limit_s: float | None = None
        self._waker = Waker()
        self._is_closed = self._is_calling = False
        self._verdict = threading.Lock()
        self._is_lost = threading.Event()
        self._is_over = threading.Event()  # `lose` has returned: the process goes on, in a test
        self._thread = threading.Thread(target=self._watch, name="seesay-ranks", daemon=True)
        try:
            for rank in range(1, size):
                self._waits.begin(rank, "starting its process")
                self._children[rank] = executor.start(rank)
                self._unheard.hear(rank)
            self._thread.start()
        except BaseException:
            self._end_all(0.0)
            raise

    def watch_steps(self, limit_s: float, silence_s: float) -> None:
        """From now on, treat a follower as hung whose step takes longer than `limit_s`, or that is silent for longer
        than `silence_s`."""
        self._step_limit_s = limit_s
        self._silence.limit_s = silence_s

    # --- called by the thread that leads ----------------------------------------------------------------------------

    def tell(self, message: rank_messages.ToFollower) -> None:
        """Send a message to all."""
        for rank, child in self._children.items():
            if isinstance(message, rank_messages.Call):
                self._waits.begin(rank, message.name)
            with contextlib.suppress(LinkClosedError):  # it has died, which the other thread finds out
                child.link.send(message)

    def wait_for_answers(self) -> list[Any]:
        """See `Answers.wait`."""
        return self._answers.wait()

    def call(self, name: str, work: Callable[[], T], arguments: Mapping[str, Any]) -> tuple[T, list[Any]]:
        """Have all ranks do something: the followers what is called `name`, this rank `work` meanwhile. Returns what
        this one and the others return. Within `work` nothing else is called: the followers do it as a part of theirs.

        Raises the first error once all are done, this rank's first. In a meeting that is at once, and nothing may be
        called afterwards.
        """
        if self._is_calling:
            return work(), []
        self._is_calling = True
        try:
            self.tell(rank_messages.Call(name, dict(arguments)))
            try:
                own = work()
            except BaseException:
                if name not in MEETINGS:
                    with contextlib.suppress(Exception):
                        self.wait_for_answers()
                raise
            return own, self.wait_for_answers()
        finally:
            self._is_calling = False

    def give_up(self, error: BaseException) -> None:
        """This rank failed in a step, where the others cannot be told: end the model. If another one has died, that is
        the reason. Does not return while the process ends."""
        if not self._is_lost.wait(_VERDICT_S):
            logger.error("rank 0 failed in a step", exc_info=error)
            self._give_up(SeesayError(f"rank 0 of {self.size} failed in a step: {describe(error)}"))
        self._is_over.wait()

    def close(self) -> None:
        """End the processes. Call it from the thread that started them."""
        self._is_closed = True
        self._waker.wake()
        if self._thread.is_alive():
            self._thread.join()
        self.tell(rank_messages.Stop())
        self._end_all(_END_S)

    def _end_all(self, timeout_s: float) -> None:
        for child in self._children.values():
            child.end(timeout_s)
        self._waker.close()
        self.executor.close()

    # --- the thread that watches --------------------------------------------------------------------------------------

    def _watch(self) -> None:
        poller = zmq.Poller()
        poller.register(self._waker.fileno(), zmq.POLLIN)
        for child in self._children.values():
            child.register(poller)
        while not self._is_closed:
            poller.poll(_POLL_MS)
            try:
                error = self._look()
            except Exception as failure:
                logger.exception("the messages of a rank cannot be read")
                error = failure
            if error is not None and not self._is_closed:
                self._give_up(error)
                return

    def _look(self) -> Exception | None:
        """Take all messages. Returns why the model is lost, if it is."""
        self._waits.log_long()
        for rank, child in self._children.items():
            end = child.find_end()
            while child.link.wait(0.0 if end is None else _LAST_WORDS_S):
                if error := self._take(rank, child, child.link.receive()):
                    return error
            if end is not None:
                return SeesayError(f"rank {rank} of {self.size} died ({end})")
        for rank, silent_s in {**self._unheard.find_hung(), **self._silence.find_hung()}.items():
            return SeesayError(f"rank {rank} of {self.size} hangs: it has said nothing for {silent_s:.0f} s")
        return None

    def _take(self, rank: int, child: RankProcess, message: rank_messages.ToLeader) -> Exception | None:
        """Take a message. Returns why the model is lost, if it is."""
        match message:
            case Hello():
                self._unheard.forget(rank)
                self._silence.hear(rank)
                child.link.send(msgspec.structs.replace(self._start, rank=rank))
            case rank_messages.Doing(what):
                self._waits.begin(rank, what)
            case rank_messages.Answer():
                self._waits.end(rank)
                self._answers.put(rank, message)
            case rank_messages.Beat(busy_s):
                self._silence.hear(rank)
                if self._step_limit_s is not None and (hung := find_hung({ENGINE: busy_s}, self._step_limit_s)):
                    return SeesayError(f"rank {rank} of {self.size}: {hung.reason}")
            case LogRecord(name, level, text):
                logging.getLogger(name).log(level, "rank %d: %s", rank, text)
            case StartFailed():
                return _restore(rank, self.size, message)
        return None

    def _give_up(self, error: Exception) -> None:
        """End the model, once."""
        if not self._verdict.acquire(blocking=False):
            return
        self._is_lost.set()
        for child in self._children.values():
            child.kill()  # also one that is stopped
        self._lose(error)
        self._is_over.set()
