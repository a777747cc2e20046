"""Media sources to `DecodedMedia`: pixels with a hash of their content. Opened first, decoded later: what is too large
is refused in between. Safe to call from many threads.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from seesay.config import Transparency
from seesay.errors import ErrorCode, RequestError
from seesay.hashing import digest
from seesay.processors.media.allowance import Allowance
from seesay.processors.media.frame_sampling import FrameSampling
from seesay.processors.media.load import (
    check_transparency,
    clip_info,
    clip_size,
    image_size,
    pixels_of,
    take_clip,
    take_image,
    video_of,
)
from seesay.processors.media.sources import describe
from seesay.values import DecodedMedia, MediaSize, Modality

if TYPE_CHECKING:
    from seesay.processors.media.video import ClipInfo

# Options of a media part that say which pixels to take; all others belong to the family's preprocessing.
DECODE_OPTIONS: Mapping[Modality, frozenset[str]] = {
    Modality.IMAGE: frozenset({"transparency"}),
    Modality.VIDEO: frozenset({"fps", "num_frames", "min_frames", "max_frames", "transparency"}),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedMedia:
    """A picture or clip that was read or fetched, with what its header tells. Nothing of it is decoded.

    `content` is what `image_of` or `video_of` take; `name` is what messages call it; `sampling` says which frames of a
    clip are taken, `transparency` what becomes of transparent parts. `info` is that of `clip_info`. `size` is None for
    a clip of which only decoding would tell. `fetch_s` are the seconds it took to get here.
    """

    modality: Modality
    content: Any
    name: str
    sampling: FrameSampling | None
    transparency: Transparency
    info: ClipInfo | None
    size: MediaSize | None
    fetch_s: float


def open_media(modality: Modality, source: Any, options: Mapping[str, Any], allowance: Allowance) -> OpenedMedia:
    """Read or fetch a source, as `load_image` or `load_video` take it, and read its header. `options` are those of
    `DECODE_OPTIONS`. Raises `RequestError`."""
    unknown = set(options) - DECODE_OPTIONS[modality]
    if unknown:
        known = ", ".join(sorted(DECODE_OPTIONS[modality])) or "none"
        message = f"unknown {modality.value} option {min(unknown)!r} (known: {known})"
        raise RequestError(ErrorCode.INVALID_REQUEST, message, min(unknown))
    sampling_options = dict(options)
    transparency: Transparency = sampling_options.pop("transparency", "white")
    check_transparency(transparency)
    limits, name, started = allowance.limits, describe(source), time.perf_counter()
    content: Any
    sampling: FrameSampling | None = None
    size: MediaSize | None
    if modality is Modality.IMAGE:
        content = take_image(source, allowance)
    else:
        sampling = FrameSampling.checked(**sampling_options, limit=limits.max_frames)
        content = take_clip(source, sampling, allowance)
    fetch_s = time.perf_counter() - started
    info = None if sampling is None else clip_info(content, limits, name)
    size = image_size(content, limits, name) if sampling is None else clip_size(content, info, sampling, limits, name)
    if size is not None:
        allowance.spend_pixels(size.num_pixels)
    return OpenedMedia(
        modality=modality,
        content=content,
        name=name,
        sampling=sampling,
        transparency=transparency,
        info=info,
        size=size,
        fetch_s=fetch_s,
    )


def decode_media(opened: OpenedMedia, allowance: Allowance) -> DecodedMedia:
    """The pixels: frames uint8 [1, H, W, 3] of a picture, [N, H, W, 3] of a clip, in memory that nobody else writes to.
    Raises `RequestError`."""
    limits, content, name = allowance.limits, opened.content, opened.name
    if opened.sampling is None:
        pixels = pixels_of(content, limits, name, transparency=opened.transparency)
        return _make_media(Modality.IMAGE, pixels[None], (), 0.0)
    video = video_of(content, opened.sampling, limits, name, info=opened.info, transparency=opened.transparency)
    if opened.size is None:
        allowance.spend_pixels(video.frames.size // 3)
    frames = video.frames.copy() if video is content else video.frames
    return _make_media(Modality.VIDEO, frames, video.timestamps_s, video.frame_interval_s)


def _make_media(
    modality: Modality, frames: npt.NDArray[np.uint8], timestamps_s: tuple[float, ...], frame_interval_s: float
) -> DecodedMedia:
    frames = np.ascontiguousarray(frames)
    shape = np.asarray(frames.shape, dtype=np.int64)
    times = np.asarray((*timestamps_s, frame_interval_s), dtype=np.float64)
    content = digest(modality.encode(), shape.data, frames.data, times.data)
    return DecodedMedia(
        modality=modality,
        frames=frames,
        timestamps_s=timestamps_s,
        frame_interval_s=frame_interval_s,
        digest=content,
    )
