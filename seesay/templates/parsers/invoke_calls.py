"""Calls in a section, each in a tag with its name and with a tag for each argument."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
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

_CALL, _ARGUMENT = "invoke", "parameter"
_QUOTED = re.compile(r'[^"<>\n]+')


@dataclass(frozen=True, slots=True, kw_only=True)
class InvokeCalls(ToolFormat):
    """`begin`, calls as `<invoke name="…">` with a `<parameter name="…">value</parameter>` for each argument, `end`.

    prefix: in front of the names of tags. says_type: a parameter has `string="true"` or `string="false"`, which says
    whether its value is a text or JSON; otherwise the function's schema says it.
    """

    begin: str
    end: str
    prefix: str = ""
    says_type: bool = False

    @property
    def markers(self) -> tuple[str, ...]:
        return (self.begin,)

    @property
    def tokens(self) -> tuple[str, ...]:
        return (self.begin, self.end, self._end(_ARGUMENT), self._end(_CALL))

    def read(self, source: TextSource, sink: CallSink) -> Waiting[None]:
        yield from source.expect(self.begin)
        yield from source.skip_space()
        while True:
            yield from self._read_call(source, sink)
            yield from source.skip_space()
            is_followed = yield from source.starts_with(self._begin(_CALL))
            if not is_followed:
                yield from source.expect_or_end(self.end)
            sink.end_call()
            if not is_followed:
                return

    def _read_call(self, source: TextSource, sink: CallSink) -> Waiting[None]:
        yield from source.expect(self._begin(_CALL))
        name = yield from source.read_up_to(_QUOTED, MAX_NAME_CHARS)
        yield from source.expect('">')
        sink.start_call(name)
        schemas = {argument.name: argument.schema for argument in list_arguments(sink.tools.schema_of(name))}
        sink.add_arguments("{")
        comma = ""
        while True:
            yield from source.skip_space()
            if not (yield from source.try_read(self._begin(_ARGUMENT))):
                break
            key = yield from source.read_up_to(_QUOTED, MAX_NAME_CHARS)
            value = yield from self._read_value(source, schemas.get(key, True))
            sink.add_arguments(f"{comma}{json.dumps(key, ensure_ascii=False)}: {value}")
            comma = ", "
        yield from source.expect(self._end(_CALL))
        sink.add_arguments("}")

    def _read_value(self, source: TextSource, schema: object) -> Waiting[str]:
        is_text: bool | None = None
        for written, meaning in ((self._key_ends(True), True), (self._key_ends(False), False)):
            if self.says_type and (yield from source.try_read(written)):
                is_text = meaning
                break
        if is_text is None:
            yield from source.expect('">')
        pieces: list[str] = []
        if (yield from source.read_until([self._end(_ARGUMENT)], pieces.append)) is None:
            raise MalformedError
        yield from source.expect(self._end(_ARGUMENT))
        text = "".join(pieces)
        if is_text:
            return json.dumps(text, ensure_ascii=False)
        return to_json(text, schema if is_text is None else True)

    def write(self, functions: Sequence[Function]) -> CallSyntax:
        return CallSyntax(
            begin=f"{self.begin}\n{self._begin(_CALL)}",
            calls=[self._write_call(function) for function in functions],
            end=f"\n{self.end}",
            separator=f"\n{self._begin(_CALL)}",
        )

    def _write_call(self, function: Function) -> list[Piece]:
        pieces: list[Piece] = [f'{function.name}">\n']
        if takes_any(function.schema):
            key = regex_form("[A-Za-z_][A-Za-z0-9_]{0,63}")
            before = self._key_ends(False)
            written: list[Piece] = [self._begin(_ARGUMENT), key, before, json_form(True), f"{self._end(_ARGUMENT)}\n"]
            pieces.append({"type": "star", "content": sequence_form(written)})
        for argument in () if takes_any(function.schema) else list_arguments(function.schema):
            written = self._write_argument(argument)
            pieces.append(sequence_form(written) if argument.is_required else optional_form(written))
        return [*pieces, self._end(_CALL)]

    def _write_argument(self, argument: Argument) -> list[Piece]:
        is_text = find_kind(argument.schema) == "text"
        before = f"{self._begin(_ARGUMENT)}{argument.name}{self._key_ends(is_text)}"
        if not is_text:
            return [before, json_form(argument.schema), f"{self._end(_ARGUMENT)}\n"]
        form: Form = {"type": "tag", "begin": before, "content": {"type": "any_text"}, "end": self._end(_ARGUMENT)}
        return [form, "\n"]

    def _key_ends(self, is_text: bool) -> str:
        return f'" string="{json.dumps(is_text)}">' if self.says_type else '">'

    def _begin(self, tag: str) -> str:
        return f'<{self.prefix}{tag} name="'

    def _end(self, tag: str) -> str:
        return f"</{self.prefix}{tag}>"


_DSML = "\uff5cDSML\uff5c"

MINIMAX_M2 = InvokeCalls(begin="<minimax:tool_call>", end="</minimax:tool_call>")
DEEPSEEK_V32 = InvokeCalls(
    begin=f"<{_DSML}function_calls>", end=f"</{_DSML}function_calls>", prefix=_DSML, says_type=True
)
