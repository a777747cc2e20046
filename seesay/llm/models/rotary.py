"""Cosines and sines of a step's positions: made once per step, used by every layer."""

from __future__ import annotations

import torch

from seesay.device.backends import has_kernels
from seesay.llm.models.spec import RotarySpec


class Rotary:
    """Rotary tables of one model, on its device. Angles are float32; the tables come in the model's dtype."""

    def __init__(self, spec: RotarySpec, *, device: torch.device, dtype: torch.dtype) -> None:
        self._dtype = dtype
        self._has_kernel = has_kernels(device)
        self._scale = spec.scale
        self._sections = torch.from_numpy(spec.section_of_component()).to(device) if spec.sections else None
        self._inv_freq = self._twice(spec.inv_freq, device)
        self._long_inv_freq = None if spec.long_inv_freq is None else self._twice(spec.long_inv_freq, device)
        self._sign = torch.ones(spec.dim, device=device)
        self._sign[: spec.dim // 2] = -1

    def _twice(self, inv_freq: tuple[float, ...], device: torch.device) -> torch.Tensor:
        half = torch.tensor(inv_freq, dtype=torch.float32, device=device)
        return torch.cat((half, half))

    def tables(self, positions: torch.Tensor, is_long: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        """cos and sin, each [T, 1, dim] and dense, of int64 positions [T] or [3, T]; the first half of sin is negated.

        `is_long` bool [T] says which tokens take the long frequencies; None is none of them.
        """
        if self._has_kernel:
            from seesay.kernels.token_kernels import make_rotary_tables

            return make_rotary_tables(
                positions,
                self._sections,
                self._inv_freq,
                self._long_inv_freq,
                is_long,
                scale=self._scale,
                dtype=self._dtype,
            )
        points = positions.to(torch.float32)
        points = points[:, None] if self._sections is None else self._by_component(points, self._sections)
        inv_freq = self._inv_freq
        if is_long is not None and self._long_inv_freq is not None:
            inv_freq = torch.where(is_long[:, None], self._long_inv_freq, self._inv_freq)
        angles = points * inv_freq
        cos, sin = angles.cos(), angles.sin().mul_(self._sign)
        if self._scale != 1.0:
            cos, sin = cos.mul_(self._scale), sin.mul_(self._scale)
        return cos.to(self._dtype)[:, None], sin.to(self._dtype)[:, None]

    def _by_component(self, points: torch.Tensor, sections: torch.Tensor) -> torch.Tensor:
        """[T, dim], dense: the position that turns each component."""
        return points.expand(3, -1).t().index_select(1, sections)
