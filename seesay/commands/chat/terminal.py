"""The input and output of a chat: a terminal with line editing, or pipes.

On a terminal, everything is written to it. With pipes, only answers go to standard output, so that other programs can
use them; notices and errors go to standard error.
"""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Callable
from typing import TextIO

from seesay.commands.chat.history import History

_DIM, _RED, _PLAIN = "\x1b[2m", "\x1b[31m", "\x1b[0m"
_CONTINUED = "\\"
_BLOCK = '"""'
_PASTE_GAP_S = 0.03  # longest pause between the lines of a pasted text
# Control characters in an answer must not control the terminal.
_CONTROLS = {code: None for code in (*range(32), 127, *range(128, 160)) if chr(code) not in "\n\t"}


class Terminal:
    """Read messages and write answers. `is_interactive`: the input and output are a terminal."""

    def __init__(
        self,
        stdin: TextIO | None = None,
        stdout: TextIO | None = None,
        stderr: TextIO | None = None,
        history: History | None = None,
    ) -> None:
        self._in = stdin or sys.stdin
        self._history = history or History(None)
        self._out = stdout or sys.stdout
        self._err = stderr or sys.stderr
        self.is_interactive = self._in.isatty()
        self._is_screen = self._out.isatty()
        self._notices = self._out if self.is_interactive and self._is_screen else self._err
        self._dim, self._red, self._plain = (_DIM, _RED, _PLAIN) if _has_colour(self._notices) else ("", "", "")
        self._can_edit = self.is_interactive and self._is_screen and self._in is sys.stdin

    def set_up_editing(self, complete: Callable[[str], list[str]]) -> None:
        """Turn on line editing with the history of earlier runs, and tab completion. `complete` returns the completions
        of a line."""
        if not self._can_edit:
            return
        try:
            import readline
        except ImportError:
            return
        found: list[str] = []

        def completer(_: str, state: int) -> str | None:
            if state == 0:
                found[:] = complete(readline.get_line_buffer())
            return found[state] if state < len(found) else None

        readline.set_completer_delims("")
        readline.set_completer(completer)
        readline.parse_and_bind("tab: complete")
        if os.environ.get("TERM") != "dumb":
            readline.parse_and_bind("set enable-bracketed-paste on")  # Python turns it off
        readline.set_auto_history(False)  # `read` adds a message of several lines as one entry
        for entry in self._history.load():
            readline.add_history(entry)

    def read(self, prompt: str, *, prefilled: str = "") -> str:
        """Read one message. Raises EOFError at the end of the input.

        A line that ends in a backslash continues on the next line. Three quotes begin and end a text of several lines.
        On a terminal, lines that are pasted together are one message.
        """
        is_typed_ahead = self._has_input()  # typed while an answer was written: each line is a message
        lines = [self._read_line(prompt, prefilled)]
        is_block = lines[0].lstrip().startswith(_BLOCK)
        while True:
            is_pasted = not is_typed_ahead and self._has_input(_PASTE_GAP_S)
            if is_block:
                if _is_closed(lines):
                    break
            elif lines[-1].endswith(_CONTINUED) and not is_pasted:
                lines[-1] = lines[-1].removesuffix(_CONTINUED)
            elif not is_pasted:
                break
            try:
                lines.append(self._read_line("." * (len(prompt) - 1) + " "))
            except EOFError:
                break
        text = "\n".join(lines)
        self._remember(text)
        return text.strip().removeprefix(_BLOCK).removesuffix(_BLOCK).strip("\n") if is_block else text

    def _has_input(self, timeout_s: float = 0.0) -> bool:
        """Return whether the terminal has unread input, or gets some within `timeout_s`."""
        if not self.is_interactive:
            return False
        try:
            return bool(select.select([self._in], [], [], timeout_s)[0])
        except (OSError, ValueError):  # not a real terminal
            return False

    def _remember(self, text: str) -> None:
        if self._can_edit and text.strip():
            self._history.add(text)
            try:
                import readline
            except ImportError:
                return
            readline.add_history(text)

    def _read_line(self, prompt: str, prefilled: str = "") -> str:
        if self._can_edit:
            return self._edit_line(prompt, prefilled)
        if self.is_interactive:
            self._notices.write(prompt)
            self._notices.flush()
        line = self._in.readline()
        if not line:
            raise EOFError
        return line.rstrip("\r\n")

    def _edit_line(self, prompt: str, prefilled: str) -> str:
        try:
            import readline
        except ImportError:
            return input(prompt)
        readline.set_startup_hook(lambda: readline.insert_text(prefilled))
        try:
            return input(prompt)
        finally:
            readline.set_startup_hook(None)

    def write(self, text: str) -> None:
        """Write a piece of an answer."""
        self._put(self._out, text.translate(_CONTROLS) if self._is_screen else text)

    def notice(self, text: str, *, end: str = "\n") -> None:
        """Write a line that is not part of an answer."""
        self._put(self._notices, f"{self._dim}{text.translate(_CONTROLS)}{self._plain}{end}")

    def aside(self, text: str) -> None:
        """Write a notice on a terminal only."""
        if self.is_interactive:
            self.notice(text)

    def error(self, text: str) -> None:
        """Write an error message as one line."""
        line = " ".join(text.translate(_CONTROLS).split())
        self._put(self._notices, f"{self._red}error:{self._plain} {line}\n")

    @staticmethod
    def _put(stream: TextIO, text: str) -> None:
        encoding = stream.encoding or "utf-8"
        stream.write(text.encode(encoding, "replace").decode(encoding))
        stream.flush()


def _is_closed(lines: list[str]) -> bool:
    """Return whether a block that began with three quotes has its closing quotes."""
    text = "\n".join(lines).strip()
    return len(text) >= 2 * len(_BLOCK) and text.endswith(_BLOCK)


def _has_colour(stream: TextIO) -> bool:
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
