"""Cosines and sines of a step's positions: made once per step, used by every layer."""

from __future__ import annotations

import torch

from seesay.device.backends import has_kernels
from seesay.device.determinism import fill_groups, is_deterministic
from seesay.device.query import cpu_threads
from seesay.device.transfers import upload
from seesay.llm.models.spec import RotarySpec


class Rotary:
    """Rotary tables of one model, on its device. Angles are float32; the tables come in the model's dtype."""

    def __init__(self, spec: RotarySpec, *, device: torch.device, dtype: torch.dtype) -> None:
        self._dtype = dtype
        self._has_kernel = has_kernels(device)
        self._is_fixed = is_deterministic()
        self._scale = spec.scale
        self._sections = torch.from_numpy(spec.section_of_component()).to(device) if spec.sections else None
        self._inv_freq = self._twice(spec.inv_freq, device)
        self._long_inv_freq = self._exponents = None
        if spec.long_inv_freq is not None:
            self._long_inv_freq = self._twice(spec.long_inv_freq, device)
        elif spec.length_scaling is not None:
            [self._exponents] = upload([spec.stretch_exponents()], device)
        self._sign = torch.ones(spec.dim, device=device)
        self._sign[: spec.dim // 2] = -1

    def _twice(self, inv_freq: tuple[float, ...], device: torch.device) -> torch.Tensor:
        half = torch.tensor(inv_freq, dtype=torch.float32, device=device)
        return torch.cat((half, half))

    def tables(self, positions: torch.Tensor, stretches: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        """cos and sin, each [T, 1, dim] and dense, of int64 positions [T] or [3, T]; the first half of sin is negated.

        `stretches` float64 [T] are those of the tokens' sequences (see `LengthScaling`); None: all are 0.0.
        """
        if self._has_kernel:
            from seesay.kernels.rotary import make_rotary_tables

            return make_rotary_tables(
                positions,
                self._sections,
                self._inv_freq,
                self._long_inv_freq,
                self._exponents,
                stretches,
                scale=self._scale,
                dtype=self._dtype,
            )
        if self._is_fixed and positions.shape[-1]:
            count = positions.shape[-1]
            with cpu_threads(1):
                filled = None if stretches is None else fill_groups(stretches)
                cos, sin = self._compute(fill_groups(positions, -1), filled)
            return cos[:count], sin[:count]
        return self._compute(positions, stretches)

    def _compute(self, positions: torch.Tensor, stretches: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        points = positions.to(torch.float32)
        points = points[:, None] if self._sections is None else self._by_component(points, self._sections)
        angles = points * (self._inv_freq if stretches is None else self._stretch(stretches[:, None]))
        cos, sin = angles.cos(), angles.sin().mul_(self._sign)
        if self._scale != 1.0:
            cos, sin = cos.mul_(self._scale), sin.mul_(self._scale)
        return cos.to(self._dtype)[:, None], sin.to(self._dtype)[:, None]

    def _stretch(self, stretches: torch.Tensor) -> torch.Tensor:
        """The frequencies of tokens with these stretches [T, 1], float32 [T, dim] or [dim]."""
        if self._exponents is not None:
            return (self._inv_freq * torch.exp2(-stretches * self._exponents)).to(torch.float32)
        if self._long_inv_freq is not None:
            return torch.where(stretches > 0, self._long_inv_freq, self._inv_freq)
        return self._inv_freq

    def _by_component(self, points: torch.Tensor, sections: torch.Tensor) -> torch.Tensor:
        """[T, dim], dense: the position that turns each component."""
        return points.expand(3, -1).t().index_select(1, sections)
