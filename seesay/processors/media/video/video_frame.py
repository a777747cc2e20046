"""Frames of a video as pictures of their own, for models that take pictures only."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import cached_property

from seesay.processors.media.decoded import make_decoded
from seesay.processors.media.video.opened_video import Video
from seesay.system.hashing import digest
from seesay.values import DecodedMedia, MediaSize, Modality, VideoFrames


class _SharedDecoding:
    """Decodes a video once for all its `num_frames` frames, which may be asked for in any order from any thread. The
    pixels are dropped when each frame was taken once."""

    def __init__(self, video: Video, num_frames: int) -> None:
        self.video = video
        self._lock = threading.Lock()
        self._waiting = set(range(num_frames))
        self._decoded: VideoFrames | None = None

    def take(self, index: int) -> DecodedMedia:
        with self._lock:
            decoded = self._decoded or self.video.frames()
            self._waiting.discard(index)
            self._decoded = decoded if self._waiting else None
        # Of a video that turns out to break off, the last frame that can be read stands for those behind it.
        frame = decoded.frames[min(index, len(decoded.frames) - 1)]
        return make_decoded(Modality.IMAGE, frame[None].copy())

    @property
    def is_decoded(self) -> bool:
        return self._decoded is not None


class VideoFrame:
    """One of the frames that are taken of a video of `video_size`, as a picture. Its methods are those of `Picture`."""

    modality = Modality.IMAGE

    def __init__(self, decoding: _SharedDecoding, index: int, video_size: MediaSize) -> None:
        self._decoding = decoding
        self._index = index
        self._video_size = video_size

    def size(self) -> MediaSize:
        """Return the size of the frame."""
        return MediaSize(num_frames=1, height=self._video_size.height, width=self._video_size.width)

    def decode(self) -> DecodedMedia:
        """Return the pixels, in memory of their own. The first frame that is decoded decodes all of them."""
        return self._decoding.take(self._index)

    @property
    def timestamp_s(self) -> float:
        """Its time in the video."""
        return self._video_size.timestamps_s[self._index]

    @cached_property
    def content_key(self) -> bytes | None:
        """A hash of the encoded video, of how it is sampled, and of the frame's number. None where it may change."""
        key = self._decoding.video.content_key
        return None if key is None else digest(b"frame", key, str(self._index).encode())

    @property
    def video(self) -> Video:
        """The video that the frame is from: the same object for all its frames."""
        return self._decoding.video

    @property
    def num_pixels_at_once(self) -> int:
        """Pixels that decoding this frame holds in memory."""
        return self.size().num_pixels if self._decoding.is_decoded else self._video_size.num_pixels


def split_video(video: Video, size: MediaSize) -> Sequence[VideoFrame]:
    """Return the frames of `size` that are taken of `video`, not decoded."""
    decoding = _SharedDecoding(video, size.num_frames)
    return [VideoFrame(decoding, index, size) for index in range(size.num_frames)]
