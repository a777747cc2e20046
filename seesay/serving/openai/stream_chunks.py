"""The events of a streamed answer: chunks of its choices, and how it ends."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from seesay.serving.http.streaming import encode_json
from seesay.serving.openai.stream_usage import StreamUsage
from seesay.serving.openai.wire import DONE

if TYPE_CHECKING:
    from seesay.serving.openai.protocol import StreamOptions

_HOLE = "\x00"  # placeholder in a pre-rendered event: JSON encodes it in one way, and no model name contains it


class ChunkWriter:
    """Renders the events of one answer.

    head: the fields that all of them have. field: the one of a choice with what is new, "text" or "delta". usage: what
    the events say of the tokens so far.
    """

    def __init__(self, head: Mapping[str, object], field: str, options: StreamOptions | None) -> None:
        self.usage = StreamUsage(options)
        self._head = encode_json(head)[:-1]
        self._field = field
        self._frames: dict[int, bytes] = {}  # event with `_HOLE` in place of the text, by choice

    def write(
        self,
        index: int,
        new: str | Mapping[str, object],
        *,
        logprobs: Mapping[str, Any] | None = None,
        finish_reason: str | None = None,
        details: Mapping[str, Any] | None = None,
        token_ids: list[int] | None = None,
        more: Mapping[str, Any] = MappingProxyType({}),
    ) -> bytes:
        """Return an event of the choice `index`. `more` are further fields of the choice."""
        ids = {} if token_ids is None else {"token_ids": token_ids}
        choice = {"index": index, self._field: new, "logprobs": logprobs, "finish_reason": finish_reason, **ids, **more}
        seesay = {} if details is None else {"seesay": details}
        return self.encode({"choices": [choice], **self.usage.of(index), **seesay})

    def write_content(self, index: int, text: str) -> bytes:
        """Return an event with nothing but text in its `delta`, all but which is rendered once: it is the most frequent
        one by far. Not for a stream whose usage is continuous."""
        frame = self._frames.get(index)
        if frame is None:
            event = self.write(index, {"content": _HOLE}).replace(b"%", b"%%")
            frame = self._frames[index] = event.replace(encode_json(_HOLE).encode(), b"%s")
        return frame % encode_json(text).encode()

    def write_end(self, usage: Mapping[str, Any], details: Mapping[str, Any] | None) -> list[bytes]:
        """Return the last events: the usage, if the stream is to have it, with the `details`; and `[DONE]`."""
        if not self.usage.is_wanted:
            return [DONE]
        seesay = {} if details is None else {"seesay": details}
        return [self.encode({"choices": [], "usage": usage, **seesay}), DONE]

    def encode(self, rest: Mapping[str, object]) -> bytes:
        """Return an event with these fields beside the head."""
        return f"data: {self._head},{encode_json(rest)[1:]}\n\n".encode()
