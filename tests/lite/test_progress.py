"""Off a terminal progress is a line every 30 seconds, on one a bar."""

from __future__ import annotations

import io
import queue
import sys
import threading

import pytest

from seesay.lite.progress import INTERVAL_S, Progress


class Timer:
    """A clock whose hands tests move, and a wait that ends when they do."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self._steps: queue.Queue[bool] = queue.Queue()
        self._waits = threading.Semaphore(0)

    def __call__(self) -> float:
        return self.now_s

    def wait(self, seconds: float) -> bool:
        assert seconds == INTERVAL_S == 30.0
        self._waits.release()
        return self._steps.get(timeout=60)

    def pass_interval(self) -> None:
        """Let one interval pass, and return when its line is written."""
        self._waits.acquire(timeout=60)
        self.now_s += INTERVAL_S
        self._steps.put(False)
        self._waits.acquire(timeout=60)
        self._waits.release()

    def end(self) -> None:
        self._steps.put(True)


def test_a_line_every_30_seconds_off_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """Whether parts end meanwhile or not; many short parts write no line each."""
    timer = Timer()
    with Progress("gptq", 28, "layers", clock=timer, wait=timer.wait) as progress:
        for _ in range(20):
            progress.advance()
        assert capsys.readouterr().err == ""
        timer.pass_interval()
        timer.pass_interval()
        progress.advance()
        timer.pass_interval()
        shown = ["gptq: 20 of 28 layers, 30 s", "gptq: 20 of 28 layers, 60 s", "gptq: 21 of 28 layers, 90 s"]
        assert capsys.readouterr().err.splitlines() == shown
        for _ in range(7):
            progress.advance()
        timer.now_s += 5
        timer.end()
    assert capsys.readouterr().err == "gptq: 28 of 28 layers, 95 s\n"


def test_work_that_fails_has_no_last_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="full"), Progress("gptq", 2, "layers") as progress:
        progress.advance()
        raise ValueError("full")
    assert capsys.readouterr().err == ""
    assert not [thread for thread in threading.enumerate() if thread.name == "seesay-progress"]


def test_a_terminal_has_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with Progress("gptq", 2, "layers") as progress:
        progress.advance()
        progress.advance()
    assert "\rgptq: 100%" in terminal.getvalue() and "2/2" in terminal.getvalue()
