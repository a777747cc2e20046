"""Clips through PyAV, which reads more kinds of files than decord and tells frame sizes without decoding."""

from __future__ import annotations

import bisect
import io
import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from seesay.errors import ErrorCode, RequestError
from seesay.processors.media.video import ClipInfo, Frames, measure_fps

_MAX_PACKETS = 1_000_000
_SEEKABLE = ("mov", "matroska")
# Frames that a jump must save: it throws away what the decoder has prepared.
_WORTH_A_JUMP = 16


def open_av(content: bytes | Path, kind: str) -> AvReader:
    """A reader of the clip. Raises ImportError without PyAV, and PyAV's errors for what it cannot read."""
    return AvReader(content, kind)


def read_header(content: bytes | Path, kind: str) -> ClipInfo:
    """What the container's header declares, true or not, the frame size as stored. Decodes nothing."""
    with _opened(content, kind) as (container, stream):
        duration_s = float(stream.duration * stream.time_base) if stream.duration else (container.duration or 0) / 1e6
        rate = float(stream.average_rate or stream.guessed_rate or 1)
        num_frames = max(stream.frames, round(duration_s * rate), 1)
        width, height = stream.codec_context.width, stream.codec_context.height
        # The declared duration stands, whatever rate goes with it.
        fps = num_frames / duration_s if duration_s > 0 else rate
        return ClipInfo(width=width, height=height, num_frames=num_frames, fps=fps)


@contextmanager
def _opened(content: bytes | Path, kind: str) -> Iterator[tuple[Any, Any]]:
    """The container and its video stream. A file is handed over open, so that its name means nothing to FFmpeg."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameList:
    """The frames of a clip as its packets tell them, one per frame: the `times` they are shown at and those of key
    frames, ascending. Times are in units of `time_base` seconds; frames that have none are numbered instead."""

    times: list[int]
    keys: list[int]
    time_base: Fraction
    fps: float
    is_counted: bool


def list_frames(content: bytes | Path, kind: str) -> FrameList:
    """Read all packets of a clip. Decodes nothing. Raises ValueError for a clip without frames."""
    times: list[int | None] = []
    keys: list[int] = []
    with _opened(content, kind) as (container, stream):
        for packet in container.demux(stream):
            if packet.size == 0 or packet.is_discard:
                continue
            times.append(packet.pts)
            if packet.is_keyframe and packet.pts is not None:
                keys.append(packet.pts)
            if len(times) > _MAX_PACKETS:
                raise RequestError(ErrorCode.MEDIA_TOO_LARGE, f"the clip has more than {_MAX_PACKETS} frames")
        declared = float(stream.average_rate or stream.guessed_rate or 0)
        time_base = Fraction(stream.time_base)
    if not times:
        raise ValueError("there is no frame in it")
    known = sorted(time for time in times if time is not None)
    if len(known) < len(times):
        return FrameList(
            times=list(range(len(times))),
            keys=[],
            time_base=1 / Fraction(declared or 1),
            fps=declared or 1.0,
            is_counted=True,
        )
    fps = measure_fps(len(known), float((known[-1] - known[0]) * time_base), declared)
    keys = sorted(keys) if kind in _SEEKABLE else []
    return FrameList(times=known, keys=keys, time_base=time_base, fps=fps, is_counted=False)


class AvReader:
    """A clip whose packets have been listed."""

    def __init__(self, content: bytes | Path, kind: str) -> None:
        self._content = content
        self._kind = kind
        self._list = list_frames(content, kind)
        width, height, self._num_turns = self._look_at_first()
        self.info = ClipInfo(width=width, height=height, num_frames=len(self._list.times), fps=self._list.fps)

    def read(self, indices: npt.NDArray[np.int64], size: tuple[int, int]) -> tuple[Frames, tuple[float, ...]]:
        times = self._list.times
        targets = [times[index] for index in indices.tolist()]
        frames = self._decode(targets, size, self._list.keys)
        if frames is None:  # a seek went too far: read on from the beginning instead
            frames = self._decode(targets, size, [])
            assert frames is not None
        return frames, tuple((time - times[0]) * float(self._list.time_base) for time in targets)

    def _look_at_first(self) -> tuple[int, int, int]:
        """Upright width and height, and the quarter turns (counter-clockwise) that make frames upright."""
        with _opened(self._content, self._kind) as (container, stream):
            frame = next(container.decode(stream), None)
            if frame is None:
                raise ValueError("no frame can be decoded")
            num_turns = round(frame.rotation / 90) % 4
            return (frame.height, frame.width, num_turns) if num_turns % 2 else (frame.width, frame.height, num_turns)

    def _decode(self, targets: list[int], size: tuple[int, int], keys: list[int]) -> Frames | None:
        """The frames shown at `targets` (ascending), jumping to `keys`; None when a jump lands behind its target."""
        frames = np.empty((len(targets), *size, 3), dtype=np.uint8)
        stored = (size[1], size[0]) if self._num_turns % 2 else size
        with _opened(self._content, self._kind) as (container, stream):
            decoded, counter = container.decode(stream), itertools.count()
            frame, time, has_jumped = None, self._list.times[0] - 1, False
            for slot, target in enumerate(targets):
                key = keys[max(bisect.bisect_right(keys, target) - 1, 0)] if keys else time
                if self._num_between(time, key) >= _WORTH_A_JUMP:
                    container.seek(key, stream=stream)
                    decoded, has_jumped = container.decode(stream), True
                while time < target:
                    following = next(decoded, None)
                    if following is None:
                        break
                    frame, time = following, next(counter) if self._list.is_counted else following.pts
                    if has_jumped and time > target:
                        return None
                    has_jumped = False
                if frame is None:
                    raise ValueError("no frame can be decoded")
                pixels = frame.to_ndarray(format="rgb24", height=stored[0], width=stored[1])
                frames[slot] = np.rot90(pixels, self._num_turns)
        return frames

    def _num_between(self, time: int, later: int) -> int:
        times = self._list.times
        return bisect.bisect_left(times, later) - bisect.bisect_right(times, time)
