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
from seesay.processors.media.video_info import BrokenOffError, VideoInfo, measure_fps

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


def list_packets(
    content: bytes | Path, kind: str, *, check_header: Callable[[VideoInfo], None] | None = None
) -> PacketList:
    """Read all packets of a video: headers may count the frames that a steady rate would have. Decodes nothing.

    Of a file that is cut off, or damaged, those before that place are listed. `check_header` gets what the header
    declares, and may raise before the packets are read. Raises ValueError for a video without frames.
    """
    import av

    times: list[int | None] = []
    keys: list[int] = []
    with _opened(content, kind) as (container, stream):
        header = _read_header(container, stream)
        if check_header is not None:
            check_header(header)
        packets = container.demux(stream)
        while True:
            try:
                packet = next(packets, None)
            except av.FFmpegError:
                if not times:
                    raise
                packet = None
            if packet is None:
                break
            if packet.size == 0 or packet.is_discard:
                continue
            times.append(packet.pts)
            if packet.is_keyframe and packet.pts is not None:
                keys.append(packet.pts)
            if len(times) > _MAX_PACKETS:
                raise RequestError(ErrorCode.MEDIA_TOO_LARGE, f"the video has more than {_MAX_PACKETS} frames")
        declared = float(stream.average_rate or stream.guessed_rate or 0)
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


def _read_header(container: Any, stream: Any) -> VideoInfo:
    """Return what the container's header declares, true or not, with the size of the stored frames."""
    duration_s = float(stream.duration * stream.time_base) if stream.duration else (container.duration or 0) / 1e6
    rate = float(stream.average_rate or stream.guessed_rate or 1)
    num_frames = max(stream.frames, round(duration_s * rate), 1)
    # The declared duration is kept, whatever rate follows from it.
    fps = num_frames / duration_s if duration_s > 0 else rate
    width, height = stream.codec_context.width, stream.codec_context.height
    return VideoInfo(width=width, height=height, num_frames=num_frames, fps=fps)


@contextmanager
def _opened(content: bytes | Path, kind: str) -> Iterator[tuple[Any, Any]]:
    """Open the container, and find its video stream. FFmpeg gets an open file, never a name that it could interpret."""
    import av

    with (
        io.BytesIO(content) if isinstance(content, bytes) else content.open("rb") as file,
        av.open(file, mode="r", format=kind, metadata_errors="ignore") as container,
    ):
        stream = container.streams.best("video")
        if stream is None:
            raise ValueError("there is no video in it")
        stream.thread_type = "AUTO"
        yield container, stream


class AvReader:
    """A video whose packets have been listed. Raises PyAV's errors for content that it cannot read."""

    def __init__(self, content: bytes | Path, kind: str, packets: PacketList) -> None:
        self._content = content
        self._kind = kind
        self._packets = packets
        width, height, self._num_turns = self._read_orientation()
        self.info = replace(packets.info, width=width, height=height)

    def times_s(self) -> npt.NDArray[np.float64]:
        return self._packets.times_s

    def read(self, indices: npt.NDArray[np.int64], size: tuple[int, int]) -> Frames:
        targets = [self._packets.times[index] for index in indices.tolist()]
        if self._kind in _SEEKABLE:
            frames = self._decode(targets, size, seeks=True)
            if frames is not None:
                return frames
        frames = self._decode(targets, size, seeks=False)
        assert frames is not None
        return frames

    def _read_orientation(self) -> tuple[int, int, int]:
        """Decode the first frame. Return the upright width and height, and the quarter turns (counter-clockwise) that
        make frames upright."""
        with _opened(self._content, self._kind) as (container, stream):
            frame = next(container.decode(stream), None)
            if frame is None:
                raise ValueError("no frame can be decoded")
            num_turns = round(frame.rotation / 90) % 4
            return (frame.height, frame.width, num_turns) if num_turns % 2 else (frame.width, frame.height, num_turns)

    def _decode(self, targets: list[int], size: tuple[int, int], *, seeks: bool) -> Frames | None:
        """Decode the frames shown at `targets` (ascending), beginning again at a key frame where that skips many
        frames. With `seeks` the file is read from there; None when a seek lands too late. Raises `BrokenOffError`."""
        frames = np.empty((len(targets), *size, 3), dtype=np.uint8)
        stored = (size[1], size[0]) if self._num_turns % 2 else size
        packets = self._packets
        with _opened(self._content, self._kind) as (container, stream):
            source = _PacketSource(container, stream, seeks=seeks)
            counter = itertools.count()
            frame, time, has_sought = None, packets.times[0] - 1, False
            for slot, target in enumerate(targets):
                key = packets.keys[max(bisect.bisect_right(packets.keys, target) - 1, 0)] if packets.keys else time
                is_skipped = self._num_between(time, key) >= _MIN_SKIPPED_FRAMES
                if is_skipped:
                    source.skip_to(key)
                    has_sought = seeks
                while time < target:
                    following = source.next_frame()
                    if following is None:
                        known = max(bisect.bisect_right(packets.times, time), bisect.bisect_left(packets.times, key))
                        raise BrokenOffError(known if is_skipped else bisect.bisect_right(packets.times, time))
                    frame, time = following, next(counter) if packets.is_counted else following.pts
                    if has_sought and time > target:
                        return None
                    has_sought = False
                assert frame is not None, "every target is at or after the first frame"
                pixels = frame.to_ndarray(format="rgb24", height=stored[0], width=stored[1])
                frames[slot] = np.rot90(pixels, self._num_turns)
        return frames

    def _num_between(self, time: int, later: int) -> int:
        times = self._packets.times
        return bisect.bisect_left(times, later) - bisect.bisect_right(times, time)


class _PacketSource:
    """The frames of an opened video, in the order in which they are shown."""

    def __init__(self, container: Any, stream: Any, *, seeks: bool) -> None:
        self._container = container
        self._stream = stream
        self._seeks = seeks
        self._packets = container.demux(stream)
        self._frames: Iterator[Any] = iter(())

    def skip_to(self, key: int) -> None:
        """Go on with the key frame that is shown at `key`. What lies before it is not decoded."""
        self._frames = iter(())
        if self._seeks:
            self._container.seek(key, stream=self._stream)
            self._packets = self._container.demux(self._stream)
            return
        for packet in self._packets:
            if packet.is_keyframe and packet.pts == key:
                self._stream.codec_context.flush_buffers()
                self._frames = iter(packet.decode())
                return

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
