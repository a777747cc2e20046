"""Media sources to `DecodedMedia`: pixels with a hash of their content. Safe to call from many threads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from seesay.config import MediaLimits
from seesay.errors import ErrorCode, RequestError
from seesay.processors.hashing import digest
from seesay.processors.media import load_image, load_video
from seesay.values import DecodedMedia, Modality

# Options of a media part that say which pixels to take; all others belong to the family's preprocessing.
DECODE_OPTIONS: Mapping[Modality, frozenset[str]] = {
    Modality.IMAGE: frozenset(),
    Modality.VIDEO: frozenset({"fps", "num_frames", "min_frames", "max_frames"}),
}


def decode_image(source: Any, limits: MediaLimits) -> DecodedMedia:
    """One picture: frames uint8 [1, H, W, 3]. `source` as for `load_image`. Raises `RequestError`."""
    pixels = np.array(load_image(source, limits=limits), dtype=np.uint8)
    return _make_media(Modality.IMAGE, pixels[None], (), 0.0)


def decode_video(source: Any, options: Mapping[str, Any], limits: MediaLimits) -> DecodedMedia:
    """Sampled frames of one clip: uint8 [N, H, W, 3]. Takes what `load_video` takes. Raises `RequestError`."""
    unknown = set(options) - DECODE_OPTIONS[Modality.VIDEO]
    if unknown:
        known = ", ".join(sorted(DECODE_OPTIONS[Modality.VIDEO]))
        raise RequestError(
            ErrorCode.INVALID_REQUEST, f"unknown video option {min(unknown)!r} (known: {known})", min(unknown)
        )
    video = load_video(source, **options, limits=limits)
    return _make_media(Modality.VIDEO, video.frames, video.timestamps_s, video.frame_interval_s)


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
