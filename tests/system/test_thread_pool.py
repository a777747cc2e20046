from __future__ import annotations

import gc
import threading
import time
import weakref

import pytest
from waiting import wait_until

from seesay.system.thread_pool import ThreadPool


def count_threads(name: str) -> int:
    return sum(thread.name.startswith(name) for thread in threading.enumerate())


def test_results_and_errors_come_through_futures() -> None:
    pool = ThreadPool(2, name="pool-results")
    assert [pool.submit(pow, k, 2) for k in range(3)][2].result(60) == 4
    assert isinstance(pool.submit(int, "x").exception(60), ValueError)
    assert pool.submit(int, "12", base=3).result(60) == 5
    pool.close()


def test_as_many_threads_as_there_is_work_and_no_more_than_allowed() -> None:
    pool = ThreadPool(3, name="pool-number")
    for _ in range(5):
        pool.submit(int).result(60)
        wait_until(lambda: pool._calls.num_unfinished == 0)
    assert count_threads("pool-number") == 1
    together = threading.Barrier(3)
    futures = [pool.submit(together.wait, 60) for _ in range(3)]
    assert sorted(future.result(60) for future in futures) == [0, 1, 2]
    gate = threading.Event()
    futures = [pool.submit(gate.wait, 10) for _ in range(7)]
    assert count_threads("pool-number") == 3
    gate.set()
    assert all(future.result(60) for future in futures)
    pool.close()


def test_closing_finishes_what_was_submitted_and_refuses_more() -> None:
    pool = ThreadPool(2, name="pool-closing")
    futures = [pool.submit(time.sleep, 0.01) for _ in range(10)]
    pool.close()
    assert all(future.done() for future in futures) and count_threads("pool-closing") == 0
    with pytest.raises(RuntimeError, match="pool-closing"):
        pool.submit(int)


def test_a_pool_that_nobody_refers_to_ends_its_threads() -> None:
    pool = ThreadPool(2, name="pool-forgotten")
    together = threading.Barrier(2)
    for future in [pool.submit(together.wait, 60) for _ in range(2)]:
        future.result(60)
    assert count_threads("pool-forgotten") == 2
    del pool, future
    gc.collect()
    wait_until(lambda: count_threads("pool-forgotten") == 0)


def test_an_idle_thread_keeps_nothing_alive() -> None:
    class Payload:
        pass

    pool = ThreadPool(1, name="pool-idle")
    payload = Payload()
    reference = weakref.ref(payload)
    pool.submit(id, payload).result(60)
    del payload
    wait_until(lambda: reference() is None)
    pool.close()


def test_without_new_threads_the_old_ones_do_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    pool, empty = ThreadPool(2, name="pool-poor"), ThreadPool(2, name="pool-empty")
    pool.submit(int).result(60)
    monkeypatch.setattr(threading.Thread, "start", fail)
    gate = threading.Event()
    first, second = pool.submit(gate.wait, 10), pool.submit(int, "7")
    gate.set()
    assert first.result(60) and second.result(60) == 7
    with pytest.raises(RuntimeError, match="new thread"):
        empty.submit(int)
    monkeypatch.undo()
    assert empty.submit(int, "8").result(60) == 8
    pool.close()
    empty.close()
