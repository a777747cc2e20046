"""Pieces that the vision towers share: activations, norms, MLPs, pixel normalization, attention over packed segments.

On a GPU they use the kernels of `seesay.kernels`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from seesay.checkpoint.parts import Source
from seesay.device.backends import has_kernels
from seesay.device.linear.linear import Linear
from seesay.device.linear.norm import rms_norm
from seesay.errors import CheckpointError

LINE_FEATURES = 64
"""Inner sizes are padded to a multiple of this: on a GPU rows that are not aligned to 16 bytes make matrix products
several times slower."""


def _quick_gelu(x: Tensor) -> Tensor:
    """Return x · sigmoid(1.702 x); on a GPU in the memory of x."""
    if has_kernels(x.device):
        from seesay.kernels import tower

        return tower.quick_gelu_(x)
    return x * torch.sigmoid(1.702 * x)


def _gelu_tanh(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


def _square_relu(x: Tensor) -> Tensor:
    return F.relu(x).square()


_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_pytorch_tanh": _gelu_tanh,
    "quick_gelu": _quick_gelu,
    "relu": F.relu,
    "relu2": _square_relu,
    "silu": F.silu,
}


def make_empty_embedding(num_rows: int, width: int) -> nn.Embedding:
    """Return a table of learned rows whose values are loaded later.

    Without `_weight` the constructor draws random values, for which the meta device imports torch's compiler: 2.5 s of
    a start.
    """
    return nn.Embedding(num_rows, width, _weight=torch.empty(num_rows, width))


def get_activation(name: str) -> Callable[[Tensor], Tensor]:
    """Return the activation that a config names. Raises `CheckpointError` for an unsupported one."""
    try:
        return _ACTIVATIONS[name]
    except KeyError:
        known = ", ".join(sorted(_ACTIVATIONS))
        raise CheckpointError(f"config.json: the activation must be one of {known}, got {name!r}") from None


@runtime_checkable
class Fusible(Protocol):
    """A module that can compute faster on a GPU once its weights are loaded."""

    def fuse(self) -> None: ...


class RMSNorm(nn.Module):
    """x / rms(x) · weight over the last axis, computed in float32."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight, self.eps)


Norm = RMSNorm | nn.LayerNorm


def add_norm(x: Tensor, update: Tensor, norm: Norm | None, scale: Tensor | None = None) -> Tensor:
    """Add update · scale to x in place. Return the norm of the sum, or the sum itself without a norm.

    `update` may be changed. x and update are dense.
    """
    if norm is not None and has_kernels(x.device):
        from seesay.kernels import tower

        bias = norm.bias if isinstance(norm, nn.LayerNorm) else None
        return tower.norm(x, update, norm.weight, bias, norm.eps, scale=scale)
    x.add_(update if scale is None else update.mul_(scale))
    return x if norm is None else norm(x)


def add_product_norm(
    x: Tensor, inner: Tensor, linear: Linear, norm: Norm | None, *, scale: Tensor | None, offset: Tensor | None
) -> Tensor:
    """Add linear(inner) · scale to x in place. Return the norm of the sum, or the sum itself without a norm.

    With an `offset` float32 [size], and without a scale, biases are left out of x: it is the sum of all biases left out
    so far, that of `linear` included, and the norm is that of x + offset. The matrix product then adds to x itself, and
    the norm kernel reads only x.
    """
    if offset is None:
        return add_norm(x, linear(inner), norm, scale)
    linear.add(x, inner)
    if norm is None:
        return (x + offset).to(x.dtype)
    if has_kernels(x.device):
        from seesay.kernels import tower

        bias = norm.bias if isinstance(norm, nn.LayerNorm) else None
        return tower.norm(x, None, norm.weight, bias, norm.eps, offset=offset)
    result: Tensor = norm((x + offset).to(x.dtype))
    return result


