"""Calls that are a name and a JSON object, with markers around and between them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from seesay.templates.parsers import json_text
from seesay.templates.parsers.call_sink import MAX_NAME_CHARS, CallSink
from seesay.templates.parsers.call_syntax import CallSyntax, Function, json_form, regex_form
from seesay.templates.parsers.object_calls import LISTED
from seesay.templates.parsers.text_source import MalformedError, TextSource, Waiting
from seesay.templates.parsers.tool_format import ToolFormat

_NAME = re.compile(r"[^\s<\[{]+")


@dataclass(frozen=True, slots=True)
class DeepSeekCalls(ToolFormat):
    """Calls of DeepSeek V3: the word "function", a separator, the name, and the arguments in a fence of Markdown; or of
    V3.1: the name, a separator, and the arguments. is_fenced: which of them is written; both are read."""

    is_fenced: bool

    @property
    def markers(self) -> tuple[str, ...]:
        return (_CALLS_BEGIN,)

    @property
    def tokens(self) -> tuple[str, ...]:
        return (_CALLS_BEGIN, _CALLS_END, _CALL_BEGIN, _CALL_END, _SEPARATOR)

    def read(self, source: TextSource, sink: CallSink) -> Waiting[None]:
        yield from source.expect(_CALLS_BEGIN)
        while True:
            yield from source.skip_space()
            yield from source.expect(_CALL_BEGIN)
            yield from self._read_call(source, sink)
            yield from source.skip_space()
            yield from source.expect_or_end(_CALL_END)
            yield from source.skip_space()
            is_last = yield from source.try_read(_CALLS_END)
            is_last = is_last or not (yield from source.peek())
            if not is_last and not (yield from source.starts_with(_CALL_BEGIN)):
                raise MalformedError
            sink.end_call()
            if is_last:
                return

    def _read_call(self, source: TextSource, sink: CallSink) -> Waiting[None]:
        name = yield from source.read_up_to(_NAME, MAX_NAME_CHARS)
        yield from source.expect(_SEPARATOR)
        if name == "function" and (yield from source.peek()) not in ("{", "\n", " "):
            name = yield from source.read_up_to(_NAME, MAX_NAME_CHARS)
        yield from source.skip_space()
        is_fenced = yield from source.try_read("```json")
        yield from source.skip_space()
        sink.start_call(name)
        yield from json_text.read_object(source, sink.add_arguments)
        if is_fenced:
            yield from source.skip_space()
            yield from source.expect("```")

    def write(self, functions: Sequence[Function]) -> CallSyntax:
        before = f"{_CALL_BEGIN}function{_SEPARATOR}" if self.is_fenced else _CALL_BEGIN
        between, behind = ("\n```json\n", "\n```") if self.is_fenced else (_SEPARATOR, "")
        return CallSyntax(
            begin=f"{_CALLS_BEGIN}{before}",
            calls=[[f"{function.name}{between}", json_form(function.schema), behind] for function in functions],
            end=f"{_CALL_END}{_CALLS_END}",
            separator=f"{_CALL_END}\n{before}" if self.is_fenced else f"{_CALL_END}{before}",
        )


@dataclass(frozen=True, slots=True)
class MistralCalls(ToolFormat):
    """Calls of Mistral: `[TOOL_CALLS]name[ARGS]{…}` for each, also with `[CALL_ID]…` behind the name or without
    `[ARGS]`, or all of them in a JSON array, which is what older models write (`is_listed`)."""

    is_listed: bool

    @property
    def markers(self) -> tuple[str, ...]:
        return (_TOOL_CALLS,)

    @property
    def tokens(self) -> tuple[str, ...]:
        return (_TOOL_CALLS, _CALL_ID, _ARGS)

    def read(self, source: TextSource, sink: CallSink) -> Waiting[None]:
        yield from source.expect(_TOOL_CALLS)
        yield from source.skip_space()
        if (yield from source.peek()) == "[":
            yield from LISTED.read_list(source, sink)
            return
        name = yield from source.read_up_to(_NAME, MAX_NAME_CHARS)
        yield from source.skip_space()
        if (yield from source.try_read(_CALL_ID)):
            yield from source.read_up_to(_NAME, MAX_NAME_CHARS)
        yield from source.try_read(_ARGS)
        yield from source.skip_space()
        sink.start_call(name)
        yield from json_text.read_object(source, sink.add_arguments)
        sink.end_call()

    def write(self, functions: Sequence[Function]) -> CallSyntax:
        if self.is_listed:
            return LISTED.write(functions)
        return CallSyntax(
            begin=_TOOL_CALLS,
            calls=[[f"{function.name}{_ARGS}", json_form(function.schema)] for function in functions],
            separator=_TOOL_CALLS,
        )


@dataclass(frozen=True, slots=True)
class KimiCalls(ToolFormat):
    """Calls of Kimi K2: a section of calls, each with `functions.`, its name, a colon, its number and the arguments."""

    @property
    def markers(self) -> tuple[str, ...]:
        return (_SECTION_BEGIN,)

    @property
    def tokens(self) -> tuple[str, ...]:
        return (_SECTION_BEGIN, _SECTION_END, _KIMI_BEGIN, _KIMI_ARGUMENTS, _KIMI_END)

    def read(self, source: TextSource, sink: CallSink) -> Waiting[None]:
        yield from source.expect(_SECTION_BEGIN)
        while True:
            yield from source.skip_space()
            yield from source.expect(_KIMI_BEGIN)
            yield from source.skip_space()
            name = yield from source.read_up_to(_NAME, MAX_NAME_CHARS)
            yield from source.skip_space()
            yield from source.expect(_KIMI_ARGUMENTS)
            yield from source.skip_space()
            sink.start_call(_KIMI_NUMBER.sub("", name.removeprefix("functions.")))
            yield from json_text.read_object(source, sink.add_arguments)
            yield from source.skip_space()
            yield from source.expect_or_end(_KIMI_END)
            yield from source.skip_space()
            is_last = yield from source.try_read(_SECTION_END)
            is_last = is_last or not (yield from source.peek())
            if not is_last and not (yield from source.starts_with(_KIMI_BEGIN)):
                raise MalformedError
            sink.end_call()
            if is_last:
                return

    def write(self, functions: Sequence[Function]) -> CallSyntax:
        number = regex_form("[0-9]{1,4}")
        return CallSyntax(
            begin=f"{_SECTION_BEGIN}{_KIMI_BEGIN}functions.",
            calls=[
                [f"{function.name}:", number, _KIMI_ARGUMENTS, json_form(function.schema)] for function in functions
            ],
            end=f"{_KIMI_END}{_SECTION_END}",
            separator=f"{_KIMI_END}{_KIMI_BEGIN}functions.",
        )


_SECTION_BEGIN, _SECTION_END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
_KIMI_BEGIN, _KIMI_END = "<|tool_call_begin|>", "<|tool_call_end|>"
_KIMI_ARGUMENTS = "<|tool_call_argument_begin|>"
_KIMI_NUMBER = re.compile(r":[0-9]+\Z")
_CALLS_BEGIN, _CALLS_END = "<\uff5ctool▁calls▁begin\uff5c>", "<\uff5ctool▁calls▁end\uff5c>"
_CALL_BEGIN, _CALL_END = "<\uff5ctool▁call▁begin\uff5c>", "<\uff5ctool▁call▁end\uff5c>"
_SEPARATOR = "<\uff5ctool▁sep\uff5c>"
_TOOL_CALLS, _CALL_ID, _ARGS = "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"

DEEPSEEK_V3 = DeepSeekCalls(is_fenced=True)
DEEPSEEK_V31 = DeepSeekCalls(is_fenced=False)
KIMI_K2 = KimiCalls()
MISTRAL = MistralCalls(is_listed=False)
MISTRAL_LIST = MistralCalls(is_listed=True)
