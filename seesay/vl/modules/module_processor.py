"""Transformers' own processor of a checkpoint: the tokens of a picture, video or audio from its size, and the tower's
input.

Both come from the same call, for the text that is one marker. It is made of blank media where only the size is known.
Thread-safe.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from seesay.checkpoint import Checkpoint
from seesay.errors import CheckpointError, RequestError
from seesay.processors.media.audio import MAX_RATE_HZ
from seesay.values import DecodedMedia, Expansion, MediaSize, Modality
from seesay.vl.modules.audio_window import AudioWindow
from seesay.vl.modules.trial_media import make_blank, refuse

FILES = ("processor_config.json", "preprocessor_config.json")
MAX_SIDES_RATIO = 200
"""A picture that is longer, compared with its width, may become much larger while its short side is resized."""
_MAX_KNOWN_SIZES = 1024
_MAX_TILES = 1 << 10
"""Processors list all shapes of so many tiles."""
_PATCH_PIXELS = 14 * 14
_FLOAT_BYTES, _PIXEL_BYTES = 4, 3
_VIDEO_FILES = {"processor_config.json": "video_processor", "video_preprocessor_config.json": ""}
"""Files that describe a processor of videos, where they have this key, or any."""
_CLOCK_HZ = 1000
"""Frames a second of the clock by which processors are told the times of frames."""
_MAX_MEASURES = 64
"""Most numbers of an array that describes an item, such as its grid; larger ones are of pixels or tokens."""

_TRIAL = MediaSize(num_frames=4, height=72, width=40, timestamps_s=(0.0, 0.5, 1.0, 1.5), frame_interval_s=0.5)
_TRIAL_PICTURE = MediaSize(num_frames=1, height=72, width=40)

TOKEN_TYPES = {Modality.IMAGE: 1, Modality.VIDEO: 2, Modality.AUDIO: 3}
"""How processors mark the tokens that take rows of media; other ones are 0."""

Arrays = dict[str, npt.NDArray[Any]]
logger = logging.getLogger("seesay")


@dataclass(frozen=True, slots=True)
class Planned:
    """Measures of media of one size. num_patches: of 14² pixels, of all that the processor makes.
    num_tiles: the pictures that it makes. peak_pixels: uint8 pixels that take as much memory. arrays: the small ones
    that the processor makes, such as its grid of patches."""

    expansion: Expansion
    num_patches: int
    num_tiles: int
    peak_pixels: int
    arrays: Mapping[str, npt.NDArray[Any]] = field(compare=False)


class ModuleProcessor:
    """The processor of `checkpoint`, which is found by the names in its JSON files among the classes of Transformers,
    or is code in its folder where that may be run. marker: the text of a picture. image_token: the id of tokens that
    take a row. Both are None where it takes audio alone. video_marker: the text of a video; None where it takes none;
    audio_marker: that of audio, of which it takes `audio_rate_hz` samples a second, and `max_samples` alone; 0: all.
    max_rows: the most rows of a picture, where the processor says so; else 0. transcription_prompt: the question that
    asks for a transcript; empty where the processor names none."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        """Raises `CheckpointError` where it cannot be made, or has a marker neither for pictures nor for audio."""
        self._path = checkpoint.path
        for name in FILES:
            if "audio_tokenizer" in (checkpoint.read_json(name) or {}):
                raise CheckpointError(f"{self._path / name}: audio_tokenizer names another model, which is not loaded")
        self._processor = _load(checkpoint)
        self._known: OrderedDict[tuple[object, ...], Planned] = OrderedDict()
        self._lock = threading.Lock()
        self.marker: str | None = None
        self.image_token: int | None = None
        self._video_token: int | None = None
        self._audio_token: int | None = None
        self.max_rows = 0
        self._window: AudioWindow | None = None
        self.video_marker: str | None = None
        self.audio_marker, self.audio_rate_hz = _find_audio(self._processor, checkpoint)
        if self.audio_marker is not None:
            self._audio_token = _find_token(checkpoint, self._processor, "audio_token_id")
            length = getattr(getattr(self._processor, "feature_extractor", None), "n_samples", None)
            self._window = AudioWindow(self.process, self.audio_rate_hz, named=length, where=self._path)
        self.max_samples = 0 if self._window is None else self._window.max_samples
        asked = getattr(self._processor, "default_transcription_prompt", None)
        self.transcription_prompt: str = asked if isinstance(asked, str) else ""
        if hasattr(self._processor, "image_processor"):
            self._find_pictures(checkpoint)

    def _find_pictures(self, checkpoint: Checkpoint) -> None:
        """Find the markers and tokens of pictures and videos. Raises `CheckpointError` without those of pictures."""
        _check_tiles(self._processor, self._path)
        most = getattr(self._processor.image_processor, "max_soft_tokens", None)
        self.max_rows = most if isinstance(most, int) else 0
        # The text that a template writes for a picture is mostly the token that takes a row.
        marker = getattr(self._processor, "image_placeholder_token", None) or getattr(
            self._processor, "image_token", None
        )
        if not isinstance(marker, str) or not marker:
            raise CheckpointError(
                f"{self._path}: {type(self._processor).__name__} has no image_token, the text that a picture replaces"
            )
        self.marker = self._wrap(marker)
        self.image_token = _find_token(checkpoint, self._processor, "image_token_id")
        self._video_token = _try_token(checkpoint, self._processor, "video_token_id")
        self._find_video(checkpoint)

    def _wrap(self, marker: str) -> str:
        """Return the marker with the tokens around it that the processor asks for, where it takes it with them only."""
        blank = make_blank(Modality.IMAGE, MediaSize(num_frames=1, height=64, width=64))
        start, end = (getattr(self._processor, f"image_{side}_token", None) for side in ("start", "end"))
        if not isinstance(start, str) or not isinstance(end, str):
            return marker
        try:
            self._process(marker, [blank])
        except ValueError:
            return start + marker + end
        return marker

    def _find_video(self, checkpoint: Checkpoint) -> None:
        """Find the marker of a video, where the folder describes a processor of videos that makes rows of one."""
        marker = getattr(self._processor, "video_token", None)
        if not isinstance(marker, str) or not describes_videos(checkpoint):
            return
        self.video_marker = marker
        try:
            self.try_out(Modality.VIDEO)
        except (CheckpointError, RequestError) as error:
            logger.warning("%s: videos are taken as pictures: %s", self._path, error)
            self.video_marker = None

    @property
    def row_tokens(self) -> tuple[int, ...]:
        """The ids of tokens that take rows."""
        found = (self.image_token, self._video_token, self._audio_token)
        return tuple(token for token in found if token is not None)

    @property
    def settings(self) -> Mapping[str, Any]:
        """All settings that may change what media become, as JSON values."""
        names = ("image_processor", "feature_extractor", "audio_processor")
        parts = {name: part for name in names if (part := getattr(self._processor, name, None)) is not None}
        parts["processor"] = self._processor
        found = {name: json.loads(json.dumps(part.to_dict(), default=str)) for name, part in parts.items()}
        return {**found, "class": type(self._processor).__name__}

    def try_out(self, modality: Modality) -> Planned:
        """Return what a small item becomes. Raises `RequestError` where the processor refuses it."""
        if modality is Modality.AUDIO:
            return self.plan(modality, MediaSize.of_audio(self.audio_rate_hz, self.audio_rate_hz))
        return self.plan(modality, _TRIAL if modality is Modality.VIDEO else _TRIAL_PICTURE)

    def plan(self, modality: Modality, size: MediaSize) -> Planned:
        """Return what media of this size become. Raises `RequestError` for a size that is refused."""
        sides = (size.height, size.width)
        key = (modality, *sides, size.num_frames, size.timestamps_s, size.frame_interval_s, size.num_samples)
        with self._lock:
            if key in self._known:
                self._known.move_to_end(key)
                return self._known[key]
            if self._window is not None:
                self._window.check(size)
            # One blank picture at a time: it takes as much memory as the real one.
            if max(sides) > MAX_SIDES_RATIO * min(sides):
                refuse(size, f"one side is more than {MAX_SIDES_RATIO} times the other: crop or pad it")
            planned = self._plan(self.process(make_blank(modality, size)))
            if not planned.expansion.takes_embedding.any():
                name = "audio_token_id" if modality is Modality.AUDIO else "image_token_id"
                token = self._audio_token if modality is Modality.AUDIO else self.image_token
                refuse(size, f"it makes no token {token} ({name}) of it")
            self._known[key] = planned
            if len(self._known) > _MAX_KNOWN_SIZES:
                self._known.popitem(last=False)
        return planned

    def process(self, media: DecodedMedia) -> Arrays:
        """Return the arrays that the processor makes of the marker and its medium. Raises `RequestError` for one that
        it refuses."""
        markers = {Modality.IMAGE: self.marker, Modality.VIDEO: self.video_marker, Modality.AUDIO: self.audio_marker}
        marker = markers[media.modality]
        assert marker is not None
        with _refusing(media.size):
            return self._process(marker, [media], add_special_tokens=False)

    def process_prompt(self, text: str, media: Sequence[DecodedMedia]) -> Arrays:
        """Return the arrays that the processor makes of a whole prompt, with the special tokens around it."""
        return self._process(text, media)

    def _process(self, text: str, media: Sequence[DecodedMedia], **options: Any) -> Arrays:
        given = _as_arguments(media)
        made = self._processor(text=[text], return_tensors="pt", **options, **given)
        arrays = {name: _as_array(name, value) for name, value in made.items() if name != "video_metadata"}
        # Some processors tell videos by the tokens around the marker.
        if "videos" in given and "images" not in given and "mm_token_type_ids" in arrays:
            arrays["mm_token_type_ids"] = TOKEN_TYPES[Modality.VIDEO] * np.isin(arrays["input_ids"], self.row_tokens)
        return arrays

    def _plan(self, made: Arrays) -> Planned:
        ids = made["input_ids"][0].astype(np.int64)
        pixels = [array for array in made.values() if np.issubdtype(array.dtype, np.floating)]
        num_values = sum(array.size for array in pixels)
        tiles = max((math.prod(array.shape[:-3]) for array in pixels if array.ndim > 3), default=1)
        return Planned(
            expansion=Expansion(token_ids=ids, takes_embedding=np.isin(ids, self.row_tokens)),
            num_patches=max(1, num_values // (_PIXEL_BYTES * _PATCH_PIXELS)),
            num_tiles=max(1, tiles),
            peak_pixels=num_values * _FLOAT_BYTES // _PIXEL_BYTES,
            arrays=_pick_measures(made),
        )


def _pick_measures(made: Arrays) -> Arrays:
    """Return the small arrays and the lengths of audio, also by the names that functions of positions have for them."""
    found = {
        name: each
        for name, each in made.items()
        if each.size <= _MAX_MEASURES and each.shape != made["input_ids"].shape
    }
    if (mask := made.get("feature_attention_mask")) is not None:
        found["audio_seqlens"] = mask.astype(np.int64).sum(-1)
    if (seconds := found.get("video_second_per_grid")) is not None:
        found["second_per_grids"] = seconds
    return found


def _load(checkpoint: Checkpoint) -> Any:
    from transformers import AutoProcessor

    try:
        processor = AutoProcessor.from_pretrained(
            str(checkpoint.path), local_files_only=True, trust_remote_code=checkpoint.runs_code
        )
    except Exception as error:
        raise CheckpointError(
            f"{checkpoint.path}: its processor cannot be loaded: {type(error).__name__}: {error}"
        ) from error
    takes_media = hasattr(processor, "image_processor") or _find_audio(processor, checkpoint)[0] is not None
    if not takes_media or not hasattr(processor, "tokenizer"):
        raise CheckpointError(
            f"{checkpoint.path}: {type(processor).__name__} is no processor of texts with pictures or audio"
        )
    return processor


def _check_tiles(processor: Any, path: Path) -> None:
    """Raise `CheckpointError` for more tiles than can be listed. Where there is no least number of them,
    `max_patches` counts the small squares of a picture."""
    cutter = processor.image_processor
    if getattr(cutter, "min_patches", None) is None:
        return
    most = getattr(cutter, "max_patches", None)
    if not isinstance(most, int) or not 1 <= most <= _MAX_TILES:
        raise CheckpointError(
            f"{path}: max_patches of its image processor must be an integer from 1 to {_MAX_TILES}, got "
            f"{str(most)[:40]!r}"
        )


def _find_token(checkpoint: Checkpoint, processor: Any, name: str) -> int:
    if (token := _try_token(checkpoint, processor, name)) is None:
        raise CheckpointError(f"{checkpoint.path}: neither config.json nor its processor names an {name}")
    return token


def _try_token(checkpoint: Checkpoint, processor: Any, name: str) -> int | None:
    found = (getattr(owner, name, None) for owner in (checkpoint.hf_config(), processor))
    return next((token for token in found if isinstance(token, int)), None)


def _find_audio(processor: Any, checkpoint: Checkpoint) -> tuple[str | None, int]:
    """Return the marker of audio and its samples per second; (None, 0) where the processor takes none, and where it
    takes pictures and the model has no tower of audio."""
    extractor = getattr(processor, "audio_processor", None) or getattr(processor, "feature_extractor", None)
    marker, rate_hz = getattr(processor, "audio_token", None), getattr(extractor, "sampling_rate", None)
    if not isinstance(marker, str) or not isinstance(rate_hz, int) or not 1000 <= rate_hz <= MAX_RATE_HZ:
        return None, 0
    if hasattr(processor, "image_processor") and getattr(checkpoint.model_config, "audio_config", None) is None:
        return None, 0
    return marker, rate_hz


def _as_arguments(media: Sequence[DecodedMedia]) -> dict[str, Any]:
    """Return media as the arguments that processors take."""
    sounds = [item.audio for item in media if item.audio is not None]
    given = _picture_arguments([item for item in media if item.audio is None])
    if sounds:
        given |= {"audio": [sound.samples for sound in sounds], "sampling_rate": sounds[0].rate_hz}
    return given


def _picture_arguments(media: Sequence[DecodedMedia]) -> dict[str, Any]:
    import torch
    from PIL import Image

    by_kind: dict[Modality, list[DecodedMedia]] = {}
    for item in media:
        by_kind.setdefault(item.modality, []).append(item)
    given: dict[str, Any] = {}
    if images := by_kind.get(Modality.IMAGE):
        given["images"] = [Image.fromarray(np.ascontiguousarray(item.frames[0])) for item in images]
    if videos := by_kind.get(Modality.VIDEO):
        given["videos"] = [torch.from_numpy(item.frames.copy()).permute(0, 3, 1, 2) for item in videos]
        given["video_metadata"] = [_describe_times(item.size) for item in videos]
        given["do_sample_frames"] = False
    return given


def _as_array(name: str, value: object) -> npt.NDArray[Any]:
    """Return a processor's tensor, or a list of those of one picture, as an array."""
    import torch

    if isinstance(value, (list, tuple)) and value and all(isinstance(each, torch.Tensor) for each in value):
        value = torch.stack(list(value))
    if not isinstance(value, torch.Tensor):
        value = torch.as_tensor(np.asarray(value))
    array: npt.NDArray[Any] = (value.float() if value.is_floating_point() else value).numpy()
    if array.dtype == object:
        raise CheckpointError(f"the processor's {name} is no array")
    return array


def describes_videos(checkpoint: Checkpoint) -> bool:
    """Return whether a file of the folder describes a processor of videos."""
    found = ((checkpoint.read_json(name), key) for name, key in _VIDEO_FILES.items())
    return any(settings is not None and (not key or key in settings) for settings, key in found)


def _describe_times(size: MediaSize) -> dict[str, Any]:
    """Return a video's metadata as processors take them, by a clock of `_CLOCK_HZ`."""
    times = size.timestamps_s or tuple(index * size.frame_interval_s for index in range(size.num_frames))
    duration_s = size.frame_interval_s * size.num_frames or times[-1]
    return {
        "total_num_frames": max(1, round(duration_s * _CLOCK_HZ)),
        "fps": _CLOCK_HZ,
        "frames_indices": [round(time_s * _CLOCK_HZ) for time_s in times],
        "duration": duration_s,
    }


@contextlib.contextmanager
def _refusing(size: MediaSize) -> Iterator[None]:
    """Turn an exception of the processor, which is not ours and may raise anything, into a `RequestError`."""
    try:
        yield
    except (MemoryError, CheckpointError):
        raise
    except Exception as error:
        refuse(size, f"{type(error).__name__}: {error}", error)
