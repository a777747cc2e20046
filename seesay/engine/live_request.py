"""A request while the engine loop answers it: its output so far, where that goes, and what it cost."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from seesay.encoders.worker import EncodeTiming
from seesay.llm.sequence import EmbeddingState, Sequence
from seesay.processors.text.detokenize import IncrementalDetokenizer
from seesay.values import FinishReason, MediaReport, Modality, OutputDelta, StageTimings, Usage

OutputSink = Callable[[OutputDelta], None]


class Collected:
    """Per-position outputs of one request, in order of position. A preempted sequence is computed again: positions
    that are here already are not taken twice."""

    def __init__(self) -> None:
        self._pieces: list[Any] = []
        self._stop: int | None = None

    def add(self, start: int, piece: Any) -> None:
        """Take `piece` (tensor or tuple, one entry per position from `start`)."""
        stop = start + len(piece)
        known = 0 if self._stop is None else max(0, self._stop - start)
        if known < len(piece):
            self._pieces.append(piece[known:])
            self._stop = stop

    def as_tensor(self) -> Any:
        """All entries as one tensor [n, …]; None when there are none."""
        if not self._pieces:
            return None
        import torch

        return torch.cat(self._pieces)

    def as_tuple(self) -> tuple[Any, ...]:
        return tuple(entry for piece in self._pieces for entry in piece)


@dataclass(slots=True, kw_only=True)
class LiveRequest:
    """A request inside the loop: its sequence, where its output goes, what is not handed out yet, and what it cost.

    streams: whether new output is handed out at every step; otherwise all of it comes with the final delta, and nobody
        is woken in between.
    Times that end in `_at` are `time.perf_counter()` readings; the others are seconds.
    """

    sequence: Sequence
    detokenizer: IncrementalDetokenizer
    on_output: OutputSink
    streams: bool
    include_stop: bool
    received_at: float
    media: tuple[MediaReport, ...] = ()
    fetch_s: float = 0.0
    decode_media_s: float = 0.0
    preprocess_s: float = 0.0
    encode_queue_s: float = 0.0
    encode_s: float = 0.0
    encoded_until_s: float = 0.0
    computing_at: float | None = None
    first_token_at: float | None = None
    num_output_tokens: int = 0
    deferred_ids: list[int] = field(default_factory=list)
    new_text: list[str] = field(default_factory=list)
    new_token_ids: list[int] = field(default_factory=list)
    new_logprobs: list[Mapping[int, float]] = field(default_factory=list)
    logits: Collected = field(default_factory=Collected)
    hidden_states: Collected = field(default_factory=Collected)
    prompt_logprobs: Collected = field(default_factory=Collected)
    hidden_sum: Any = None
    encoded_items: set[int] = field(default_factory=set)

    def add_encoding(self, item_hash: bytes, timing: EncodeTiming) -> None:
        """Take what it cost to get an embedding, when a media item of this request waits for it."""
        seq = self.sequence
        waiting = [
            index
            for index, (item, state) in enumerate(zip(seq.items, seq.item_states, strict=True))
            if item.hash == item_hash and state is EmbeddingState.REQUESTED
        ]
        if waiting and timing.encode_s > 0:
            self.encoded_items.update(waiting)
            self.encode_queue_s = max(self.encode_queue_s, timing.queue_s)
            # Media of one batch share its time, and batches of a GPU overlap: no second counts twice.
            ended_s = timing.started_s + timing.encode_s
            self.encode_s += max(0.0, ended_s - max(timing.started_s, self.encoded_until_s))
            self.encoded_until_s = max(ended_s, self.encoded_until_s)

    def make_media(self) -> tuple[MediaReport, ...]:
        """How each media item was seen, and whether a tower ran for it."""
        return tuple(
            replace(report, is_cached=index not in self.encoded_items) for index, report in enumerate(self.media)
        )

    def add_hidden_sum(self, start: int, hidden_sum: Any) -> None:
        """Take the sum of the hidden states of a row from position `start`. Nothing of a pooled sequence comes from a
        cache, so one that was preempted begins again at 0."""
        self.hidden_sum = hidden_sum if start == 0 else self.hidden_sum + hidden_sum

    def make_pooled(self) -> Any:
        """The mean of the prompt's hidden states; None when the request is not pooled."""
        return None if self.hidden_sum is None else self.hidden_sum / self.sequence.num_prompt_tokens

    @property
    def request_id(self) -> int:
        return self.sequence.seq_id

    @property
    def defers_text(self) -> bool:
        """Whether tokens may wait for the end of the answer before they become text: nobody sees them before, and no
        word in them ends it."""
        params = self.sequence.params
        return not (self.streams or self.detokenizer.stops_at_words or params.pooling) and params.logprobs is None

    def take_deferred(self) -> list[int]:
        """The token ids that are not text yet."""
        taken, self.deferred_ids = self.deferred_ids, []
        return taken

    def add_output(self, text: str, token_ids: Iterable[int] = (), logprobs: Mapping[int, float] | None = None) -> None:
        """Take new output; `logprobs` is of the one new token."""
        self.new_text.append(text)
        self.new_token_ids.extend(token_ids)
        if logprobs is not None:
            self.new_logprobs.append(logprobs)

    def take_delta(self) -> OutputDelta:
        """What is new since the last call, as a delta that is not final."""
        delta = OutputDelta(
            request_id=self.request_id,
            prompt_tokens=self.sequence.num_prompt_tokens,
            text="".join(self.new_text),
            token_ids=tuple(self.new_token_ids),
            logprobs=tuple(self.new_logprobs) or None,
        )
        self.num_output_tokens += len(self.new_token_ids)
        self.new_text, self.new_token_ids, self.new_logprobs = [], [], []
        return delta

    def take_final(
        self, reason: FinishReason, *, stop_reason: str | int | None = None, error: Exception | None = None
    ) -> OutputDelta:
        """The last delta: what is new, and everything that is reported once."""
        return replace(
            self.take_delta(),
            finish_reason=reason,
            stop_reason=stop_reason,
            usage=self.make_usage(),
            timings=self.make_timings(),
            logits=self.logits.as_tensor(),
            last_hidden_state=self.hidden_states.as_tensor(),
            prompt_logprobs=self.prompt_logprobs.as_tuple() or None,
            pooled=self.make_pooled() if reason == "stop" else None,
            media=self.make_media() if reason in ("stop", "length") else (),
            error=error,
        )

    def make_usage(self) -> Usage:
        seq = self.sequence
        num_images = sum(item.modality is Modality.IMAGE for item in seq.items)
        return Usage(
            prompt_tokens=seq.num_prompt_tokens,
            completion_tokens=self.num_output_tokens,
            cached_tokens=seq.num_cached_tokens,
            media_tokens=sum(len(item.slots) for item in seq.items),
            num_images=num_images,
            num_videos=len(seq.items) - num_images,
        )

    def make_timings(self) -> StageTimings:
        now = time.perf_counter()
        first = self.first_token_at
        computing = self.computing_at
        return StageTimings(
            fetch_s=self.fetch_s,
            decode_media_s=self.decode_media_s,
            preprocess_s=self.preprocess_s,
            encode_queue_s=self.encode_queue_s,
            encode_s=self.encode_s,
            prefill_s=(first or now) - computing if computing is not None else 0.0,
            decode_s=now - first if first is not None else 0.0,
            time_to_first_token_s=first - self.received_at if first is not None else 0.0,
            total_s=now - self.received_at,
        )
