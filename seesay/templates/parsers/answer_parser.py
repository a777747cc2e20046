"""Reads an answer back: text in, parts out.

How a route uses it:

    format = find_answer_format(template_source, tokenizer.special_token_ids)   # once per model
    request = GenerationRequest(..., kept_tokens=format.kept_tokens)   # markers stay in the text
    parser = format.parser(tools=tools, is_thinking=False)   # once per answer
    for delta in deltas:
        for part in parser.feed(delta.text): ...
    for part in parser.finish(): ...

Texts of neighbouring parts of one kind belong together (`join_parts`); joined, the result does not depend on where the
text was cut. A call without its `CallEnd` when the answer ends was cut off (`finish_reason` is 'length'): this happens
only with `streams_calls`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from seesay.templates.parsers.call_sink import CallableTools, CallSink
from seesay.templates.parsers.parts import AnswerPart, ContentText, ReasoningText
from seesay.templates.parsers.reasoning import ReasoningFormat
from seesay.templates.parsers.text_source import ArrivedText, MalformedError, TextSource, Waiting
from seesay.templates.parsers.tool_format import ToolFormat


class AnswerParser(Protocol):
    """Reads one answer. Never raises for what a model wrote: a malformed call is content, with its exact text."""

    def feed(self, text: str) -> list[AnswerPart]:
        """Add text, and return the parts that are final now."""
        ...

    def finish(self) -> list[AnswerPart]:
        """Return the rest after the last text."""
        ...


class PlainParser:
    """Reads answers of which all text is content."""

    def feed(self, text: str) -> list[AnswerPart]:
        return [ContentText(text)] if text else []

    def finish(self) -> list[AnswerPart]:
        return []


class FormatParser:
    """Reads answers with a thought at their beginning, and calls.

    White space beside the markers of thoughts belongs to the format: it is neither content nor thought. So does white
    space before a call, and behind the last one; that before a call stays where text without white space follows the
    call.
    """

    def __init__(
        self,
        *,
        reasoning: ReasoningFormat | None,
        tool_format: ToolFormat | None,
        tools: Sequence[Mapping[str, object]],
        is_thinking: bool,
        streams_calls: bool,
        calls_alone: bool = False,
    ) -> None:
        """calls_alone: an answer whose text does not begin with calls has none."""
        self._arrived = ArrivedText()
        self._source = TextSource(self._arrived)
        self._sink = CallSink(
            self._arrived, streams_calls=streams_calls, tools=CallableTools(tools), takes_loose=not calls_alone
        )
        self._reasoning = reasoning
        self._tool_format = tool_format
        self._is_thinking = is_thinking
        self._calls_alone = calls_alone
        self._reading = self._read()
        next(self._reading, None)

    def feed(self, text: str) -> list[AnswerPart]:
        self._arrived.add(text)
        next(self._reading, None)
        return self._sink.take()

    def finish(self) -> list[AnswerPart]:
        self._arrived.is_over = True
        next(self._reading, None)
        return self._sink.take()

    def _read(self) -> Waiting[None]:
        if self._reasoning is not None:
            yield from self._read_thought(self._reasoning)
        if self._tool_format is None:
            yield from self._source.read_all(self._sink.add_content)
            self._sink.flush_space(ContentText)
            return
        yield from self._read_calls(self._tool_format)

    def _read_thought(self, format: ReasoningFormat) -> Waiting[None]:
        source, sink = self._source, self._sink
        yield from source.skip_space(sink.add_content)
        begins = yield from source.try_read(format.begin)
        if not begins and not self._is_thinking:
            return
        sink.drop_space()
        yield from source.skip_space()
        marker = yield from source.read_until([format.end], sink.add_reasoning)
        if marker is None:
            sink.flush_space(ReasoningText)
            return
        sink.drop_space()
        yield from source.expect(marker)
        yield from source.skip_space()
        self._arrived.forget_taken()

    def _read_calls(self, format: ToolFormat) -> Waiting[None]:
        source, sink = self._source, self._sink
        if format.begins_answer:
            yield from source.skip_space(sink.add_content)
            yield from self._try_calls(format)
        if not format.markers or (self._calls_alone and not sink.num_calls and not (yield from self._begins(format))):
            yield from source.read_all(sink.add_content)
        while format.markers and (yield from source.read_until(format.markers, sink.add_content)) is not None:
            yield from self._try_calls(format)
        if sink.num_calls:
            sink.drop_space()
        sink.flush_space(ContentText)

    def _begins(self, format: ToolFormat) -> Waiting[bool]:
        """Whether a marker of calls comes next, behind white space at most."""
        yield from self._source.skip_space(self._sink.add_content)
        for marker in format.markers:
            if (yield from self._source.starts_with(marker)):
                return True
        return False

    def _try_calls(self, format: ToolFormat) -> Waiting[None]:
        self._arrived.forget_taken()
        try:
            yield from format.read(self._source, self._sink)
        except MalformedError:
            self._sink.reject_call()
