"""`load_image` and `load_video`: whatever a user has, as upright RGB pixels within limits.

In two steps, between which nothing is decoded: the content is taken (read, fetched), so that its size can be asked for;
then it is turned into pixels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from seesay.config import MediaLimits, Transparency
from seesay.errors import ErrorCode, RequestError
from seesay.processors.media import picture
from seesay.processors.media.allowance import Allowance
from seesay.processors.media.frame_sampling import DEFAULT_FPS, FrameSampling
from seesay.processors.media.sources import describe, read_bytes, read_source
from seesay.values import MediaSize

if TYPE_CHECKING:
    from PIL import Image

    from seesay.processors.media.video import ClipInfo

ImageContent: TypeAlias = "bytes | Image.Image | npt.NDArray[np.uint8]"
ClipContent: TypeAlias = "bytes | Path | Video | GivenFrames"
_NO_LIMITS_GIVEN = MediaLimits()


@dataclass(frozen=True, slots=True, kw_only=True)
class Video:
    """Sampled frames of a clip: `frames` uint8 [N, H, W, 3] and the second of the clip each was shown at.

    `frame_interval_s` is the clip's duration divided by N.
    """

    frames: npt.NDArray[np.uint8]
    timestamps_s: tuple[float, ...]
    frame_interval_s: float


def load_image(
    source: Any, *, transparency: Transparency = "white", limits: MediaLimits = _NO_LIMITS_GIVEN
) -> Image.Image:
    """Return a picture as an RGB `PIL.Image`, upright as its EXIF data says and without that orientation.

    `source` is a path, http(s) URL, data URL, bytes, base64 text, file opened in binary mode, PIL image, or uint8 array
    or tensor [H, W], [H, W, 3] or [H, W, 4]. Of an animation the first frame is taken. Transparent parts are put on
    white; with `transparency="drop"` the alpha channel is ignored, as Transformers does. 16-bit grey is scaled to
    8 bits. Limits are checked before pixels are decoded. Raises `RequestError` that says what is wrong and what to do.
    """
    check_transparency(transparency)
    return image_of(take_image(source, Allowance(limits)), limits, describe(source), transparency=transparency)


def load_video(
    source: Any,
    *,
    fps: float | None = None,
    num_frames: int | None = None,
    min_frames: int | None = None,
    max_frames: int | None = None,
    transparency: Transparency = "white",
    limits: MediaLimits = _NO_LIMITS_GIVEN,
) -> Video:
    """Frames of a clip, evenly sampled: `num_frames` of them, or `fps` per second (default 2).

    `source` is a path, http(s) URL, data URL, bytes, base64 text, file opened in binary mode, or the frames
    themselves: a list of what `load_image` takes or a uint8 array [N, H, W, 3]. The number of frames that `fps` gives
    is even and kept within `min_frames` (4) and `max_frames` (768). Frames that were given are all taken unless
    `num_frames` is smaller, and `fps` tells how many there are per second of the clip; a `Video` keeps its own times.
    Frames of a file that together hold more than `limits.max_clip_pixels` are scaled down while they are decoded.
    `transparency` is that of `load_image`, for frames that were given; those of a file have none.
    Raises `RequestError`, or `MissingExtraError` without a package that reads videos.
    """
    sampling = FrameSampling.checked(
        fps=fps, num_frames=num_frames, min_frames=min_frames, max_frames=max_frames, limit=limits.max_frames
    )
    check_transparency(transparency)
    content = take_clip(source, sampling, Allowance(limits))
    return video_of(content, sampling, limits, describe(source), transparency=transparency)


def check_transparency(value: object) -> None:
    """Raise `RequestError` unless `value` is one of `Transparency`."""
    if value not in ("white", "drop"):
        message = f"transparency must be 'white' or 'drop', got {str(value)[:40]!r}"
        raise RequestError(ErrorCode.INVALID_REQUEST, message, "transparency")


# --- content, not decoded --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenFrames:
    """Frames of a clip that were handed over one by one: those that are taken, of `total` at `indices`."""

    frames: Sequence[ImageContent]
    indices: npt.NDArray[np.int64]
    total: int


def take_image(source: Any, allowance: Allowance) -> ImageContent:
    """What `load_image` takes, read or fetched. Raises `RequestError`."""
    from PIL import Image

    if isinstance(source, Image.Image):
        return source
    source = _as_array(source)
    if isinstance(source, np.ndarray):
        return source if _is_plain(source) else _array_to_image(source)
    return read_bytes(source, allowance)


def take_clip(source: Any, sampling: FrameSampling, allowance: Allowance) -> ClipContent:
    """What `load_video` takes, read or fetched; of frames given one by one, those that are sampled. Raises
    `RequestError`."""
    if isinstance(source, Video):
        return source
    source = _as_array(source)
    if isinstance(source, (list, tuple)) or (isinstance(source, np.ndarray) and source.ndim == 4):
        if len(source) == 0:
            raise RequestError(ErrorCode.INVALID_MEDIA, "the list of frames is empty")
        indices = sampling.indices_of_given(len(source))
        frames = [take_image(source[index], allowance) for index in indices]
        return GivenFrames(frames=frames, indices=indices, total=len(source))
    return read_source(source, allowance)


def image_size(content: ImageContent, limits: MediaLimits, name: str) -> MediaSize:
    """Size of the picture that `image_of` makes, from its header. Raises `RequestError`."""
    if isinstance(content, np.ndarray):
        height, width = content.shape[:2]
        picture.check_size((width, height), limits, name)
    else:
        height, width = picture.read_size(content, limits, name)
    return MediaSize(num_frames=1, height=height, width=width)


def clip_info(content: ClipContent, limits: MediaLimits, name: str) -> ClipInfo | None:
    """Return what the container of an encoded clip tells. None for frames, and without PyAV. Raises `RequestError`."""
    if not isinstance(content, (bytes, Path)):
        return None
    from seesay.processors.media import video as clip

    return clip.read_info(content, limits, name)


def clip_size(
    content: ClipContent, info: ClipInfo | None, sampling: FrameSampling, limits: MediaLimits, name: str
) -> MediaSize | None:
    """Size of the frames that `video_of` takes, from headers and `clip_info`; None where only decoding would tell.
    Raises `RequestError`."""
    if isinstance(content, Video):
        num_frames, (height, width) = len(sampling.indices_of_given(len(content.frames))), content.frames.shape[1:3]
        return MediaSize(num_frames=num_frames, height=height, width=width)
    if isinstance(content, GivenFrames):
        first = image_size(content.frames[0], limits, name)
        return replace(first, num_frames=len(content.frames))
    from seesay.processors.media import video as clip

    return None if info is None else clip.size_of(info, sampling, limits)


# --- pixels ----------------------------------------------------------------------------------------------------------


def image_of(
    content: ImageContent, limits: MediaLimits, name: str, *, transparency: Transparency = "white"
) -> Image.Image:
    """The picture, decoded. `name` is what messages call it. Raises `RequestError`."""
    if isinstance(content, np.ndarray):
        content = _array_to_image(content)
    if not isinstance(content, bytes):
        return picture.to_rgb(content, limits, "the PIL image", transparency=transparency)
    return picture.decode_picture(content, limits, name, transparency=transparency)


def pixels_of(
    content: ImageContent, limits: MediaLimits, name: str, *, transparency: Transparency = "white"
) -> npt.NDArray[np.uint8]:
    """The picture's pixels, uint8 [H, W, 3], in memory of their own, which may be read-only. Raises `RequestError`."""
    if isinstance(content, np.ndarray):
        return content.copy(order="C")
    return np.asarray(image_of(content, limits, name, transparency=transparency))


