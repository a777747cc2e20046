"""Turns features into the input of a tower's first layer: normalized patch vectors on its device.

The features are either patches, which the host has resized and cut, or decoded frames and the chains by which a GPU
makes patches of them. Both give the same numbers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from seesay.device.transfers import upload
from seesay.encoders.device_chain import ChainRunner, Program, find_program

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from seesay.encoders.towers.layers import PixelNormalizer
    from seesay.values.frame_chain import Size


class PatchLoader:
    """Makes patch vectors laid out as (channel, frame, y, x).

    Features of an item: `pixels` uint8 or float32 [P, size]; or `frames` uint8 [N, H, W, 3] and their `chains`, packed
    (`seesay.values.frame_chain`). Tiles are cut into patches of `patch_size` (height, width), row by row; what lies
    behind the last whole patch is left out. Frames are supported on CUDA only.
    """

    def __init__(
        self,
        normalizer: PixelNormalizer,
        *,
        device: torch.device,
        dtype: torch.dtype,
        patch_size: Size = (1, 1),
    ) -> None:
        self._normalizer = normalizer
        self._device = device
        self._dtype = dtype
        self._patch_size = patch_size
        levels = torch.arange(256, dtype=torch.uint8).expand(3, -1)
        self._table = normalizer(levels, channel_dim=0).to(dtype).to(device)
        self._runner = ChainRunner(device)

    def __call__(self, features: Sequence[Mapping[str, Any]]) -> Tensor:
        """Return the items' vectors, one item after another: [P, size]."""
        programs = [find_program(item, self._patch_size) if "frames" in item else None for item in features]
        counts = [_count_vectors(item, program) for item, program in zip(features, programs, strict=True)]
        size = _vector_size(features[0], programs[0])
        out = torch.empty(sum(map(sum, counts)), size, dtype=self._dtype, device=self._device)
        start = 0
        for item, program, in_item in zip(features, programs, counts, strict=True):
            parts = torch.split(out[start : start + sum(in_item)], in_item)
            if program is None:
                self._normalize(item["pixels"], *parts)
            else:
                self._runner.run(program, item["frames"], self._table, parts)
            start += sum(in_item)
        return out

    def load_tiles(self, item: Mapping[str, object], size: Size) -> Tensor:
        """Return the tiles of `size` that chains make of frames: uint8 [tiles, height, width, 3]."""
        program = find_program(item, (1, 1))
        counts = _count_vectors(item, program)
        out = torch.empty(sum(counts), 3, dtype=torch.uint8, device=self._device)
        self._runner.run(program, item["frames"], self._runner.levels, torch.split(out, counts))
        return out.view(-1, *size, 3)

    def _normalize(self, pixels: npt.NDArray[np.uint8 | np.float32], out: Tensor) -> None:
        [there] = upload([pixels], self._device)
        shape = (len(out), 3, -1)
        if self._dtype == torch.float32:
            self._normalizer(there.view(shape), channel_dim=1, out=out.view(shape))
        else:
            out.view(shape).copy_(self._normalizer(there.view(shape), channel_dim=1))


def _count_vectors(item: Mapping[str, Any], program: Program | None) -> list[int]:
    """Return the number of patches of an item, for each piece that its chains make."""
    if program is None:
        return [len(item["pixels"])]
    return [piece.count(len(item["frames"])) for piece in program.pieces]


def _vector_size(item: Mapping[str, Any], program: Program | None) -> int:
    """Return the number of values in one patch vector."""
    if program is None:
        return math.prod(item["pixels"].shape[1:])
    return program.pieces[0].layout.vector_size
