"""The product of rows with a packed matrix. On a GPU, kernels read the packed numbers, for a few rows and for some
hundred; for many rows the matrix is multiplied out for the moment. Elsewhere torch multiplies out some outputs at a
time, for each product: that needs little memory, is slow, and is the reference for the kernels' tests.

Where memory is plenty, the matrix is multiplied out once: products of many rows then take the time of plain weights.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from seesay.device.backends import has_kernels
from seesay.device.linear.linear_method import FusedKernel, Product, RowMatrix
from seesay.device.linear.matmul import make_product
from seesay.device.linear.packed_weight import PackedWeight, cut_outputs
from seesay.device.linear.scaled_weights import multiply_out as multiply_scales_out
from seesay.device.linear.scaled_weights import warn_multiplied_out
from seesay.device.query import find_capability

if TYPE_CHECKING:
    from seesay.kernels.packed.packed_numbers import PackedTensors

logger = logging.getLogger("seesay")

_ELEMENTS_FOR_MANY_ROWS = 1 << 28
"""Elements of a matrix that are multiplied out at a time for many rows, on a GPU."""
_BYTES = torch.iinfo(torch.int8)
_CAPABILITY = (8, 0)
"""The first GPUs that compute with bfloat16."""

_Multiply = Callable[[torch.Tensor, torch.Tensor | None], torch.Tensor]
"""x [N, in] and a bias to x Wᵀ + b, N ≥ 1."""


def make_packed_product(
    weight: PackedWeight, bias: torch.Tensor | None, dtype: torch.dtype, *, has_plain_copy: bool = False
) -> Product:
    """Return the product in `dtype` with a packed matrix and bias [out], by the fastest way of the device.
    has_plain_copy: keep the matrix multiplied out, too; only so, where no kernels read packed numbers."""
    device = weight.words.device
    reason = None if device.type == "cpu" else _why_no_kernels(device, dtype)
    if device.type != "cpu" and reason is None:
        return _make_kernel_product(weight, bias, dtype, has_plain_copy=has_plain_copy)
    if has_plain_copy:
        return _make_plain_product(weight, bias, dtype)
    if reason is not None:
        _warn_once(reason)
    return make_torch_product(weight, bias, dtype)


def make_torch_product(weight: PackedWeight, bias: torch.Tensor | None, dtype: torch.dtype) -> Product:
    """Return the product that torch computes, on any device and in any type. dtype: of its `make_matrix`."""

    def multiply(x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        x, num_outputs = x[:, : weight.num_inputs], len(weight.words)
        pieces = [
            F.linear(x, weight.multiply_out(start, stop, x.dtype), None if bias is None else bias[start:stop])
            for start, stop in cut_outputs(num_outputs, weight.num_inputs)
        ]
        return torch.cat(pieces, dim=1)

    return _make_product(weight.tensors, bias, multiply, partial(make_row_matrix, weight, dtype))


def make_row_matrix(weight: PackedWeight, dtype: torch.dtype) -> RowMatrix:
    """Return the matrix with a byte for each number: int8, less its zero point, with the scales of groups. Multiplied
    out in `dtype`, with a warning, where no kernel could scale that."""
    device, num_outputs = weight.words.device, len(weight.words)
    reason = _why_no_bytes(weight)
    numbers = torch.empty(num_outputs, weight.num_inputs, dtype=dtype if reason else torch.int8, device=device)
    for start, stop in cut_outputs(num_outputs, weight.num_inputs):
        numbers[start:stop] = weight.multiply_out(start, stop, dtype) if reason else weight.differences(start, stop)
    if reason is not None:
        if device.type != "cpu":
            warn_multiplied_out(reason)
        return RowMatrix(numbers)
    scales = weight.scales.float()
    return RowMatrix(numbers, scales[0]) if len(scales) == 1 else RowMatrix(numbers, scales.t(), weight.group_size)


def _why_no_bytes(weight: PackedWeight) -> str | None:
    """Return why kernels cannot compute with a byte for each number; None if they can."""
    if weight.order is not None:
        return "experts whose inputs are sorted by importance (desc_act, actorder) have no kernel"
    if len(weight.scales) > 1 and weight.group_size & (weight.group_size - 1):
        return f"experts in groups of inputs need a power of two of them, got {weight.group_size}"
    if weight.bits == 8 and not weight.words.is_meta:
        for start, stop in cut_outputs(len(weight.words), weight.num_inputs):
            least, most = weight.differences(start, stop).aminmax()
            if least < _BYTES.min or most > _BYTES.max:
                return "experts in 8 bits need numbers that differ by less than a byte from their zero points"
    return None


def _make_plain_product(weight: PackedWeight, bias: torch.Tensor | None, dtype: torch.dtype) -> Product:
    """Return the product with a matrix that is multiplied out."""
    plain = make_product(weight.multiply_out(0, len(weight.words), dtype), bias)
    num_inputs = weight.num_inputs

    def run(x: torch.Tensor) -> torch.Tensor:
        return plain.run(x[..., :num_inputs])

    def add(target: torch.Tensor, x: torch.Tensor) -> None:
        plain.add(target, x[:, :num_inputs])

    return Product(tensors=plain.tensors, run=run, add=add, make_matrix=partial(make_row_matrix, weight, dtype))


def join_products(products: Sequence[Product], bias: torch.Tensor | None, dtype: torch.dtype) -> Product:
    """Return the product whose outputs are those of `products`, which have no bias, one after another, plus `bias`."""

    def run(x: torch.Tensor) -> torch.Tensor:
        y = torch.cat([product.run(x) for product in products], dim=-1)
        return y if bias is None else y.add_(bias)

    def add(target: torch.Tensor, x: torch.Tensor) -> None:
        target.add_(torch.cat([product.run(x) for product in products], dim=-1))

    def make_matrix() -> RowMatrix:
        return RowMatrix(torch.cat([_multiply_matrix_out(product, dtype) for product in products]))

    tensors = tuple(tensor for product in products for tensor in product.tensors)
    tensors = tensors if bias is None else (*tensors, bias)
    return Product(tensors=tensors, run=run, add=add, make_matrix=make_matrix)


def _multiply_matrix_out(product: Product, dtype: torch.dtype) -> torch.Tensor:
    assert product.make_matrix is not None
    numbers, scale, group_size = product.make_matrix()
    if scale is None:
        return numbers
    return multiply_scales_out(numbers, scale.view(len(numbers), -1), group_size or numbers.shape[1], dtype)


def _make_kernel_product(
    weight: PackedWeight, bias: torch.Tensor | None, dtype: torch.dtype, *, has_plain_copy: bool
) -> Product:
    from seesay.kernels.packed import packed_matmul
    from seesay.kernels.packed.packed_numbers import multiply_out
    from seesay.kernels.packed.packed_tilings import MAX_FUSED_ROWS, MAX_ROWS_BESIDE_COPY, max_tiled_rows

    packed, num_outputs = to_kernel(weight, dtype), len(weight.words)
    most_tiled = MAX_ROWS_BESIDE_COPY if has_plain_copy else max_tiled_rows(num_outputs)
    plain = multiply_out(packed, 0, num_outputs, dtype) if has_plain_copy else None

    def multiply(x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        x = x if x.stride(1) == 1 else x.contiguous()
        if len(x) <= MAX_FUSED_ROWS:
            return packed_matmul.multiply_few(x, packed, bias)
        if len(x) <= most_tiled:
            return packed_matmul.multiply_tiles(x, packed, bias)
        x = x[:, : weight.num_inputs]
        if plain is not None:
            return F.linear(x, plain, bias)
        pieces = [
            F.linear(x, multiply_out(packed, start, stop, x.dtype), None if bias is None else bias[start:stop])
            for start, stop in cut_outputs(num_outputs, weight.num_inputs, _ELEMENTS_FOR_MANY_ROWS)
        ]
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces, dim=1)

    fused = partial(packed_matmul.multiply_few, packed=packed, bias=bias)
    tensors = packed.tensors if plain is None else (*packed.tensors, plain)
    make_matrix = partial(make_row_matrix, weight, dtype)
    return _make_product(tensors, bias, multiply, make_matrix, fused=fused, max_fused_rows=MAX_FUSED_ROWS)


def to_kernel(weight: PackedWeight, dtype: torch.dtype) -> PackedTensors:
    """Return the matrix as kernels read it for rows of a 16-bit type."""
    from seesay.kernels.packed.packed_numbers import PackedTensors, join_factors

    return PackedTensors(
        words=weight.words,
        factors=join_factors(weight.scales, weight.zeros, weight.bits, dtype),
        order=weight.order,
        num_inputs=weight.num_inputs,
        group_size=weight.group_size,
        width=weight.width,
        bits=weight.bits,
    )


def _make_product(
    tensors: tuple[torch.Tensor, ...],
    bias: torch.Tensor | None,
    multiply: _Multiply,
    make_matrix: Callable[[], RowMatrix],
    fused: FusedKernel | None = None,
    max_fused_rows: int = 0,
) -> Product:
    num_outputs = len(tensors[0])

    def run(x: torch.Tensor) -> torch.Tensor:
        shape = (*x.shape[:-1], num_outputs)
        return multiply(x.flatten(0, -2), bias).view(shape) if x.numel() else x.new_empty(shape)

    def add(target: torch.Tensor, x: torch.Tensor) -> None:
        if x.numel():
            target.add_(multiply(x, None))

    tensors = tensors if bias is None else (*tensors, bias)
    return Product(
        tensors=tensors, run=run, add=add, fused=fused, max_fused_rows=max_fused_rows, make_matrix=make_matrix
    )


def _why_no_kernels(device: torch.device, dtype: torch.dtype) -> str | None:
    """Return why kernels cannot multiply packed numbers; None if they can."""
    if not has_kernels(device):
        return "products with packed weights need Triton"
    capability = find_capability(device)
    if capability < _CAPABILITY:
        had = f"this GPU has {capability[0]}.{capability[1]}" if any(capability) else f"{device.type} has none"
        return f"products with packed weights need compute capability 8.0, {had}"
    if dtype.itemsize != 2:
        return f"products with packed weights need dtype bfloat16 or float16, got {str(dtype).removeprefix('torch.')}"
    return None


@cache
def _warn_once(reason: str) -> None:
    logger.warning("%s: they are multiplied out for each product, which is slow", reason)
