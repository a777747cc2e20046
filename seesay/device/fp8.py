"""FP8 weights (e4m3). On a GPU that multiplies FP8, weights keep one scale per output, and every token is scaled by its
own maximum; for a few tokens, weights are multiplied with plain activations. Elsewhere weights are multiplied out when
they are loaded, which is also the reference for tests.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import cache, partial

import torch

from seesay.checkpoint.parts import FLOATS, INPUTS, NEITHER, OUTPUTS, TensorLayout, Weight
from seesay.checkpoint.quantization import Quantization
from seesay.device.backends import has_kernels
from seesay.device.linear_method import Product, Sizes, pad_matrix
from seesay.device.matmul import make_product, max_fused_rows
from seesay.errors import CheckpointError

logger = logging.getLogger("seesay")

FP8 = torch.float8_e4m3fn
MAX_FP8 = 448.0
_ALIGNMENT = 16
"""cuBLASLt multiplies FP8 matrices whose sizes are multiples of this."""


class Fp8:
    """FP8 weights that a checkpoint has, with the scales that `quantization` describes."""

    def __init__(self, quantization: Quantization, dtype: torch.dtype) -> None:
        assert quantization.is_stored
        self.name = f"fp8 {quantization.strategy}"
        self._quantization, self._dtype = quantization, dtype

    def layouts(self, num_inputs: int) -> Mapping[str, TensorLayout]:  # noqa: ARG002
        quantization = self._quantization
        block = quantization.block_size
        axes = {
            "tensor": (),
            "channel": ((OUTPUTS, 1), (NEITHER, 1)),
            "block": ((OUTPUTS, block[0]), (INPUTS, block[1])),
        }[quantization.strategy]
        layouts = {
            "weight": TensorLayout(name="weight", axes=((OUTPUTS, 1), (INPUTS, 1)), dtypes=("F8_E4M3",), dtype=FP8),
            "scale": TensorLayout(name=quantization.scale_name, axes=axes, dtypes=FLOATS, dtype=torch.float32),
        }
        if quantization.has_input_scale:
            layouts["input_scale"] = TensorLayout(name="input_scale", axes=(), dtype=torch.float32)
        return layouts

    def prepare(self, weights: Mapping[str, Weight], bias: torch.Tensor | None, sizes: Sizes) -> Product:
        for name in weights.keys() - {"weight"}:
            _check_scales(weights[name])
        weight, scale = weights["weight"], weights["scale"]
        for part, place in weight.places():
            if place.float().isnan().any():
                raise CheckpointError(f"tensor {part.tensor!r} has numbers that are NaN")
        strategy = self._quantization.strategy
        if strategy == "block":
            return make_product(pad_matrix(self._multiply_out(weight, scale), sizes), bias)
        per_output = scale.data.flatten()
        if strategy == "tensor":
            counts = [len(place) for _, place in weight.places()]
            per_output = per_output.repeat_interleave(torch.tensor(counts, device=per_output.device))
        return make_channel_product(weight.data, per_output, bias, sizes, self._dtype)

    def _multiply_out(self, weight: Weight, scale: Weight) -> torch.Tensor:
        """Return the weight in the model's type, source by source: each begins with a block of its own."""
        rows, columns = self._quantization.block_size
        pieces = []
        for (_, numbers), (_, scales) in zip(weight.places(), scale.places(), strict=True):
            fine = scales.repeat_interleave(rows, 0)[: len(numbers)]
            fine = fine.repeat_interleave(columns, 1)[:, : numbers.shape[1]]
            pieces.append((numbers.float() * fine).to(self._dtype))
        return torch.cat(pieces)


class Fp8InFlight:
    """Plain weights, quantized with one scale per output when they are loaded."""

    name = "fp8 in flight"

    def layouts(self, num_inputs: int) -> Mapping[str, TensorLayout]:  # noqa: ARG002
        return {"weight": TensorLayout(name="weight", axes=((OUTPUTS, 1), (INPUTS, 1)))}

    def prepare(self, weights: Mapping[str, Weight], bias: torch.Tensor | None, sizes: Sizes) -> Product:
        weight = weights["weight"].data
        for part, place in weights["weight"].places():
            if not place.isfinite().all():
                raise CheckpointError(f"tensor {part.tensor!r} has numbers that are not finite")
        numbers, scale = quantize_rows(weight)
        return make_channel_product(numbers, scale.flatten(), bias, sizes, weight.dtype)


