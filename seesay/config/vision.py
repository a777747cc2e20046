"""Options of the vision encoder."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Literal

from seesay.config import foreign as foreign_options
from seesay.config.checks import accept_defaults, check_types, require

Transparency = Literal["white", "drop"]

_MOST_ROWS = 1 << 16
"""Upper limit of the items in a call. Larger values are typing errors."""


_MEDIA_THREADS = min(16, max(4, os.cpu_count() or 4))


@accept_defaults(foreign_options.VISION)
@dataclass(frozen=True, kw_only=True)
class VisionConfig:
    """Options of the vision encoder and of media preprocessing.

    max_batch_size: largest number of pictures or videos in one call of the vision tower.
    max_batch_tokens: largest number of input patches in one call; a larger item gets a call of its own.
    embedding_cache_bytes: size of the cache of embeddings; 0 turns it off.
    feature_cache_bytes: size of the cache of preprocessed pictures; 0 turns it off.
    thread_num: threads that decode and preprocess media; by default one per processor core, between 4 and 16.
    device: the device of the vision encoder, such as 'cuda:1', which takes names as `EngineConfig.device_type` does;
        None is the language model's. On a GPU of its own it never slows answers down.
    own_process: compute the vision encoder in a process of its own, which is started again when it dies or hangs. Its
        weights cannot be replaced, and the engine cannot sleep.
    transparency: "white" puts transparent parts of pictures on white, as Transformers' processors do; "drop" ignores
        the alpha channel, as `convert("RGB")` of Pillow does. The option `transparency` of a media item takes
        precedence.
    """

    max_batch_size: int = 8
    max_batch_tokens: int = 65536
    embedding_cache_bytes: int = 1 << 30
    feature_cache_bytes: int = 256 << 20
    thread_num: int = _MEDIA_THREADS
    device: str | None = None
    own_process: bool = False
    transparency: Transparency = "white"

    def __post_init__(self) -> None:
        check_types(self)
        for name, most in (("max_batch_size", _MOST_ROWS), ("max_batch_tokens", 1 << 62), ("thread_num", 1024)):
            require(1 <= getattr(self, name) <= most, name, getattr(self, name), f"must be in [1, {most}]")
        for name in ("embedding_cache_bytes", "feature_cache_bytes"):
            require(getattr(self, name) >= 0, name, getattr(self, name), "must be at least 0")
