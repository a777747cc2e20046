"""Videos through PyAV, which lists frames without decoding them, and decodes no more than it must."""

from __future__ import annotations

import bisect
import io
import itertools
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from seesay.errors import ErrorCode, RequestError
from seesay.processors.media.video.video_info import BrokenOffError, VideoInfo, measure_fps

_MAX_PACKETS = 1_000_000
_SEEKABLE = ("mov", "matroska")
_WITH_KEYS = (*_SEEKABLE, "avi", "mpegts", "mpeg", "flv", "asf")
"""Containers that say truly which frames are key frames."""
_MIN_SKIPPED_FRAMES = 16
"""A seek discards what the decoder has prepared: it must skip at least this many frames."""

Frames = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True, kw_only=True)
class PacketList:
    """The frames of a video, one per packet: the `times` they are shown at and those of key frames, ascending. Times
    are in units of `time_base` seconds; frames without times are numbered instead. The frame size in `info` is that of
    the stored frames, which may still have to be turned."""

    info: VideoInfo
    times: array[int]
    keys: array[int]
    time_base: Fraction
    is_counted: bool

    @property
    def times_s(self) -> npt.NDArray[np.float64]:
        """The times of the frames from the first one on."""
        times = np.frombuffer(self.times, dtype=np.int64)
        times_s: npt.NDArray[np.float64] = (times - times[0]) * float(self.time_base)
        return times_s

    def plan_skips(self, indices: npt.NDArray[np.int64]) -> tuple[list[int | None], int]:
        """Return for each of the frames `indices` (ascending) the time of the key frame to go on with, None to read on,
        and how many frames are decoded in all."""
        skips: list[int | None] = []
        position, num_decoded = -1, 0
        for index in indices.tolist():
            num_keys = bisect.bisect_right(self.keys, self.times[index])
            key = self.keys[num_keys - 1] if num_keys else None
            start = position + 1 if key is None else bisect.bisect_left(self.times, key)
            is_skip = start - position - 1 >= _MIN_SKIPPED_FRAMES
            skips.append(key if is_skip else None)
            num_decoded += index - (start - 1 if is_skip else position)
            position = index
        return skips, num_decoded


def list_packets(
    content: bytes | Path, kind: str, *, check_header: Callable[[VideoInfo], None] | None = None
) -> PacketList:
    """Read all packets of a video: headers may count the frames that a steady rate would have. Decodes nothing.

    Of a file that is cut off, or damaged, those before that place are listed. `check_header` gets what the header
    declares, and may raise before the packets are read. Raises ValueError for a video without frames.
    """
    with _opened(content, kind) as (container, stream):
        header = _read_header(container, stream)
        if check_header is not None:
            check_header(header)
        times, keys = _read_times(container, stream)
        declared = _read_rate(stream)
        time_base = Fraction(stream.time_base)
    if not times:
        raise ValueError("there is no frame in it")
    known = sorted(time for time in times if time is not None)
    is_counted = len(known) < len(times)
    if is_counted:
        known, keys, time_base, fps = list(range(len(times))), [], 1 / Fraction(declared or 1), declared or 1.0
    else:
        fps = measure_fps(len(known), float((known[-1] - known[0]) * time_base), declared)
    return PacketList(
        info=replace(header, num_frames=len(known), fps=fps),
        times=array("q", known),
        keys=array("q", sorted(keys) if kind in _WITH_KEYS else []),
        time_base=time_base,
        is_counted=is_counted,
    )


def _read_times(container: Any, stream: Any) -> tuple[list[int | None], list[int]]:
    """Return the times of all packets, None for those without, and those of the key frames."""
    times: list[int | None] = []
    keys: list[int] = []
    for packet in _iter_packets(container, stream):
        times.append(packet.pts)
        if packet.is_keyframe and packet.pts is not None:
            keys.append(packet.pts)
        if len(times) > _MAX_PACKETS:
            raise RequestError(ErrorCode.MEDIA_TOO_LARGE, f"the video has more than {_MAX_PACKETS} frames")
    return times, keys


def _iter_packets(container: Any, stream: Any) -> Iterator[Any]:
    """Yield the packets of frames that are shown, until the end or a damaged place. Raises if there is none before."""
    import av

    has_any = False
    try:
        for packet in container.demux(stream):
            if packet.size > 0 and not packet.is_discard:
                has_any = True
                yield packet
    except av.FFmpegError:
        if not has_any:
            raise


def _read_rate(stream: Any) -> float:
    """Return the frames per second that the stream declares; 0 if it declares none."""
    return float(stream.average_rate or stream.guessed_rate or 0)


def _read_header(container: Any, stream: Any) -> VideoInfo:
    """Return what the container's header declares, true or not, with the size of the stored frames."""
    duration_s = float(stream.duration * stream.time_base) if stream.duration else (container.duration or 0) / 1e6
    rate = _read_rate(stream) or 1.0
    num_frames = max(stream.frames, round(duration_s * rate), 1)
    # The declared duration is kept, whatever rate follows from it.
    fps = num_frames / duration_s if duration_s > 0 else rate
    width, height = stream.codec_context.width, stream.codec_context.height
    return VideoInfo(width=width, height=height, num_frames=num_frames, fps=fps)