def quantize_rows(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return x [N, K] in FP8, and the scales float32 [N, 1] that give it back: the largest number of a row becomes
    the largest of FP8."""
    scale = x.abs().amax(dim=1, keepdim=True).float().clamp(min=1e-12) / MAX_FP8
    return (x.float() / scale).clamp(-MAX_FP8, MAX_FP8).to(FP8), scale


def make_channel_product(
    numbers: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor | None, sizes: Sizes, dtype: torch.dtype
) -> Product:
    """Return the product in `dtype` with FP8 numbers [out, in] and a scale float32 [out] per output."""
    reason = _why_not(numbers, sizes, dtype)
    if reason is None:
        return _make_scaled_product(numbers, scale, bias)
    if numbers.is_cuda:
        _warn_once(reason)
    weight = (numbers.float() * scale[:, None]).to(dtype)
    return make_product(pad_matrix(weight, sizes), bias)


def _why_not(numbers: torch.Tensor, sizes: Sizes, dtype: torch.dtype) -> str | None:
    """Return why FP8 matrices cannot be multiplied; None if they can."""
    if not numbers.is_cuda:
        return "the CPU does not multiply FP8"
    capability = torch.cuda.get_device_capability(numbers.device)
    if capability < (8, 9):
        return f"FP8 products need compute capability 8.9, this GPU has {capability[0]}.{capability[1]}"
    if dtype != torch.bfloat16:
        return f"FP8 products need dtype bfloat16, got {str(dtype).removeprefix('torch.')}"
    if any(n % _ALIGNMENT for n in numbers.shape) or sizes.output_multiple > 1 or sizes.input_multiple > 1:
        return f"FP8 products need sizes that are multiples of {_ALIGNMENT}, got {tuple(numbers.shape)}"
    return None


@cache
def _warn_once(reason: str) -> None:
    logger.warning("%s: such layers take the memory and time of unquantized ones", reason)


def _make_scaled_product(numbers: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor | None) -> Product:
    transposed, scale = numbers.t(), scale.contiguous()
    quantize = _pick_quantizer(numbers.device)

    def multiply(x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        quantized, row_scale = quantize(x)
        product: torch.Tensor = torch._scaled_mm(
            quantized, transposed, row_scale, scale[None, :], bias=bias, out_dtype=x.dtype, use_fast_accum=True
        )
        return product

    def run(x: torch.Tensor) -> torch.Tensor:
        shape = (*x.shape[:-1], transposed.shape[1])
        return multiply(x.flatten(0, -2), bias).view(shape) if x.numel() else x.new_empty(shape)

    def add(target: torch.Tensor, x: torch.Tensor) -> None:
        if x.numel():
            target.add_(multiply(x, None))

    tensors = (numbers, scale) if bias is None else (numbers, scale, bias)
    max_rows = max_fused_rows(numbers.device, torch.bfloat16)
    if not max_rows:
        return Product(tensors=tensors, run=run, add=add)
    from seesay.kernels.few_row_matmul import multiply as multiply_few

    fused = partial(multiply_few, weight=numbers, bias=bias, scale=scale)
    return Product(tensors=tensors, run=run, add=add, fused=fused, max_fused_rows=max_rows)


def _pick_quantizer(device: torch.device) -> Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]:
    """Return `quantize_rows`, or the kernel that does the same on this device."""
    if not has_kernels(device):
        return quantize_rows
    from seesay.kernels import quantize

    return partial(quantize.quantize_rows, largest=MAX_FP8)


def _check_scales(weight: Weight) -> None:
    for part, place in weight.places():
        if not (place.isfinite() & (place > 0)).all():
            raise CheckpointError(f"tensor {part.tensor!r} has scales that are not positive numbers")
