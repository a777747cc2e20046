"""Calls whose arguments stand between tags, one by one: values are texts, whose types the function's schema says."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass

from seesay.templates.parsers.arguments import Argument, find_kind, list_arguments, takes_any, to_json
from seesay.templates.parsers.call_sink import MAX_NAME_CHARS, CallSink
from seesay.templates.parsers.call_syntax import (
    CallSyntax,
    Form,
    Function,
    Piece,
    json_form,
    optional_form,
    regex_form,
    sequence_form,
)
from seesay.templates.parsers.text_source import MalformedError, TextSource, Waiting
from seesay.templates.parsers.tool_format import ToolFormat

_NAME = re.compile(r"[^\s<>]+")
_KEY = re.compile(r"[^<>\n]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class TaggedCalls(ToolFormat):
    """`begin` `name_begin` name `name_end` (`key_begin` key `key_end` `value_begin` value `value_end`)… `last` `end`.

    White space may stand between all of these. value_gap: white space on both sides of a value that is not a part of
    it. gap: white space that is written between the others. Where calls have a `last`, models leave out one of the
    others at times, and are read: `begin`, `end`, `last` before `end`, or the end of a value.
    """

    name_begin: str = ""
    name_end: str = ""
    key_begin: str
    key_end: str
    value_begin: str = ""
    value_end: str
    last: str = ""
    value_gap: str = ""
    gap: str = "\n"
    begin: str = "<tool_call>"
    end: str = "</tool_call>"

    @property
    def markers(self) -> tuple[str, ...]:
        return (self.begin, self.name_begin) if self.last else (self.begin,)

    @property
    def tokens(self) -> tuple[str, ...]:
        tags = (self.key_begin, self.key_end, self.value_begin, self.value_end, self.last)
        return (self.begin, self.end, *(tag for tag in tags if tag.startswith("<") and tag.endswith(">")))

    def read(self, source: TextSource, sink: CallSink) -> Waiting[None]:
        is_loose = not (yield from source.try_read(self.begin))
        yield from source.skip_space()
        yield from source.expect(self.name_begin)
        name = yield from source.read_up_to(_NAME, MAX_NAME_CHARS)
        yield from source.expect(self.name_end)
        yield from source.skip_space()
        sink.start_call(name, is_loose=is_loose)
        schemas = {argument.name: argument.schema for argument in list_arguments(sink.tools.schema_of(name))}
        sink.add_arguments("{")
        comma, unread = "", set(schemas)
        key = yield from self._try_key(source)
        while key:
            unread.discard(key)
            value, following = yield from self._read_value(source, unread)
            written = to_json(value, schemas.get(key, True))
            sink.add_arguments(f"{comma}{json.dumps(key, ensure_ascii=False)}: {written}")
            comma = ", "
            yield from source.skip_space()
            key = (yield from self._try_key(source)) if following is None else following
        behind = "" if key is not None else (yield from self._read_ends(source))
        sink.add_arguments("}")
        sink.end_call()
        sink.add_content(behind)

    def _try_key(self, source: TextSource) -> Waiting[str | None]:
        if not (yield from source.try_read(self.key_begin)):
            return None
        key = yield from source.read_up_to(_KEY, MAX_NAME_CHARS)
        if not key:
            raise MalformedError
        return key

    def _read_ends(self, source: TextSource) -> Waiting[str]:
        """Read the end of a call. Returns the white space behind it where the last tag was left out."""
        # Without an end of its own, a call that is cut behind an argument would look complete.
        if not self.last or not (yield from source.try_read(self.last)):
            yield from source.expect(self.end)
            return ""
        space: list[str] = []
        yield from source.skip_space(space.append)
        has_end = yield from source.try_read_or_end(self.end)
        return "" if has_end else "".join(space)

    def _read_value(self, source: TextSource, unread: Set[str]) -> Waiting[tuple[str, str | None]]:
        """Read a value, from the end of its key on. Returns it with what follows where its own end was left out: the
        key of the next argument, or '' where the call is over."""
        yield from source.expect(self.key_end)
        if self.value_begin:
            yield from source.skip_space()
            yield from source.expect(self.value_begin)
        pieces: list[str] = []
        following = None
        markers = [self.value_end, *([self.key_begin, self.last] if self.last else [])]
        while following is None and (found := (yield from source.read_until(markers, pieces.append))) != self.value_end:
            if found is None:
                raise MalformedError
            following = yield from self._try_without_end(source, unread, pieces.append)
        if following is None:
            yield from source.expect(self.value_end)
        return "".join(pieces).removeprefix(self.value_gap).removesuffix(self.value_gap), following

    def _try_without_end(
        self, source: TextSource, unread: Set[str], emit: Callable[[str], None]
    ) -> Waiting[str | None]:
        """Read what ends a value whose own end was left out: the key of another argument, which is one of `unread`, or
        the end of a call that ends the answer. What turns out to be a part of the value, which may be any text, is
        emitted, and None is returned."""
        if not (yield from source.try_read(self.last)):
            yield from source.expect(self.key_begin)
            key = yield from source.read_up_to(_KEY, MAX_NAME_CHARS)
            if key in unread and (yield from source.starts_with(self.key_end)):
                return key
            emit(f"{self.key_begin}{key}")
            return None
        pieces = [self.last]
        yield from source.skip_space(pieces.append)
        if (yield from source.try_read(self.end)):
            pieces.append(self.end)
            yield from source.skip_space(pieces.append)
            if not (yield from source.peek()):
                return ""
        emit("".join(pieces))
        return None

    def write(self, functions: Sequence[Function]) -> CallSyntax:
        return CallSyntax(
            begin=f"{self.begin}{self.value_gap}",
            calls=[self._write_call(function) for function in functions],
            end=f"{self.value_gap}{self.end}",
            separator=f"{self.value_gap}{self.end}\n{self.begin}{self.value_gap}",
        )

    def _write_call(self, function: Function) -> list[Piece]:
        pieces: list[Piece] = [f"{self.name_begin}{function.name}{self.name_end}{self.gap}"]
        if takes_any(function.schema):
            key = regex_form("[A-Za-z_][A-Za-z0-9_]{0,63}")
            written: list[Piece] = [self.key_begin, key, self._before_value, json_form(True), self._behind_value]
            pieces.append({"type": "star", "content": sequence_form(written)})
        for argument in () if takes_any(function.schema) else list_arguments(function.schema):
            written = self._write_argument(argument)
            pieces.append(sequence_form(written) if argument.is_required else optional_form(written))
        return [*pieces, self.last]

    @property
    def _before_value(self) -> str:
        between = f"{self.gap}{self.value_begin}" if self.value_begin else ""
        return f"{self.key_end}{between}{self.value_gap}"

    @property
    def _behind_value(self) -> str:
        return f"{self.value_gap}{self.value_end}{self.gap}"

    def _write_argument(self, argument: Argument) -> list[Piece]:
        before = f"{self.key_begin}{argument.name}{self._before_value}"
        if find_kind(argument.schema) != "text":
            return [before, json_form(argument.schema), self._behind_value]
        # The text ends where its end tag begins, and the gap before that is a part of what is read.
        text: dict[str, object] = {"type": "any_text"}
        form: Form = {"type": "tag", "begin": before, "content": text, "end": self.value_end}
        return [form, self.gap]


QWEN3_CODER = TaggedCalls(
    name_begin="<function=",
    name_end=">",
    key_begin="<parameter=",
    key_end=">",
    value_end="</parameter>",
    last="</function>",
    value_gap="\n",
)
GLM45 = TaggedCalls(key_begin="<arg_key>", key_end="</arg_key>", value_begin="<arg_value>", value_end="</arg_value>")
GLM47 = TaggedCalls(
    key_begin="<arg_key>", key_end="</arg_key>", value_begin="<arg_value>", value_end="</arg_value>", gap=""
)
