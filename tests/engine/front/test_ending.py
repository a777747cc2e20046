"""Engines that nobody closes: their cores are stopped, and waited for at the end of the process."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from seesay.engine.front import ending
from seesay.engine.front.ending import close_engines, end_in_time, forget


class Core:
    def __init__(self) -> None:
        self.calls: list[str] = []

    def stop(self) -> None:
        self.calls.append("stop")

    def close(self) -> None:
        self.calls.append("close")


class Engine:
    """Closes its core as an engine does."""

    def __init__(self, core: Any) -> None:
        self._core = core
        end_in_time(self, core)

    def close(self) -> None:
        self._core.close()
        forget(self)


@pytest.fixture
def core(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The engines of other tests are not looked at."""
    monkeypatch.setattr(ending, "_open_engines", type(ending._open_engines)())
    monkeypatch.setattr(ending, "_stopping_cores", type(ending._stopping_cores)())
    yield Core()


def test_the_last_reference_stops_the_core_and_the_process_waits_for_it(core: Any) -> None:
    engine = Engine(core)
    gc.collect()
    assert not core.calls, "somebody has it"
    del engine
    gc.collect()
    assert core.calls == ["stop"], "garbage collection waits for nothing"
    close_engines()
    assert core.calls == ["stop", "close"]


def test_open_engines_are_closed_once(core: Any) -> None:
    engine = Engine(core)
    close_engines()
    close_engines()
    assert core.calls == ["close"]
    engine.close()


def test_an_engine_that_was_closed_is_forgotten(core: Any) -> None:
    engine = Engine(core)
    engine.close()
    close_engines()
    assert core.calls == ["close"]


def test_a_fork_leaves_the_engine_of_its_parent_alone(core: Any) -> None:
    engine = Engine(core)
    pid = os.fork()
    if not pid:
        del engine
        gc.collect()
        os._exit(len(core.calls))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    del engine
    gc.collect()
    assert core.calls == ["stop"]


def test_a_fork_does_not_wait_for_what_ends_in_its_parent(core: Any) -> None:
    Engine(core)
    gc.collect()
    assert core.calls == ["stop"]
    pid = os.fork()
    if not pid:
        close_engines()
        os._exit(core.calls.count("close"))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_any_thread_may_collect_it(core: Any) -> None:
    engines = [Engine(core)]
    thread = threading.Thread(target=engines.clear)
    thread.start()
    thread.join()
    gc.collect()
    assert core.calls == ["stop"]
