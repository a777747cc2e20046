"""The seam for formats of calls: how a format is read, and how a grammar holds answers to it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from seesay.templates.parsers.call_sink import CallSink
from seesay.templates.parsers.call_syntax import CallSyntax, Form, Function
from seesay.templates.parsers.text_source import TextSource, Waiting


class ToolFormat(Protocol):
    """How a model writes calls.

    markers: the texts that may begin a call anywhere in an answer. begins_answer: whether a call may also begin without
    a marker, at the beginning of the answer. tokens: all markers, for those that are special tokens.

    Formats inherit from it: calls begin with a marker, which is the only one, unless a format says otherwise.
    """

    @property
    def markers(self) -> tuple[str, ...]: ...
    @property
    def begins_answer(self) -> bool:
        return False

    @property
    def tokens(self) -> tuple[str, ...]:
        return self.markers

    @property
    def text_begin(self) -> Form | None:
        """The form of what stands before the text of an answer, where a marker begins that; None where none does."""
        return None

    def read(self, source: TextSource, sink: CallSink) -> Waiting[None]:
        """Read calls from one of `markers` on. Raises MalformedError where the text is not a call; what was read since
        the last complete call becomes content then. From a marker on, at least the marker is read."""
        ...

    def write(self, functions: Sequence[Function]) -> CallSyntax:
        """Return how the functions are called. All that it allows is read as calls by `read`."""
        ...
