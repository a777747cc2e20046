"""The program that runs a module of ours in a process that cannot outlive its parent. It is this process here."""

from __future__ import annotations

import ctypes
import json
import runpy
import signal
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from seesay.engine.process import start

PDEATHSIG = 1
"""`PR_SET_PDEATHSIG` of Linux."""


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the kernel was asked for."""
    asked: list[Any] = []
    library = SimpleNamespace(prctl=lambda *arguments: asked.append(arguments))
    monkeypatch.setattr(ctypes, "CDLL", lambda name: library)
    return asked


def test_a_module_runs_as_a_program(asked: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stopped process goes on when its parent ends, and finds so."""
    (tmp_path / "some_program.py").write_text(
        "import json, pathlib, sys\n"
        "assert sys.modules['__main__'].__file__ == __file__\n"
        f"pathlib.Path({str(tmp_path / 'said')!r}).write_text(json.dumps([__name__, sys.argv]))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "argv", ["start.py", "some_program", "more"])
    runpy.run_path(start.__file__, run_name="__main__")
    name, arguments = json.loads((tmp_path / "said").read_text())
    assert name == "__main__" and arguments == [str(tmp_path / "some_program.py"), "more"]
    assert asked == [(PDEATHSIG, signal.SIGCONT)]


def test_the_kernel_is_asked_for_a_signal(asked: list[Any]) -> None:
    start.signal_when_parent_ends(signal.SIGKILL)
    assert asked == [(PDEATHSIG, signal.SIGKILL)]


@pytest.mark.parametrize("error", [OSError("no such library"), AttributeError("no prctl")])
def test_other_systems_cannot(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def refuse(name: object) -> Any:
        raise error

    monkeypatch.setattr(ctypes, "CDLL", refuse)
    start.signal_when_parent_ends(signal.SIGKILL)
