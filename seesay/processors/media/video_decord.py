"""Videos through decord, the fastest reader of the files that it supports."""

from __future__ import annotations

import io
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from seesay.install_command import install_command
from seesay.processors.media.video_info import VideoInfo, measure_fps

if TYPE_CHECKING:
    from seesay.processors.media.video_av import PacketList

# Streams without an index: decord seeks to the wrong frames in them, without an error.
_MISREAD = ("mpegts", "mpeg")


def open_decord(content: bytes | Path, kind: str, packets: PacketList | None) -> DecordReader:  # noqa: ARG001
    """Return a reader of the video. Raises ImportError without decord, and decord's errors for content that it cannot
    read."""
    try:
        import decord
    except OSError as error:  # a shared library that it needs is missing
        raise ImportError(str(error)) from None
    if kind in _MISREAD:
        raise ValueError(f"decord cannot seek in {kind} streams, PyAV can: {install_command('video')}")
    decord.logging.set_level(decord.logging.QUIET)
    return DecordReader(content)


class DecordReader:
    """An open `decord.VideoReader`."""

    def __init__(self, content: bytes | Path) -> None:
        self._content = content
        self._reader = self._open()
        height, width, _ = self._reader[0].shape
        num_frames, declared = len(self._reader), float(self._reader.get_avg_fps())
        if not math.isfinite(declared):
            raise ValueError(f"a frame rate of {declared}")
        first, last = self._reader.get_frame_timestamp([0, num_frames - 1])[:, 0].tolist()
        fps = measure_fps(num_frames, last - first, declared)
        self.info = VideoInfo(width=width, height=height, num_frames=num_frames, fps=fps)

    def read(
        self, indices: npt.NDArray[np.int64], size: tuple[int, int]
    ) -> tuple[npt.NDArray[np.uint8], tuple[float, ...]]:
        reader = self._reader
        if size != (self.info.height, self.info.width):
            reader = self._open(width=size[1], height=size[0])
        frames: npt.NDArray[np.uint8] = reader.get_batch(indices.tolist()).asnumpy()
        starts = reader.get_frame_timestamp(np.concatenate(([0], indices)))[:, 0]
        return frames, tuple(float(start - starts[0]) for start in starts[1:])

    def _open(self, **size: int) -> Any:
        import decord

        # A resolved path begins with a slash, so it cannot name one of FFmpeg's protocols.
        source = io.BytesIO(self._content) if isinstance(self._content, bytes) else str(self._content.resolve())
        return decord.VideoReader(source, ctx=decord.cpu(0), **size)
