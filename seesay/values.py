"""The frozen values that cross folders. Holds data only, no tensors, and little behaviour."""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from functools import reduce
from operator import add
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from seesay.config import GenerationConfig
    from seesay.prompt_logprobs import PromptLogprobs

FinishReason = Literal["stop", "length", "error", "abort"]


class Modality(StrEnum):
    IMAGE = "image"
    VIDEO = "video"


IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".gif", ".webp", ".bmp", ".tif", ".tiff", ".ppm", ".avif", ".heic")
VIDEO_SUFFIXES = (".mp4", ".mov", ".mkv", ".webm", ".avi", ".m4v", ".mpg", ".mpeg", ".ts", ".flv", ".wmv")
"""Suffixes, in lower case, of the names of picture and video files. Used where nothing else tells what a file is."""


# --- requests ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class TextPart:
    """A piece of a message's text."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaPlace:
    """The place of a media part in its request, for errors: `messages[0].content[1].image_url.url` is a `source`.

    `parent` is the path of the object that has the options, and `keys` maps each option to its key in that object.
    `fields` has the paths of options that the request gives for all of its media.
    """

    source: str
    parent: str = ""
    keys: Mapping[str, str] = field(default_factory=dict)
    fields: Mapping[str, str] = field(default_factory=dict)

    def find(self, param: str | None) -> str:
        """Return the path of the option `param`, or of the source if the part has no such option."""
        if param is not None and param in self.fields:
            return self.fields[param]
        key = None if param is None else self.keys.get(param)
        return self.source if key is None else f"{self.parent}.{key[:60]}"


_PART_PLACE = re.compile(r"messages\[(\d{1,9})\]\.content\[(\d{1,9})\](?:\.\w+(?:\[\d+\])?)*:\s*")


def split_place(message: str) -> tuple[tuple[int, int] | None, str]:
    """Return ((index of the message, index of its part) that an error's message begins with, the rest of it)."""
    place = _PART_PLACE.match(message)
    return (None, message) if place is None else ((int(place[1]), int(place[2])), message[place.end() :])


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaPart:
    """A reference to a picture or video, not loaded yet.

    `source` is anything that `load_image` or `load_video` accepts: path, URL, data URL, bytes, PIL image, list of
    frames. `options` are the request's options for this item: `min_pixels`, `max_pixels`, `fps`, `num_frames`, ….
    `is_placed`: the user chose its place in a text with `IMAGE_TOKEN` or `VIDEO_TOKEN`, and no chat template moves it.
    `place` is only for errors: equal media in two places compare equal.
    """

    modality: Modality
    source: Any
    options: Mapping[str, Any] = field(default_factory=dict)
    is_placed: bool = False
    place: MediaPlace | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One turn of a conversation. `extra` holds the keys that a chat template may read (tool_calls, name, …)."""

    role: str
    parts: tuple[TextPart | MediaPart, ...]
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ThoughtRule:
    """The thought with which an answer may begin, and its longest length.

    begin, end: its markers. begin_ids, end_ids: their token ids, with which a thought is begun beside a grammar, and
    ended at its limit. is_open: the prompt ends in the thought; else it may begin with the answer. max_tokens: most
    tokens between the markers; None: no limit.
    """

    begin: str
    end: str
    begin_ids: tuple[int, ...]
    end_ids: tuple[int, ...]
    is_open: bool = False
    max_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """One prompt and how to answer it.

    prompt: a conversation (the chat template is applied), a raw text (no template; `IMAGE_TOKEN` and `VIDEO_TOKEN` mark
        the places of `media`, special tokens are honoured), or token ids.
    template_options: passed to the chat template.
    continuation: tokens that follow the prompt, and count as its last ones.
    enable_thinking, reasoning_effort: whether the model thinks before it answers, and how much; None: as it does by
        itself. Only for a conversation.
    pooling: return an embedding of the prompt and generate nothing: the 'mean' of the last hidden states of its
        positions, or the 'last' one of them. `gen_config` is ignored.
    kept_tokens: special tokens that stay in the text of the answer, though `skip_special_tokens` leaves out others.
    wants_answer: False generates nothing and computes the prompt only for its outputs. The prompt may then have
        `session_len` tokens, and the finish reason is 'length'.
    max_length: most tokens of the prompt and its answer together, where that is less than `session_len`.
    streams: False returns the whole answer in the final delta.
    owner: any hashable value. Owners take turns when there are more requests than can be computed at once.
    priority: of the requests of one owner that wait, those with the lowest number are computed first.
    cache_salt: requests with different salts share nothing that is cached: no KV block, embedding or features.
    truncate_prompt_tokens: use the last so many tokens of the prompt only; -1: as many as fit. Media are never cut.
    add_special_tokens: False leaves out the BOS that the tokenizer puts in front of a text.
    chat_template: the source of a Jinja template that takes the place of the model's own.
    """

    prompt: tuple[Message, ...] | str | tuple[int, ...]
    gen_config: GenerationConfig
    media: tuple[MediaPart, ...] = ()
    continuation: tuple[int, ...] = ()
    template_options: Mapping[str, Any] = field(default_factory=dict)
    enable_thinking: bool | None = None
    reasoning_effort: str | None = None
    pooling: Literal["mean", "last"] | None = None
    kept_tokens: tuple[str, ...] = ()
    wants_answer: bool = True
    max_length: int | None = None
    streams: bool = True
    owner: Hashable = None
    priority: int = 0
    cache_salt: str = ""
    truncate_prompt_tokens: int | None = None
    add_special_tokens: bool = True
    chat_template: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderedPrompt:
    """A prompt as text, with its media by offset.

    `markers[i]` is the (start, stop) character span in `text` of the marker for `media[i]`. `literals` are the spans of
    user text that spell a special token. They are tokenized as plain text, so nothing that a user types can move an
    image or end a turn. Spans ascend and do not overlap. Without `takes_prefix`, the tokenizer's BOS is not added.
    """

    text: str
    media: tuple[MediaPart, ...] = ()
    markers: tuple[tuple[int, int], ...] = ()
    literals: tuple[tuple[int, int], ...] = ()
    takes_prefix: bool = True


# --- media -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaSize:
    """Size in pixels of an upright picture (one frame), or of the frames that are taken from a video.

    `timestamps_s` has the time of each frame of a video, for prompts that spell them; it is empty for a picture.
    `frame_interval_s` is as in `DecodedMedia`.
    """

    num_frames: int
    height: int
    width: int
    timestamps_s: tuple[float, ...] = ()
    frame_interval_s: float = 0.0

    @property
    def num_pixels(self) -> int:
        return self.num_frames * self.height * self.width


@dataclass(frozen=True, slots=True, kw_only=True)
class VideoFrames:
    """Sampled frames of a video: `frames` uint8 [N, H, W, 3], and the time in the video of each.

    `frame_interval_s` is the video's duration divided by N.
    """

    frames: npt.NDArray[np.uint8]
    timestamps_s: tuple[float, ...]
    frame_interval_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodedMedia:
    """Pixels of one picture (N = 1) or of the sampled frames of one video.

    `frames` is uint8 [N, H, W, 3]; `timestamps_s` has one time per frame (empty for a picture);
    `frame_interval_s` is the video's duration divided by N (0 for a picture, or when it is not known);
    `digest` is 32 bytes over pixels and times: equal content has an equal digest, whatever its encoding.
    """

    modality: Modality
    frames: npt.NDArray[np.uint8]
    timestamps_s: tuple[float, ...] = ()
    frame_interval_s: float = 0.0
    digest: bytes

    @property
    def size(self) -> MediaSize:
        num_frames, height, width, _ = self.frames.shape
        return MediaSize(
            num_frames=num_frames,
            height=height,
            width=width,
            timestamps_s=self.timestamps_s,
            frame_interval_s=self.frame_interval_s,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Expansion:
    """The tokens that one media marker becomes in the prompt.

    `token_ids` [S] replaces the marker's tokens; `takes_embedding` bool [S] says which of them hold a row of the
    encoder's output. The number of true entries is the number of embedding rows; nothing else counts them.
    """

    token_ids: npt.NDArray[np.int64]
    takes_embedding: npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaItem:
    """One picture or video inside a tokenized prompt.

    `span` is the (start, stop) range of prompt positions it occupies; `slots` int64 [R] are the absolute positions,
    ascending and inside the span, that take the R rows of the encoder's output. `hash` is 32 bytes over content,
    preprocessing options and model revision: the key of every cache. `features` is the family's preprocessed input for
    its tower, and `num_units` its encoding cost (patches, tiles times patches, …). `has_arrays` is False when the
    arrays were left out of the features, because the item's embedding is probably cached.
    """

    modality: Modality
    span: tuple[int, int]
    slots: npt.NDArray[np.int64]
    hash: bytes
    features: Mapping[str, Any]
    num_units: int
    has_arrays: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class MultimodalInput:
    """A tokenized prompt: `token_ids` int64 [T], `positions` int64 [T] or [3, T], media items in order.

    `next_position` is the rotary position of the first generated token; later ones follow by one. The last
    `num_answer_tokens` tokens are the beginning of the answer, which goes on.
    """

    token_ids: npt.NDArray[np.int64]
    positions: npt.NDArray[np.int64]
    next_position: int
    items: tuple[MediaItem, ...] = ()
    num_answer_tokens: int = 0


# --- answers ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Token counts of one request. `cached_tokens` of the prompt came from the prefix cache; `media_tokens` of it hold
    embeddings of `num_images` pictures and `num_videos` videos. `reasoning_tokens` of the completion are the thought,
    without its markers."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    reasoning_tokens: int = 0
    cached_tokens: int = 0
    media_tokens: int = 0
    num_images: int = 0
    num_videos: int = 0


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
class MediaReport:
    """Report on how the model received one picture or video of a request.

    num_frames, height, width: of the input; for a video, of its sampled frames.
    timestamps_s: time in the video of each sampled frame; empty for a picture. Where a model takes pictures only, each
        frame of a video has a report of its own, with its time.
    resized_height, resized_width: in pixels, after preprocessing.
    num_tiles: tiles of all frames that go through the tower, 1 for a picture that is not cut. num_patches: patches of
        all tiles. num_tokens: its positions in the prompt.
    is_cached: the tower did not run for it, because its embedding or its KV blocks were cached.
    """

    modality: Modality
    num_frames: int
    height: int
    width: int
    resized_height: int
    resized_width: int
    num_tiles: int
    num_patches: int
    num_tokens: int
    is_cached: bool
    timestamps_s: tuple[float, ...] = ()


@dataclass(slots=True, kw_only=True)  # one for each token: a frozen one takes three times as long to make
class OutputDelta:
    """New output of one request, which nobody changes. Every request ends in exactly one delta whose `finish_reason` is
    set.

    prompt_tokens: length of the prompt, in every delta of a request that was computed.
    is_thinking: whether the answer begins inside a thought, which the prompt has begun; in every delta, too.
    logprobs: one {token_id: logprob} per new token, if requested.
    prompt_logprobs: if requested, in one delta, not after the first that has tokens.
    mean_logprob: mean log-probability of all tokens of the answer, the one that ended it included, if log-probabilities
        were requested.
    usage, timings, logits, last_hidden_state, mean_logprob, media: in the final delta only.
    pooled: float32 [hidden], in the final delta of a request with `pooling`: the hidden state behind the final norm, of
        the last position or its mean over all, text and media. Such a request has no other output.
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


# --- statistics -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStats:
    """Counts of one engine: `num_*` and `*_bytes` are current, `total_*` count since its start.

    Every part of an engine returns one of these with the counts that it keeps; `merge` puts them together.

    num_preparing: requests whose prompts are being prepared. num_waiting, num_running: sequences in the scheduler.
    num_encode_queued: media that wait for the tower.
    num_kv_blocks: all blocks of the device. num_used_kv_blocks: held by sequences. num_cached_kv_blocks: free, but the
        prefix cache can still find their content.
    num_host_kv_blocks, num_used_host_kv_blocks: blocks in host memory, for content that was evicted from the device.
        total_host_kv_loads: blocks that were copied back.
    total_prefix_queried_tokens, total_prefix_hit_tokens: prompt tokens looked up and found in the prefix cache.
    total_step_tokens: tokens computed. step_sizes: (rows of a step, number of such steps), ascending.
    encode_sizes: (items in a call of the tower, number of such calls), ascending.
    total_encoder_restarts, total_engine_restarts: restarts of encoder workers and engine processes. A new engine
        process counts everything else from 0.
    total_jumped_tokens: generated tokens that came in one step with another one: a grammar left no choice about them.
    total_not_finite: rows of steps and embeddings that had NaN or infinity. They are not kept.
    num_wanted_embedding_rows: rows of embeddings that sequences have requested and not used yet.
    embedding_bytes: of all stored embeddings. pinned_embedding_bytes: of those that a sequence needs.
    total_embedding_hits: requests for an embedding that was stored or being encoded.
    total_feature_hits: requests for media whose preprocessed features were cached.
    """

    num_preparing: int = 0
    num_waiting: int = 0
    num_running: int = 0
    num_encode_queued: int = 0
    num_kv_blocks: int = 0
    num_used_kv_blocks: int = 0
    num_cached_kv_blocks: int = 0
    num_host_kv_blocks: int = 0
    num_used_host_kv_blocks: int = 0
    total_host_kv_loads: int = 0
    total_prefix_queried_tokens: int = 0
    total_prefix_hit_tokens: int = 0
    total_preemptions: int = 0
    total_jumped_tokens: int = 0
    total_step_tokens: int = 0
    step_sizes: tuple[tuple[int, int], ...] = ()
    encode_sizes: tuple[tuple[int, int], ...] = ()
    total_encoder_calls: int = 0
    total_encoder_items: int = 0
    total_encoder_restarts: int = 0
    total_engine_restarts: int = 0
    total_not_finite: int = 0
    num_wanted_embedding_rows: int = 0
    num_embeddings: int = 0
    embedding_bytes: int = 0
    pinned_embedding_bytes: int = 0
    total_embedding_hits: int = 0
    total_embedding_misses: int = 0
    total_embedding_evictions: int = 0
    num_features: int = 0
    feature_bytes: int = 0
    total_feature_hits: int = 0
    total_feature_misses: int = 0

    @classmethod
    def merge(cls, *parts: EngineStats) -> EngineStats:
        """Return the sum of each count. Only one part may have `step_sizes`, and one `encode_sizes`."""
        return cls(**{count.name: reduce(add, (getattr(part, count.name) for part in parts)) for count in fields(cls)})
