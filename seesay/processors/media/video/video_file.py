"""One encoded video: its frames are counted from its packets, then sampled, and decoded with PyAV; where that is
missing, with decord.

Only containers of known kinds are opened, from bytes in memory or a regular file, so that a playlist in disguise
cannot make the reader fetch something else.
"""

from __future__ import annotations

import logging
import math
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from seesay.errors import ErrorCode, MissingExtraError, RequestError
from seesay.processors.media.allowance import Allowance
from seesay.processors.media.video.frame_sampling import FrameSampling
from seesay.processors.media.video.opened_video import Video
from seesay.processors.media.video.video_info import BrokenOffError, VideoInfo
from seesay.system.hashing import digest
from seesay.values import MediaSize, VideoFrames

if TYPE_CHECKING:
    from seesay.processors.media.video.video_av import PacketList

VideoContent = bytes | Path

logger = logging.getLogger("seesay")

_MAX_BREAKS = 4


class VideoReader(Protocol):
    """An opened video; `info` has the upright frame size."""

    @property
    def info(self) -> VideoInfo: ...

    def times_s(self) -> npt.NDArray[np.float64]:
        """Return the times of all frames, from the first one on."""
        ...

    def read(self, indices: npt.NDArray[np.int64], size: tuple[int, int]) -> npt.NDArray[np.uint8]:
        """Decode the frames `indices` (ascending) at `size` (height, width): uint8 [N, H, W, 3]. May raise
        `BrokenOffError`."""
        ...


