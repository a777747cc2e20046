"""Harmony, the format of gpt-oss: an answer is messages, each in a channel, which says whether it is a thought, a
call or text."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from seesay.templates.parsers import json_text
from seesay.templates.parsers.call_sink import CallSink
from seesay.templates.parsers.call_syntax import (
    CallSyntax,
    Form,
    Function,
    Piece,
    json_form,
    optional_form,
    sequence_form,
)
from seesay.templates.parsers.text_source import MalformedError, TextSource, Waiting
from seesay.templates.parsers.tool_format import ToolFormat

_START, _CHANNEL, _MESSAGE, _CONSTRAIN = "<|start|>", "<|channel|>", "<|message|>", "<|constrain|>"
_END, _CALL, _RETURN = "<|end|>", "<|call|>", "<|return|>"
_ENDS = (_END, _CALL, _RETURN)
_TOKENS = (_START, _CHANNEL, _CONSTRAIN, _MESSAGE, *_ENDS)
_RECIPIENT = re.compile(r"(?:^|\s)to=([^\s<]+)")
_CHANNEL_NAME = re.compile(rf"{re.escape(_CHANNEL)}\s*([a-z]+)")
_NOT_FUNCTIONS = frozenset({"assistant", "user", "all"})


@dataclass(frozen=True, slots=True)
class HarmonyMessages(ToolFormat):
    """Messages `<|start|>assistant<|channel|>NAME<|message|>…<|end|>`; the prompt ends with the beginning of the first.

    The channel `analysis` has thoughts. A message to a function, which is named behind the channel or in front of it,
    is a call with the arguments as JSON, ended by `<|call|>`. All others are text, ended by `<|end|>` or `<|return|>`.
    """

    @property
    def markers(self) -> tuple[str, ...]:
        return (_CHANNEL, _START)

    @property
    def tokens(self) -> tuple[str, ...]:
        return _TOKENS

    @property
    def text_begin(self) -> Form | None:
        return sequence_form([_LEAD, f"{_CHANNEL}final{_MESSAGE}"])

    def read(self, source: TextSource, sink: CallSink) -> Waiting[None]:
        is_first = not (yield from source.starts_with(_START))
        pieces: list[str] = []
        marker = yield from source.read_until([_MESSAGE, *_ENDS], pieces.append)
        if marker is None and not is_first:  # the answer was cut off, before the message says anything
            source.arrived.forget_taken()
            return
        if marker != _MESSAGE:
            raise MalformedError
        yield from source.expect(_MESSAGE)
        header = "".join(pieces)
        recipient = _RECIPIENT.search(header)
        channel = _CHANNEL_NAME.search(header)
        if recipient is not None and recipient[1] not in _NOT_FUNCTIONS:
            yield from _read_call(source, sink, recipient[1].removeprefix("functions."))
        elif channel is not None and channel[1] == "analysis":
            yield from _read_thought(source, sink)
        else:
            yield from source.read_until([*_ENDS, _START], sink.add_content)
            yield from _try_end(source)

    def write(self, functions: Sequence[Function]) -> CallSyntax:
        """One call alone: what ends it, ends the answer."""
        between = f" {_CONSTRAIN}json{_MESSAGE}"
        return CallSyntax(
            begin=f"{_CHANNEL}commentary to=functions.",
            calls=[[f"{function.name}{between}", json_form(function.schema)] for function in functions],
            lead=_LEAD,
            preamble=optional_form(_write_message("commentary")),
            free=sequence_form([f"{_CHANNEL}final{_MESSAGE}", _TEXT]),
        )


def _read_call(source: TextSource, sink: CallSink, name: str) -> Waiting[None]:
    if not sink.tools:
        raise MalformedError
    yield from source.skip_space()
    sink.start_call(name)
    if (yield from source.peek()) == "{":
        yield from json_text.read_object(source, sink.add_arguments)
    elif (yield from source.starts_with(_CALL)):
        sink.add_arguments("{}")
    else:
        raise MalformedError
    yield from source.skip_space()
    if not (yield from _try_end(source)) and not (yield from source.starts_with(_START)):
        yield from source.expect_or_end(_CALL)
    sink.end_call()


def _read_thought(source: TextSource, sink: CallSink) -> Waiting[None]:
    sink.drop_space()
    yield from source.skip_space()
    yield from source.read_until([*_ENDS, _START], sink.add_reasoning)
    sink.drop_space()
    yield from _try_end(source)
    source.arrived.forget_taken()


def _try_end(source: TextSource) -> Waiting[bool]:
    """Read what ends a message, if it comes next."""
    for marker in _ENDS:
        if (yield from source.try_read(marker)):
            return True
    return False


# --- grammar ----------------------------------------------------------------------------------------------------------


_TEXT: Form = {"type": "any_text", "excludes": list(_TOKENS)}


def _write_message(channel: str) -> list[Piece]:
    """Return a message with text, and the beginning of the next one."""
    body: Form = {"type": "tag", "begin": _MESSAGE, "content": _TEXT, "end": _END}
    return [f"{_CHANNEL}{channel}", body, f"{_START}assistant"]


_THOUGHTS: Form = {"type": "star", "content": sequence_form(_write_message("analysis"))}
_LEAD = sequence_form([optional_form([f"{_START}assistant"]), _THOUGHTS])
"""What may stand before a message that is not a thought: the end of a thought that is over, and others."""

HARMONY = HarmonyMessages()
