"""From media references to features: opened (read, fetched, header read), then decoded and preprocessed, in threads.

Knows nothing about prompts or engines. Between the two steps the number of tokens is known and no pixel is decoded.
Fetching has threads of its own: slow servers do not delay the decoding of other pictures.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial

from seesay.config import MediaLimits, VisionConfig
from seesay.processors.media.allowance import Allowance
from seesay.processors.media.audio import open_audio
from seesay.processors.media.open import OpenedMedia, open_media
from seesay.processors.media.video.frame_sampling import fill_sampling_options
from seesay.processors.media.video.video_frame import VideoFrame
from seesay.system.cancellation import Cancellation
from seesay.system.fair_threads import FairThreads
from seesay.system.hashing import digest
from seesay.system.thread_pool import ThreadPool
from seesay.values import EngineStats, MediaPart, Modality, TextPart
from seesay.vl.family import Family
from seesay.vl.media.located import gather, located
from seesay.vl.media.media_batch import MediaBatch
from seesay.vl.media.media_decoder import MediaDecoder
from seesay.vl.media.media_items import OpenItem, OpenRequest, PreparedMedia
from seesay.vl.media.media_splitter import MediaSplitter, divide_options, refuse_modality

_FETCH_THREADS = 32


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
        self._decoder = MediaDecoder(family, limits, config.feature_cache_bytes, is_encoded=is_encoded)
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
        return gather(futures, [part.place for part in media])

    def open(
        self, media: Sequence[MediaPart], allowance: Allowance | None = None, *, salt: str = "", tower_key: str = ""
    ) -> OpenRequest:
        """Read or fetch `media` and count their tokens, in order. Decodes nothing. `salt` is a part of their keys: what
        is cached of them is found by requests with the same salt alone, and so is `tower_key`, which stands for what
        changes the tower. Raises the first `RequestError` among them."""
        allowance = allowance or self.make_allowance()
        allowance.check_items(_count_items(media))
        media = _add_shared_options(self._family, media)
        open_one = partial(self._open_one, allowance=allowance, salt=salt, tower_key=tower_key)
        if len(media) == 1:
            with located(media[0].place):
                return OpenRequest(items=[open_one(media[0], 0)], allowance=allowance)
        futures = [self._fetchers.submit(allowance, open_one, part, index) for index, part in enumerate(media)]
        return OpenRequest(items=gather(futures, [part.place for part in media]), allowance=allowance)

    def prepare(self, request: OpenRequest, batch: MediaBatch | None = None) -> list[PreparedMedia]:
        """Decode and preprocess opened media, in order; a picture that other requests of `batch` hold too, once. Raises
        the first `RequestError` among them."""

        def begin(item: OpenItem) -> Future[PreparedMedia]:
            return self._decoders.submit(self._decoder.prepare, item, request.allowance)

        if batch is None:
            return gather([begin(item) for item in request.items], [item.place for item in request.items])
        prepared = []
        for item, future in [(item, batch.share(item, begin)) for item in request.items]:
            with located(item.place):
                prepared.append(future.result())
        return prepared

    def forget(self) -> None:
        """Forget cached features and known contents."""
        self._decoder.forget()

    def stats(self) -> EngineStats:
        """Return the counts of the feature cache."""
        return self._decoder.stats()

    def close(self) -> None:
        """End the threads and forget the features."""
        self._fetchers.close()
        self._decoders.close()
        self._decoder.forget()

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


def _add_shared_options(family: Family, media: Sequence[MediaPart]) -> Sequence[MediaPart]:
    """Return `media` with the options that all pictures of a prompt have because of their number."""
    shared = family.shared_options(sum(part.modality is Modality.IMAGE for part in media))
    if not shared:
        return media
    return [
        replace(part, options={**shared, **part.options}) if part.modality is Modality.IMAGE else part for part in media
    ]


def _count_items(media: Sequence[MediaPart]) -> int:
    """Return the number of media; all frames of a video are one."""
    frames = [part.source for part in media if isinstance(part.source, VideoFrame)]
    return len(media) - len(frames) + len({id(frame.video) for frame in frames})
