"""Transformers' own processor of a checkpoint: the tokens of a picture or video from its size, and the tower's input.

Both come from the same call, for the text that is one marker. It is made of a blank picture or video where only the
size is known. Thread-safe.
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
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from seesay.checkpoint import Checkpoint
from seesay.errors import CheckpointError, ErrorCode, RequestError
from seesay.values import DecodedMedia, Expansion, MediaSize, Modality

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

TOKEN_TYPES = {Modality.IMAGE: 1, Modality.VIDEO: 2}
"""How processors mark the tokens that take rows of pictures and of videos; other ones are 0."""

Arrays = dict[str, npt.NDArray[Any]]
logger = logging.getLogger("seesay")


@dataclass(frozen=True, slots=True)
class Planned:
    """Measures of a picture or video of one size. num_patches: of 14² pixels, of all that the processor makes.
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
    take a row. video_marker: the text of a video; None where it takes none."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        """Raises `CheckpointError` where it cannot be made, or has no marker for pictures."""
        self._path = checkpoint.path
        for name in FILES:
            if "audio_tokenizer" in (checkpoint.read_json(name) or {}):
                raise CheckpointError(f"{self._path / name}: audio_tokenizer names another model, which is not loaded")
        self._processor = _load(checkpoint)
        self._check_tiles()
        # The text that a template writes for a picture is mostly the token that takes a row.
        marker = getattr(self._processor, "image_placeholder_token", None) or getattr(
            self._processor, "image_token", None
        )
        if not isinstance(marker, str) or not marker:
            raise CheckpointError(
                f"{self._path}: {type(self._processor).__name__} has no image_token, the text that a picture replaces"
            )
        self.marker = self._wrap(marker)
        self.image_token = self._find_token(checkpoint, "image_token_id")
        self._known: OrderedDict[tuple[object, ...], Planned] = OrderedDict()
        self._lock = threading.Lock()
        self._video_token = self._try_token(checkpoint, "video_token_id")
        self.video_marker: str | None = None
        self._find_video(checkpoint)

    def _wrap(self, marker: str) -> str:
        """Return the marker with the tokens around it that the processor asks for, where it takes it with them only."""
        blank = np.zeros((64, 64, 3), dtype=np.uint8)
        start, end = (getattr(self._processor, f"image_{side}_token", None) for side in ("start", "end"))
        if not isinstance(start, str) or not isinstance(end, str):
            return marker
        try:
            self._process(marker, images=[blank])
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
            self.plan(Modality.VIDEO, _TRIAL)
        except (CheckpointError, RequestError) as error:
            logger.warning("%s: videos are taken as pictures: %s", self._path, error)
            self.video_marker = None

    @property
    def row_tokens(self) -> tuple[int, ...]:
        """The ids of tokens that take rows."""
        return (self.image_token,) if self._video_token is None else (self.image_token, self._video_token)

    def _check_tiles(self) -> None:
        """Raise `CheckpointError` for more tiles than can be listed. Where there is no least number of them,
        `max_patches` counts the small squares of a picture."""
        cutter = self._processor.image_processor
        if getattr(cutter, "min_patches", None) is None:
            return
        most = getattr(cutter, "max_patches", None)
        if not isinstance(most, int) or not 1 <= most <= _MAX_TILES:
            raise CheckpointError(
                f"{self._path}: max_patches of its image processor must be an integer from 1 to {_MAX_TILES}, got "
                f"{str(most)[:40]!r}"
            )

    def _find_token(self, checkpoint: Checkpoint, name: str) -> int:
        if (token := self._try_token(checkpoint, name)) is None:
            raise CheckpointError(f"{self._path}: neither config.json nor its processor names an {name}")
        return token

    def _try_token(self, checkpoint: Checkpoint, name: str) -> int | None:
        found = (getattr(owner, name, None) for owner in (checkpoint.hf_config(), self._processor))
        return next((token for token in found if isinstance(token, int)), None)

    @property
    def max_rows(self) -> int:
        """The most rows of a picture, where the processor says so; else 0."""
        found = getattr(self._processor.image_processor, "max_soft_tokens", None)
        return found if isinstance(found, int) else 0

    @property
    def settings(self) -> Mapping[str, Any]:
        """All settings that may change what pictures become, as JSON values."""
        parts = {"processor": self._processor, "image_processor": self._processor.image_processor}
        found = {name: json.loads(json.dumps(part.to_dict(), default=str)) for name, part in parts.items()}
        return {**found, "class": type(self._processor).__name__}

    def plan(self, modality: Modality, size: MediaSize) -> Planned:
        """Return what a picture or video of this size becomes. Raises `RequestError` for a size that is refused."""
        sides = (size.height, size.width)
        key = (modality, *sides, size.num_frames, size.timestamps_s, size.frame_interval_s)
        with self._lock:
            if key in self._known:
                self._known.move_to_end(key)
                return self._known[key]
            # One blank picture at a time: it takes as much memory as the real one.
            if max(sides) > MAX_SIDES_RATIO * min(sides):
                _refuse(size, f"one side is more than {MAX_SIDES_RATIO} times the other: crop or pad it")
            planned = self._plan(self._process_blank(modality, size))
            if not planned.expansion.takes_embedding.any():
                _refuse(size, f"it makes no token {self.image_token} (image_token_id) of it")
            self._known[key] = planned
            if len(self._known) > _MAX_KNOWN_SIZES:
                self._known.popitem(last=False)
        return planned

    def process(self, picture: npt.NDArray[np.uint8]) -> Arrays:
        """Return the arrays that the processor makes of the marker and its picture [height, width, 3]. Raises
        `RequestError` for one that it refuses."""
        height, width, _ = picture.shape
        with _refusing(MediaSize(num_frames=1, height=height, width=width)):
            return self._process(self.marker, images=[picture], add_special_tokens=False)

    def process_video(self, frames: npt.NDArray[np.uint8], size: MediaSize) -> Arrays:
        """As `process`, for a video: frames [N, height, width, 3], whose times are those of `size`."""
        assert self.video_marker is not None
        with _refusing(size):
            return self._process(self.video_marker, videos=[(frames, size)], add_special_tokens=False)

    def process_prompt(self, text: str, media: Sequence[DecodedMedia]) -> Arrays:
        """Return the arrays that the processor makes of a whole prompt, with the special tokens around it."""
        videos = [(item.frames, item.size) for item in media if item.modality is Modality.VIDEO]
        return self._process(text, images=[i.frames[0] for i in media if i.modality is Modality.IMAGE], videos=videos)

    def _process_blank(self, modality: Modality, size: MediaSize) -> Arrays:
        if modality is Modality.IMAGE:
            return self.process(np.zeros((size.height, size.width, 3), dtype=np.uint8))
        return self.process_video(np.zeros((size.num_frames, size.height, size.width, 3), dtype=np.uint8), size)

    def _process(
        self,
        text: str,
        *,
        images: Sequence[npt.NDArray[np.uint8]] = (),
        videos: Sequence[tuple[npt.NDArray[np.uint8], MediaSize]] = (),
        **options: Any,
    ) -> Arrays:
        import torch
        from PIL import Image

        if images:
            options["images"] = [Image.fromarray(np.ascontiguousarray(picture)) for picture in images]
        if videos:
            options["videos"] = [torch.from_numpy(frames.copy()).permute(0, 3, 1, 2) for frames, _ in videos]
            options["video_metadata"] = [_describe_times(size) for _, size in videos]
            options["do_sample_frames"] = False
        made = self._processor(text=[text], return_tensors="pt", **options)
        arrays = {name: _as_array(name, value) for name, value in made.items() if name != "video_metadata"}
        if not images and "mm_token_type_ids" in arrays:  # some processors tell videos by the tokens around the marker
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
            arrays={
                name: each
                for name, each in made.items()
                if each.size <= _MAX_MEASURES and each.shape != made["input_ids"].shape
            },
        )


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
    if not hasattr(processor, "image_processor") or not hasattr(processor, "tokenizer"):
        raise CheckpointError(f"{checkpoint.path}: {type(processor).__name__} is no processor of texts with pictures")
    return processor


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
        _refuse(size, f"{type(error).__name__}: {error}", error)


def _refuse(size: MediaSize, reason: str, cause: Exception | None = None) -> NoReturn:
    kind = "a picture" if size.num_frames == 1 else f"{size.num_frames} frames"
    text = f"the model's processor refuses {kind} of {size.width}x{size.height} pixels: {reason}"
    raise RequestError(ErrorCode.INVALID_MEDIA, text.splitlines()[0], "messages") from cause
