"""Pictures, videos and audio: where they come from, what was decoded, and their places in a prompt."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt


_PART_PLACE = re.compile(r"messages\[(\d{1,9})\]\.content\[(\d{1,9})\](?:\.\w+(?:\[\d+\])?)*:\s*")


Coordinates = Literal["pixel", "thousandth"]


class Modality(StrEnum):
    """What a part of a conversation is. A document becomes pictures of its pages before a model's family sees it."""

    IMAGE = "image"
    VIDEO = "video"
    DOCUMENT = "document"
    AUDIO = "audio"

    @property
    def stands_as(self) -> Modality:
        """The modality whose token marks its place in a text."""
        return Modality.IMAGE if self is Modality.DOCUMENT else self


IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".gif", ".webp", ".bmp", ".tif", ".tiff", ".ppm", ".avif", ".heic")


VIDEO_SUFFIXES = (".mp4", ".mov", ".mkv", ".webm", ".avi", ".m4v", ".mpg", ".mpeg", ".ts", ".flv", ".wmv")


AUDIO_SUFFIXES = (".wav", ".mp3", ".flac", ".ogg", ".oga", ".opus", ".m4a", ".aac")


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaPlace:
    """The place of a media part in its request, for errors: `messages[0].content[1].image_url.url` is a `source`.

    `parent` is the path of the object that has the options, and `keys` maps each option to its key in that object.
    `fields` has the paths of options that the request gives for all of its media.
    """

    source: str
    parent: str = ""
    keys: Mapping[str, str] = field(default_factory=dict)
    fields: Mapping[str, str] = field(default_factory=dict)

    def find(self, param: str | None) -> str:
        """Return the path of the option `param`, or of the source if the part has no such option."""
        if param is not None and param in self.fields:
            return self.fields[param]
        key = None if param is None else self.keys.get(param)
        return self.source if key is None else f"{self.parent}.{key[:60]}"


def split_place(message: str) -> tuple[tuple[int, int] | None, str]:
    """Return ((index of the message, index of its part) that an error's message begins with, the rest of it)."""
    place = _PART_PLACE.match(message)
    return (None, message) if place is None else ((int(place[1]), int(place[2])), message[place.end() :])


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaSize:
    """Size in pixels of an upright picture (one frame), or of the frames that are taken from a video; or of audio,
    which has `num_samples` at `rate_hz` and no frames.

    `timestamps_s` has the time of each frame of a video, for prompts that spell them; it is empty for a picture.
    `frame_interval_s` and `source_fps` are as in `DecodedMedia`.
    """

    num_frames: int
    height: int
    width: int
    timestamps_s: tuple[float, ...] = ()
    frame_interval_s: float = 0.0
    source_fps: float = 0.0
    num_samples: int = 0
    rate_hz: int = 0

    @property
    def num_pixels(self) -> int:
        return self.num_frames * self.height * self.width

    @property
    def audio_s(self) -> float:
        """The duration of audio; 0 for other media."""
        return self.num_samples / self.rate_hz if self.rate_hz else 0.0

    @classmethod
    def of_audio(cls, num_samples: int, rate_hz: int) -> MediaSize:
        """Return the size of audio."""
        return cls(num_frames=0, height=0, width=0, num_samples=num_samples, rate_hz=rate_hz)


@dataclass(frozen=True, slots=True, kw_only=True)
class AudioSamples:
    """Mono audio: `samples` float32 [S] in [-1, 1], `rate_hz` of them per second."""

    samples: npt.NDArray[np.float32]
    rate_hz: int