class GatedMlp(nn.Module):
    """down(act(gate(x)) · up(x)). `modules` of the checkpoint have the weights of gate and up, one each or one for
    both. norm: of the input of `down`, whose outputs are `out_size`; as many as the inputs of the others by default."""

    def __init__(
        self,
        size: int,
        inner_size: int,
        activation: str,
        *,
        bias: bool = True,
        modules: Sequence[str] = ("gate_proj", "up_proj"),
        norm: Norm | None = None,
        out_size: int | None = None,
    ) -> None:
        super().__init__()
        stored = 2 * inner_size // len(modules)
        places = [divmod(index * inner_size, stored) for index in range(2)]
        sources = [
            Source(module=modules[number], num_outputs=stored, picks=(range(first, first + inner_size),))
            for number, first in places
        ]
        self.gate_up_proj = Linear(size, bias=bias, sources=sources, output_multiple=LINE_FEATURES)
        self.down_proj = Linear(inner_size, out_size or size, bias=bias, input_multiple=LINE_FEATURES)
        self.activation = get_activation(activation)
        self.norm = norm
        self._inner_size = inner_size

    @property
    def last(self) -> Linear:
        return self.down_proj

    def inner(self, x: Tensor) -> Tensor:
        """Return the input of the last layer."""
        both = self.gate_up_proj(x)
        if self.activation is F.silu and has_kernels(both.device):
            from seesay.kernels import token_kernels

            return self._norm(token_kernels.act_and_mul(both, "silu"))
        gate, up = both.chunk(2, dim=-1)
        return self._norm(self.activation(gate).mul_(up))

    def _norm(self, inner: Tensor) -> Tensor:
        if self.norm is None:
            return inner
        padding = inner.shape[-1] - self._inner_size
        return F.pad(self.norm(inner[..., : self._inner_size]), (0, padding))

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(self.inner(x))


class Mlp(nn.Module):
    """fc2(act(fc1(x))). norm: of the input of `fc2`."""

    def __init__(
        self, size: int, inner_size: int, activation: str, *, bias: bool = True, norm: Norm | None = None
    ) -> None:
        super().__init__()
        self.fc1 = Linear(size, inner_size, bias=bias)
        self.fc2 = Linear(inner_size, size, bias=bias)
        self.activation = get_activation(activation)
        self.norm = norm

    @property
    def last(self) -> Linear:
        return self.fc2

    def inner(self, x: Tensor) -> Tensor:
        """Return the input of the last layer."""
        inner = self.activation(self.fc1(x))
        return inner if self.norm is None else self.norm(inner)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(self.inner(x))


class PixelNormalizer:
    """Computes (pixel · rescale_factor - mean) / std of uint8 or float32 pixels, on their device, rounded as
    torchvision does."""

    def __init__(self, *, mean: Sequence[float], std: Sequence[float], rescale_factor: float) -> None:
        statistics = torch.tensor((tuple(mean), tuple(std))).mul_(1.0 / rescale_factor)
        self._by_device = {statistics.device: statistics}

    def __call__(self, pixels: Tensor, *, channel_dim: int, out: Tensor | None = None) -> Tensor:
        """Return float32 of the same shape as `pixels`, in `out` if given. Axis `channel_dim` holds the three
        channels."""
        device = pixels.device
        if device not in self._by_device:
            self._by_device[device] = self._by_device[torch.device("cpu")].to(device)
        shape = [1] * pixels.dim()
        shape[channel_dim] = 3
        mean, std = (v.view(shape) for v in self._by_device[device])
        if device.type == "cpu":
            return _normalize_on_host(pixels, mean, std, out)
        return torch.sub(pixels, mean, out=out).div_(std)


class RoundedNormalizer(PixelNormalizer):
    """Computes the same in bfloat16, rounding after each step."""

    def __init__(self, *, mean: Sequence[float], std: Sequence[float], rescale_factor: float) -> None:
        super().__init__(mean=mean, std=std, rescale_factor=rescale_factor)
        self._mean, self._std, self._factor = tuple(mean), tuple(std), rescale_factor

    def __call__(self, pixels: Tensor, *, channel_dim: int, out: Tensor | None = None) -> Tensor:
        shape = [1] * pixels.dim()
        shape[channel_dim] = 3
        mean, std = (pixels.new_tensor(v, dtype=torch.bfloat16).view(shape) for v in (self._mean, self._std))
        found = pixels.to(torch.bfloat16).mul_(self._factor).sub_(mean).div_(std)
        return found.float() if out is None else out.copy_(found)


def _normalize_on_host(pixels: Tensor, mean: Tensor, std: Tensor, out: Tensor | None) -> Tensor:
    """Return (pixels - mean) / std. On the CPU torch is many times slower for operands of two types, and along an axis
    of three: where the channels are the last axis, whole lines of pixels are computed."""
    found = pixels.to(torch.float32, copy=True) if out is None else out.copy_(pixels)
    if mean.shape[-1] == 1 or not found.is_contiguous():
        return found.sub_(mean).div_(std)
    lines = found.view(-1, math.prod(found.shape[-2:]))
    mean, std = (v.flatten().repeat(found.shape[-2]) for v in (mean, std))
    lines.sub_(mean).div_(std)
    return found


