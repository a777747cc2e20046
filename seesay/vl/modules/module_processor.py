"""Transformers' own processor of a checkpoint: the tokens of a picture from its size, and the tower's input.

Both come from the same call, for the text that is one marker. It is made of a blank picture where only the size is
known. Thread-safe.
"""

from __future__ import annotations

import json
import math
import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from seesay.checkpoint import Checkpoint
from seesay.errors import CheckpointError, ErrorCode, RequestError
from seesay.values import Expansion, MediaSize

FILES = ("processor_config.json", "preprocessor_config.json")
MAX_SIDES_RATIO = 200
"""A picture that is longer, compared with its width, may become much larger while its short side is resized."""
_MAX_KNOWN_SIZES = 1024
_MAX_TILES = 1 << 10
"""Processors list all shapes of so many tiles."""
_PATCH_PIXELS = 14 * 14
_FLOAT_BYTES, _PIXEL_BYTES = 4, 3

Arrays = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Planned:
    """Measures of a picture of one size. num_patches: of 14² pixels, of all that the processor makes. num_tiles: the
    pictures that it makes. peak_pixels: uint8 pixels that take as much memory."""

    expansion: Expansion
    num_patches: int
    num_tiles: int
    peak_pixels: int


class ModuleProcessor:
    """The processor of `checkpoint`, which is found by the names in its JSON files among the classes of Transformers,
    or is code in its folder where that may be run. marker: the text of a picture. image_token: the id of tokens that
    take a row."""

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
        self.marker = marker
        self.image_token = self._find_image_token(checkpoint)
        self._known: OrderedDict[tuple[int, int], Planned] = OrderedDict()
        self._lock = threading.Lock()

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

    def _find_image_token(self, checkpoint: Checkpoint) -> int:
        for owner in (checkpoint.hf_config(), self._processor):
            token = getattr(owner, "image_token_id", None)
            if isinstance(token, int):
                return token
        raise CheckpointError(f"{self._path}: neither config.json nor its processor names an image_token_id")

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

    def plan(self, size: MediaSize) -> Planned:
        """Return what a picture of this size becomes. Raises `RequestError` for a size that is refused."""
        key = (size.height, size.width)
        with self._lock:
            if key in self._known:
                self._known.move_to_end(key)
                return self._known[key]
            # One blank picture at a time: it takes as much memory as the real one.
            if max(key) > MAX_SIDES_RATIO * min(key):
                _refuse(size, f"one side is more than {MAX_SIDES_RATIO} times the other: crop or pad it")
            planned = self._plan(self.process(np.zeros((*key, 3), dtype=np.uint8)))
            if not planned.expansion.takes_embedding.any():
                _refuse(size, f"it makes no token {self.image_token} (image_token_id) of it")
            self._known[key] = planned
            if len(self._known) > _MAX_KNOWN_SIZES:
                self._known.popitem(last=False)
        return planned

    def process(self, picture: npt.NDArray[np.uint8]) -> Arrays:
        """Return the arrays that the processor makes of the marker and its picture [height, width, 3]. Raises
        `RequestError` for one that it refuses."""
        from PIL import Image

        try:
            made = self._processor(
                text=[self.marker],
                images=[Image.fromarray(np.ascontiguousarray(picture))],
                add_special_tokens=False,
                return_tensors="pt",
            )
        except Exception as error:
            if isinstance(error, MemoryError):
                raise
            height, width, _ = picture.shape
            _refuse(MediaSize(num_frames=1, height=height, width=width), f"{type(error).__name__}: {error}", error)
        return {name: _as_array(name, value) for name, value in made.items()}

    def process_prompt(self, text: str, pictures: list[npt.NDArray[np.uint8]]) -> Arrays:
        """Return the arrays that the processor makes of a whole prompt, with the special tokens around it."""
        from PIL import Image

        images = [Image.fromarray(picture) for picture in pictures]
        made = self._processor(text=[text], images=images, return_tensors="pt")
        return {name: _as_array(name, value) for name, value in made.items()}

    def _plan(self, made: Arrays) -> Planned:
        ids = made["input_ids"][0].astype(np.int64)
        pixels = [array for array in made.values() if np.issubdtype(array.dtype, np.floating)]
        num_values = sum(array.size for array in pixels)
        tiles = max((math.prod(array.shape[:-3]) for array in pixels if array.ndim > 3), default=1)
        return Planned(
            expansion=Expansion(token_ids=ids, takes_embedding=ids == self.image_token),
            num_patches=max(1, num_values // (_PIXEL_BYTES * _PATCH_PIXELS)),
            num_tiles=max(1, tiles),
            peak_pixels=num_values * _FLOAT_BYTES // _PIXEL_BYTES,
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


def _refuse(size: MediaSize, reason: str, cause: Exception | None = None) -> NoReturn:
    text = f"the model's processor refuses a picture of {size.width}x{size.height} pixels: {reason}"
    raise RequestError(ErrorCode.INVALID_MEDIA, text.splitlines()[0], "messages") from cause
