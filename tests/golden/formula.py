"""Weights that are a formula of a tensor's name and an element's number, and pictures that are one of a pixel's place.

Whoever has the names and shapes of a checkpoint's tensors has the checkpoint. Needs numpy and torch alone, of any
version: the published code is run with the releases of its time.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable, Mapping

import numpy as np
import numpy.typing as npt
import torch

_INCREMENT = np.uint64(0x9E3779B97F4A7C15)
_FACTORS = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
"""Constants of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014)."""


def mix(numbers: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Return SplitMix64's output for each of the states uint64 [N]."""
    with np.errstate(over="ignore"):
        mixed = numbers + _INCREMENT
        mixed = (mixed ^ (mixed >> np.uint64(30))) * _FACTORS[0]
        mixed = (mixed ^ (mixed >> np.uint64(27))) * _FACTORS[1]
        return mixed ^ (mixed >> np.uint64(31))


def draw(name: str, count: int) -> npt.NDArray[np.float32]:
    """Return `count` numbers of mean 0 and variance 1, evenly distributed, that follow from `name`."""
    first = np.uint64(zlib.crc32(name.encode()) << 32)
    bits = mix(first + np.arange(count, dtype=np.uint64)) >> np.uint64(40)
    return ((bits.astype(np.float64) / 2**23 - 1) * math.sqrt(3)).astype(np.float32)


def fill(name: str, shape: Iterable[int]) -> torch.Tensor:
    """Return the float32 tensor `name`: about unit gain for matrices, near 1 for weights of norms, small for biases."""
    shape = tuple(shape)
    values = torch.from_numpy(draw(name, math.prod(shape)).copy()).reshape(shape)
    if len(shape) < 2:
        return 1 + 0.2 * values if name.endswith("weight") else 0.2 * values
    own = name.replace("vision_embed_tokens", "")  # a tower, not a table
    is_table = any(part in own for part in ("embed_tokens", "tok_embeddings", "wte", "word_embeddings", "position"))
    return values if is_table else values * 1.2 / math.sqrt(math.prod(shape[1:]))


def fill_model(model: torch.nn.Module, scales: Mapping[str, float] | None = None) -> dict[str, tuple[int, ...]]:
    """Give every parameter of a model its formula, by its name there, times its factor in `scales`; return names and
    shapes. Embeddings that are the head, too, are scaled down: else each token is followed by itself."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(fill(name, parameter.shape) * (scales or {}).get(name, 1.0))
    return {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}


def draw_picture(height: int, width: int, number: int, *, channels: int = 3) -> npt.NDArray[np.uint8]:
    """Return the picture `number`, uint8 [height, width, channels]: waves, whose every pixel differs, and noise on
    them, so that each wrong pixel of a resize shows."""
    y, x = np.mgrid[:height, :width].astype(np.float64)
    waves = [
        127.5 + 90 * np.sin(x / (5.0 + number + channel) + number) * np.cos(y / (7.0 + 2 * channel) + channel)
        for channel in range(channels)
    ]
    noise = draw(f"picture {number}", height * width * channels).reshape(height, width, channels) * 15
    return np.clip(np.rint(np.stack(waves, axis=-1) + noise), 0, 255).astype(np.uint8)
