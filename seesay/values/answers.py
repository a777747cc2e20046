"""Answers: pieces of text, counts and times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from seesay.values.media import MediaReport

if TYPE_CHECKING:
    from seesay.values.prompt_logprobs import PromptLogprobs


FinishReason = Literal["stop", "length", "error", "abort"]
"""Suffixes, in lower case, of the names of picture and video files. Used where nothing else tells what a file is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Token counts of one request. `cached_tokens` of the prompt came from the prefix cache; `media_tokens` of it hold
    embeddings of `num_images` pictures, `num_videos` videos and `num_audios` audios, and `audio_tokens` of these hold
    those of audio. `reasoning_tokens` of the completion are the thought, without its markers.
    `accepted_prediction_tokens` of it were proposed by speculation, which proposed `rejected_prediction_tokens`
    others."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    reasoning_tokens: int = 0
    cached_tokens: int = 0
    media_tokens: int = 0
    audio_tokens: int = 0
    num_images: int = 0
    num_videos: int = 0
    num_audios: int = 0
    accepted_prediction_tokens: int = 0
    rejected_prediction_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTimings:
    """Seconds that a request spent in each stage; 0 for a stage that did not run. The times of several media are added
    up, also when they ran in parallel, except for encoding: a second in which several were encoded counts once."""

    fetch_s: float = 0.0
    decode_media_s: float = 0.0
    preprocess_s: float = 0.0
    encode_queue_s: float = 0.0
    encode_s: float = 0.0
    prefill_s: float = 0.0
    decode_s: float = 0.0
    time_to_first_token_s: float = 0.0
    total_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StageMoments:
    """When a request reached its stages, as readings of `time.perf_counter()`, for traces; None: it did not.

    received_at_s: it was submitted. prepared_at_s: its prompt and its media were ready. encoding_at_s, encoded_at_s:
    towers began with its media, and had all of them. computing_at_s: its first row was launched. first_token_at_s: its
    first token was known. ended_at_s: its last one was.
    """

    received_at_s: float
    prepared_at_s: float
    ended_at_s: float
    encoding_at_s: float | None = None
    encoded_at_s: float | None = None
    computing_at_s: float | None = None
    first_token_at_s: float | None = None


@dataclass(slots=True, kw_only=True)  # one for each token: a frozen one takes three times as long to make
class OutputDelta:
    """New output of one request; immutable. Every request ends in exactly one delta whose `finish_reason` is
    set.

    prompt_tokens: length of the prompt, in every delta of a request that was computed.
    is_thinking: whether the answer begins inside a thought, which the prompt has begun; in every delta, too.
    logprobs: one {token_id: logprob} per new token, if requested.
    prompt_logprobs: if requested, in one delta, not after the first that has tokens.
    mean_logprob: mean log-probability of all tokens of the answer, the one that ended it included, if log-probabilities
        were requested.
    usage, timings, moments, logits, last_hidden_state, mean_logprob, media: in the final delta only.
    pooled: float32 [hidden], in the final delta of a request with `pooling`: the hidden state behind the final norm, of
        the last position or its mean over all, text and media. With 'tokens' [n, size], a vector for each. Such a
        request has no other output.
    error: set when `finish_reason` is 'error'.
    """

    request_id: int
    prompt_tokens: int = 0
    is_thinking: bool = False
    text: str = ""
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[Mapping[int, float], ...] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    usage: Usage | None = None
    timings: StageTimings | None = None
    moments: StageMoments | None = None
    logits: Any = None
    last_hidden_state: Any = None
    prompt_logprobs: PromptLogprobs | None = None
    mean_logprob: float | None = None
    pooled: Any = None
    media: tuple[MediaReport, ...] = ()
    error: Exception | None = None


def join_deltas(deltas: Sequence[OutputDelta]) -> OutputDelta:
    """Return consecutive deltas of one request as one."""
    if len(deltas) == 1:
        return deltas[0]
    last = deltas[-1]
    text = "".join([delta.text for delta in deltas])
    token_ids = tuple([token_id for delta in deltas for token_id in delta.token_ids])
    logprobs = tuple([entry for delta in deltas if delta.logprobs for entry in delta.logprobs]) or None
    prompt_logprobs = find_prompt_logprobs(deltas)
    if last.finish_reason is not None:
        return replace(last, text=text, token_ids=token_ids, logprobs=logprobs, prompt_logprobs=prompt_logprobs)
    return OutputDelta(
        request_id=last.request_id,
        prompt_tokens=last.prompt_tokens,
        is_thinking=last.is_thinking,
        text=text,
        token_ids=token_ids,
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
    )


def find_prompt_logprobs(deltas: Sequence[OutputDelta]) -> PromptLogprobs | None:
    """Return the log-probabilities of the prompt in the deltas of one request, if these have them."""
    return next((delta.prompt_logprobs for delta in deltas if delta.prompt_logprobs is not None), None)
