"""An answer while the core computes it: tokens become text here, and what the core reports becomes an `OutputDelta`."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from seesay.engine.token_messages import Features, TokenOutput, TokenReport
from seesay.grammars.thought import ThoughtTracker
from seesay.llm.scheduling.stopping import REPEATED
from seesay.processors.text.detokenize import IncrementalDetokenizer
from seesay.values import (
    FinishReason,
    MediaPlace,
    MediaReport,
    OutputDelta,
    StageMoments,
    StageTimings,
    Usage,
)
from seesay.vl.media.located import locate

if TYPE_CHECKING:
    import numpy.typing as npt

    from seesay.llm.plans.sampling_params import SamplingParams
    from seesay.values.prompt_logprobs import PromptLogprobs

OutputSink = Callable[[OutputDelta], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontTimes:
    """When the frontend received and prepared a request, as `time.perf_counter()` readings; and the seconds that its
    media took."""

    received_at: float
    prepared_at: float = field(default_factory=time.perf_counter)
    fetch_s: float = 0.0
    decode_media_s: float = 0.0
    preprocess_s: float = 0.0

    def make_moments(self, report: TokenReport, now: float) -> StageMoments:
        return StageMoments(
            received_at_s=self.received_at,
            prepared_at_s=self.prepared_at,
            encoding_at_s=report.encoding_at_s,
            encoded_at_s=report.encoded_at_s,
            computing_at_s=report.computing_at_s,
            first_token_at_s=report.first_token_at_s,
            ended_at_s=now,
        )

    def make_timings(self, report: TokenReport, now: float) -> StageTimings:
        first, computing = report.first_token_at_s, report.computing_at_s
        return StageTimings(
            fetch_s=self.fetch_s,
            decode_media_s=self.decode_media_s,
            preprocess_s=self.preprocess_s,
            encode_queue_s=report.encode_queue_s,
            encode_s=report.encode_s,
            prefill_s=(first or now) - computing if computing is not None else 0.0,
            decode_s=now - first if first is not None else 0.0,
            time_to_first_token_s=first - self.received_at if first is not None else 0.0,
            total_s=now - self.received_at,
        )


@dataclass(slots=True, kw_only=True)
class LiveAnswer:
    """The frontend's half of a request that the core computes.

    prompt_usage: the counts that are known before anything is computed.
    streams: whether new output is handed out as it comes; otherwise all of it comes with the final delta, and nobody
        is woken in between.
    keeps_stop: whether the stop token of the request that ended the answer, or the stop word, remains in it.
    media_places: of each media item in the request, for errors.
    thought: the thought with which the answer begins or may begin; None where none is to come.
    load_features: by index of a media item that was sent without arrays, how its features are made after all.
    """

    request_id: int
    prompt_usage: Usage
    params: SamplingParams
    detokenizer: IncrementalDetokenizer
    on_output: OutputSink
    streams: bool
    keeps_stop: bool
    times: FrontTimes
    thought: ThoughtTracker | None = None
    media: tuple[MediaReport, ...] = ()
    media_places: Sequence[MediaPlace | None] = ()
    load_features: Mapping[int, Callable[[], Features]] = field(default_factory=dict)
    num_tokens: int = 0
    num_output_tokens: int = 0
    logprob_sum: float = 0.0
    new_text: list[str] = field(default_factory=list)
    new_token_ids: list[int] = field(default_factory=list)
    new_logprobs: list[Mapping[int, float]] = field(default_factory=list)
    prompt_logprobs: PromptLogprobs | None = None

    @property
    def defers_tokens(self) -> bool:
        """Whether tokens may wait for the end of the answer before they become text: nobody sees them before, and no
        word in them ends it."""
        return not (self.streams or self.detokenizer.stops_at_words or self.params.pooling)

    @property
    def is_thinking(self) -> bool:
        """Whether the answer begins inside a thought."""
        return self.thought is not None and self.thought.rule.is_open

    @property
    def has_stopped(self) -> bool:
        """Whether a stop word has ended the text. Later tokens are dropped."""
        return self.detokenizer.stop is not None

    def take(self, output: TokenOutput) -> OutputDelta | None:
        """The delta that `output` makes; None when there is nothing to hand out yet."""
        if self.streams and output.finish_reason is None and not self.detokenizer.stops_at_words:
            return self._take_next(output)
        is_over = self.has_stopped
        if output.prompt_logprobs is not None:
            self.prompt_logprobs = output.prompt_logprobs
        if not is_over:
            self._add_tokens(output)
        if output.finish_reason is not None:
            # An error after a stop word concerns tokens that are dropped.
            return self._make_final(replace(output, error=None) if is_over else output)
        # The text before a stop word comes with the final delta, which the core's report completes.
        return self._make_delta() if self.streams and not self.has_stopped else None

    def _take_next(self, output: TokenOutput) -> OutputDelta:
        """As `take`, for what most outputs are: tokens in the middle of a streamed answer that no word ends."""
        num_new = len(output.token_ids)
        if output.logprobs:
            self._add_logprobs(output, num_new)
        self.num_tokens += num_new
        self.num_output_tokens += num_new
        if self.thought is not None:
            self.thought.follow(output.token_ids)
        return OutputDelta(
            request_id=self.request_id,
            prompt_tokens=self.prompt_usage.prompt_tokens,
            is_thinking=self.is_thinking,
            text=self.detokenizer.add(output.token_ids),
            token_ids=output.token_ids,
            logprobs=output.logprobs,
            prompt_logprobs=output.prompt_logprobs,
        )

    def _add_tokens(self, output: TokenOutput) -> None:
        token_ids, logprobs = output.token_ids, output.logprobs or ()
        num_kept = len(token_ids)
        self.num_tokens += num_kept
        keeps_stop = self.keeps_stop and output.stop_token_id in self.params.stop_token_ids
        if output.stop_token_id not in (None, REPEATED) and not keeps_stop:
            token_ids = token_ids[:-1]
        if not self.detokenizer.stops_at_words:
            self.new_text.append(self.detokenizer.add(token_ids))
        for index, token_id in enumerate(token_ids if self.detokenizer.stops_at_words else ()):
            self.new_text.append(self.detokenizer.push((token_id,)).text)
            if self.has_stopped:
                self.num_tokens -= len(output.token_ids) - index - 1
                token_ids = token_ids[: index + 1]
                num_kept = index + 1
                break
        if logprobs:
            self._add_logprobs(output, num_kept)
        if output.finish_reason is not None:
            self.new_text.append(self.detokenizer.flush())
        if self.thought is not None:
            self.thought.follow(token_ids)
        self.new_token_ids.extend(token_ids)
        self.new_logprobs.extend(logprobs[: len(token_ids)])

    def _add_logprobs(self, output: TokenOutput, num_tokens: int) -> None:
        pairs = zip(output.token_ids[:num_tokens], output.logprobs or ())
        self.logprob_sum += sum(entry[token_id] for token_id, entry in pairs)

    def _make_delta(self) -> OutputDelta:
        """Return the output since the last call, as a delta that is not final."""
        delta = OutputDelta(
            request_id=self.request_id,
            prompt_tokens=self.prompt_usage.prompt_tokens,
            is_thinking=self.is_thinking,
            text="".join(self.new_text),
            token_ids=tuple(self.new_token_ids),
            logprobs=tuple(self.new_logprobs) or None,
            prompt_logprobs=self.prompt_logprobs,
        )
        self.num_output_tokens += len(self.new_token_ids)
        self.new_text, self.new_token_ids, self.new_logprobs, self.prompt_logprobs = [], [], [], None
        return delta

    def _make_final(self, output: TokenOutput) -> OutputDelta:
        """The last delta: what is new, and everything that is reported once."""
        reason: FinishReason | None = output.finish_reason
        stop = _read_stop(output)
        error = output.error
        place = None if output.failed_item is None else self.media_places[output.failed_item]
        if error is not None and place is not None:
            error = locate(error, place)
        if self.has_stopped and error is None:
            reason, stop = "stop", self.detokenizer.stop
        report, now = output.report or TokenReport(), time.perf_counter()
        return replace(
            self._make_delta(),
            finish_reason=reason,
            stop_reason=stop,
            usage=replace(
                self.prompt_usage,
                completion_tokens=self.num_output_tokens,
                reasoning_tokens=0 if self.thought is None else self.thought.num_tokens,
                cached_tokens=report.num_cached_tokens,
                accepted_prediction_tokens=report.num_accepted,
                rejected_prediction_tokens=report.num_drafted - report.num_accepted,
            ),
            timings=self.times.make_timings(report, now),
            moments=self.times.make_moments(report, now),
            logits=self._cut(report.logits, self.params.output_logits),
            last_hidden_state=self._cut(report.hidden_states, self.params.output_last_hidden_state),
            mean_logprob=self._find_mean_logprob(),
            pooled=_as_tensor(report.pooled) if reason == "stop" else None,
            media=self._make_media(report) if reason in ("stop", "length") else (),
            error=error,
        )

    def _find_mean_logprob(self) -> float | None:
        if self.params.logprobs is None or not self.num_tokens:
            return None
        return self.logprob_sum / self.num_tokens

    def _cut(self, values: npt.NDArray[np.float32] | None, kind: str | None) -> Any:
        """Per-position outputs as a tensor, without those that were computed behind a stop word."""
        if values is not None and self.has_stopped:
            values = values[: self.num_tokens + (self.prompt_usage.prompt_tokens - 1 if kind == "all" else 0)]
        return _as_tensor(values)

    def _make_media(self, report: TokenReport) -> tuple[MediaReport, ...]:
        """How each media item was seen, and whether a tower ran for it."""
        return tuple(
            replace(media, is_cached=index not in report.encoded_items) for index, media in enumerate(self.media)
        )


def _read_stop(output: TokenOutput) -> str | int | None:
    """Return the stop reason of an answer that no stop word ended."""
    return "repetition" if output.stop_token_id == REPEATED else output.stop_token_id


def _as_tensor(values: npt.NDArray[np.float32] | None) -> Any:
    """`values` as a tensor; the same memory, unless it must not be written."""
    if values is None:
        return None
    import torch

    return torch.from_numpy(np.require(values, requirements="W"))
