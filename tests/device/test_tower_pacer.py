"""Who waits for whom, with names in place of streams and events. The real ones are in the tests on a GPU."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from seesay.device.tower_pacer import TowerPacer


class Stream:
    """Writes down what is recorded and held: (stream, event) and (stream, 'waits for', event)."""

    def __init__(self, name: str, entries: list[tuple[str, ...]]) -> None:
        self.name = name
        self.entries = entries

    def record_event(self) -> str:
        event = f"{self.name} {len(self.entries)}"
        self.entries.append((self.name, event))
        return event

    def wait_event(self, event: str) -> None:
        self.entries.append((self.name, "waits for", event))


def test_steps_and_calls_alternate() -> None:
    entries, pacer = list[tuple[str, ...]](), TowerPacer()
    stream: Any = Stream("step", entries)
    tower: Any = Stream("tower", entries)
    with pacer.step(stream):
        pass
    with pacer.call(tower):
        pass
    with pacer.step(stream):
        pass
    with pacer.step(stream):
        pass
    assert entries == [
        ("step", "step 0"),
        ("tower", "waits for", "step 0"),
        ("tower", "tower 2"),
        ("step", "waits for", "tower 2"),
        ("step", "step 4"),
        ("step", "step 5"),
    ]


@pytest.mark.parametrize("end", ["step", "rest"])
def test_a_second_call_waits_for_a_step_or_for_the_end_of_steps(end: str) -> None:
    pacer = TowerPacer(max_wait_s=60.0)
    stream: Any = Stream("step", [])
    called = threading.Event()

    def call() -> None:
        with pacer.call(stream):
            called.set()

    with pacer.step(stream):
        pass
    call()
    called.clear()
    thread = threading.Thread(target=call)
    thread.start()
    assert not called.wait(0.1)
    if end == "rest":
        pacer.rest()
    else:
        with pacer.step(stream):
            pass
    assert called.wait(60)
    thread.join()


def test_nothing_waits_where_no_step_follows_and_where_there_are_no_streams() -> None:
    entries, pacer = list[tuple[str, ...]](), TowerPacer(max_wait_s=60.0)
    stream: Any = Stream("tower", entries)
    with pacer.step(stream):
        pass
    pacer.rest()
    for _ in range(3):
        with pacer.call(stream):
            pass
    assert len(entries) == 4 and not [entry for entry in entries if "waits for" in entry]
    entries.clear()
    with pacer.step(None), pacer.call(None):
        pass
    assert not entries


def test_a_step_waits_until_a_call_is_launched() -> None:
    """Else it would be computed beside the call: its event is recorded when all its kernels are launched."""
    entries, pacer = list[tuple[str, ...]](), TowerPacer(max_launch_s=60.0)
    stream: Any = Stream("step", entries)
    tower: Any = Stream("tower", entries)
    alone: list[bool] = []

    def step() -> None:
        with pacer.step(stream) as is_alone:
            alone.append(is_alone)

    with pacer.call(tower):
        thread = threading.Thread(target=step)
        thread.start()
        thread.join(0.1)
        assert not entries and not alone
    thread.join()
    assert alone == [True]
    assert entries == [("tower", "tower 0"), ("step", "waits for", "tower 0"), ("step", "step 2")]


def test_a_call_waits_until_a_step_is_launched() -> None:
    """Else it would follow the step before, and be computed beside the one that is being launched."""
    entries, pacer = list[tuple[str, ...]](), TowerPacer(max_wait_s=60.0)
    stream: Any = Stream("step", entries)
    tower: Any = Stream("tower", entries)

    def call() -> None:
        with pacer.call(tower):
            pass

    with pacer.step(stream):
        pass
    with pacer.step(stream):
        thread = threading.Thread(target=call)
        thread.start()
        thread.join(0.1)
        assert entries == [("step", "step 0")]
    thread.join()
    assert entries[1:] == [("step", "step 1"), ("tower", "waits for", "step 1"), ("tower", "tower 3")]


def test_a_step_does_not_wait_long_and_knows_that_it_is_not_alone() -> None:
    pacer = TowerPacer(max_launch_s=0.01)
    stream: Any = Stream("step", [])
    with pacer.call(stream), pacer.step(stream) as is_alone:
        assert not is_alone
    with pacer.step(stream) as is_alone:
        assert is_alone


def test_on_devices_of_their_own_nothing_waits() -> None:
    entries, pacer = list[tuple[str, ...]](), TowerPacer(is_shared=False, max_wait_s=60.0, max_launch_s=60.0)
    stream: Any = Stream("step", entries)
    with pacer.call(stream), pacer.step(stream) as is_alone, pacer.call(stream):
        assert is_alone
    assert not entries and not pacer.is_resting
