"""SigLIP's tower with Gemma 3's projector (arXiv 2503.19786, section 2.1): squares of patches are averaged, normed and
projected."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from seesay.device.norm import rms_norm
from seesay.encoders.clip import ClipConfig, ClipTower


class _OffsetNorm(nn.Module):
    """RMS norm whose weight is stored less 1."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size))
        self._eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x.float(), 1 + self.weight.float(), self._eps).to(x.dtype)


class _PooledProjector(nn.Module):
    """The parameters are named, and the matrix [hidden, out] lies, as in checkpoints."""

    def __init__(self, config: ClipConfig) -> None:
        super().__init__()
        self.mm_soft_emb_norm = _OffsetNorm(config.hidden_size, config.norm_eps)
        self.mm_input_projection_weight = nn.Parameter(torch.empty(config.hidden_size, config.out_hidden_size))

    def forward(self, x: Tensor) -> Tensor:
        normed: Tensor = self.mm_soft_emb_norm(x)
        return normed @ self.mm_input_projection_weight


class PooledClip(nn.Module):
    """Patch vectors [N, patches, 3·P·P] to rows [N, side², out_hidden_size], each of a square of `pool`² patches."""

    def __init__(self, config: ClipConfig, *, pool: int) -> None:
        super().__init__()
        self.tower = ClipTower(config)
        self.projector = _PooledProjector(config)
        self._side, self._pool = config.image_size // config.patch_size // pool, pool

    def forward(self, patches: Tensor) -> Tensor:
        hidden = self.tower(patches)
        squares = hidden.view(len(hidden), self._side, self._pool, self._side, self._pool, -1)
        result: Tensor = self.projector(squares.mean(dim=(2, 4)).flatten(1, 2))
        return result
