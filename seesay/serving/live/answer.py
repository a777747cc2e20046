"""One streamed answer of a live session, made of the engine's deltas."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from seesay.serving.live.live_messages import make_delta, make_done
from seesay.serving.openai.wire import make_usage
from seesay.serving.requests.submission import Tally
from seesay.templates.parsers.parts import AnswerPart, ContentText, ReasoningText
from seesay.values import MediaReport, OutputDelta
from seesay.vl.timestamps import find_timestamps

if TYPE_CHECKING:
    from seesay.serving.requests.answer_reading import AnswerReading
    from seesay.templates.parsers.answer_parser import AnswerParser


class LiveAnswer:
    """The answer to one question. `text` is what was written so far, without thoughts."""

    def __init__(self, question_id: str, reading: AnswerReading) -> None:
        self._id = question_id
        self._reading = reading
        self._parser: AnswerParser | None = None
        self.text = ""
        self.last: OutputDelta | None = None

    def add(self, delta: OutputDelta) -> dict[str, object] | None:
        """Return the message of the engine's next delta; None for one without text."""
        if delta.finish_reason is not None:
            self.last = delta
        content, reasoning = self._read(delta)
        self.text += content
        return make_delta(self._id, content, reasoning) if content or reasoning else None

    def make_end(self, media: Sequence[MediaReport]) -> dict[str, object]:
        """Return the last message. media: the reports of the answer, with the times of frames."""
        tally = Tally()
        if self.last is not None:
            tally.add(0, self.last)
        return make_done(
            self._id,
            text=self.text,
            finish_reason="abort" if self.last is None else self.last.finish_reason or "",
            usage=None if self.last is None else make_usage(tally),
            timings=tally.timings,
            media=media,
            timestamps=find_timestamps(self.text, tuple(media)),
        )

    def _read(self, delta: OutputDelta) -> tuple[str, str]:
        """Return the new content, and new thoughts."""
        if self._reading.is_plain:
            return delta.text, ""
        if self._parser is None:
            self._parser = self._reading.open(is_thinking=delta.is_thinking)
        parts: list[AnswerPart] = self._parser.feed(delta.text)
        if delta.finish_reason is not None:
            parts += self._parser.finish()
        content = "".join(part.text for part in parts if isinstance(part, ContentText))
        return content, "".join(part.text for part in parts if isinstance(part, ReasoningText))