def cut_patches(frames: Tensor, patch_size: tuple[int, int]) -> Tensor:
    """Cut frames [N, H, W, 3] into patch vectors [N, h·w, 3·ph·pw], laid out as (channel, y, x), row by row."""
    count, height, width, channels = frames.shape
    rows, columns = height // patch_size[0], width // patch_size[1]
    patches = frames.view(count, rows, patch_size[0], columns, patch_size[1], channels).permute(0, 1, 3, 5, 2, 4)
    return patches.reshape(count, rows * columns, channels * patch_size[0] * patch_size[1])


def join_squares(
    rows: Tensor, grid: tuple[int, int], side: int, *, turns: bool = False, by_channel: bool = False
) -> Tensor:
    """Join each square of side² rows [N, S, size] of a `grid` (height, width) to one: [N, S / side², side² · size]. If
    it `turns`, the squares come column by column. by_channel: the elements of each channel come together, those of a
    row otherwise."""
    shape = (len(rows), grid[0] // side, side, grid[1] // side, side, rows.shape[2])
    squares = rows.reshape(shape).permute((0, 3, 1, 2, 4, 5) if turns else (0, 1, 3, 2, 4, 5))
    if by_channel:
        squares = squares.permute(0, 1, 2, 5, 3, 4)
    return squares.reshape(len(rows), -1, side**2 * rows.shape[2])


# --- attention over packed segments ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SegmentGroup:
    """`count` segments of `length` rows each. `rows` selects them in the packed tensor: a slice if they are adjacent,
    else indices [count · length]."""

    count: int
    length: int
    rows: slice | Tensor


@dataclass(frozen=True, slots=True)
class SegmentTable:
    """Segments of any lengths on a GPU, which together cover all rows: segment i is rows starts[i] … starts[i + 1]
    (int32). `longest` is the largest length."""

    starts: Tensor
    longest: int


Segments = Sequence[SegmentGroup] | SegmentTable


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


def group_neighbours(lengths: npt.NDArray[np.int64]) -> tuple[SegmentGroup, ...]:
    """Group adjacent segments of equal length. The segments lie one after another, so that no row is moved."""
    groups, first = [], 0
    for length, equals in itertools.groupby(lengths.tolist()):
        count = sum(1 for _ in equals)
        groups.append(SegmentGroup(count, length, slice(first, first + count * length)))
        first += count * length
    return tuple(groups)


def attend_rotated(qkv: Tensor, cos: Tensor, sin: Tensor, segments: Segments) -> Tensor:
    """Rotate the queries and keys in qkv [P, 3, heads, head_dim] by their rows' angles, whose cos and sin are float32
    [P, head_dim / 2]. Return full attention inside every segment: [P, heads · head_dim]. May change qkv."""
    if has_kernels(qkv.device):
        from seesay.kernels import tower

        if isinstance(segments, SegmentTable) and segments.longest <= tower.LONGEST_WINDOW:
            return tower.attend_windows(qkv, cos, sin, segments.starts, segments.longest).flatten(1)
        tower.rotate_(qkv, cos, sin)
        if isinstance(segments, SegmentTable):
            return tower.attend_segments(qkv, segments.starts, segments.longest).flatten(1)
        return attend(qkv[:, 0], qkv[:, 1], qkv[:, 2], segments)
    assert not isinstance(segments, SegmentTable)
    rotated = _rotate(qkv[:, :2], cos, sin)
    return attend(rotated[:, 0], rotated[:, 1], qkv[:, 2], segments)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate x [P, k, heads, head_dim] by angles whose cos and sin are [P, head_dim / 2], in float32."""
    rotated = torch.empty(x.shape, dtype=torch.float32, device=x.device)
    (first, second), (to_first, to_second) = x.float().chunk(2, dim=-1), rotated.chunk(2, dim=-1)
    cos, sin = cos[:, None, None], sin[:, None, None]
    torch.mul(first, cos, out=to_first).addcmul_(second, sin, value=-1)
    torch.mul(second, cos, out=to_second).addcmul_(first, sin)
    return rotated.to(x.dtype)


def attend(query: Tensor, key: Tensor, value: Tensor, groups: Sequence[SegmentGroup]) -> Tensor:
    """Return full attention inside every segment, for query, key, value [P, heads, head_dim]: [P, heads · head_dim]."""
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
