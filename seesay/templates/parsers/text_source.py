"""The text of an answer as it arrives. A reader takes it in order and waits where more is needed.

Readers are generators: they yield to wait, so a format is read by straight code however its text is cut. What they do
must depend on the text alone, never on how much of it has arrived.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Sequence
from typing import TypeVar

T = TypeVar("T")
Waiting = Generator[None, None, T]

_SPACE = re.compile(r"[ \t\r\n]+")


class MalformedError(Exception):
    """The text is not a call in the expected format."""


class TextSource:
    """Text that has arrived and was not read yet.

    `taken` is all that was read since `forget_taken`: the text of a call that turns out to be malformed.
    """

    def __init__(self) -> None:
        self._text = ""
        self._at = 0
        self._is_over = False
        self._taken: list[str] = []

    def add(self, text: str) -> None:
        self._text = self._text[self._at :] + text
        self._at = 0

    def end(self) -> None:
        """Let no more text arrive."""
        self._is_over = True

    def forget_taken(self) -> None:
        self._taken.clear()

    def taken(self) -> str:
        return "".join(self._taken)

    # --- reading ------------------------------------------------------------------------------------------------------

    def peek(self) -> Waiting[str]:
        """Return the next character without reading it; '' at the end."""
        while self._at == len(self._text):
            if self._is_over:
                return ""
            yield
        return self._text[self._at]

    def starts_with(self, literal: str) -> Waiting[bool]:
        """Whether the unread text begins with `literal`. Reads nothing."""
        while True:
            num_chars = len(self._text) - self._at
            if num_chars >= len(literal) or self._is_over:
                return self._text.startswith(literal, self._at)
            if not literal.startswith(self._text[self._at :]):
                return False
            yield

    def try_read(self, literal: str) -> Waiting[bool]:
        """Read `literal` if the unread text begins with it."""
        found = yield from self.starts_with(literal)
        if found:
            self._take(self._at + len(literal))
        return found

    def expect(self, literal: str) -> Waiting[None]:
        """Read `literal`. Raises MalformedError if the text goes on differently."""
        if not (yield from self.try_read(literal)):
            raise MalformedError

    def expect_or_end(self, literal: str) -> Waiting[None]:
        """As `expect`, but the text may also end here, or inside of the literal."""
        if not (yield from self.try_read_or_end(literal)):
            raise MalformedError

    def try_read_or_end(self, literal: str) -> Waiting[bool]:
        """As `try_read`, but the text may also end here, or inside of the literal."""
        if (yield from self.try_read(literal)):
            return True
        is_cut = self._is_over and literal.startswith(self._text[self._at :])
        if is_cut:
            self._take(len(self._text))
        return is_cut

    def skip_space(self, emit: Callable[[str], None] | None = None) -> Waiting[None]:
        yield from self.read_while(_SPACE, emit)

    def read_while(self, run: re.Pattern[str], emit: Callable[[str], None] | None = None) -> Waiting[None]:
        """Read as long as `run` matches, an expression for one or more characters of a set."""
        while (yield from self.peek()):
            found = run.match(self._text, self._at)
            if found is None:
                return
            text = self._take(found.end())
            if emit is not None:
                emit(text)
            if self._at < len(self._text):
                return

    def read_up_to(self, run: re.Pattern[str], max_chars: int) -> Waiting[str]:
        """As `read_while`, and return what was read. Raises MalformedError if it is longer than `max_chars`."""
        pieces: list[str] = []
        num_chars = 0

        def add(text: str) -> None:
            nonlocal num_chars
            num_chars += len(text)
            if num_chars > max_chars:
                raise MalformedError
            pieces.append(text)

        yield from self.read_while(run, add)
        return "".join(pieces)

    def read_until(self, markers: Sequence[str], emit: Callable[[str], None]) -> Waiting[str | None]:
        """Read the text before the next of `markers`, and return the marker, which is not read yet; None at the end of
        the text. Of two markers at one place, the first in `markers` is meant. Text is emitted once no marker can begin
        in it."""
        search = re.compile("|".join(map(re.escape, markers)))
        prefixes = {marker[:end] for marker in markers for end in range(1, len(marker))}
        longest = max(map(len, markers))
        while True:
            found = search.search(self._text, self._at)
            stop = len(self._text)
            if not self._is_over:
                first = max(self._at, stop - longest + 1)
                begins = (at for at in range(first, stop) if self._text[at:] in prefixes)
                stop = next(begins, stop)
            if found is not None and found.start() < stop:
                if found.start() > self._at:
                    emit(self._take(found.start()))
                return found.group()
            if stop > self._at:
                emit(self._take(stop))
            if self._is_over:
                return None
            yield

    def read_all(self, emit: Callable[[str], None]) -> Waiting[None]:
        """Read the rest, up to the end."""
        while (yield from self.peek()):
            emit(self._take(len(self._text)))

    def _take(self, stop: int) -> str:
        text = self._text[self._at : stop]
        self._at = stop
        self._taken.append(text)
        return text
