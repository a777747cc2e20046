"""AWQ (arXiv 2306.00978): channels whose inputs are large are scaled up before they are rounded, and weights are
clipped where that lowers the error of the output. Written in the layout of AutoAWQ's `WQLinear_GEMM`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from seesay.config.checks import require
from seesay.errors import ConfigError
from seesay.lite.methods.folding import Pair, all_pairs
from seesay.lite.methods.method import Calibrated, PlainMatrix, Quantized
from seesay.lite.methods.plain_layer import PlainLayer
from seesay.lite.methods.rounding import Grid, group, make_grid, pack_awq, round_groups
from seesay.lite.methods.search import MakeScales, ScaleSearch, scale_pairs
from seesay.lite.methods.statistics import InputStatistics

BITS = 4
GROUP_SIZES = (-1, 32, 64, 128)
_LEAST_SCALE = 1e-4
_CLIP_STEPS, _LEAST_CLIP = 20, 0.5
_MAX_CLIP_ELEMENTS = 1 << 24


class AwqMethod:
    """searches: choose each layer's ratio between the weight of inputs and of weights by the error; else it is 0.5."""

    name = "awq"
    needs_inputs = True

    def __init__(self, *, group_size: int, is_symmetric: bool, searches: bool) -> None:
        require(group_size in GROUP_SIZES, "w_group_size", group_size, "must be 32, 64, 128 or -1")
        self._group_size, self._is_symmetric, self._searches = group_size, is_symmetric, searches

    def gram_size(self, num_inputs: int) -> int | None:
        return self._size(num_inputs)

    def config(self, excluded: Sequence[str]) -> dict[str, Any]:
        return {
            "quant_method": "awq",
            "version": "gemm",
            "bits": BITS,
            "group_size": self._group_size,
            "zero_point": True,
            "modules_to_not_convert": list(excluded) or None,
        }

    def check_sizes(self, what: str, num_outputs: int, num_inputs: int) -> None:
        if num_inputs % self._size(num_inputs):
            raise ConfigError(f"w_group_size={self._group_size}: {what} has {num_inputs} inputs, which it must divide")
        if num_outputs % 8:
            raise ConfigError(f"auto_awq: {what} has {num_outputs} outputs; AWQ's format needs a multiple of 8")

    def prepare(self, layer: PlainLayer, calibrated: Calibrated) -> tuple[Calibrated, dict[str, Any]]:
        search = None
        if self._searches:
            search = ScaleSearch(layer, calibrated.batches, calibrated.cache, self._round)

        def scales_for(pair: Pair, inputs: InputStatistics) -> MakeScales:
            matrix = layer.matrices[pair.target]
            weights = pair.shared(_mean_in_groups(matrix, self._size(matrix.shape[1])))
            return partial(_make_scales, pair.shared(inputs.abs_mean), weights)

        pairs = all_pairs(layer)
        statistics, ratios = scale_pairs(layer, calibrated.statistics, pairs, scales_for, search)
        return replace(calibrated, statistics=statistics), {"ratios": ratios}

    def quantize(self, plain: PlainMatrix) -> Quantized:
        grouped = group(plain.data, self._size(plain.data.shape[1]))
        shrink: Tensor | float = 1.0
        if plain.inputs is not None and "qkv" not in plain.name:  # scores multiply the errors of q and k
            shrink = self._find_clip(grouped, plain.inputs.need_gram())
        grid = self._make_grid(grouped, shrink)
        numbers = grid.round(grouped)
        tensors = {
            "qweight": pack_awq(numbers.flatten(1).t()),
            "qzeros": pack_awq(grid.zero.flatten(1).t()),
            "scales": grid.scale.flatten(1).t().half(),
        }
        return Quantized(tensors=tensors, matrix=grid.restore(numbers).flatten(1))

    def _size(self, num_inputs: int) -> int:
        return num_inputs if self._group_size == -1 else self._group_size

    def _round(self, matrix: Tensor) -> Tensor:
        size = self._size(matrix.shape[1])
        return round_groups(matrix, bits=BITS, group_size=size, is_symmetric=self._is_symmetric)

    def _make_grid(self, grouped: Tensor, shrink: Tensor | float) -> Grid:
        low, high = grouped.amin(-1, keepdim=True), grouped.amax(-1, keepdim=True)
        return make_grid(low * shrink, high * shrink, bits=BITS, is_symmetric=self._is_symmetric)

    def _find_clip(self, grouped: Tensor, gram: Tensor) -> Tensor:
        """Return the factors [out, groups, 1] of the smallest and largest weights with which each group's share of the
        output errs least, for grouped [out, groups, g] and Gram matrices [groups, g, g]."""
        rows = max(1, _MAX_CLIP_ELEMENTS // grouped[0].numel())
        return torch.cat([self._find_clip_of(piece, gram) for piece in torch.split(grouped, rows)])

    def _find_clip_of(self, grouped: Tensor, gram: Tensor) -> Tensor:
        best = torch.ones_like(grouped[..., :1])
        least = torch.full_like(best, torch.inf)
        for step in range(_CLIP_STEPS):
            factor = 1 - step * (1 - _LEAST_CLIP) / _CLIP_STEPS
            grid = self._make_grid(grouped, factor)
            off = (grid.restore(grid.round(grouped)) - grouped).transpose(0, 1)  # [groups, out, g]
            error = ((off @ gram) * off).sum(-1).t()[..., None]
            is_less = error < least
            best = torch.where(is_less, factor, best)
            least = torch.where(is_less, error, least)
        return best


def _mean_in_groups(matrix: Tensor, group_size: int) -> Tensor:
    """Return, for each input, the mean over outputs of its weight's size relative to the largest of its group: [in]."""
    grouped = group(matrix, group_size).abs()
    return (grouped / grouped.amax(-1, keepdim=True).clamp(min=1e-6)).flatten(1).mean(0)


def _make_scales(inputs: Tensor, weights: Tensor, ratio: float) -> Tensor:
    scales = (inputs.clamp(min=1e-8) ** ratio / (weights ** (1 - ratio) + _LEAST_SCALE)).clamp(min=_LEAST_SCALE)
    scales = scales / (scales.max() * scales.min()).sqrt()
    return torch.where(scales.isfinite(), scales, torch.ones_like(scales))
