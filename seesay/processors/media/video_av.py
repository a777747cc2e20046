"""Videos through PyAV, which reads more kinds of files than decord and lists frames without decoding."""

from __future__ import annotations

import bisect
import io
import itertools
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from seesay.errors import ErrorCode, RequestError
from seesay.processors.media.video_info import VideoInfo, measure_fps

_MAX_PACKETS = 1_000_000
_SEEKABLE = ("mov", "matroska")
_MIN_SKIPPED_FRAMES = 16
"""A seek discards what the decoder has prepared: it must skip at least this many frames."""

Frames = npt.NDArray[np.uint8]


def open_av(content: bytes | Path, kind: str, packets: PacketList | None) -> AvReader:
    """Return a reader of the video, whose packets are listed now if they were not before. Raises ImportError without
    PyAV, and PyAV's errors for content that it cannot read."""
    return AvReader(content, kind, packets or list_packets(content, kind))


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


def list_packets(
    content: bytes | Path, kind: str, *, check_header: Callable[[VideoInfo], None] | None = None
) -> PacketList:
    """Read all packets of a video: headers may count the frames that a steady rate would have. Decodes nothing.
    `check_header` gets what the header declares, and may raise before the packets are read. Raises ValueError for a
    video without frames."""
    times: list[int | None] = []
    keys: list[int] = []
    with _opened(content, kind) as (container, stream):
        header = _read_header(container, stream)
        if check_header is not None:
            check_header(header)
        for packet in container.demux(stream):
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
        keys=array("q", sorted(keys) if kind in _SEEKABLE else []),
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
    """A video whose packets have been listed."""

    def __init__(self, content: bytes | Path, kind: str, packets: PacketList) -> None:
        self._content = content
        self._kind = kind
        self._packets = packets
        width, height, self._num_turns = self._read_orientation()
        self.info = replace(packets.info, width=width, height=height)

    def read(self, indices: npt.NDArray[np.int64], size: tuple[int, int]) -> tuple[Frames, tuple[float, ...]]:
        times = self._packets.times
        targets = [times[index] for index in indices.tolist()]
        frames = self._decode(targets, size, self._packets.keys)
        if frames is None:  # a seek went too far: read from the beginning instead
            frames = self._decode(targets, size, [])
            assert frames is not None
        return frames, tuple((time - times[0]) * float(self._packets.time_base) for time in targets)

    def _read_orientation(self) -> tuple[int, int, int]:
        """Decode the first frame. Return the upright width and height, and the quarter turns (counter-clockwise) that
        make frames upright."""
        with _opened(self._content, self._kind) as (container, stream):
            frame = next(container.decode(stream), None)
            if frame is None:
                raise ValueError("no frame can be decoded")
            num_turns = round(frame.rotation / 90) % 4
            return (frame.height, frame.width, num_turns) if num_turns % 2 else (frame.width, frame.height, num_turns)

    def _decode(self, targets: list[int], size: tuple[int, int], keys: Sequence[int]) -> Frames | None:
        """Decode the frames shown at `targets` (ascending), seeking to `keys`. None when a seek lands too late."""
        frames = np.empty((len(targets), *size, 3), dtype=np.uint8)
        stored = (size[1], size[0]) if self._num_turns % 2 else size
        with _opened(self._content, self._kind) as (container, stream):
            decoded, counter = container.decode(stream), itertools.count()
            frame, time, has_sought = None, self._packets.times[0] - 1, False
            for slot, target in enumerate(targets):
                key = keys[max(bisect.bisect_right(keys, target) - 1, 0)] if keys else time
                if self._num_between(time, key) >= _MIN_SKIPPED_FRAMES:
                    container.seek(key, stream=stream)
                    decoded, has_sought = container.decode(stream), True
                while time < target:
                    following = next(decoded, None)
                    if following is None:
                        break
                    frame, time = following, next(counter) if self._packets.is_counted else following.pts
                    if has_sought and time > target:
                        return None
                    has_sought = False
                if frame is None:
                    raise ValueError("no frame can be decoded")
                pixels = frame.to_ndarray(format="rgb24", height=stored[0], width=stored[1])
                frames[slot] = np.rot90(pixels, self._num_turns)
        return frames

    def _num_between(self, time: int, later: int) -> int:
        times = self._packets.times
        return bisect.bisect_left(times, later) - bisect.bisect_right(times, time)
