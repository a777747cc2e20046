"""From media references to features: opened (read, fetched, header read), then decoded and preprocessed, in threads.

Knows nothing about prompts or engines. Between the two steps the number of tokens is known and no pixel is decoded.
Preprocessed features are cached by content, so that a known picture is not resized again. A known encoded picture whose
embedding is cached is not even decoded. Fetching has threads of its own: slow servers do not delay the decoding of
other pictures.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TypeVar

from seesay.config import MediaLimits, VisionConfig
from seesay.errors import RequestError
from seesay.processors.media.allowance import Allowance, Cancellation
from seesay.processors.media.audio import open_audio
from seesay.processors.media.document import OpenedPage
from seesay.processors.media.frame_sampling import fill_sampling_options
from seesay.processors.media.open import OpenedMedia, open_media
from seesay.processors.media.video_frame import VideoFrame
from seesay.system.fair_threads import FairThreads
from seesay.system.hashing import digest
from seesay.system.thread_pool import ThreadPool
from seesay.values import EngineStats, MediaPart, MediaPlace, MediaSize, Modality, TextPart
from seesay.vl.family import Family, Features, MediaPlan
from seesay.vl.media.decoded_before import SeenContents, SeenMedia
from seesay.vl.media.feature_cache import FeatureCache
from seesay.vl.media.media_batch import MediaBatch
from seesay.vl.media.media_items import OpenItem, OpenRequest, PreparedMedia
from seesay.vl.media.media_splitter import MediaSplitter, divide_options, refuse_modality
from seesay.vl.media.pixel_gate import PixelGate

_FETCH_THREADS = 32
_MAX_SEEN = 16384
_PIXELS_AT_ONCE = 256 << 20
T = TypeVar("T")


class MediaFrontend:
    """Loads the media of requests, several at a time. `close` ends its threads.

    is_encoded(key): whether the embedding of the media with this key is cached or being made.
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
        self._splitter = MediaSplitter(family, limits, config.transparency)
        self._is_encoded = is_encoded
        self._seen = SeenContents(_MAX_SEEN)
        self._cache = FeatureCache(config.feature_cache_bytes)
        self._gate = PixelGate(_PIXELS_AT_ONCE)
        self._decoders = ThreadPool(config.thread_num, name="seesay-media")
        self._fetchers = FairThreads(_FETCH_THREADS, name="seesay-fetch", max_per_owner=_FETCH_THREADS // 2)

    def make_allowance(self, cancellation: Cancellation | None = None) -> Allowance:
        """Return what the media of one request may cost, while somebody waits for them. Its time begins now."""
        return Allowance(self._limits, cancellation)

    def split(self, media: Sequence[MediaPart], allowance: Allowance) -> list[tuple[TextPart | MediaPart, ...]]:
        """Return what stands for each of `media`: itself, the pages of a document as pictures with their numbers, or
        the frames of a video as pictures where the family takes pictures and no videos. Documents and videos are read
        or fetched for that, and not decoded, unless PyAV is missing."""
        allowance.check_items(len(media))
        if not any(map(self._splitter.splits, media)):
            return [(part,) for part in media]
        futures = [self._fetchers.submit(allowance, self._splitter.split, part, allowance) for part in media]
        return _gather(futures, [part.place for part in media])

    def open(
        self, media: Sequence[MediaPart], allowance: Allowance | None = None, *, salt: str = "", tower_key: str = ""
    ) -> OpenRequest:
        """Read or fetch `media` and count their tokens, in order. Decodes nothing. `salt` is a part of their keys: what
        is cached of them is found by requests with the same salt alone, and so is `tower_key`, which stands for what
        changes the tower. Raises the first `RequestError` among them."""
        allowance = allowance or self.make_allowance()
        allowance.check_items(_count_items(media))
        media = self._add_shared_options(media)
        open_one = partial(self._open_one, allowance=allowance, salt=salt, tower_key=tower_key)
        if len(media) == 1:
            with _located(media[0].place):
                return OpenRequest(items=[open_one(media[0], 0)], allowance=allowance)
        futures = [self._fetchers.submit(allowance, open_one, part, index) for index, part in enumerate(media)]
        return OpenRequest(items=_gather(futures, [part.place for part in media]), allowance=allowance)

    def _add_shared_options(self, media: Sequence[MediaPart]) -> Sequence[MediaPart]:
        """Return `media` with the options that all pictures of a prompt have because of their number."""
        shared = self._family.shared_options(sum(part.modality is Modality.IMAGE for part in media))
        if not shared:
            return media
        return [
            replace(part, options={**shared, **part.options}) if part.modality is Modality.IMAGE else part
            for part in media
        ]

    def prepare(self, request: OpenRequest, batch: MediaBatch | None = None) -> list[PreparedMedia]:
        """Decode and preprocess opened media, in order; a picture that other requests of `batch` hold too, once. Raises
        the first `RequestError` among them."""

        def begin(item: OpenItem) -> Future[PreparedMedia]:
            return self._decoders.submit(self._prepare_one, item, request.allowance)

        if batch is None:
            return _gather([begin(item) for item in request.items], [item.place for item in request.items])
        prepared = []
        for item, future in [(item, batch.share(item, begin)) for item in request.items]:
            with _located(item.place):
                prepared.append(future.result())
        return prepared

    def forget(self) -> None:
        """Forget cached features and known contents."""
        self._seen.clear()
        self._cache.clear()

    def stats(self) -> EngineStats:
        """Return the counts of the feature cache."""
        return self._cache.stats()

    def close(self) -> None:
        """End the threads and forget the features."""
        self._fetchers.close()
        self._decoders.close()
        self._cache.clear()

    def _open_one(self, part: MediaPart, number: int, *, allowance: Allowance, salt: str, tower_key: str) -> OpenItem:
        """Open media that have `number` others before them in the prompt."""
        allowance.cancellation.check()
        family, modality = self._family, part.modality
        if modality not in family.modalities:
            raise refuse_modality(family, modality)
        chosen, others = divide_options(part)
        options = family.resolve_options(modality, others)
        if modality is Modality.VIDEO:
            chosen = dict(fill_sampling_options(chosen, family.default_sampling, limit=self._limits.max_frames))
        started = time.perf_counter()
        media: OpenedMedia
        if modality is Modality.AUDIO:
            media = open_audio(part.source, allowance, rate_hz=family.audio_rate_hz)
        else:
            media = open_media(modality, part.source, {"transparency": self._transparency, **chosen}, allowance)
        fetch_s = time.perf_counter() - started
        size = media.size()
        if size is not None:
            allowance.spend_size(size)
        preprocessing_key = family.media_key(modality, options)
        if salt:
            preprocessing_key = digest(b"salted", salt.encode(), preprocessing_key)
        if tower_key:
            preprocessing_key = digest(b"adapted", tower_key.encode(), preprocessing_key)
        plan = None if size is None else family.plan_media(modality, size, options)
        return OpenItem(
            part=part,
            media=media,
            place=part.place,
            options=options,
            preprocessing_key=preprocessing_key,
            size=size,
            plan=plan,
            num_tokens=None if plan is None else len(family.number(plan.expansion, number).token_ids),
            wording=family.word(modality, None) if plan is None else plan.wording,
            fetch_s=fetch_s,
        )

    def _prepare_one(self, item: OpenItem, allowance: Allowance) -> PreparedMedia:
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
        prepared = self._decode_one(item, allowance)
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
        with _located(item.place):
            return self._decode_one(item, Allowance(self._limits)).features

    def _decode_one(self, item: OpenItem, allowance: Allowance) -> PreparedMedia:
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


def locate(error: RequestError, place: MediaPlace) -> RequestError:
    """Return `error` with the place of the media that it is about, or of an option there, in its message."""
    where = place.find(error.param)
    return RequestError(error.code, f"{where}: {error.message}", where)


@contextmanager
def _located(place: MediaPlace | None) -> Iterator[None]:
    """Name `place`, or an option there, in each `RequestError` raised in the block."""
    try:
        yield
    except RequestError as error:
        if place is None:
            raise
        raise locate(error, place) from error


def _gather(futures: Sequence[Future[T]], places: Sequence[MediaPlace | None]) -> list[T]:
    """Return all results, in order. After a failure, calls that have not begun are cancelled. `places` are those of
    the media."""
    results = []
    try:
        for future, place in zip(futures, places, strict=True):
            with _located(place):
                results.append(future.result())
        return results
    finally:
        for future in futures:
            future.cancel()


def _count_items(media: Sequence[MediaPart]) -> int:
    """Return the number of media; all frames of a video are one."""
    frames = [part.source for part in media if isinstance(part.source, VideoFrame)]
    return len(media) - len(frames) + len({id(frame.video) for frame in frames})
