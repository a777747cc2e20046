"""Pieces that the vision towers share: activations, RMS norm, pixel normalization, attention over packed segments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from seesay.errors import CheckpointError
from seesay.linear import rms_norm


def _quick_gelu(x: Tensor) -> Tensor:
    return x * torch.sigmoid(1.702 * x)


def _gelu_tanh(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_pytorch_tanh": _gelu_tanh,
    "quick_gelu": _quick_gelu,
    "relu": F.relu,
    "silu": F.silu,
}


def get_activation(name: str) -> Callable[[Tensor], Tensor]:
    """The activation a config names; `CheckpointError` for one we do not have."""
    try:
        return _ACTIVATIONS[name]
    except KeyError:
        known = ", ".join(sorted(_ACTIVATIONS))
        raise CheckpointError(f"activation {name!r} in config.json is not supported (only {known})") from None


class RMSNorm(nn.Module):
    """x / rms(x) · weight over the last axis, computed in float32."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight, self.eps)


class Mlp(nn.Module):
    """fc2(act(fc1(x)))."""

    def __init__(self, size: int, inner_size: int, activation: str) -> None:
        super().__init__()
        self.fc1 = nn.Linear(size, inner_size)
        self.fc2 = nn.Linear(inner_size, size)
        self.activation = get_activation(activation)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.fc2(self.activation(self.fc1(x)))
        return result


class PixelNormalizer:
    """(pixel · rescale_factor - mean) / std of uint8 pixels, on their device, rounded as torchvision rounds."""

    def __init__(self, *, mean: Sequence[float], std: Sequence[float], rescale_factor: float) -> None:
        self._mean = torch.tensor(tuple(mean)).mul_(1.0 / rescale_factor)
        self._std = torch.tensor(tuple(std)).mul_(1.0 / rescale_factor)

    def __call__(self, pixels: Tensor, *, channel_dim: int, out: Tensor | None = None) -> Tensor:
        """uint8 to float32 of the same shape, into `out` if given; axis `channel_dim` holds the three channels."""
        shape = [1] * pixels.dim()
        shape[channel_dim] = 3
        mean, std = (v.to(pixels.device).view(shape) for v in (self._mean, self._std))
        return torch.sub(pixels, mean, out=out).div_(std)


def cut_patches(frames: Tensor, patch_size: tuple[int, int]) -> Tensor:
    """Frames [N, H, W, 3] as patch vectors [N, h·w, 3·ph·pw], laid out as (channel, y, x), row by row."""
    count, height, width, channels = frames.shape
    rows, columns = height // patch_size[0], width // patch_size[1]
    patches = frames.view(count, rows, patch_size[0], columns, patch_size[1], channels).permute(0, 1, 3, 5, 2, 4)
    return patches.reshape(count, rows * columns, channels * patch_size[0] * patch_size[1])


# --- attention over packed segments ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SegmentGroup:
    """`count` segments of `length` rows each. `rows` says which rows of the packed tensor: a slice when they lie
    together, else indices [count · length]."""

    count: int
    length: int
    rows: slice | Tensor


def group_segments(
    lengths: npt.NDArray[np.int64], rows: npt.NDArray[np.int64], device: torch.device
) -> tuple[SegmentGroup, ...]:
    """Group segments by length, so that each group is one batched attention.

    `rows` int64 [sum(lengths)] lists the segments' rows one after another.
    """
    starts = np.cumsum(lengths) - lengths
    groups = []
    for length in np.unique(lengths):
        chosen = starts[lengths == length]
        index = rows[(chosen[:, None] + np.arange(length)).ravel()]
        first = int(index[0])
        is_run = bool((np.diff(index) == 1).all())
        where = slice(first, first + len(index)) if is_run else torch.from_numpy(index).to(device)
        groups.append(SegmentGroup(len(chosen), int(length), where))
    return tuple(groups)


def attend(query: Tensor, key: Tensor, value: Tensor, groups: Sequence[SegmentGroup]) -> Tensor:
    """Full attention inside every segment: query, key, value [P, heads, head_dim] to [P, heads · head_dim]."""
    if len(groups) == 1 and isinstance(groups[0].rows, slice):
        return _attend_group(query, key, value, group=groups[0]).flatten(1)
    result = query.new_empty(query.shape)
    for group in groups:
        rows = group.rows
        if isinstance(rows, slice):
            result[rows] = _attend_group(query[rows], key[rows], value[rows], group=group)
        else:
            picked = (t.index_select(0, rows) for t in (query, key, value))
            result.index_copy_(0, rows, _attend_group(*picked, group=group))
    return result.flatten(1)


def _attend_group(query: Tensor, key: Tensor, value: Tensor, *, group: SegmentGroup) -> Tensor:
    shape = (group.count, group.length, *query.shape[1:])
    split = [t.reshape(shape).transpose(1, 2) for t in (query, key, value)]
    return F.scaled_dot_product_attention(split[0], split[1], split[2]).transpose(1, 2).flatten(0, 1)
