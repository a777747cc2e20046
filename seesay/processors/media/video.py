"""One encoded clip to sampled upright RGB frames, with decord, else PyAV. Reads the container before decoding frames.

Only containers of known kinds are opened, from bytes in memory or a regular file, so that a playlist in disguise
cannot make the reader fetch something else.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from seesay.config import MediaLimits
from seesay.errors import ErrorCode, MissingExtraError, RequestError
from seesay.processors.media.frame_sampling import FrameSampling
from seesay.values import MediaSize

Frames = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipInfo:
    """Frame size in pixels, number of frames, and frames per second (the mean, where the rate varies) of a clip."""

    width: int
    height: int
    num_frames: int
    fps: float

    @property
    def duration_s(self) -> float:
        return self.num_frames / self.fps


class ClipReader(Protocol):
    """An opened clip, its frame size upright. `read` decodes frames `indices` (ascending) at `size` (height, width) and
    tells their times."""

    @property
    def info(self) -> ClipInfo: ...

    def read(self, indices: npt.NDArray[np.int64], size: tuple[int, int]) -> tuple[Frames, tuple[float, ...]]: ...


# Opens (content, container kind); raises ImportError where its package is missing.
ClipOpener = Callable[[bytes | Path, str], ClipReader]


def decode_clip(
    content: bytes | Path, sampling: FrameSampling, limits: MediaLimits, name: str, *, info: ClipInfo | None = None
) -> tuple[Frames, tuple[float, ...], float]:
    """Frames uint8 [N, H, W, 3], their times in seconds, and the seconds that each frame stands for (duration / N).
    `name` is what messages call the clip. `info` is that of `read_info`, where it was asked for already: N follows from
    it, whoever decodes.

    Raises `RequestError`, or `MissingExtraError` when neither decord nor PyAV is installed.
    """
    kind = _known_kind(content, name)
    told = info or read_info(content, limits, name)
    problem: Exception | None = None
    for opener in _openers():
        try:
            reader = opener(content, kind)
            check_info(reader.info, limits, name)
            found = told or reader.info
            if found.num_frames != reader.info.num_frames:
                raise ValueError(f"{reader.info.num_frames} of {found.num_frames} frames can be read")
            indices = sampling.indices(found.num_frames, found.fps)
            frames, times = reader.read(indices, _output_size(reader.info, len(indices), limits))
            return frames, times, found.duration_s / len(indices)
        except ImportError:
            continue
        except RequestError:
            raise
        except MemoryError:
            raise RequestError(ErrorCode.OUT_OF_MEMORY, f"not enough memory to decode {name}") from None
        except Exception as error:  # what one package cannot read, the other may
            problem = error
    if problem is None:
        raise MissingExtraError("reading a video", package="av", extra="video")
    raise _broken(name, problem)


def read_info(content: bytes | Path, limits: MediaLimits, name: str) -> ClipInfo | None:
    """Return what the container tells, the frame size as stored: frames are counted one by one, for headers may count
    those that a steady rate would have. Nothing is decoded. None without PyAV. Raises `RequestError` for a clip that
    is damaged or beyond the limits."""
    from seesay.processors.media.video_av import list_frames, read_header

    kind = _known_kind(content, name)
    try:
        header = read_header(content, kind)
        check_info(header, limits, name)
        frames = list_frames(content, kind)
        info = replace(header, num_frames=len(frames.times), fps=frames.fps)
    except ImportError:
        return None
    except RequestError:
        raise
    except Exception as error:  # any of FFmpeg's
        raise _broken(name, error) from None
    check_info(info, limits, name)
    return info


def size_of(info: ClipInfo, sampling: FrameSampling, limits: MediaLimits) -> MediaSize:
    """Return the size of the frames that `decode_clip` takes of a clip."""
    num_frames = len(sampling.indices(info.num_frames, info.fps))
    height, width = _output_size(info, num_frames, limits)
    return MediaSize(num_frames=num_frames, height=height, width=width)


def measure_fps(num_frames: int, span_s: float, declared: float) -> float:
    """Return the frames per second of a clip whose last frame is shown `span_s` seconds after its first: the declared
    rate where it explains that to within one frame, else the mean rate. 0 stands for no declared rate."""
    num_steps = num_frames - 1
    if declared > 0 and (span_s <= 0 or abs(span_s * declared - num_steps) < 1):
        return declared
    return num_steps / span_s if num_steps and span_s > 0 else 1.0


def check_info(info: ClipInfo, limits: MediaLimits, name: str) -> None:
    """Raise `RequestError` for a clip that is empty or beyond the limits."""
    if info.num_frames < 1 or info.width < 1 or info.height < 1:
        raise RequestError(ErrorCode.INVALID_MEDIA, f"{name} holds no video frames")
    if info.width * info.height > limits.max_pixels:
        raise RequestError(
            ErrorCode.MEDIA_TOO_LARGE,
            f"{name} has frames of {info.width}x{info.height} pixels, more than {limits.max_pixels}: "
            "send a smaller clip or raise MediaLimits.max_pixels",
        )
    if info.duration_s > limits.max_duration_s:
        raise RequestError(
            ErrorCode.MEDIA_TOO_LARGE,
            f"{name} lasts {info.duration_s:.0f} s, more than {limits.max_duration_s:g} s: "
            "send a part of it or raise MediaLimits.max_duration_s",
        )


def _openers() -> tuple[ClipOpener, ...]:
    from seesay.processors.media.video_av import open_av
    from seesay.processors.media.video_decord import open_decord

    return open_decord, open_av


def _broken(name: str, error: Exception) -> RequestError:
    reason = str(error).strip().split("\n")[0][:120] or type(error).__name__
    return RequestError(ErrorCode.INVALID_MEDIA, f"{name} cannot be decoded, it is damaged or cut off: {reason}")


def _output_size(info: ClipInfo, num_frames: int, limits: MediaLimits) -> tuple[int, int]:
    """(height, width) of decoded frames: as they are, or smaller where all together were too many pixels."""
    pixels = info.width * info.height * num_frames
    if pixels <= limits.max_clip_pixels:
        return info.height, info.width
    shrink = math.sqrt(limits.max_clip_pixels / pixels)
    return max(1, math.floor(info.height * shrink)), max(1, math.floor(info.width * shrink))


def _known_kind(content: bytes | Path, name: str) -> str:
    kind = _container_kind(_head(content))
    if kind is None:
        raise RequestError(
            ErrorCode.INVALID_MEDIA,
            f"{name} is not a video of a known kind (MP4, MOV, WebM, Matroska, AVI, MPEG, FLV, Ogg, ASF or GIF)",
        )
    return kind


def _head(content: bytes | Path) -> bytes:
    if isinstance(content, bytes):
        return content[:256]
    with content.open("rb") as file:
        return file.read(256)


def _container_kind(head: bytes) -> str | None:
    """FFmpeg's name of the container that begins so."""
    if head[4:8] in (b"ftyp", b"moov", b"mdat", b"free", b"skip", b"wide"):
        return "mov"
    if head[:4] == b"RIFF" and head[8:12] == b"AVI ":
        return "avi"
    if head[:1] == b"\x47" and head[188:189] == b"\x47":
        return "mpegts"
    beginnings = {
        b"\x1a\x45\xdf\xa3": "matroska",
        b"FLV\x01": "flv",
        b"OggS": "ogg",
        b"\x00\x00\x01\xba": "mpeg",
        b"GIF8": "gif",
        b"\x30\x26\xb2\x75": "asf",
    }
    return beginnings.get(head[:4])
