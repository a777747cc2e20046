"""The process that tries grammars, in which some trials wait until the test lets them go on; and trials without an
end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from waiting import wait_until

from seesay.grammars import trial_child
from seesay.grammars.compile import TokenTable
from seesay.system.python import python_command

_CODE = """
import os, time
from pathlib import Path
from seesay.grammars import trial_child as child

parent, try_really = os.getpid(), child._try
log, may_go_on = os.open({log!r}, os.O_WRONLY | os.O_APPEND), Path({may_go_on!r})

def try_later(table, grammar, pipe):
    os.write(log, (str(os.getpid()) + " " + grammar.source + chr(10)).encode())
    while "held" in grammar.source and not may_go_on.exists() and os.getppid() == parent:
        time.sleep(0.01)
    try_really(table, grammar, pipe)

child._try, child.WALL_S = try_later, 600.0
child.main()
"""


class HeldTrials:
    """Trials of sources with the word "held" wait. command: starts the process, for `GrammarTrials`."""

    def __init__(self, folder: Path) -> None:
        self._log, self._may_go_on = folder / "log", folder / "may_go_on"
        self._log.touch()
        program, environment = python_command("seesay.grammars.trial_child")
        code = _CODE.format(log=str(self._log), may_go_on=str(self._may_go_on))
        self.command: tuple[Sequence[str], Mapping[str, str]] = [program[0], "-P", "-c", code], environment

    def release(self) -> None:
        self._may_go_on.touch()

    def list_begun(self) -> list[str]:
        """Return the sources of all trials that have begun."""
        return [line.partition(" ")[2] for line in self._log.read_text().splitlines()]

    def list_running(self) -> list[str]:
        """Return the sources of the trials that run."""
        lines = [line.partition(" ") for line in self._log.read_text().splitlines()]
        return [source for pid, _, source in lines if _runs(int(pid))]


def begin_endless(table: TokenTable, number: int, monkeypatch: pytest.MonkeyPatch) -> trial_child._Trials:
    """Return trials, in this process, of one that never ends and has taken so long that it needs a fork for slow ones,
    of which there is none."""

    def work(*args: object) -> None:
        while True:
            pass

    monkeypatch.setattr(trial_child, "_try", work)
    monkeypatch.setattr(trial_child, "MAX_SLOW", 0)
    trials = trial_child._Trials(table)
    trials.take((number, "regex", "a", False))
    trials.begin()
    [trial] = trials.running.values()
    wait_until(lambda: trial.find_cpu_s() >= trial_child.BUDGET_S)
    return trials


def _runs(pid: int) -> bool:
    """Whether a process runs: one that has ended may wait to be noticed by its parent."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
