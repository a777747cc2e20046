"""Values and arguments that a format writes in its own way: lists and objects of scalars, read as JSON, and arguments
with commas between them, held by a grammar."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from seesay.templates.parsers import json_text
from seesay.templates.parsers.arguments import Argument
from seesay.templates.parsers.call_syntax import MAX_HEADS, Piece, optional_form, or_form, sequence_form
from seesay.templates.parsers.text_source import MalformedError, TextSource, Waiting


@dataclass(frozen=True, slots=True, kw_only=True)
class Literals:
    """How a format writes values.

    brackets: those that open a list or an object, and what closes each. read_key: reads the key of an object, without
    its colon, and returns it as JSON. read_scalar: reads any other value, and returns it as JSON.
    """

    brackets: Mapping[str, str]
    read_key: Callable[[TextSource], Waiting[str]]
    read_scalar: Callable[[TextSource], Waiting[str]]

    def read(self, source: TextSource) -> Waiting[str]:
        """Read a value, and return it as JSON. Without recursion: values may be nested deeply. Raises MalformedError
        for what is not a value."""
        written: list[str] = []
        ends: list[str] = []  # of the lists and objects that are open, innermost last
        while True:
            if (yield from self._read_opening(source, written, ends)):
                continue
            yield from _close(source, written, ends)
            if not ends:
                return "".join(written)
            written.append(", ")
            yield from self._read_head(source, ends[-1], written)

    def _read_opening(self, source: TextSource, written: list[str], ends: list[str]) -> Waiting[bool]:
        """Read a scalar or an opening bracket; return whether a value has to follow that."""
        char = yield from source.peek()
        if char not in self.brackets:
            written.append((yield from self.read_scalar(source)))
            return False
        yield from source.expect(char)
        end = self.brackets[char]
        written.append("{" if end == "}" else "[")
        ends.append(end)
        if len(ends) > json_text.MAX_DEPTH:
            raise MalformedError
        yield from source.skip_space()
        if (yield from source.starts_with(end)):
            return False
        yield from self._read_head(source, end, written)
        return True

    def _read_head(self, source: TextSource, end: str, written: list[str]) -> Waiting[None]:
        """Read what stands before the next value in the list or object that `end` closes."""
        if end != "}":
            return
        key = yield from self.read_key(source)
        yield from source.skip_space()
        yield from source.expect(":")
        yield from source.skip_space()
        written.append(f"{key}: ")


def _close(source: TextSource, written: list[str], ends: list[str]) -> Waiting[None]:
    """Read what closes behind a value, and the comma before the next one. A comma may stand before a bracket."""
    while ends:
        yield from source.skip_space()
        has_comma = (yield from source.try_read(",")) if written[-1] not in ("[", "{") else False
        yield from source.skip_space()
        if (yield from source.try_read(ends[-1])):
            written.append("}" if ends.pop() == "}" else "]")
            continue
        if not has_comma:
            raise MalformedError
        return


def write_arguments(
    arguments: Sequence[Argument], write_pair: Callable[[Argument], list[Piece]], comma: str
) -> list[Piece]:
    """Return arguments with commas between them. One that must be there comes first; where none must, one of the first
    few does."""
    required = [argument for argument in arguments if argument.is_required]
    others = [argument for argument in arguments if not argument.is_required]

    def write_rest(rest: Sequence[Argument]) -> list[Piece]:
        pieces: list[Piece] = []
        for argument in rest:
            pair = [comma, *write_pair(argument)]
            pieces += pair if argument.is_required else [optional_form(pair)]
        return pieces

    if required:
        first, *rest = [*required, *others]
        return [*write_pair(first), *write_rest(rest)]
    heads: list[Piece] = [
        sequence_form([*write_pair(argument), *write_rest(others[index + 1 :])])
        for index, argument in enumerate(others[:MAX_HEADS])
    ]
    return [optional_form([or_form(heads)])] if heads else []
