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


class ArrivedText:
    """Text that has arrived, and how far it was read: up to `at` of `text`. is_over: no more comes.

    `taken` is all that was read since `forget_taken`: the text of a call that turns out to be malformed.
    """

    def __init__(self, text: str = "", *, is_over: bool = False) -> None:
        self.text = text
        self.at = 0
        self.is_over = is_over
        self._taken: list[str] = []

    def add(self, text: str) -> None:
        self.text = self.text[self.at :] + text
        self.at = 0

    def take(self, stop: int) -> str:
        """Return the text up to this place in `text`, which is read by that."""
        text = self.text[self.at : stop]
        self.at = stop
        self._taken.append(text)
        return text

    def taken(self) -> str:
        return "".join(self._taken)

    def forget_taken(self) -> None:
        self._taken.clear()


class TextSource:
    """Reads the text that has arrived."""

    def __init__(self, arrived: ArrivedText) -> None:
        self.arrived = arrived

    def peek(self) -> Waiting[str]:
        """Return the next character without reading it; '' at the end."""
        arrived = self.arrived
        while arrived.at == len(arrived.text):
            if arrived.is_over:
                return ""
            yield
        return arrived.text[arrived.at]

    def starts_with(self, literal: str) -> Waiting[bool]:
        """Whether the unread text begins with `literal`. Reads nothing."""
        arrived = self.arrived
        while True:
            num_chars = len(arrived.text) - arrived.at
            if num_chars >= len(literal) or arrived.is_over:
                return arrived.text.startswith(literal, arrived.at)
            if not literal.startswith(arrived.text[arrived.at :]):
                return False
            yield

    def try_read(self, literal: str) -> Waiting[bool]:
        """Read `literal` if the unread text begins with it."""
        arrived = self.arrived
        found = yield from self.starts_with(literal)
        if found:
            arrived.take(arrived.at + len(literal))
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
        arrived = self.arrived
        if (yield from self.try_read(literal)):
            return True
        is_cut = arrived.is_over and literal.startswith(arrived.text[arrived.at :])
        if is_cut:
            arrived.take(len(arrived.text))
        return is_cut

    def skip_space(self, emit: Callable[[str], None] | None = None) -> Waiting[None]:
        yield from self.read_while(_SPACE, emit)

    def read_while(self, run: re.Pattern[str], emit: Callable[[str], None] | None = None) -> Waiting[None]:
        """Read as long as `run` matches, an expression for one or more characters of a set."""
        arrived = self.arrived
        while (yield from self.peek()):
            found = run.match(arrived.text, arrived.at)
            if found is None:
                return
            text = arrived.take(found.end())
            if emit is not None:
                emit(text)
            if arrived.at < len(arrived.text):
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
        arrived = self.arrived
        search = re.compile("|".join(map(re.escape, markers)))
        prefixes = {marker[:end] for marker in markers for end in range(1, len(marker))}
        longest = max(map(len, markers))
        while True:
            found = search.search(arrived.text, arrived.at)
            stop = len(arrived.text)
            if not arrived.is_over:
                first = max(arrived.at, stop - longest + 1)
                begins = (at for at in range(first, stop) if arrived.text[at:] in prefixes)
                stop = next(begins, stop)
            if found is not None and found.start() < stop:
                if found.start() > arrived.at:
                    emit(arrived.take(found.start()))
                return found.group()
            if stop > arrived.at:
                emit(arrived.take(stop))
            if arrived.is_over:
                return None
            yield

    def read_all(self, emit: Callable[[str], None]) -> Waiting[None]:
        """Read the rest, up to the end."""
        arrived = self.arrived
        while (yield from self.peek()):
            emit(arrived.take(len(arrived.text)))
