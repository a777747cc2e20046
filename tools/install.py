"""Installs the project with pip and says how far it is; run by the Makefile, with the Python of the environment.

    .venv/bin/python tools/install.py TARGET     # what pip installs, such as . or .[dev]

On a terminal one line is kept up to date, elsewhere there is a line for each step. pip's own words go to
`install.log` in the environment; their end is shown when it fails. Uses the standard library alone.
"""

from __future__ import annotations

import queue
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TextIO

_DOWNLOADING = re.compile(r"\s*(?:Downloading|Using cached) (\S+) \(([\d.]+) (kB|MB|GB)\)")
_COLLECTING = re.compile(r"(?:Collecting|Requirement already satisfied:) ([\w.-]+)")
_INSTALLING = re.compile(r"Installing collected packages: (.*)")
_MEGABYTES = {"kB": 1e-3, "MB": 1.0, "GB": 1e3}
_REMINDER_S = 15.0
_NUM_LOG_LINES = 25


class Progress:
    """Summarize pip's output so far in one sentence."""

    def __init__(self) -> None:
        self.text = "asking which packages are needed"
        self.downloaded_mb = 0.0

    def read(self, line: str) -> bool:
        """Take a line of pip's; whether the sentence tells of another step."""
        if found := _DOWNLOADING.match(line):
            name, size, unit = found.groups()
            if name.endswith(".metadata"):
                return False
            megabytes = float(size) * _MEGABYTES[unit]
            before = _format_size(self.downloaded_mb)
            self.text = f"downloading {self._short(name)} ({_format_size(megabytes)}, {before} before it)"
            self.downloaded_mb += megabytes
            return megabytes >= 50
        if found := _INSTALLING.match(line):
            num_packages = found.group(1).count(",") + 1
            self.text = f"unpacking {num_packages} packages ({_format_size(self.downloaded_mb)} downloaded)"
            return True
        if found := _COLLECTING.match(line):
            self.text = f"asking which packages are needed: {found.group(1)}"
        return False

    @staticmethod
    def _short(name: str) -> str:
        """torch 2.11.0, of a wheel's name or address."""
        pieces = name.rpartition("/")[2].split("-")
        return " ".join(pieces[:2]) if len(pieces) > 1 else name


def install(command: Sequence[str], log_file: Path, show: Callable[[Progress, float, bool], None]) -> int:
    """Run pip; returns its exit status. `show` is called every second, and when there is another step."""
    lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    started_s = time.monotonic()
    progress = Progress()
    with (
        log_file.open("w", encoding="utf-8") as log,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
        ) as process,
    ):
        threading.Thread(target=_read_lines, args=(process.stdout, lines), daemon=True).start()
        while True:
            is_step = False
            try:
                line = lines.get(timeout=1.0)
                if line is None:
                    break
                log.write(line)
                is_step = progress.read(line)
            except queue.Empty:
                pass
            show(progress, time.monotonic() - started_s, is_step)
    return process.wait()


class Screen:
    """Shows the sentence: on a terminal always in the same line, elsewhere once per step, and every 15 s."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._is_terminal = stream.isatty()
        self._last_s = 0.0

    def show(self, progress: Progress, elapsed_s: float, is_step: bool) -> None:
        text = f"  {elapsed_s:4.0f} s  {progress.text}"
        if self._is_terminal:
            self._stream.write(f"\r\x1b[K{text[:100]}")
            self._stream.flush()
        elif is_step or elapsed_s - self._last_s >= _REMINDER_S:
            self._last_s = elapsed_s
            print(text, file=self._stream, flush=True)

    def end(self, text: str) -> None:
        print(f"\r\x1b[K{text}" if self._is_terminal else text, file=self._stream, flush=True)


def main(arguments: Sequence[str]) -> int:
    if len(arguments) != 1:
        print(__doc__, file=sys.stderr)
        return 2
    log_file = Path(sys.prefix) / "install.log"
    screen = Screen(sys.stdout)
    command = [
        *(sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--progress-bar", "off"),
        *("--editable", arguments[0]),
    ]
    started_s = time.monotonic()
    status = install(command, log_file, screen.show)
    if status == 0:
        screen.end(f"  {time.monotonic() - started_s:4.0f} s  installed")
        return 0
    screen.end(f"pip failed with status {status}; the end of {log_file}:")
    for line in log_file.read_text(encoding="utf-8").splitlines()[-_NUM_LOG_LINES:]:
        print(f"  {line}")
    return status


def _read_lines(stream: TextIO | None, lines: queue.SimpleQueue[str | None]) -> None:
    for line in stream or ():
        lines.put(line)
    lines.put(None)


def _format_size(megabytes: float) -> str:
    return f"{megabytes / 1000:.1f} GB" if megabytes >= 1000 else f"{megabytes:.0f} MB"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
