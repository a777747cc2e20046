"""From media references to features: opened (read, fetched, header read), then decoded and preprocessed, in threads.

Knows nothing about prompts or engines. Between the two steps the number of tokens is known and no pixel is decoded.
Preprocessed features are kept in a cache that is addressed by content and limited in bytes, so a picture seen before is
not resized again; one that came encoded, and whose embedding is there, is not even decoded. Fetching has threads of its
own: a slow server does not keep others' pictures from being decoded.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

from seesay.config import MediaLimits, VisionConfig
from seesay.errors import ErrorCode, RequestError
from seesay.hashing import digest
from seesay.processors.media.allowance import Allowance
from seesay.processors.media.open import DECODE_OPTIONS, OpenedMedia, decode_media, open_media
from seesay.thread_pool import ThreadPool
from seesay.values import MediaPart, MediaSize, Modality
from seesay.vl.decoded_before import SeenContents, SeenMedia
from seesay.vl.family import Family, Features

_FETCH_THREADS = 32
_MAX_SEEN = 16384
_PIXELS_AT_ONCE = 256 << 20
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedMedia:
    """One picture or clip, ready for a tower.

    `key` is 32 bytes over the decoded content and the preprocessing options. `features` are the family's own. `size` is
    that of the decoded frames. `load_features` is set when the media was not decoded, because its embedding is at hand:
    `features` then lack their arrays, and this makes them all, should the embedding leave before it is used.
    """

    modality: Modality
    features: Mapping[str, Any]
    key: bytes
    size: MediaSize
    load_features: Callable[[], Features] | None = None
    fetch_s: float = 0.0
    decode_s: float = 0.0
    preprocess_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenItem:
    """One picture or clip that is here and not decoded. `num_tokens` is None where only decoding would tell."""

    opened: OpenedMedia
    options: Mapping[str, Any]
    num_tokens: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenRequest:
    """The media of one request, opened, and what they may still cost."""

    items: Sequence[OpenItem]
    allowance: Allowance


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

    def __contains__(self, key: bytes) -> bool:
        with self._lock:
            return key in self._entries

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

    def clear(self) -> None:
        """Forget all features; the counts since the start stay."""
        with self._lock:
            self._entries.clear()
            self._used_bytes = 0


class PixelGate:
    """Lets threads decode at the same time as long as their pixels fit into `capacity` together, in the order they
    came; what is larger goes alone. So memory does not grow with the number of large pictures sent at once."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._used = 0
        self._waiting: deque[object] = deque()
        self._changed = threading.Condition()

    @contextmanager
    def passing(self, num_pixels: int | None) -> Iterator[None]:
        """Wait for room for so many pixels (None: for all there is), and take it for the time of the block."""
        num_pixels = self._capacity if num_pixels is None else min(num_pixels, self._capacity)
        ticket = object()
        with self._changed:
            self._waiting.append(ticket)
            self._changed.wait_for(lambda: self._waiting[0] is ticket and self._used + num_pixels <= self._capacity)
            self._waiting.popleft()
            self._used += num_pixels
            self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._used -= num_pixels
                self._changed.notify_all()


