"""From media references to features: fetch, decode and preprocess in a thread pool, once per content.

Knows nothing about prompts or engines. Preprocessed features are kept in a cache that is addressed by content and
limited in bytes, so a picture seen before is not resized again.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from seesay.config import MediaLimits, VisionConfig
from seesay.errors import ErrorCode, RequestError
from seesay.processors.decode import DECODE_OPTIONS, decode_image, decode_video
from seesay.processors.hashing import digest
from seesay.values import DecodedMedia, MediaPart, Modality
from seesay.vl.family import Family


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedMedia:
    """One picture or clip, ready for a tower.

    `key` is 32 bytes over the decoded content and the preprocessing options. `features` are the family's own.
    """

    modality: Modality
    features: Mapping[str, Any]
    key: bytes
    decode_s: float = 0.0
    preprocess_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureCacheStats:
    """Counts now, and since the start where the name says total."""

    num_entries: int
    used_bytes: int
    total_hits: int
    total_misses: int


class FeatureCache:
    """Features by content key, least recently used first out, limited in bytes. Thread-safe."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._entries: OrderedDict[bytes, tuple[Mapping[str, Any], int]] = OrderedDict()
        self._used_bytes = 0
        self._total_hits = 0
        self._total_misses = 0
        self._lock = threading.Lock()

    def stats(self) -> FeatureCacheStats:
        with self._lock:
            return FeatureCacheStats(
                num_entries=len(self._entries),
                used_bytes=self._used_bytes,
                total_hits=self._total_hits,
                total_misses=self._total_misses,
            )

    def get(self, key: bytes) -> Mapping[str, Any] | None:
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                self._total_misses += 1
                return None
            self._total_hits += 1
            self._entries.move_to_end(key)
            return entry[0]

    def put(self, key: bytes, features: Mapping[str, Any]) -> None:
        size = sum(getattr(value, "nbytes", 64) for value in features.values())
        if size > self._limit_bytes:
            return
        with self._lock:
            if key in self._entries:
                return
            self._entries[key] = (features, size)
            self._used_bytes += size
            while self._used_bytes > self._limit_bytes:
                _, (_, freed) = self._entries.popitem(last=False)
                self._used_bytes -= freed


class MediaFront:
    """Loads the media of requests, several at a time. `close` ends its threads."""

    def __init__(self, family: Family, config: VisionConfig, limits: MediaLimits) -> None:
        self._family = family
        self._limits = limits
        self._cache = FeatureCache(config.feature_cache_bytes)
        self._threads = ThreadPoolExecutor(config.thread_num, thread_name_prefix="seesay-media")

    def prepare(self, media: Sequence[MediaPart]) -> list[PreparedMedia]:
        """Decode and preprocess `media`, in order. Raises the first `RequestError` among them."""
        if len(media) == 1:
            return [self._prepare_one(media[0])]
        futures = [self._threads.submit(self._prepare_one, part) for part in media]
        try:
            return [future.result() for future in futures]
        finally:
            for future in futures:
                future.cancel()

    def stats(self) -> FeatureCacheStats:
        """Counts of the feature cache."""
        return self._cache.stats()

    def close(self) -> None:
        self._threads.shutdown(wait=True, cancel_futures=True)

    def _prepare_one(self, part: MediaPart) -> PreparedMedia:
        if part.modality not in self._family.modalities:
            takes = ", ".join(m.value for m in self._family.modalities) or "no media"
            raise RequestError(
                ErrorCode.INVALID_MEDIA,
                f"this model takes {takes}; the request holds a {part.modality.value}",
                "messages",
            )
        known = DECODE_OPTIONS[part.modality]
        chosen = {k: v for k, v in part.options.items() if k in known}
        decode_options = with_defaults(chosen, self._family.decode_defaults.get(part.modality, {}))
        options = {k: v for k, v in part.options.items() if k not in known}
        started = time.perf_counter()
        decoded = self._decode(part, decode_options)
        decode_done = time.perf_counter()
        key = digest(b"media", decoded.digest, self._family.media_key(decoded.modality, options))
        features = self._cache.get(key)
        if features is None:
            features = self._family.preprocess(decoded, options)
            self._cache.put(key, features)
        return PreparedMedia(
            modality=decoded.modality,
            features=features,
            key=key,
            decode_s=decode_done - started,
            preprocess_s=time.perf_counter() - decode_done,
        )

    def _decode(self, part: MediaPart, options: Mapping[str, Any]) -> DecodedMedia:
        if part.modality is Modality.IMAGE:
            return decode_image(part.source, self._limits)
        return decode_video(part.source, options, self._limits)


def with_defaults(chosen: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """How to sample a clip: what the request chose, and the family's defaults where they do not contradict it.

    A number of frames and a frame rate (with its bounds) exclude each other.
    """
    if "num_frames" in chosen:
        return dict(chosen)
    rate = ("fps", "min_frames", "max_frames")
    kept = {k: v for k, v in defaults.items() if k != "num_frames" or not any(name in chosen for name in rate)}
    return {**kept, **chosen}
