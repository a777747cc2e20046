from __future__ import annotations

import threading

import pytest
from waiting import wait_until

from seesay.system.fair_threads import FairThreads


def test_threads_take_the_tasks_of_owners_in_turns() -> None:
    threads, done, held = FairThreads(1, name="test"), list[str](), threading.Event()
    first = threads.submit("heavy", held.wait, 10)
    wait_until(first.running)
    futures = [threads.submit("heavy", done.append, f"heavy {i}") for i in range(5)]
    futures += [threads.submit("light", done.append, f"light {i}") for i in range(2)]
    failing = threads.submit("light", int, "x")
    held.set()
    assert first.result(60)
    for future in futures:
        future.result(60)
    with pytest.raises(ValueError):
        failing.result(60)
    assert done == ["heavy 0", "light 0", "heavy 1", "light 1", "heavy 2", "heavy 3", "heavy 4"]
    threads.close()
    with pytest.raises(RuntimeError):
        threads.submit("heavy", int)
    assert not threads._calls


def test_an_owner_leaves_threads_to_others() -> None:
    """All of its calls run in the end, when the pool is closed, too."""
    threads, gate, running = FairThreads(4, name="test", max_per_owner=2), threading.Event(), threading.Semaphore(0)
    done: list[int] = []

    def wait(number: int) -> None:
        running.release()
        assert gate.wait(60)
        done.append(number)

    futures = [threads.submit("heavy", wait, number) for number in range(9)]
    assert running.acquire(timeout=60) and running.acquire(timeout=60)
    assert threads.submit("light", pow, 2, 3).result(60) == 8
    assert threads.submit("other", pow, 2, 4).result(60) == 16
    assert not running.acquire(blocking=False), "a third thread of one owner"
    gate.set()
    threads.close()
    assert sorted(done) == list(range(9)) and all(future.done() for future in futures)
    assert not threads._calls and not threads._num_running and not threads._num_deferred