@dataclass(frozen=True, slots=True, kw_only=True)
class VideoFrames:
    """Sampled frames of a video: `frames` uint8 [N, H, W, 3], and the time in the video of each.

    `frame_interval_s` is the video's duration divided by N. `source_fps` is the rate of all of its frames, those that
    were not taken included; 0 where it is not known.
    """

    frames: npt.NDArray[np.uint8]
    timestamps_s: tuple[float, ...]
    frame_interval_s: float
    source_fps: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodedMedia:
    """Pixels of one picture (N = 1) or of the sampled frames of one video; or the samples of one audio (N = 0).

    `frames` is uint8 [N, H, W, 3]; `timestamps_s` has one time per frame (empty for a picture);
    `frame_interval_s` is the video's duration divided by N (0 for a picture, or when it is not known);
    `source_fps` is as in `VideoFrames`, and 0 for a picture;
    `audio` has the samples of an audio, and is None for other media;
    `digest` is 32 bytes over pixels and times, or samples: equal content has an equal digest, whatever its encoding.
    """

    modality: Modality
    frames: npt.NDArray[np.uint8]
    timestamps_s: tuple[float, ...] = ()
    frame_interval_s: float = 0.0
    source_fps: float = 0.0
    audio: AudioSamples | None = None
    digest: bytes

    @property
    def size(self) -> MediaSize:
        if self.audio is not None:
            return MediaSize.of_audio(len(self.audio.samples), self.audio.rate_hz)
        num_frames, height, width, _ = self.frames.shape
        return MediaSize(
            num_frames=num_frames,
            height=height,
            width=width,
            timestamps_s=self.timestamps_s,
            frame_interval_s=self.frame_interval_s,
            source_fps=self.source_fps,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Expansion:
    """The tokens that one media marker becomes in the prompt.

    `token_ids` [S] replaces the marker's tokens; `takes_embedding` bool [S] says which of them hold a row of the
    encoder's output. The number of true entries is the number of embedding rows; nothing else counts them.
    """

    token_ids: npt.NDArray[np.int64]
    takes_embedding: npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaItem:
    """One picture, video or audio inside a tokenized prompt.

    `span` is the (start, stop) range of prompt positions it occupies; `slots` int64 [R] are the absolute positions,
    ascending and inside the span, that take the R rows of the encoder's output, or from which on tokens attend to its
    `num_rows` rows. `hash` is 32 bytes over content,
    preprocessing options and model revision: the key of every cache. `features` is the family's preprocessed input for
    its tower, and `num_units` its encoding cost (patches, tiles times patches, …). `has_arrays` is False when the
    arrays were left out of the features, because the item's embedding is probably cached. `is_reloadable`: whether the
    frontend can make the arrays again, so they are dropped once the item is being encoded.
    """

    modality: Modality
    span: tuple[int, int]
    slots: npt.NDArray[np.int64]
    hash: bytes
    features: Mapping[str, Any]
    num_units: int
    has_arrays: bool = True
    is_reloadable: bool = False

    @property
    def num_rows(self) -> int:
        """Rows of the encoder's output: one for each slot, unless its features have another `num_rows`."""
        return int(self.features.get("num_rows", len(self.slots)))

    @property
    def num_array_bytes(self) -> int:
        """Bytes of the arrays in the features."""
        return sum(value.nbytes for value in self.features.values() if isinstance(value, np.ndarray))

    def without_arrays(self) -> MediaItem:
        """Return the item without the arrays of its features."""
        told = {name: value for name, value in self.features.items() if not isinstance(value, np.ndarray)}
        return replace(self, features=told, has_arrays=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaReport:
    """Report on how the model received one picture, video or audio of a request.

    num_frames, height, width: of the input; for a video, of its sampled frames; 0 for audio.
    audio_s: duration of an audio, 0 for other media.
    timestamps_s: time in the video of each sampled frame; empty for a picture. Where a model takes pictures only, each
        frame of a video has a report of its own, with its time.
    resized_height, resized_width: in pixels, after preprocessing.
    num_tiles: tiles of all frames that go through the tower, 1 for a picture that is not cut. num_patches: patches of
        all tiles. num_tokens: its positions in the prompt.
    is_cached: the tower did not run for it, because its embedding or its KV blocks were cached.
    page: of a document, from 1; None for other media.
    coordinates: what boxes and points in JSON count, for this model: pixels of the resized picture, or thousandths of
        its sides.
    """

    modality: Modality
    num_frames: int
    height: int
    width: int
    resized_height: int
    resized_width: int
    num_tiles: int
    num_patches: int
    num_tokens: int
    is_cached: bool
    timestamps_s: tuple[float, ...] = ()
    page: int | None = None
    audio_s: float = 0.0
    coordinates: Coordinates = "thousandth"
