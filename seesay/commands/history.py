"""The messages typed into a chat, kept across runs for the arrow keys in a file that only its owner can read."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path

FILE_VARIABLE = "SEESAY_CHAT_HISTORY"
_MAX_ENTRIES = 1000
_MAX_ENTRY_CHARS = 10_000


def find_history_file() -> Path | None:
    """Return where the history is kept; None when the variable SEESAY_CHAT_HISTORY is set and empty."""
    given = os.environ.get(FILE_VARIABLE)
    if given is not None:
        return Path(given).expanduser() if given else None
    state = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(state).expanduser() / "seesay" / "chat_history"


class History:
    """Messages of former runs, the oldest first. A file that cannot be read or written is as good as none."""

    def __init__(self, file: Path | None) -> None:
        self._file = file

    def load(self) -> list[str]:
        """Return the newest messages, and shorten the file when it holds many more."""
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
        """Append a message. Several chats may do so at once."""
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
