"""A video that was read or fetched: its size, then the frames that are sampled from it.

It has one of three forms: an encoded file (`video_file.py`), frames that were given one by one, or the frames that
`load_video` returned.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from seesay.config import MediaLimits
from seesay.errors import ErrorCode, RequestError
from seesay.processors.media.decoded import make_decoded
from seesay.processors.media.frame_sampling import DEFAULT_FPS, FrameSampling
from seesay.processors.media.picture import Picture
from seesay.values import DecodedMedia, MediaSize, Modality, VideoFrames


class Video(ABC):
    """One video. Nothing is parsed before `size` or the frames are asked for. All methods raise `RequestError` for
    content that is damaged or beyond the limits, and may be called from any thread."""

    modality = Modality.VIDEO

    @abstractmethod
    def size(self) -> MediaSize | None:
        """Return the size of the frames that are taken. Decodes nothing; None where only decoding tells."""

    @abstractmethod
    def frames(self) -> VideoFrames:
        """Return the sampled frames, decoded. They may be in memory that the caller gave."""

    def decode(self) -> DecodedMedia:
        """Return the sampled frames in memory of their own."""
        video = self.frames()
        return make_decoded(self.modality, video.frames, video.timestamps_s, video.frame_interval_s)

    @cached_property
    def content_key(self) -> bytes | None:
        """A hash of the encoded content and of how it is decoded. None where the content may change."""
        return None


class LoadedVideo(Video):
    """Frames with their times, as `load_video` returns them; at most `sampling.num_frames` are taken."""

    def __init__(self, video: VideoFrames, sampling: FrameSampling) -> None:
        self._video = video
        self._sampling = sampling

    def size(self) -> MediaSize:
        height, width = self._video.frames.shape[1:3]
        return MediaSize(num_frames=len(self._indices()), height=height, width=width)

    def frames(self) -> VideoFrames:
        video, indices = self._video, self._indices()
        if len(indices) == len(video.frames):
            return video
        return VideoFrames(
            frames=video.frames[indices],
            timestamps_s=tuple(video.timestamps_s[index] for index in indices),
            frame_interval_s=video.frame_interval_s * len(video.frames) / len(indices),
        )

    def decode(self) -> DecodedMedia:
        video = self.frames()
        frames = video.frames.copy() if video is self._video else video.frames
        return make_decoded(self.modality, frames, video.timestamps_s, video.frame_interval_s)

    def _indices(self) -> npt.NDArray[np.int64]:
        return self._sampling.indices_of_given(len(self._video.frames))


class PictureSequence(Video):
    """Frames that were given one by one: `pictures` are those that are taken, of `total` at `indices`. They are
    `sampling.fps` frames per second apart."""

    def __init__(
        self,
        pictures: Sequence[Picture],
        indices: npt.NDArray[np.int64],
        total: int,
        *,
        sampling: FrameSampling,
        limits: MediaLimits,
    ) -> None:
        self._pictures = pictures
        self._indices = indices
        self._total = total
        self._fps = sampling.fps or DEFAULT_FPS
        self._limits = limits

    def size(self) -> MediaSize:
        return replace(self._pictures[0].size(), num_frames=len(self._pictures))

    def frames(self) -> VideoFrames:
        return VideoFrames(
            frames=np.stack(self._read_pixels()),
            timestamps_s=tuple(float(index) / self._fps for index in self._indices),
            frame_interval_s=self._total / self._fps / len(self._indices),
        )

    def _read_pixels(self) -> list[npt.NDArray[np.uint8]]:
        arrays: list[npt.NDArray[np.uint8]] = []
        num_pixels = 0
        for index, picture in zip(self._indices, self._pictures, strict=True):
            array = picture.pixels()
            if arrays and array.shape != arrays[0].shape:
                raise RequestError(
                    ErrorCode.INVALID_MEDIA,
                    f"frame {index} is {array.shape[1]}x{array.shape[0]} pixels, the first one "
                    f"{arrays[0].shape[1]}x{arrays[0].shape[0]}: frames of a video must have one size",
                )
            num_pixels += array.shape[0] * array.shape[1]
            if num_pixels > self._limits.max_clip_pixels:
                raise RequestError(
                    ErrorCode.MEDIA_TOO_LARGE,
                    f"the frames hold more than {self._limits.max_clip_pixels} pixels: send fewer or smaller ones, "
                    "or raise MediaLimits.max_clip_pixels",
                )
            arrays.append(array)
        return arrays
