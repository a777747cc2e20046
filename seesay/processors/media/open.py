"""From a source to an opened picture or video: options are checked, then the content is read or fetched. Nothing is
decoded. Safe to call from many threads.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
from PIL import Image

from seesay.config import Transparency
from seesay.errors import ErrorCode, RequestError
from seesay.processors.media.allowance import Allowance
from seesay.processors.media.audio import Audio
from seesay.processors.media.document import OpenedPage
from seesay.processors.media.jpeg_sequence import is_jpeg_sequence, split_jpegs
from seesay.processors.media.picture import Picture
from seesay.processors.media.pillow import image_of_array
from seesay.processors.media.sources import describe, read_bytes, read_source
from seesay.processors.media.video.frame_sampling import SAMPLING_OPTIONS, FrameSampling
from seesay.processors.media.video.opened_video import LoadedVideo, PictureSequence, Video
from seesay.processors.media.video.video_file import VideoFile
from seesay.processors.media.video.video_frame import VideoFrame
from seesay.values import DOCUMENT_OPTIONS, Modality, VideoFrames

OpenedMedia: TypeAlias = Audio | Picture | Video | VideoFrame | OpenedPage

# Options of a media part that choose the pixels to take; all others belong to the family's preprocessing.
DECODE_OPTIONS: Mapping[Modality, frozenset[str]] = {
    Modality.IMAGE: frozenset({"transparency"}),
    Modality.VIDEO: SAMPLING_OPTIONS | {"transparency"},
    Modality.DOCUMENT: DOCUMENT_OPTIONS | {"transparency"},
    Modality.AUDIO: frozenset(),
}


def open_media(modality: Modality, source: Any, options: Mapping[str, Any], allowance: Allowance) -> OpenedMedia:
    """Check `options`, which are those of `DECODE_OPTIONS`, and read or fetch a source that `load_image` or
    `load_video` takes, or a frame or page that is opened already. Raises `RequestError`."""
    if isinstance(source, VideoFrame | OpenedPage):
        return source
    unknown = set(options) - DECODE_OPTIONS[modality]
    if unknown:
        known = ", ".join(sorted(DECODE_OPTIONS[modality])) or "none"
        message = f"unknown {modality.value} option {min(unknown)!r} (known: {known})"
        raise RequestError(ErrorCode.INVALID_REQUEST, message, min(unknown))
    transparency = check_transparency(options.get("transparency", "white"))
    if modality is Modality.IMAGE:
        return open_picture(source, allowance, transparency=transparency)
    sampling_options = {name: value for name, value in options.items() if name != "transparency"}
    sampling = FrameSampling.checked(**sampling_options, limit=allowance.limits.max_frames)
    return open_video(source, sampling, allowance, transparency=transparency)


def open_picture(source: Any, allowance: Allowance, *, transparency: Transparency, name: str | None = None) -> Picture:
    """Read or fetch a picture. `name` is what messages call it, if not by its source. Raises `RequestError`."""
    content = _as_array(source)
    if isinstance(content, np.ndarray) and not _is_plain(content):
        content = image_of_array(content)
    elif not isinstance(content, np.ndarray | Image.Image):
        content = read_bytes(content, allowance)
    if name is None:
        name = "the PIL image" if isinstance(content, Image.Image) else describe(source)
    return Picture(content, limits=allowance.limits, name=name, transparency=transparency)


def open_video(source: Any, sampling: FrameSampling, allowance: Allowance, *, transparency: Transparency) -> Video:
    """Read or fetch a video; of given frames only those that `sampling` takes. Raises `RequestError`."""
    if isinstance(source, VideoFrames):
        return LoadedVideo(source, sampling)
    frames = split_jpegs(source, allowance) if is_jpeg_sequence(source) else _as_array(source)
    if isinstance(frames, list | tuple) or (isinstance(frames, np.ndarray) and frames.ndim == 4):
        if len(frames) == 0:
            raise RequestError(ErrorCode.INVALID_MEDIA, "the list of frames is empty")
        rate = sampling.rate_of_given()
        choice = sampling.choose_given(np.arange(len(frames)) / rate, duration_s=len(frames) / rate, source_fps=rate)
        pictures = [
            open_picture(frames[index], allowance, transparency=transparency, name=f"frame {index}")
            for index in choice.indices
        ]
        return PictureSequence(pictures, choice, limits=allowance.limits)
    return VideoFile(read_source(source, allowance), sampling, allowance=allowance, name=describe(source))


def check_transparency(value: object) -> Transparency:
    """Return `value`. Raises `RequestError` unless it is one of `Transparency`."""
    if value not in ("white", "drop"):
        message = f"transparency must be 'white' or 'drop', got {str(value)[:40]!r}"
        raise RequestError(ErrorCode.INVALID_REQUEST, message, "transparency")
    transparency: Transparency = value
    return transparency


def _as_array(source: object) -> Any:
    """Return a tensor, or whatever else NumPy reads, as an array, and all other sources as they are."""
    if isinstance(source, np.ndarray | Image.Image) or not hasattr(source, "__array__"):
        return source
    try:
        return np.asarray(source)
    except (TypeError, ValueError, RuntimeError) as error:
        name = type(source).__name__
        raise RequestError(ErrorCode.INVALID_MEDIA, f"a {name} cannot be read as an array: {error}") from None


def _is_plain(array: np.ndarray[Any, Any]) -> bool:
    """Return whether an array is a picture uint8 [H, W, 3], which needs no conversion."""
    return array.ndim == 3 and array.dtype == np.uint8 and array.shape[2] == 3 and array.size > 0
