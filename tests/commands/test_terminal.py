"""A real pseudo-terminal: pasted texts, line editing, and what was typed in former runs."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import stat
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from seesay.commands.chat.history import FILE_VARIABLE, History, find_history_file

ECHO = """
import sys
from seesay.commands.chat.history import History, find_history_file
from seesay.commands.chat.terminal import Terminal
terminal = Terminal(history=History(find_history_file()))
terminal.set_up_editing(lambda line: [])
while True:
    try:
        print("GOT", ascii(terminal.read("you> ")), flush=True)
    except EOFError:
        break
"""


class Screen:
    """A process at a pseudo-terminal that says what it read."""

    def __init__(self, file: Path, term: str) -> None:
        self.pid, self._terminal = pty.fork()
        if self.pid == 0:
            os.environ |= {"TERM": term, FILE_VARIABLE: str(file)}
            os.execv(sys.executable, [sys.executable, "-c", ECHO])
        self._shown = ""
        self._seen = 0

    def send(self, text: str) -> None:
        os.write(self._terminal, text.encode())

    def wait_for(self, pattern: str) -> re.Match[str]:
        """What is shown from here on matches; returns the match."""
        deadline = time.monotonic() + 60
        while not (match := re.search(pattern, self._shown[self._seen :])):
            assert time.monotonic() < deadline, self._shown
            if select.select([self._terminal], [], [], 0.1)[0]:
                self._shown += os.read(self._terminal, 1 << 16).decode(errors="replace")
        self._seen += match.end()
        return match

    def message(self) -> str:
        """The next message that was read."""
        return str(json.loads(self.wait_for(r"GOT '(.*)'\r\n")[1].join('""')))

    def end(self) -> None:
        os.close(self._terminal)
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


@pytest.fixture(params=["xterm", "dumb"])
def screen(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Screen]:
    screen = Screen(tmp_path / "history", request.param)
    screen.wait_for("you> ")
    yield screen
    screen.end()


def test_a_pasted_text_is_one_message(screen: Screen) -> None:
    screen.send("one\ntwo \\\nthree\n")
    assert screen.message() == "one\ntwo \\\nthree"
    screen.wait_for("you> ")
    screen.send("four\nfive")  # the end waits for a key
    time.sleep(0.3)
    screen.send(" and six\n")
    assert screen.message() == "four\nfive and six"
    screen.wait_for("you> ")
    for line in ("seven", "eight"):
        screen.send(f"{line}\n")
        assert screen.message() == line
        screen.wait_for("you> ")


def test_a_paste_that_the_terminal_brackets(tmp_path: Path) -> None:
    screen = Screen(tmp_path / "history", "xterm")
    try:
        screen.wait_for(r"\x1b\[\?2004h")
        screen.send("\x1b[200~one\ntwo\n\x1b[201~")
        time.sleep(0.3)
        screen.send("three\n")
        assert screen.message() == "one\ntwo\nthree"
    finally:
        screen.end()


def test_lines_typed_ahead_are_messages(screen: Screen) -> None:
    screen.send("one\n")
    os.kill(screen.pid, signal.SIGSTOP)
    screen.send("two\nthree\n")
    os.kill(screen.pid, signal.SIGCONT)
    assert screen.message().startswith("one")


def test_history_goes_on_in_the_next_run(tmp_path: Path) -> None:
    file = tmp_path / "state" / "history"
    for run in range(2):
        screen = Screen(file, "xterm")
        try:
            screen.wait_for("you> ")
            if run == 0:
                for text in ("first", "second\nof two lines"):
                    screen.send(f"{text}\n")
                    assert screen.message() == text
                    screen.wait_for("you> ")
            else:
                screen.send("\x1b[A\n")  # arrow up
                assert screen.message() == "second\nof two lines"
                screen.wait_for("you> ")
                screen.send("\x1b[A\x1b[A\x1b[A\n")
                assert screen.message() == "first"
        finally:
            screen.end()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [json.loads(line) for line in file.read_text().splitlines()][:2] == ["first", "second\nof two lines"]


def test_history_is_bounded_and_never_in_the_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "history"
    history = History(file)
    for number in range(2001):
        history.add(f"entry {number}")
    history.add("x" * 20_000)  # not kept
    entries = history.load()
    assert len(entries) == 1000 and entries[-1] == "entry 2000" and len(file.read_text().splitlines()) == 1000
    file.write_text('3\nno json\n"kept"\n')
    assert history.load() == ["kept"]
    for bad in (tmp_path, tmp_path / "history" / "x", None):
        History(bad).add("x")
        assert History(bad).load() == []
    monkeypatch.setenv(FILE_VARIABLE, "")
    assert find_history_file() is None
    monkeypatch.delenv(FILE_VARIABLE)
    monkeypatch.setenv("XDG_STATE_HOME", "/state")
    assert find_history_file() == Path("/state/seesay/chat_history")