@contextmanager
def _opened(content: bytes | Path, kind: str, *, max_pixels: int | None = None) -> Iterator[tuple[Any, Any]]:
    """Open the container, and find its video stream. FFmpeg gets an open file, never a name that it could interpret.
    Its decoder refuses frames of more than `max_pixels`, whatever the header says."""
    import av

    with (
        io.BytesIO(content) if isinstance(content, bytes) else content.open("rb") as file,
        av.open(file, mode="r", format=kind, metadata_errors="ignore") as container,
    ):
        stream = container.streams.best("video")
        if stream is None:
            raise ValueError("there is no video in it")
        stream.thread_type = "AUTO"
        if max_pixels is not None:
            stream.codec_context.options = {"max_pixels": str(max_pixels)}
        yield container, stream


class AvReader:
    """A video whose packets have been listed. Raises PyAV's errors for content that it cannot read."""

    def __init__(self, content: bytes | Path, kind: str, packets: PacketList, *, max_pixels: int) -> None:
        self._content = content
        self._kind = kind
        self._packets = packets
        self._max_pixels = max_pixels
        width, height, self._num_turns = self._read_orientation()
        self.info = replace(packets.info, width=width, height=height)

    def times_s(self) -> npt.NDArray[np.float64]:
        return self._packets.times_s

    def read(self, indices: npt.NDArray[np.int64], size: tuple[int, int]) -> Frames:
        if self._kind in _SEEKABLE:
            frames = self._decode(indices, size, seeks=True)
            if frames is not None:
                return frames
        frames = self._decode(indices, size, seeks=False)
        assert frames is not None
        return frames

    def _read_orientation(self) -> tuple[int, int, int]:
        """Decode the first frame. Return the upright width and height, and the quarter turns (counter-clockwise) that
        make frames upright."""
        with _opened(self._content, self._kind, max_pixels=self._max_pixels) as (container, stream):
            frame = next(container.decode(stream), None)
            if frame is None:
                raise ValueError("no frame can be decoded")
            num_turns = round(frame.rotation / 90) % 4
            return (frame.height, frame.width, num_turns) if num_turns % 2 else (frame.width, frame.height, num_turns)

    def _decode(self, indices: npt.NDArray[np.int64], size: tuple[int, int], *, seeks: bool) -> Frames | None:
        """Decode the frames `indices` (ascending), and of the others only those that must be. With `seeks` the file is
        read from key frames on; None when a seek fails, or lands too late. Raises `BrokenOffError`."""
        packets = self._packets
        frames = np.empty((len(indices), *size, 3), dtype=np.uint8)
        stored = (size[1], size[0]) if self._num_turns % 2 else size
        skips, _ = packets.plan_skips(indices)
        with _opened(self._content, self._kind, max_pixels=self._max_pixels) as (container, stream):
            source = _PacketSource(container, stream, seeks=seeks)
            counter = itertools.count()
            frame, time, has_sought, num_known = None, packets.times[0] - 1, False, 0
            for slot, index in enumerate(indices.tolist()):
                target, key = packets.times[index], skips[slot]
                if key is not None:
                    if not source.skip_to(key) and seeks:
                        return None
                    has_sought, num_known = seeks, bisect.bisect_left(packets.times, key)
                while time < target:
                    following = source.next_frame()
                    if following is None:
                        raise BrokenOffError(max(bisect.bisect_right(packets.times, time), num_known))
                    frame, time = following, next(counter) if packets.is_counted else following.pts
                    if has_sought and time > target:
                        return None
                    has_sought = False
                assert frame is not None, "every target is at or after the first frame"
                pixels = frame.to_ndarray(format="rgb24", height=stored[0], width=stored[1])
                frames[slot] = np.rot90(pixels, self._num_turns)
        return frames


class _PacketSource:
    """The frames of an opened video, in the order in which they are shown."""

    def __init__(self, container: Any, stream: Any, *, seeks: bool) -> None:
        self._container = container
        self._stream = stream
        self._seeks = seeks
        self._packets = container.demux(stream)
        self._frames: Iterator[Any] = iter(())

    def skip_to(self, key: int) -> bool:
        """Go on with the key frame that is shown at `key`. What lies before it is not decoded. False where the file
        cannot be read so far."""
        import av

        self._frames = iter(())
        try:
            if self._seeks:
                self._container.seek(key, stream=self._stream)
                self._packets = self._container.demux(self._stream)
                return True
            for packet in self._packets:
                if packet.is_keyframe and packet.pts == key:
                    self._stream.codec_context.flush_buffers()
                    self._frames = iter(packet.decode())
                    return True
        except av.FFmpegError:
            pass
        return False

    def next_frame(self) -> Any | None:
        """Return the next frame; None at the end, and where the video is damaged."""
        import av

        try:
            while (frame := next(self._frames, None)) is None:
                packet = next(self._packets, None)
                if packet is None:
                    return None
                self._frames = iter(packet.decode())
            return frame
        except av.FFmpegError:
            return None