def video_of(
    content: ClipContent,
    sampling: FrameSampling,
    limits: MediaLimits,
    name: str,
    *,
    info: ClipInfo | None = None,
    transparency: Transparency = "white",
) -> Video:
    """The clip's sampled frames, decoded. `name` is what messages call it; `info` is that of `clip_info`, where it was
    asked for already. Raises `RequestError`, or `MissingExtraError` without a package that reads videos."""
    if isinstance(content, Video):
        return _thin(content, sampling)
    if isinstance(content, GivenFrames):
        return _stack_frames(content, sampling, limits, transparency)
    from seesay.processors.media.video import decode_clip

    frames, timestamps_s, interval_s = decode_clip(content, sampling, limits, name, info=info)
    return Video(frames=frames, timestamps_s=timestamps_s, frame_interval_s=interval_s)


def _stack_frames(
    given: GivenFrames, sampling: FrameSampling, limits: MediaLimits, transparency: Transparency
) -> Video:
    """Frames that were given one by one, at `sampling.fps` frames per second."""
    pictures: list[Any] = []
    num_pixels = 0
    for index, frame in zip(given.indices, given.frames, strict=True):
        if isinstance(frame, np.ndarray):
            array = frame
        else:
            array = pixels_of(frame, limits, f"frame {index}", transparency=transparency)
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
        timestamps_s=tuple(float(index) / rate for index in given.indices),
        frame_interval_s=given.total / rate / len(given.indices),
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


def _as_array(source: Any) -> Any:
    """A tensor, or whatever else NumPy can read, as an array; all other sources as they are."""
    if isinstance(source, np.ndarray) or not hasattr(source, "__array__"):
        return source
    try:
        return np.asarray(source)
    except (TypeError, ValueError, RuntimeError) as error:
        raise RequestError(ErrorCode.INVALID_MEDIA, f"a {type(source).__name__} that is no array: {error}") from None


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