class MediaBatch:
    """The pictures of requests that were given in one call: one that several of them hold, the very same object, is
    prepared once. For the time of that call alone, as an object may change later. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._begun: dict[tuple[object, ...], tuple[OpenItem, Future[PreparedMedia]]] = {}

    def share(self, item: OpenItem, begin: Callable[[OpenItem], Future[PreparedMedia]]) -> Future[PreparedMedia]:
        """The preparation of `item`, begun by `begin` unless it was before."""
        if item.opened.modality is not Modality.IMAGE:
            return begin(item)
        key = (id(item.opened.content), item.opened.transparency, *sorted(item.options.items()))
        with self._lock:
            if key not in self._begun:
                self._begun[key] = item, begin(item)  # the item keeps the object alive, and its id its own
            return self._begun[key][1]


class MediaFront:
    """Loads the media of requests, several at a time. `close` ends its threads.

    is_encoded(key): whether the embedding of the media with this key is there, or being made.
    """

    def __init__(
        self,
        family: Family,
        config: VisionConfig,
        limits: MediaLimits,
        *,
        is_encoded: Callable[[bytes], bool] = lambda _key: False,
    ) -> None:
        self._family = family
        self._limits = limits
        self._transparency = config.transparency
        self._is_encoded = is_encoded
        self._seen = SeenContents(_MAX_SEEN)
        self._cache = FeatureCache(config.feature_cache_bytes)
        self._gate = PixelGate(_PIXELS_AT_ONCE)
        self._decoders = ThreadPool(config.thread_num, name="seesay-media")
        self._fetchers = ThreadPool(_FETCH_THREADS, name="seesay-fetch")

    def open(self, media: Sequence[MediaPart]) -> OpenRequest:
        """Read or fetch `media` and count their tokens, in order. Decodes nothing. Raises the first `RequestError`
        among them."""
        allowance = Allowance(self._limits)
        allowance.check_items(len(media))
        if len(media) == 1:
            return OpenRequest(items=[self._open_one(media[0], allowance)], allowance=allowance)
        futures = [self._fetchers.submit(self._open_one, part, allowance) for part in media]
        return OpenRequest(items=_gather(futures), allowance=allowance)

    def prepare(self, request: OpenRequest, batch: MediaBatch | None = None) -> list[PreparedMedia]:
        """Decode and preprocess what was opened, in order; what another request of `batch` holds, too, once. Raises the
        first `RequestError` among them."""

        def begin(item: OpenItem) -> Future[PreparedMedia]:
            return self._decoders.submit(self._prepare_one, item, request.allowance)

        if batch is None:
            return _gather([begin(item) for item in request.items])
        return [future.result() for future in [batch.share(item, begin) for item in request.items]]

    def forget(self) -> None:
        """Forget the features and contents that were seen before."""
        self._seen.clear()
        self._cache.clear()

    def stats(self) -> FeatureCacheStats:
        """Counts of the feature cache."""
        return self._cache.stats()

    def close(self) -> None:
        """End the threads and forget the features."""
        self._fetchers.close()
        self._decoders.close()
        self._cache.clear()

    def _open_one(self, part: MediaPart, allowance: Allowance) -> OpenItem:
        if part.modality not in self._family.modalities:
            takes = ", ".join(m.value for m in self._family.modalities) or "no media"
            raise RequestError(
                ErrorCode.INVALID_MEDIA,
                f"this model takes {takes}; the request holds a {part.modality.value}",
                "messages",
            )
        known = DECODE_OPTIONS[part.modality]
        chosen = {k: v for k, v in part.options.items() if k in known}
        asked = {k: v for k, v in part.options.items() if k not in known}
        options = self._family.resolve_options(part.modality, asked)
        decode_options = {
            "transparency": self._transparency,
            **with_defaults(chosen, self._family.decode_defaults.get(part.modality, {})),
        }
        opened = open_media(part.modality, part.source, decode_options, allowance)
        num_tokens = None
        if opened.size is not None:
            num_tokens = self._family.count_tokens(part.modality, opened.size, options)
        return OpenItem(opened=opened, options=options, num_tokens=num_tokens)

    def _prepare_one(self, item: OpenItem, allowance: Allowance) -> PreparedMedia:
        started = time.perf_counter()
        content_key = self._hash_content(item)
        seen = self._seen.get(content_key) if content_key is not None else None
        recalled = self._recall(item, seen) if seen is not None else None
        if recalled is not None:
            if item.opened.size is None:
                allowance.spend_pixels(recalled.size.num_pixels)
            return replace(recalled, decode_s=time.perf_counter() - started)
        prepared = self._decode_one(item, allowance)
        if content_key is not None:
            self._seen.put(content_key, SeenMedia.of(prepared.key, prepared.size, prepared.features))
        return prepared

    def _recall(self, item: OpenItem, seen: SeenMedia) -> PreparedMedia | None:
        """Media that was seen before, without decoding it now. None where it must be decoded again."""
        load: Callable[[], Features] | None = None
        features: Features | None = seen.told
        if self._is_encoded(seen.key):
            load = partial(self._load_features, item)
        else:
            features = self._cache.get(seen.key) if seen.key in self._cache else None
        if features is None:
            return None
        return PreparedMedia(
            modality=item.opened.modality,
            features=features,
            key=seen.key,
            size=seen.size,
            load_features=load,
            fetch_s=item.opened.fetch_s,
        )

    def _load_features(self, item: OpenItem) -> Features:
        """Decode what was recalled after all."""
        return self._decode_one(item, Allowance(self._limits)).features

    def _decode_one(self, item: OpenItem, allowance: Allowance) -> PreparedMedia:
        size = item.opened.size
        with self._gate.passing(None if size is None else size.num_pixels):
            started = time.perf_counter()
            decoded = decode_media(item.opened, allowance)
            decode_done = time.perf_counter()
            key = digest(b"media", decoded.digest, self._family.media_key(decoded.modality, item.options))
            features = self._cache.get(key)
            if features is None:
                features = self._family.preprocess(decoded, item.options)
                # Frames as they came save nobody anything who has to decode them first to find them.
                if "frames" not in features or isinstance(item.opened.content, bytes):
                    self._cache.put(key, features)
            return PreparedMedia(
                modality=decoded.modality,
                features=features,
                key=key,
                size=decoded.size,
                fetch_s=item.opened.fetch_s,
                decode_s=decode_done - started,
                preprocess_s=time.perf_counter() - decode_done,
            )

    def _hash_content(self, item: OpenItem) -> bytes | None:
        """A hash of all that decides the features of encoded media, undecoded. None where the content may change, or is
        decoded already."""
        opened = item.opened
        if not isinstance(opened.content, bytes):
            return None
        media_key = self._family.media_key(opened.modality, item.options)
        how = repr((opened.sampling, opened.transparency)).encode()
        return digest(b"encoded", opened.content, how, media_key)


def _gather(futures: Sequence[Future[T]]) -> list[T]:
    """All results, in order. After a failure what has not begun is cancelled."""
    try:
        return [future.result() for future in futures]
    finally:
        for future in futures:
            future.cancel()


def with_defaults(chosen: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """How to sample a clip: what the request chose, and the family's defaults where they do not contradict it.

    A number of frames and a frame rate (with its bounds) exclude each other.
    """
    if "num_frames" in chosen:
        return dict(chosen)
    rate = ("fps", "min_frames", "max_frames")
    kept = {k: v for k, v in defaults.items() if k != "num_frames" or not any(name in chosen for name in rate)}
    return {**kept, **chosen}