class VideoFile(Video):
    """An encoded video, as bytes or the path of a regular file (`content`). `name` is what messages call it.

    Without PyAV the packets cannot be listed: `size` is None, and decord alone tells how many frames there are.
    """

    def __init__(self, content: VideoContent, sampling: FrameSampling, *, allowance: Allowance, name: str) -> None:
        self.content = content
        self._sampling = sampling
        self._limits = allowance.limits
        self._allowance: Allowance | None = allowance  # None once the decoding is paid for
        self._name = name
        self._kind: str | None = None
        self._packets: PacketList | None = None

    def size(self) -> MediaSize | None:
        packets = self._list_packets()
        if packets is None:
            return None
        info = packets.info
        choice = self._sampling.choose(packets.times_s, info.fps)
        self._pay(info, packets.plan_skips(choice.indices)[1])
        num_frames = len(choice.indices)
        height, width = self._output_size(info, num_frames)
        return MediaSize(
            num_frames=num_frames,
            height=height,
            width=width,
            timestamps_s=choice.timestamps_s,
            frame_interval_s=choice.interval_s,
            source_fps=choice.source_fps,
        )

    def frames(self) -> VideoFrames:
        """See `Video.frames`. Raises `MissingExtraError` when neither decord nor PyAV is installed."""
        packets = self._list_packets()
        try:
            return self._read(self._open(packets), packets)
        except ImportError:
            raise MissingExtraError("reading a video", package="av", extra="video") from None
        except RequestError:
            raise
        except MemoryError:
            raise RequestError(ErrorCode.OUT_OF_MEMORY, f"not enough memory to decode {self._name}") from None
        except Exception as error:  # any of FFmpeg's errors
            raise self._broken(error) from error

    @cached_property
    def content_key(self) -> bytes | None:
        if not isinstance(self.content, bytes):
            return None
        return digest(b"video", self.content, repr(self._sampling).encode())

    def _open(self, packets: PacketList | None) -> VideoReader:
        if packets is not None:
            from seesay.processors.media.video.video_av import AvReader

            return AvReader(self.content, self._find_kind(), packets, max_pixels=self._limits.max_pixels)
        from seesay.processors.media.video.video_decord import DecordReader

        return DecordReader(self.content, self._find_kind())

    def _read(self, reader: VideoReader, packets: PacketList | None) -> VideoFrames:
        """Read the sampled frames; of a video that breaks off, as many as are sampled from what can be read."""
        self._check(reader.info)
        times_s = reader.times_s()
        for _ in range(_MAX_BREAKS):
            choice = self._sampling.choose(times_s, reader.info.fps)
            num_decoded = choice.indices[-1] + 1 if packets is None else packets.plan_skips(choice.indices)[1]
            self._pay(reader.info, int(num_decoded))
            try:
                frames = reader.read(choice.indices, self._output_size(reader.info, len(choice.indices)))
            except BrokenOffError as error:
                if not 0 < error.num_frames < len(times_s):
                    raise
                logger.warning("%s: only %d of %d frames can be read", self._name, error.num_frames, len(times_s))
                times_s = times_s[: error.num_frames]
            else:
                return VideoFrames(
                    frames=frames,
                    timestamps_s=choice.timestamps_s,
                    frame_interval_s=choice.interval_s,
                    source_fps=choice.source_fps,
                )
        raise ValueError("it is damaged in several places")

    def _list_packets(self) -> PacketList | None:
        """Return the packets of the video, listed once; None without PyAV."""
        from seesay.processors.media.video.video_av import list_packets

        kind = self._find_kind()
        if self._packets is None and has_pyav():
            try:
                packets = list_packets(self.content, kind, check_header=self._check)
            except RequestError:
                raise
            except Exception as error:  # any of FFmpeg's errors
                raise self._broken(error) from None
            self._check(packets.info)
            self._packets = packets
        return self._packets

    def _find_kind(self) -> str:
        if self._kind is None:
            self._kind = _container_kind(_read_head(self.content))
        if self._kind is None:
            raise RequestError(
                ErrorCode.INVALID_MEDIA,
                f"{self._name} is not a video of a known kind "
                "(MP4, MOV, WebM, Matroska, AVI, MPEG, FLV, Ogg, ASF or GIF)",
            )
        return self._kind

    def _check(self, info: VideoInfo) -> None:
        """Raise `RequestError` for a video that is empty or beyond the limits."""
        limits, name = self._limits, self._name
        if info.num_frames < 1 or info.width < 1 or info.height < 1:
            raise RequestError(ErrorCode.INVALID_MEDIA, f"{name} holds no video frames")
        if info.width * info.height > limits.max_pixels:
            raise RequestError(
                ErrorCode.MEDIA_TOO_LARGE,
                f"{name} has frames of {info.width}x{info.height} pixels, more than {limits.max_pixels}: "
                "send a smaller video or raise MediaLimits.max_pixels",
            )
        if info.duration_s > limits.max_duration_s:
            raise RequestError(
                ErrorCode.MEDIA_TOO_LARGE,
                f"{name} lasts {info.duration_s:.0f} s, more than {limits.max_duration_s:g} s: "
                "send a part of it or raise MediaLimits.max_duration_s",
            )

    def _pay(self, info: VideoInfo, num_decoded: int) -> None:
        """Take the frames that must be decoded from the request's allowance, once."""
        if self._allowance is not None:
            self._allowance.spend_decoding(info.width * info.height * num_decoded, self._name)
            self._allowance = None

    def _output_size(self, info: VideoInfo, num_frames: int) -> tuple[int, int]:
        """Return (height, width) of decoded frames: those of the video, or less where all frames together would hold
        too many pixels."""
        num_pixels = info.width * info.height * num_frames
        if num_pixels <= self._limits.max_clip_pixels:
            return info.height, info.width
        shrink = math.sqrt(self._limits.max_clip_pixels / num_pixels)
        return max(1, math.floor(info.height * shrink)), max(1, math.floor(info.width * shrink))

    def _broken(self, error: Exception) -> RequestError:
        reason = getattr(error, "strerror", None) or str(error).strip().split("\n")[0][:120] or type(error).__name__
        message = f"{self._name} cannot be decoded, it is damaged or cut off: {reason}"
        return RequestError(ErrorCode.INVALID_MEDIA, message)


def has_pyav() -> bool:
    """Return whether PyAV is installed."""
    try:
        import av  # noqa: F401
    except ImportError:
        return False
    return True


def _read_head(content: VideoContent) -> bytes:
    if isinstance(content, bytes):
        return content[:256]
    with content.open("rb") as file:
        return file.read(256)


def _container_kind(head: bytes) -> str | None:
    """Return FFmpeg's name of the container that begins with `head`."""
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
