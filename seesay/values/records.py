"""A request as `--record` keeps it: a line of JSON, from which `seesay replay` repeats it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

RECORD_VERSION = 1
"""Of the form of a line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaRecord:
    """A picture or video of a prompt.

    position: index in `RequestRecord.tokens` of the token that stands for it. sha256: of the file, in hex. num_tokens:
    its places in the prompt. options: those of the request for this item.
    """

    position: int
    modality: Literal["image", "video", "audio"]
    sha256: str
    num_tokens: int
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRecord:
    """A request for one answer, and what came of it.

    model, weights: the model's path or id, and a digest of its weights. arrived_at: seconds since 1970.
    tokens: of the prompt, each of `media` as one. num_continued: how many of the last ones began the answer.
    num_prompt_tokens: of the prompt with all places of its media.
    options: fields of `GenerationConfig` that have no default. kept_tokens: special tokens that the text keeps.
    owner, salt: numbers that the recording process gave those that it saw; empty for none.
    answer: the tokens of the answer. finish_reason, error: how it ended, and the code of the error.
    first_token_s, total_s: seconds from its arrival to its first token and its end.
    unrepeatable: why it cannot be repeated; empty where it can.
    """

    record: int = RECORD_VERSION
    version: str
    model: str
    weights: str
    arrived_at: float
    tokens: Sequence[int]
    num_prompt_tokens: int
    num_continued: int = 0
    media: Sequence[MediaRecord] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    kept_tokens: Sequence[str] = ()
    adapter: str | None = None
    priority: int = 0
    streams: bool = True
    owner: str = ""
    salt: str = ""
    answer: Sequence[int] = ()
    finish_reason: Literal["stop", "length", "error", "abort"]
    error: str = ""
    first_token_s: float = 0.0
    total_s: float = 0.0
    unrepeatable: str = ""
