"""Changes the weight of a quantized linear layer: multiplies its numbers out, and rounds the changed weight to the same
format, with scales of its own. Scales of activations stay as they are."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from seesay.checkpoint.quantization import Quantization
from seesay.device.linear.fp8 import FP8, MAX_FP8
from seesay.lite.methods.rounding import make_grid, pack, pack_awq, unpack, unpack_awq

_MAX_INT8 = 127
_LEAST_AMOUNT = 1e-12
_NAMES = {
    "awq": ("qweight", "qzeros", "scales"),
    "gptq": ("qweight", "qzeros", "scales", "g_idx"),
    "pack-quantized": ("weight_packed", "weight_scale", "weight_zero_point", "weight_g_idx", "weight_shape"),
}

Change = Callable[[Tensor], Tensor]
"""Returns the new weight, float32 [out, in], for the present one."""


def list_parts(quantization: Quantization) -> tuple[str, ...]:
    """Return the names of the tensors that stand for the weight of a quantized layer, behind the module's name. The
    first is in all such layers, and in no plain one."""
    return _NAMES.get(quantization.format, (quantization.scale_name, "weight"))


def check_parts(shapes: Mapping[str, Sequence[int]], quantization: Quantization, shape: tuple[int, int]) -> None:
    """Raise `ValueError`, which says what there is, for tensors that are not those of a weight [out, in] of `shape`."""
    num_outputs, num_inputs = shape
    if quantization.is_packed:
        per_word = 32 // quantization.bits
        inputs, outputs = -(-num_inputs // per_word), -(-num_outputs // per_word)
        words = {"awq": [num_inputs, outputs], "gptq": [inputs, num_outputs]}.get(
            quantization.format, [num_outputs, inputs]
        )
        groups = _count_groups(quantization, num_inputs)
        is_turned = quantization.format != "pack-quantized"
        expected = {
            "scales": [groups, num_outputs],
            "qzeros": [groups, outputs],
            "g_idx": [num_inputs],
            "weight_scale": [num_outputs, groups],
            "weight_zero_point": [outputs, groups],
            "weight_g_idx": [num_inputs],
            "weight_shape": [2],
            "qweight" if is_turned else "weight_packed": words,
        }
        if wrong := [name for name, found in shapes.items() if list(found) != expected[name]]:
            raise ValueError(f"{wrong[0]} {list(shapes[wrong[0]])}")
        return
    counts, _ = _divide(quantization, shape)
    if list(shapes["weight"]) != list(shape) or math.prod(shapes[quantization.scale_name]) != math.prod(counts):
        raise ValueError(f"weight {list(shapes['weight'])}, scales {list(shapes[quantization.scale_name])}")


def requantize(
    parts: Mapping[str, Tensor], quantization: Quantization, shape: tuple[int, int], change: Change
) -> dict[str, Tensor]:
    """Return the tensors of a layer whose weight [out, in] of this `shape` was changed, by their names in `parts`,
    whose shapes were checked. Raises `ValueError` where inputs belong to groups that are not there."""
    if quantization.is_packed:
        return _Packed(parts, quantization, shape).change(change)
    return _change_bytes(parts, quantization, shape, change)


def _divide(quantization: Quantization, shape: tuple[int, int]) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return the numbers of scales, and the sizes of what has a scale, by axes."""
    sizes = {"tensor": shape, "channel": (1, shape[1])}.get(quantization.strategy, quantization.block_size)
    return (-(-shape[0] // sizes[0]), -(-shape[1] // sizes[1])), sizes


def _count_groups(quantization: Quantization, num_inputs: int) -> int:
    return -(-num_inputs // min(quantization.group_size or num_inputs, num_inputs))


def _change_bytes(
    parts: Mapping[str, Tensor], quantization: Quantization, shape: tuple[int, int], change: Change
) -> dict[str, Tensor]:
    """FP8 and int8: a scale for the whole weight, for each output, or for each block."""
    stored, scale = parts["weight"], parts[quantization.scale_name]
    counts, sizes = _divide(quantization, shape)

    def spread(scales: Tensor) -> Tensor:
        rows = scales.float().view(counts).repeat_interleave(sizes[0], 0)[: shape[0]]
        return rows.repeat_interleave(sizes[1], 1)[:, : shape[1]]

    weight = change(stored.float() * spread(scale))
    padding = (0, counts[1] * sizes[1] - shape[1], 0, counts[0] * sizes[0] - shape[0])
    blocks = torch.nn.functional.pad(weight, padding).view(counts[0], sizes[0], counts[1], sizes[1])
    amounts = blocks.abs().amax((1, 3)).clamp(min=_LEAST_AMOUNT)
    largest = MAX_FP8 if quantization.format == "fp8" else _MAX_INT8
    new_scale = (amounts / largest).view(scale.shape).to(scale.dtype)
    numbers = (weight / spread(new_scale)).clamp(-largest, largest)
    kept = numbers.to(FP8) if quantization.format == "fp8" else numbers.round().to(stored.dtype)
    return {"weight": kept, quantization.scale_name: new_scale}


class _Packed:
    """Integers that are packed into words, with a scale and maybe a zero point for each group of inputs."""

    def __init__(self, parts: Mapping[str, Tensor], quantization: Quantization, shape: tuple[int, int]) -> None:
        self._parts, self._quantization, self._shape = parts, quantization, shape
        self._bits = quantization.bits
        self._middle = 1 << (self._bits - 1)
        self._scale_name = "weight_scale" if quantization.format == "pack-quantized" else "scales"
        num_groups = _count_groups(quantization, shape[1])
        order = next((parts[name] for name in ("g_idx", "weight_g_idx") if name in parts), None)
        in_order = torch.arange(shape[1]) // (quantization.group_size or shape[1])
        self._groups = in_order if order is None else order.long()
        if torch.unique(self._groups).tolist() != list(range(num_groups)):
            raise ValueError(f"inputs of other groups than 0 to {num_groups - 1}")

    def change(self, change: Change) -> dict[str, Tensor]:
        scale, zero = self._read_grid()
        at = self._groups
        weight = change((self._read_numbers() - zero[:, at]) * scale[:, at])
        stored = self._parts[self._scale_name]
        grouped = torch.split(weight.index_select(1, at.argsort(stable=True)), at.bincount().tolist(), dim=1)
        grid = make_grid(
            torch.stack([group.amin(1) for group in grouped], dim=1),
            torch.stack([group.amax(1) for group in grouped], dim=1),
            bits=self._bits,
            is_symmetric=self._is_symmetric,
            least_zero=self._quantization.zero_offset if self._quantization.format == "gptq" else 0,
        )
        grid = replace(grid, scale=grid.scale.to(stored.dtype).float())
        numbers = replace(grid, scale=grid.scale[:, at], zero=grid.zero[:, at]).round(weight)
        changed = {**self._pack(numbers, grid.zero), self._scale_name: self._turn(grid.scale).to(stored.dtype)}
        return {name: tensor.contiguous() for name, tensor in changed.items() if name in self._parts}

    @property
    def _is_symmetric(self) -> bool:
        return self._quantization.format != "awq" and self._quantization.is_symmetric

    def _turn(self, grid: Tensor) -> Tensor:
        """Return what is [out, groups] as it is stored, or the other way round."""
        return grid if self._quantization.format == "pack-quantized" else grid.t()

    def _read_numbers(self) -> Tensor:
        """Return the numbers float32 [out, in]."""
        if self._quantization.format == "awq":
            return unpack_awq(self._parts["qweight"]).t()[: self._shape[0]].float()
        if self._quantization.format == "gptq":
            return unpack(self._parts["qweight"].t(), self._bits)[:, : self._shape[1]].float()
        return unpack(self._parts["weight_packed"], self._bits)[:, : self._shape[1]].float()

    def _read_grid(self) -> tuple[Tensor, Tensor]:
        """Return scales and zero points, both float32 [out, groups]."""
        scale = self._turn(self._parts[self._scale_name]).float()
        if self._quantization.format == "awq":
            zero = unpack_awq(self._parts["qzeros"]).t()
        elif self._quantization.format == "gptq":
            zero = unpack(self._parts["qzeros"], self._bits).t() + self._quantization.zero_offset
        elif "weight_zero_point" in self._parts:
            zero = unpack(self._parts["weight_zero_point"].t(), self._bits).t()
        else:
            return scale, torch.full_like(scale, self._middle)
        return scale, zero[: len(scale)].float()

    def _pack(self, numbers: Tensor, zero: Tensor) -> dict[str, Tensor]:
        """Return the words of numbers [out, in] and zero points [out, groups], by their names in any of the formats."""
        if self._quantization.format == "awq":
            return {"qweight": pack_awq(numbers.t()), "qzeros": pack_awq(zero.t())}
        if self._quantization.format == "gptq":
            stored_zero = zero - self._quantization.zero_offset
            return {"qweight": pack(numbers, self._bits).t(), "qzeros": pack(stored_zero.t(), self._bits)}
        return {"weight_packed": pack(numbers, self._bits), "weight_zero_point": pack(zero.t(), self._bits).t()}
