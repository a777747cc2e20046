"""How a linear layer is stored and multiplied with: the interface that bf16, fp8, int8 and int4 implement."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
import torch.nn.functional as F

from seesay.checkpoint.parts import TensorLayout, Weight
from seesay.device.linear.row_quantization import QuantizedRows, RowFormat

LinearKernel = Callable[[torch.Tensor], torch.Tensor]
FusedKernel = Callable[..., torch.Tensor]
RowKernel = Callable[[QuantizedRows], torch.Tensor]


class RowMatrix(NamedTuple):
    """A weight [out, in] whose outputs lie one after another: numbers of the type of activations, or of one byte with
    scales: float32 [out], or [out, groups of `group_size` inputs]."""

    numbers: torch.Tensor
    scale: torch.Tensor | None = None
    group_size: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """x Wᵀ + b with the weight of one layer, which lies in the layout that computes fastest.

    tensors: all that it computes with, bias included, and owns: what is copied into, moved to the host and back, or
        dropped. It keeps no other reference to their memory.
    run: x [..., in] → [..., out]. add: (target [N, out], x [N, in]), add x Wᵀ to target in place, without the bias.
    fused: as `few_row_matmul.multiply` with this weight and bias, for at most `max_fused_rows` rows;
        None if there is no such kernel. fuses_low_rank: whether it takes `products` of low rank with one row.
    run_rows: what `run` does after it has quantized its rows as `rows` says, so that what computes them can do that in
        the same pass; None if rows stay as they are.
    make_matrix: return the weight for kernels that multiply with some of its outputs; None if there is no such form.
    """

    tensors: tuple[torch.Tensor, ...]
    run: LinearKernel
    add: Callable[[torch.Tensor, torch.Tensor], None]
    rows: RowFormat | None = None
    run_rows: RowKernel | None = None
    fused: FusedKernel | None = None
    max_fused_rows: int = 0
    fuses_low_rank: bool = False
    make_matrix: Callable[[], RowMatrix] | None = None

    def try_copy(self, other: Product) -> bool:
        """Copy another product's tensors to the addresses of this one's, if they have the same types and layouts."""
        if list(map(_layout_of, self.tensors)) != list(map(_layout_of, other.tensors)):
            return False
        if any(tensor.layout is not torch.strided for tensor in self.tensors):  # packed by a library
            return False
        for tensor, new in zip(self.tensors, other.tensors, strict=True):
            tensor.copy_(new)
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Sizes of a linear layer: the outputs of each of its sources, its inputs, and the multiples up to which outputs of
    each source and inputs are padded with zeros in memory."""

    outputs: tuple[int, ...]
    inputs: int
    output_multiple: int = 1
    input_multiple: int = 1


class LinearMethod(Protocol):
    """A format of weights and the way to compute with it. One value serves many layers.

    makes_matrix: whether its products have the weight as a `RowMatrix` where kernels compute.
    """

    name: str

    @property
    def makes_matrix(self) -> bool: ...

    def layouts(self, num_inputs: int) -> Mapping[str, TensorLayout]:
        """Return the tensors that a checkpoint stores for each layer, besides its bias."""
        ...

    def prepare(self, weights: Mapping[str, Weight], bias: torch.Tensor | None, sizes: Sizes) -> Product:
        """Return the product with loaded tensors, of the names of `layouts`. `bias` is padded already. Raises
        `CheckpointError` that names a tensor whose values make no sense."""
        ...


def _layout_of(tensor: torch.Tensor) -> tuple[object, ...]:
    strides = tensor.stride() if tensor.layout is torch.strided else ()
    return tensor.shape, strides, tensor.dtype, tensor.device


def pad_matrix(weight: torch.Tensor, sizes: Sizes) -> torch.Tensor:
    """Pad the outputs of each source and the inputs of weight [outputs, inputs] with zeros."""
    return F.pad(pad_outputs(weight, sizes), (0, -sizes.inputs % sizes.input_multiple))


def pad_outputs(tensor: torch.Tensor, sizes: Sizes) -> torch.Tensor:
    """Pad the first axis of a tensor, the outputs, with zeros behind each source."""
    paddings = [-size % sizes.output_multiple for size in sizes.outputs]
    if not any(paddings):
        return tensor
    pieces = torch.split(tensor, list(sizes.outputs))
    behind = (0, 0) * (tensor.dim() - 1)
    return torch.cat([F.pad(piece, (*behind, 0, n)) for piece, n in zip(pieces, paddings, strict=True)])
