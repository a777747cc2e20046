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
from seesay.processors.media.picture import Picture
from seesay.processors.media.video.frame_sampling import FrameChoice, FrameSampling
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
        return make_decoded(self.modality, video.frames, video.timestamps_s, video.frame_interval_s, video.source_fps)

    @cached_property
    def content_key(self) -> bytes | None:
        """A hash of the encoded content and of how it is decoded. None where the content may change."""
        return None


class LoadedVideo(Video):
    """Frames with their times, as `load_video` returns them; `sampling` may take fewer."""

    def __init__(self, video: VideoFrames, sampling: FrameSampling) -> None:
        if sampling.given_fps is not None:
            message = "sample_fps is the rate of frames that are given one by one: the result of load_video has times"
            raise RequestError(ErrorCode.INVALID_REQUEST, message, "sample_fps")
        if len(video.timestamps_s) != len(video.frames) or not len(video.frames):
            message = f"a video has {len(video.frames)} frames and {len(video.timestamps_s)} times: give one for each"
            raise RequestError(ErrorCode.INVALID_MEDIA, message)
        self._video = video
        self._choice = sampling.choose_given(
            np.asarray(video.timestamps_s),
            duration_s=video.frame_interval_s * len(video.frames),
            source_fps=video.source_fps,
        )

    def size(self) -> MediaSize:
        height, width = self._video.frames.shape[1:3]
        choice = self._choice
        return MediaSize(
            num_frames=len(choice.indices),
            height=height,
            width=width,
            timestamps_s=choice.timestamps_s,
            frame_interval_s=choice.interval_s,
            source_fps=choice.source_fps,
        )

    def frames(self) -> VideoFrames:
        video, choice = self._video, self._choice
        if len(choice.indices) == len(video.frames):
            return video
        return VideoFrames(
            frames=video.frames[choice.indices],
            timestamps_s=choice.timestamps_s,
            frame_interval_s=choice.interval_s,
            source_fps=choice.source_fps,
        )

    def decode(self) -> DecodedMedia:
        video = self.frames()
        frames = video.frames.copy() if video is self._video else video.frames
        return make_decoded(self.modality, frames, video.timestamps_s, video.frame_interval_s, video.source_fps)


class PictureSequence(Video):
    """Frames that were given one by one: `pictures` are those of `choice`."""

    def __init__(self, pictures: Sequence[Picture], choice: FrameChoice, *, limits: MediaLimits) -> None:
        self._pictures = pictures
        self._choice = choice
        self._limits = limits

    def size(self) -> MediaSize:
        choice = self._choice
        return replace(
            self._pictures[0].size(),
            num_frames=len(choice.indices),
            timestamps_s=choice.timestamps_s,
            frame_interval_s=choice.interval_s,
            source_fps=choice.source_fps,
        )

    def frames(self) -> VideoFrames:
        return VideoFrames(
            frames=np.stack(self._read_pixels()),
            timestamps_s=self._choice.timestamps_s,
            frame_interval_s=self._choice.interval_s,
            source_fps=self._choice.source_fps,
        )

    def _read_pixels(self) -> list[npt.NDArray[np.uint8]]:
        arrays: list[npt.NDArray[np.uint8]] = []
        num_pixels = 0
        for index, picture in zip(self._choice.indices, self._pictures, strict=True):
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
