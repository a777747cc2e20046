"""Requests: messages, the rendered prompt, and the input of the engine."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from seesay.values.media import MediaItem, MediaPlace, Modality

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from seesay.config import GenerationConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class TextPart:
    """A piece of a message's text."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaPart:
    """A reference to a picture or video, not loaded yet.

    `source` is anything that `load_image` or `load_video` accepts: path, URL, data URL, bytes, PIL image, list of
    frames. `options` are the request's options for this item: `min_pixels`, `max_pixels`, `fps`, `num_frames`, ….
    `is_placed`: the user chose its place in a text with `IMAGE_TOKEN` or `VIDEO_TOKEN`, and no chat template moves it.
    `position`: in a prompt of token ids, the index of the token whose place it takes.
    `place` is only for errors: equal media in two places compare equal.
    """

    modality: Modality
    source: Any
    options: Mapping[str, Any] = field(default_factory=dict)
    is_placed: bool = False
    position: int | None = None
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


Pooling = Literal["mean", "last", "tokens"]
"""What an embedding is: the mean of the last hidden states of a prompt's positions, the last one of them, or a vector
for each of them (late interaction), which the model's own head makes where it has one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """One prompt and how to answer it.

    prompt: a conversation (the chat template is applied), a raw text (no template; `IMAGE_TOKEN` and `VIDEO_TOKEN` mark
        the places of `media`, special tokens are honoured), or token ids (each of `media` has its `position` there).
    template_options: passed to the chat template.
    continuation: tokens that follow the prompt, and count as its last ones.
    enable_thinking, reasoning_effort: whether the model thinks before it answers, and how much; None: as it does by
        itself. Only for a conversation.
    pooling: return an embedding of the prompt and generate nothing. `gen_config` is ignored.
    kept_tokens: special tokens that stay in the text of the answer, though `skip_special_tokens` leaves out others.
    wants_answer: False generates nothing and computes the prompt only for its outputs. The prompt may then have
        `session_len` tokens, and the finish reason is 'length'.
    max_length: most tokens of the prompt and its answer together, where that is less than `session_len`.
    streams: False returns the whole answer in the final delta.
    owner: any hashable value. Owners take turns when there are more requests than can be computed at once.
    priority: of the requests of one owner that wait, those with the lowest number are computed first.
    cache_salt: requests with different salts share nothing that is cached: no KV block, embedding or features.
    adapter_name: the LoRA adapter that changes the model for this request (`EngineConfig.adapters`).
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
    pooling: Pooling | None = None
    kept_tokens: tuple[str, ...] = ()
    wants_answer: bool = True
    max_length: int | None = None
    streams: bool = True
    owner: Hashable = None
    priority: int = 0
    cache_salt: str = ""
    adapter_name: str | None = None
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
