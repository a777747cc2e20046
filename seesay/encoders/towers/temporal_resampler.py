"""The resampler of ERNIE-4.5-VL: joins neighbouring patches, then neighbouring frames (ERNIE 4.5 technical report,
section 2.2.2)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from seesay.device.linear.linear import Linear
from seesay.encoders.towers.layers import Norm, RMSNorm


class TemporalResampler(nn.Module):
    """Joins groups of `unit` patches of `size` columns, which `norm` has normed; then two of these, from two frames;
    and projects them to `out_size`. eps: of the norm behind that. Parameters are named as in checkpoints."""

    def __init__(self, norm: Norm, size: int, unit: int, out_size: int, *, eps: float) -> None:
        super().__init__()
        self.norm = norm
        self._width = size * unit
        self.spatial_linear = _make_layers(self._width, self._width, norm.eps)
        self.temporal_linear = _make_layers(2 * self._width, self._width, norm.eps)
        self.mlp = Linear(self._width, out_size)
        self.after_norm = RMSNorm(out_size, eps)

    @property
    def input_norm(self) -> Norm | None:
        return self.norm

    def forward(self, normed: Tensor) -> Tensor:
        """Return the joined patches [G, size * unit] of [G * unit, size]."""
        result: Tensor = self.spatial_linear(normed.view(-1, self._width))
        return result

    def join(self, first: Tensor, second: Tensor) -> Tensor:
        """Return the rows [R, out_size] of joined patches [R, size * unit] of two frames; of a picture, or of a frame
        without another one, both are the same."""
        result: Tensor = self.after_norm(self.mlp(self.temporal_linear(torch.cat((first, second), dim=1))))
        return result


def _make_layers(in_size: int, size: int, eps: float) -> nn.Sequential:
    return nn.Sequential(Linear(in_size, size), nn.GELU(), Linear(size, size), nn.LayerNorm(size, eps))
