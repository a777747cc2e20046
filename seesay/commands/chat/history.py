"""The history of typed messages for the arrow keys, kept across runs in a file that only its owner can read."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path

from seesay.system.user_folders import find_state_folder

FILE_VARIABLE = "SEESAY_CHAT_HISTORY"
_MAX_ENTRIES = 1000
_MAX_ENTRY_CHARS = 10_000


def find_history_file() -> Path | None:
    """Return the path of the history, or None if the environment variable SEESAY_CHAT_HISTORY is set to ''."""
    given = os.environ.get(FILE_VARIABLE)
    if given is not None:
        return Path(given).expanduser() if given else None
    return find_state_folder() / "chat_history"


class History:
    """The messages of earlier runs, oldest first. A file that cannot be read or written is ignored."""

    def __init__(self, file: Path | None) -> None:
        self._file = file

    def load(self) -> list[str]:
        """Return the newest messages. Shorten the file if it holds many more."""
        if self._file is None:
            return []
        entries: list[str] = []
        num_lines = 0
        with contextlib.suppress(OSError, UnicodeDecodeError), self._file.open(encoding="utf-8") as lines:
            for line in lines:
                num_lines += 1
                with contextlib.suppress(ValueError):
                    if isinstance(entry := json.loads(line), str):
                        entries.append(entry)
        entries = entries[-_MAX_ENTRIES:]
        if num_lines > 2 * _MAX_ENTRIES:
            self._write("w", entries)
        return entries

    def add(self, entry: str) -> None:
        """Append a message. Several processes may do so at the same time."""
        if len(entry) <= _MAX_ENTRY_CHARS:
            self._write("a", [entry])

    def _write(self, mode: str, entries: list[str]) -> None:
        if self._file is None:
            return
        with contextlib.suppress(OSError):
            self._file.parent.mkdir(parents=True, exist_ok=True)
            with open(self._file, mode, encoding="utf-8", opener=_open_private) as file:
                file.writelines(json.dumps(entry) + "\n" for entry in entries)


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
