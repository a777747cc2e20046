"""`load_image` and `load_video`: whatever a user has, as upright RGB pixels within limits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from seesay.config import MediaLimits
from seesay.errors import ErrorCode, RequestError
from seesay.processors.picture import decode_picture, to_rgb
from seesay.processors.sampling import DEFAULT_FPS, FrameSampling
from seesay.processors.sources import describe, read_bytes, read_source

if TYPE_CHECKING:
    from PIL import Image

_NO_LIMITS_GIVEN = MediaLimits()


@dataclass(frozen=True, slots=True, kw_only=True)
class Video:
    """Sampled frames of a clip: `frames` uint8 [N, H, W, 3] and the second of the clip each was shown at.

    `frame_interval_s` is the clip's duration divided by N.
    """

    frames: npt.NDArray[np.uint8]
    timestamps_s: tuple[float, ...]
    frame_interval_s: float


def load_image(source: Any, *, limits: MediaLimits = _NO_LIMITS_GIVEN) -> Image.Image:
    """A picture as an RGB `PIL.Image`, upright as its EXIF data says.

    `source` is a path, http(s) URL, data URL, bytes, base64 text, PIL image or uint8 array [H, W], [H, W, 3] or
    [H, W, 4]. Of an animation the first frame is taken; transparent parts are white; 16-bit grey is scaled to 8 bits.
    Limits are checked before pixels are decoded. Raises `RequestError` that says what is wrong and what to do.
    """
    from PIL import Image

    if isinstance(source, np.ndarray):
        source = _array_to_image(source)
    if isinstance(source, Image.Image):
        return to_rgb(source, limits, "the PIL image")
    return decode_picture(read_bytes(source, limits), limits, describe(source))


def load_video(
    source: Any,
    *,
    fps: float | None = None,
    num_frames: int | None = None,
    min_frames: int | None = None,
    max_frames: int | None = None,
    limits: MediaLimits = _NO_LIMITS_GIVEN,
) -> Video:
    """Frames of a clip, evenly sampled: `num_frames` of them, or `fps` per second (default 2).

    `source` is a path, http(s) URL, data URL, bytes, base64 text, or the frames themselves: a list of what
    `load_image` takes or a uint8 array [N, H, W, 3]. The number of frames that `fps` gives is even and kept within
    `min_frames` (4) and `max_frames` (768). Frames that were given are all taken unless `num_frames` is smaller, and
    `fps` tells how many there are per second of the clip; a `Video` keeps its own times. Frames of a file that
    together hold more than `limits.max_clip_pixels` are scaled down while they are decoded. Raises `RequestError`, or
    `MissingExtraError` without a package that reads videos.
    """
    sampling = FrameSampling.checked(
        fps=fps, num_frames=num_frames, min_frames=min_frames, max_frames=max_frames, limit=limits.max_frames
    )
    if isinstance(source, Video):
        return _thin(source, sampling)
    if isinstance(source, (list, tuple)) or (isinstance(source, np.ndarray) and source.ndim == 4):
        return _pick_frames(source, sampling, limits)
    from seesay.processors.clip import decode_clip

    content = read_source(source, limits)
    frames, timestamps_s, interval_s = decode_clip(content, sampling, limits, describe(source))
    return Video(frames=frames, timestamps_s=timestamps_s, frame_interval_s=interval_s)


def _pick_frames(source: Sequence[Any] | npt.NDArray[Any], sampling: FrameSampling, limits: MediaLimits) -> Video:
    """Frames that are given one by one, at `sampling.fps` frames per second."""
    if len(source) == 0:
        raise RequestError(ErrorCode.INVALID_MEDIA, "the list of frames is empty")
    indices = sampling.indices_of_given(len(source))
    pictures: list[Any] = []
    num_pixels = 0
    for index in indices:
        frame = source[index]
        array = frame if _is_plain(frame) else np.asarray(load_image(frame, limits=limits))
        if pictures and array.shape != pictures[0].shape:
            raise RequestError(
                ErrorCode.INVALID_MEDIA,
                f"frame {index} is {array.shape[1]}x{array.shape[0]} pixels, the first one "
                f"{pictures[0].shape[1]}x{pictures[0].shape[0]}: frames of a clip have one size",
            )
        num_pixels += array.shape[0] * array.shape[1]
        if num_pixels > limits.max_clip_pixels:
            raise RequestError(
                ErrorCode.MEDIA_TOO_LARGE,
                f"the frames hold more than {limits.max_clip_pixels} pixels: send fewer or smaller ones, "
                "or raise MediaLimits.max_clip_pixels",
            )
        pictures.append(array)
    rate = sampling.fps or DEFAULT_FPS
    return Video(
        frames=np.stack(pictures),
        timestamps_s=tuple(float(index) / rate for index in indices),
        frame_interval_s=len(source) / rate / len(indices),
    )


def _thin(video: Video, sampling: FrameSampling) -> Video:
    """`video`, which knows its own times, with no more than `sampling.num_frames` frames."""
    indices = sampling.indices_of_given(len(video.frames))
    if len(indices) == len(video.frames):
        return video
    return Video(
        frames=video.frames[indices],
        timestamps_s=tuple(video.timestamps_s[index] for index in indices),
        frame_interval_s=video.frame_interval_s * len(video.frames) / len(indices),
    )


def _is_plain(frame: Any) -> bool:
    """Whether a frame needs no conversion."""
    return isinstance(frame, np.ndarray) and frame.dtype == np.uint8 and frame.shape[2:] == (3,) and frame.size > 0


def _array_to_image(array: npt.NDArray[Any]) -> Image.Image:
    from PIL import Image

    is_picture = array.ndim == 2 or (array.ndim == 3 and array.shape[2] in (3, 4))
    if array.dtype != np.uint8 or not is_picture or 0 in array.shape:
        raise RequestError(
            ErrorCode.INVALID_MEDIA,
            f"an array {array.dtype} {list(array.shape)} is no picture: uint8 [H, W], [H, W, 3] or [H, W, 4] is",
        )
    return Image.fromarray(array)
