"""Turns features into the input of a tower's first layer: normalized patch vectors on its device.

The features are either patches, which the host has resized and cut, or decoded frames, which a GPU resizes and cuts.
Both give the same numbers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from seesay.device.transfers import upload

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from seesay.encoders.layers import PixelNormalizer

PIXELS_AT_ONCE = 1 << 24
"""Frames of a video are resized in parts of at most so many pixels, which bounds memory for videos of any length."""


class PatchLoader:
    """Makes patch vectors laid out as (channel, frame, y, x); those of `group` (height, width) patches lie together.

    Features of an item: `pixels` uint8 [P, size]; or `frames` uint8 [N, H, W, 3], all of which are resized to each of
    `sizes` (height, width) in turn, with the filter `resample` and patches of `patch` (frames, height, width). Frames
    are supported on CUDA only.
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
        """Return the items' vectors, one item after another: [P, size]."""
        counts = [_count_patches(item) for item in features]
        out = torch.empty(sum(map(sum, counts)), _vector_size(features[0]), dtype=self._dtype, device=self._device)
        start = 0
        for item, in_item in zip(features, counts, strict=True):
            parts = torch.split(out[start : start + sum(in_item)], in_item)
            if "frames" in item:
                self._resize(item, parts)
            else:
                self._normalize(item["pixels"], *parts)
            start += sum(in_item)
        return out

    def _normalize(self, pixels: npt.NDArray[np.uint8], out: Tensor) -> None:
        [there] = upload([pixels], self._device)
        shape = (len(out), 3, -1)
        if self._dtype == torch.float32:
            self._normalizer(there.view(shape), channel_dim=1, out=out.view(shape))
        else:
            out.view(shape).copy_(self._normalizer(there.view(shape), channel_dim=1))

    def _resize(self, item: Mapping[str, Any], out: Sequence[Tensor]) -> None:
        """Resize and cut the frames of an item, into one tensor of `out` for each of its `sizes`."""
        from seesay.kernels.resize import PatchLayout, cut_patches, make_taps, resize_columns

        frames, (num_frames, *patch) = item["frames"], item["patch"]
        layout = PatchLayout(patch=(patch[0], patch[1]), group=self._group, num_frames=num_frames)
        taps = [
            make_taps(length, new_length, item["resample"])
            for size in item["sizes"]
            for length, new_length in zip(frames.shape[1:3], size, strict=True)
        ]
        tables = [table for axis in taps for table in (axis.starts, axis.weights)]
        steps_at_once = max(1, PIXELS_AT_ONCE // (num_frames * math.prod(frames.shape[1:3])))
        for step in range(0, -(-len(frames) // num_frames), steps_at_once):
            part = frames[step * num_frames : (step + steps_at_once) * num_frames]
            there, *on_device = upload([part, *tables], self._device)
            axes = [
                axis._replace(starts=starts, weights=weights)
                for axis, starts, weights in zip(taps, on_device[::2], on_device[1::2], strict=True)
            ]
            for size, rows, columns, vectors in zip(item["sizes"], axes[::2], axes[1::2], out, strict=True):
                wide = there if frames.shape[2] == size[1] else resize_columns(there, columns)
                per_step = math.prod(size) // math.prod(patch)
                cut_patches(wide, rows, self._table, layout, vectors[step * per_step :][: steps_at_once * per_step])


def _count_patches(item: Mapping[str, Any]) -> list[int]:
    """Return the number of patches of an item, for each size that its frames are resized to."""
    if "frames" not in item:
        return [len(item["pixels"])]
    num_frames, *patch = item["patch"]
    return [-(-len(item["frames"]) // num_frames) * math.prod(size) // math.prod(patch) for size in item["sizes"]]


def _vector_size(item: Mapping[str, Any]) -> int:
    """Return the number of values in one patch vector."""
    return 3 * math.prod(item["patch"]) if "frames" in item else int(item["pixels"].shape[1])
