"""GPTQ (arXiv 2210.17323): columns are rounded one after another, and those behind make up for the error of each.
Written in the layout of AutoGPTQ's `QuantLinear`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from seesay.config.checks import require
from seesay.errors import ConfigError
from seesay.lite.methods.awq import GROUP_SIZES
from seesay.lite.methods.method import Calibrated, PlainMatrix, Quantized, nothing_prepared, split_excluded
from seesay.lite.methods.plain_layer import PlainLayer
from seesay.lite.methods.rounding import Grid, make_grid, pack
from seesay.version import __version__

_BLOCK = 128
_MAX_DAMPINGS = 8


class GptqMethod:
    """orders_by_activation: round the columns with the largest inputs first. has_static_groups: groups are neighbouring
    columns all the same, with scales found before any column is rounded; else columns are grouped as they are ordered
    (`desc_act`)."""

    name = "gptq"
    needs_inputs = True

    def __init__(
        self,
        *,
        bits: int,
        group_size: int,
        is_symmetric: bool,
        orders_by_activation: bool,
        damping: float,
        has_static_groups: bool = False,
    ) -> None:
        require(bits in (4, 8), "w_bits", bits, "must be 4 or 8")
        require(group_size in GROUP_SIZES, "w_group_size", group_size, "must be 32, 64, 128 or -1")
        require(0 < damping < 1, "damp_percent", damping, "must be above 0 and below 1")
        self._bits, self._group_size, self._is_symmetric = bits, group_size, is_symmetric
        self._orders, self._damping = orders_by_activation, damping
        self._has_static_groups = has_static_groups

    def gram_size(self, num_inputs: int) -> int | None:
        return num_inputs

    def config(self, excluded: Sequence[str]) -> dict[str, Any]:
        return {
            "quant_method": "gptq",
            "checkpoint_format": "gptq",
            "bits": self._bits,
            "group_size": self._group_size,
            "sym": self._is_symmetric,
            "desc_act": self._orders and not self._has_static_groups,  # engines read it as: inputs are not in order
            "static_groups": self._has_static_groups,
            "true_sequential": False,
            "damp_percent": self._damping,
            "lm_head": False,
            "modules_to_not_convert": list(excluded) or None,
            **_exclude_in_layers(excluded),
            "meta": {"quantizer": [f"seesay:{__version__}"]},
        }

    def check_sizes(self, what: str, num_outputs: int, num_inputs: int) -> None:
        if num_inputs % self._size(num_inputs):
            raise ConfigError(f"w_group_size={self._group_size}: {what} has {num_inputs} inputs, which it must divide")
        per_word = 32 // self._bits
        if num_outputs % per_word or num_inputs % per_word:
            raise ConfigError(
                f"auto_gptq: {what} has {num_outputs} outputs and {num_inputs} inputs; with {self._bits} bits GPTQ's "
                f"format needs multiples of {per_word}"
            )

    def prepare(self, layer: PlainLayer, calibrated: Calibrated) -> tuple[Calibrated, dict[str, Any]]:  # noqa: ARG002
        return nothing_prepared(calibrated)

    def quantize(self, plain: PlainMatrix) -> Quantized:
        matrix, num_inputs = plain.data, plain.data.shape[1]
        # Without inputs no column is more important than others, and none makes up for the error of another.
        gram = torch.eye(num_inputs, device=matrix.device) if plain.inputs is None else plain.inputs.need_gram()[0]
        order = torch.arange(num_inputs, device=matrix.device)
        if self._orders:
            order = torch.argsort(gram.diagonal(), descending=True, stable=True)
        places, size = torch.argsort(order), self._size(num_inputs)
        groups = torch.arange(num_inputs, device=matrix.device) // size
        grids: list[Grid] = []
        if self._has_static_groups:
            used = matrix.masked_fill(gram.diagonal() == 0, 0)
            grids = [self._make_grid(columns) for columns in torch.split(used, size, dim=1)]
            groups_in_order = groups[order]
        else:
            groups_in_order, groups = groups, groups[places]
        numbers = self._round_columns(matrix[:, order], gram[order][:, order], groups_in_order.tolist(), grids)
        numbers = numbers[:, places]
        scale, zero = torch.cat([grid.scale for grid in grids], 1), torch.cat([grid.zero for grid in grids], 1)
        tensors = {
            "qweight": pack(numbers, self._bits).t(),
            "qzeros": pack((zero - 1).t(), self._bits),
            "scales": scale.t().half(),
            "g_idx": groups.to(torch.int32),
        }
        exact = (numbers - zero[:, groups]) * scale[:, groups]
        return Quantized(tensors=tensors, matrix=exact)

    def _size(self, num_inputs: int) -> int:
        return num_inputs if self._group_size == -1 else self._group_size

    def _round_columns(self, weight: Tensor, hessian: Tensor, groups: Sequence[int], grids: list[Grid]) -> Tensor:
        """Return the numbers [out, in] of weight, column by column.

        groups: the group of each column. grids: that of each group, [out, 1]. Where a group has none yet, its grid is
        found when its first column is reached, and added.
        """
        num_inputs = weight.shape[1]
        size = self._size(num_inputs)
        weight = weight.clone()
        is_dead = hessian.diagonal() == 0
        weight[:, is_dead] = 0
        factor = _invert(hessian, self._damping)
        numbers = torch.empty_like(weight)
        for start in range(0, num_inputs, _BLOCK):
            stop = min(start + _BLOCK, num_inputs)
            errors = torch.empty_like(weight[:, start:stop])
            for column in range(start, stop):
                if groups[column] == len(grids):
                    grids.append(self._make_grid(weight[:, column : column + size]))
                grid = grids[groups[column]]
                rounded = grid.round(weight[:, column, None])
                numbers[:, column] = rounded[:, 0]
                error = (weight[:, column] - grid.restore(rounded)[:, 0]) / factor[column, column]
                weight[:, column:stop] -= error[:, None] * factor[column, column:stop]
                errors[:, column - start] = error
            weight[:, stop:] -= errors @ factor[start:stop, stop:]
        return numbers

    def _make_grid(self, weight: Tensor) -> Grid:
        low, high = weight.amin(1, keepdim=True), weight.amax(1, keepdim=True)
        # The format stores zero points less by one, so 0 has no place.
        return make_grid(low, high, bits=self._bits, is_symmetric=self._is_symmetric, least_zero=1)


def _exclude_in_layers(excluded: Sequence[str]) -> dict[str, object]:
    """Return what GPTQModel calls modules of layers that stay plain, whatever a model calls its layers."""
    _, names = split_excluded(excluded)
    return {"dynamic": {f"-:.*\\.{re.escape(name)}$": {} for name in names}} if names else {}


def _invert(hessian: Tensor, damping: float) -> Tensor:
    """Return the upper Cholesky factor of the inverse of a damped Hessian [in, in]. Damping grows until it has one."""
    hessian = hessian.clone()
    diagonal = hessian.diagonal()
    diagonal[diagonal == 0] = 1
    mean = diagonal.mean()
    for _ in range(_MAX_DAMPINGS):
        diagonal += damping * mean
        lower, failed = torch.linalg.cholesky_ex(hessian)
        if not failed:
            inverse = torch.cholesky_inverse(lower)
            upper: Tensor
            upper, failed = torch.linalg.cholesky_ex(inverse, upper=True)
            if not failed:
                return upper
        damping *= 4
    raise ConfigError("damp_percent: the calibration data has no invertible Hessian: give more calibration samples")
