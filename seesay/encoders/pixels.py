"""From features to what a tower's first layer takes: normalized patch vectors on its device.

A family gives either patches, resized and cut on the host, or frames as they were decoded, which are resized and cut
on a GPU. Both give the same numbers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from seesay.device import upload

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from seesay.encoders.layers import PixelNormalizer

PIXELS_AT_ONCE = 1 << 24
"""Frames of a clip are resized in parts of no more pixels, so that its length does not decide what memory it takes."""


class PatchLoader:
    """Makes patch vectors laid out as (channel, frame, y, x), those of `group` (height, width) patches together.

    Features of an item: `pixels` uint8 [P, size], or else `frames` uint8 [N, H, W, 3], `resized` (height, width),
    `resample` and `patch` (frames, height, width). Frames are taken on CUDA alone.
    """

    def __init__(
        self, normalizer: PixelNormalizer, *, group: tuple[int, int], device: torch.device, dtype: torch.dtype
    ) -> None:
        self._normalizer = normalizer
        self._group = group
        self._device = device
        self._dtype = dtype
        levels = torch.arange(256, dtype=torch.uint8).expand(3, -1)
        self._table = normalizer(levels, channel_dim=0).to(dtype).to(device)

    def __call__(self, features: Sequence[Mapping[str, Any]]) -> Tensor:
        """The items' vectors, one item after another: [P, size]."""
        shapes = [_measure(item) for item in features]
        out = torch.empty(sum(count for count, _ in shapes), shapes[0][1], dtype=self._dtype, device=self._device)
        start = 0
        for item, (count, _) in zip(features, shapes, strict=True):
            part = out[start : start + count]
            if "frames" in item:
                self._resize(item, part)
            else:
                self._normalize(item["pixels"], part)
            start += count
        return out

    def _normalize(self, pixels: npt.NDArray[np.uint8], out: Tensor) -> None:
        [there] = upload([pixels], self._device)
        shape = (len(out), 3, -1)
        if self._dtype == torch.float32:
            self._normalizer(there.view(shape), channel_dim=1, out=out.view(shape))
        else:
            out.view(shape).copy_(self._normalizer(there.view(shape), channel_dim=1))

    def _resize(self, item: Mapping[str, Any], out: Tensor) -> None:
        from seesay.kernels.resize import PatchLayout, cut_patches, make_taps, resize_columns

        num_frames, *patch = item["patch"]
        layout = PatchLayout(patch=(patch[0], patch[1]), group=self._group, num_frames=num_frames)
        frames, size = item["frames"], item["resized"]
        rows, columns = (
            make_taps(length, new_length, item["resample"])
            for length, new_length in zip(frames.shape[1:3], size, strict=True)
        )
        steps_at_once = max(1, PIXELS_AT_ONCE // (num_frames * math.prod(frames.shape[1:3])))
        num_vectors = math.prod(layout.count_groups(size)) * math.prod(self._group)
        for step in range(0, -(-len(frames) // num_frames), steps_at_once):
            part = frames[step * num_frames : (step + steps_at_once) * num_frames]
            there, *tables = upload([part, columns.starts, columns.weights, rows.starts, rows.weights], self._device)
            if frames.shape[2] != size[1]:
                there = resize_columns(there, columns._replace(starts=tables[0], weights=tables[1]))
            vectors = out[step * num_vectors : (step + steps_at_once) * num_vectors]
            cut_patches(there, rows._replace(starts=tables[2], weights=tables[3]), self._table, layout, vectors)


def _measure(item: Mapping[str, Any]) -> tuple[int, int]:
    """(number of patches, values in one) of an item."""
    if "frames" not in item:
        count, size = item["pixels"].shape
        return count, size
    num_frames, height, width = item["patch"]
    num_patches = -(-len(item["frames"]) // num_frames) * math.prod(item["resized"]) // (height * width)
    return num_patches, 3 * num_frames * height * width
