"""Videos through decord, for installations without PyAV.

decord is slower than PyAV, and damaged files crash the process that it runs in. Where it seeks, it miscounts: a decoder
drops frames behind a key frame (in open groups of pictures, as HEVC has them). So it does not seek here.
"""

from __future__ import annotations

import io
import math
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from seesay.install_command import install_command
from seesay.processors.media.video.video_info import VideoInfo, measure_fps

# Streams without an index: decord miscounts their frames, without an error.
_MISREAD = ("mpegts", "mpeg")


class DecordReader:
    """An open `decord.VideoReader`. All frames up to the last one that is taken are decoded. Raises ImportError without
    decord, and decord's errors for content that it cannot read."""

    def __init__(self, content: bytes | Path, kind: str) -> None:
        try:
            import decord
        except OSError as error:  # a shared library that it needs is missing
            raise ImportError(str(error)) from None
        if kind in _MISREAD:
            raise ValueError(f"decord cannot count frames of {kind} streams, PyAV can: {install_command('video')}")
        decord.logging.set_level(decord.logging.QUIET)
        self._content = content
        self._reader = self._open()
        height, width, _ = self._reader[0].shape
        num_frames, declared = len(self._reader), float(self._reader.get_avg_fps())
        if not math.isfinite(declared):
            raise ValueError(f"a frame rate of {declared}")
        times_s = self.times_s()
        fps = measure_fps(num_frames, float(times_s[-1]), declared)
        self.info = VideoInfo(width=width, height=height, num_frames=num_frames, fps=fps)

    def times_s(self) -> npt.NDArray[np.float64]:
        starts: npt.NDArray[np.float64] = self._reader.get_frame_timestamp(range(len(self._reader)))[:, 0].astype(float)
        times_s: npt.NDArray[np.float64] = starts - starts[0]
        return times_s

    def read(self, indices: npt.NDArray[np.int64], size: tuple[int, int]) -> npt.NDArray[np.uint8]:
        reader = self._open(width=size[1], height=size[0])
        frames = np.empty((len(indices), *size, 3), dtype=np.uint8)
        position = 0
        for slot, index in enumerate(indices.tolist()):
            if index > position:
                reader.skip_frames(index - position)
            frames[slot] = reader.next().asnumpy()
            position = index + 1
        return frames

    def _open(self, **size: int) -> Any:
        import decord

        # A resolved path begins with a slash, so it cannot name one of FFmpeg's protocols.
        source = io.BytesIO(self._content) if isinstance(self._content, bytes) else str(self._content.resolve())
        return decord.VideoReader(source, ctx=decord.cpu(0), **size)
