"""`usage` in the events of a stream, as `stream_options` asks for it."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from seesay.serving.openai.protocol import StreamOptions
    from seesay.values import OutputDelta


class StreamUsage:
    """The tokens of each choice so far.

    is_wanted: an event at the end of the stream has the usage. is_continuous: each event has it.
    """

    def __init__(self, options: StreamOptions | None) -> None:
        self.is_wanted = options is not None and options.include_usage
        self.is_continuous = self.is_wanted and options is not None and options.continuous_usage_stats
        self._prompt_tokens: dict[int, int] = {}
        self._num_tokens = Counter[int]()

    def add(self, index: int, delta: OutputDelta) -> None:
        """Count a delta of the choice `index`."""
        if self.is_continuous:
            self._prompt_tokens[index] = delta.prompt_tokens
            self._num_tokens[index] += len(delta.token_ids)

    def of(self, index: int) -> dict[str, Any]:
        """Return the field of an event of the choice `index`."""
        if not self.is_wanted:
            return {}
        if not self.is_continuous:
            return {"usage": None}
        prompt_tokens, num_tokens = self._prompt_tokens.get(index, 0), self._num_tokens[index]
        usage = {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": num_tokens,
            "total_tokens": prompt_tokens + num_tokens,
        }
        return {"usage": usage}
