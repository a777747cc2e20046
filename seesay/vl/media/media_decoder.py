"""From opened media to features: decoded and preprocessed, or found where that was done before.

Preprocessed features are cached by content, so that a known picture is not resized again. A known encoded picture whose
embedding is cached is not even decoded.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from seesay.config import MediaLimits
from seesay.processors.media.allowance import Allowance
from seesay.processors.media.document import OpenedPage
from seesay.processors.media.video.video_frame import VideoFrame
from seesay.system.hashing import digest
from seesay.values import EngineStats, MediaSize
from seesay.vl.family import Family, Features, MediaPlan
from seesay.vl.media.decoded_before import SeenContents, SeenMedia
from seesay.vl.media.feature_cache import FeatureCache
from seesay.vl.media.located import located
from seesay.vl.media.media_items import OpenItem, PreparedMedia
from seesay.vl.media.pixel_gate import PixelGate

_MAX_SEEN = 16384
_PIXELS_AT_ONCE = 256 << 20


class MediaDecoder:
    """Decodes and preprocesses opened media, and keeps features of at most `cache_bytes`. Thread-safe.

    is_encoded(key): whether the embedding of the media with this key is cached or being made.
    """

    def __init__(
        self, family: Family, limits: MediaLimits, cache_bytes: int, *, is_encoded: Callable[[bytes], bool]
    ) -> None:
        self._family = family
        self._limits = limits
        self._is_encoded = is_encoded
        self._seen = SeenContents(_MAX_SEEN)
        self._cache = FeatureCache(cache_bytes)
        self._gate = PixelGate(_PIXELS_AT_ONCE)

    def forget(self) -> None:
        """Forget cached features and known contents."""
        self._seen.clear()
        self._cache.clear()

    def stats(self) -> EngineStats:
        """Return the counts of the feature cache."""
        return self._cache.stats()

    def prepare(self, item: OpenItem, allowance: Allowance) -> PreparedMedia:
        """Return an item decoded and preprocessed; one whose content is known and whose embedding or features are
        cached, without decoding it."""
        started = time.perf_counter()
        content_key = item.media.content_key
        if content_key is not None:
            content_key = digest(b"encoded", content_key, item.preprocessing_key)
        seen = self._seen.get(content_key) if content_key is not None else None
        recalled = self._recall(item, seen) if seen is not None else None
        if recalled is not None:
            if item.size is None:
                allowance.spend_size(recalled.size)
            return replace(recalled, decode_s=time.perf_counter() - started)
        prepared = self._decode(item, allowance)
        if content_key is not None:
            self._seen.put(content_key, SeenMedia.of(prepared.key, prepared.size, prepared.features))
            return replace(prepared, load_features=partial(self._load_features, item))
        return prepared

    def _recall(self, item: OpenItem, seen: SeenMedia) -> PreparedMedia | None:
        """Return known media without decoding it. None where it must be decoded again."""
        features: Features | None = seen.told
        was_recalled = self._is_encoded(seen.key)
        if not was_recalled:
            features = self._cache.get(seen.key) if seen.key in self._cache else None
        if features is None:
            return None
        return PreparedMedia(
            modality=item.media.modality,
            features=features,
            plan=self._plan_of(item, seen.size),
            key=seen.key,
            size=seen.size,
            place=item.place,
            timestamps_s=_timestamps_s(item, seen.size),
            page=_page_of(item),
            was_recalled=was_recalled,
            load_features=partial(self._load_features, item),
            fetch_s=item.fetch_s,
            opened=item,
        )

    def _load_features(self, item: OpenItem) -> Features:
        """Decode and preprocess an item that was recalled without its arrays."""
        with located(item.place):
            return self._decode(item, Allowance(self._limits)).features

    def _decode(self, item: OpenItem, allowance: Allowance) -> PreparedMedia:
        with self._gate.passing(_num_pixels_at_once(item)):
            started = time.perf_counter()
            decoded = item.media.decode()
            if item.size is None:
                allowance.spend_size(decoded.size)
            decode_done = time.perf_counter()
            plan = self._plan_of(item, decoded.size)
            key = digest(b"media", decoded.digest, item.preprocessing_key)
            features = self._cache.get(key)
            if features is None:
                features = self._family.preprocess(decoded, plan.measures)
                # Frames for a GPU are found again only after decoding, unless the encoded content is known.
                if "frames" not in features or item.media.content_key is not None:
                    self._cache.put(key, features)
            return PreparedMedia(
                modality=decoded.modality,
                features=features,
                plan=plan,
                key=key,
                size=decoded.size,
                place=item.place,
                timestamps_s=_timestamps_s(item, decoded.size),
                page=_page_of(item),
                fetch_s=item.fetch_s,
                decode_s=decode_done - started,
                preprocess_s=time.perf_counter() - decode_done,
                opened=item,
            )

    def _plan_of(self, item: OpenItem, size: MediaSize) -> MediaPlan:
        """Return the plan for the decoded size: a header may not tell it, or tell a wrong one."""
        if item.plan is not None and item.size == size:
            return item.plan
        return self._family.plan_media(item.media.modality, size, item.options)


def _timestamps_s(item: OpenItem, size: MediaSize) -> tuple[float, ...]:
    return (item.media.timestamp_s,) if isinstance(item.media, VideoFrame) else size.timestamps_s


def _page_of(item: OpenItem) -> int | None:
    return item.media.number if isinstance(item.media, OpenedPage) else None


def _num_pixels_at_once(item: OpenItem) -> int | None:
    """Return the pixels that decoding an item and processing its frames hold in memory; None where only decoding tells
    it."""
    if item.size is None or item.plan is None:
        return None
    num_pixels = item.media.num_pixels_at_once if isinstance(item.media, VideoFrame) else item.size.num_pixels
    return max(num_pixels, item.plan.peak_pixels)
