"""Who waits for whom, with names in place of streams and events. The real ones are in the tests on a GPU."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from seesay.device import tower_pacer as module
from seesay.device.tower_pacer import TowerPacer


class Log:
    """What was recorded and held: (stream, 'recorded', n) and (stream, 'waits for', event)."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.entries: list[tuple[Any, ...]] = []
        monkeypatch.setattr(module, "record_event", self.record)
        monkeypatch.setattr(module, "hold_stream", self.hold)

    def record(self, stream: str) -> str:
        event = f"{stream} {len(self.entries)}"
        self.entries.append((stream, event))
        return event

    def hold(self, stream: str, event: str | None) -> None:
        if event is not None:
            self.entries.append((stream, "waits for", event))


def test_steps_and_calls_alternate_while_answers_are_streamed(monkeypatch: pytest.MonkeyPatch) -> None:
    log, pacer = Log(monkeypatch), TowerPacer()
    stream: Any = "step"
    tower: Any = "tower"
    with pacer.step(stream, is_paced=True):
        pass
    with pacer.call(tower):
        pass
    with pacer.step(stream, is_paced=True):
        pass
    with pacer.step(stream, is_paced=True):
        pass
    assert log.entries == [
        ("step", "step 0"),
        ("tower", "waits for", "step 0"),
        ("tower", "tower 2"),
        ("step", "waits for", "tower 2"),
        ("step", "step 4"),
        ("step", "step 5"),
    ]


@pytest.mark.parametrize("end", ["step", "rest"])
def test_a_second_call_waits_for_a_step_or_for_the_end_of_steps(monkeypatch: pytest.MonkeyPatch, end: str) -> None:
    monkeypatch.setattr(module, "MAX_WAIT_S", 60.0)
    Log(monkeypatch)
    pacer = TowerPacer()
    stream: Any = "step"
    called = threading.Event()

    def call() -> None:
        with pacer.call(stream):
            called.set()

    with pacer.step(stream, is_paced=True):
        pass
    call()
    called.clear()
    thread = threading.Thread(target=call)
    thread.start()
    assert not called.wait(0.1)
    if end == "rest":
        pacer.rest()
    else:
        with pacer.step(stream, is_paced=True):
            pass
    assert called.wait(60)
    thread.join()


def test_nothing_waits_where_nobody_reads_and_where_there_are_no_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    log, pacer = Log(monkeypatch), TowerPacer()
    stream: Any = "step"
    for _ in range(3):
        with pacer.step(stream, is_paced=False), pacer.call(stream):
            pass
    assert not [entry for entry in log.entries if "waits for" in entry]
    log.entries.clear()
    with pacer.step(None, is_paced=True), pacer.call(None):
        pass
    assert not log.entries
