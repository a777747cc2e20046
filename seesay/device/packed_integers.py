"""Weights of a few bits, packed into int32 as AWQ and GPTQ pack them. They are multiplied out when they are loaded.

AWQ: arXiv 2306.00978, layout of AutoAWQ's `WQLinear_GEMM`. GPTQ: arXiv 2210.17323, layout of AutoGPTQ's `QuantLinear`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import cache

import torch

from seesay.checkpoint.parts import INPUTS, NEITHER, OUTPUTS, TensorLayout, Weight
from seesay.checkpoint.quantization import Quantization
from seesay.device.linear_method import Product, Sizes, pad_matrix
from seesay.device.matmul import make_product
from seesay.errors import CheckpointError

logger = logging.getLogger("seesay")

_WORD_BITS = 32
_AWQ_PLACES = (0, 4, 1, 5, 2, 6, 3, 7)
"""Where AWQ has output 0, 1, … of each eight in a word, in fields of 4 bits from the lowest."""


class Awq:
    """`qweight` [in, out / 8], `qzeros` [in / group, out / 8], `scales` [in / group, out]."""

    def __init__(self, quantization: Quantization, dtype: torch.dtype) -> None:
        assert quantization.bits == 4
        self.name = "awq"
        self._group_size, self._dtype = quantization.group_size, dtype

    def layouts(self, num_inputs: int) -> Mapping[str, TensorLayout]:
        group = _group_axis(self._group_size, num_inputs)
        return {
            "qweight": _integers("qweight", (INPUTS, 1), (OUTPUTS, 8)),
            "qzeros": _integers("qzeros", group, (OUTPUTS, 8)),
            "scales": TensorLayout(name="scales", axes=(group, (OUTPUTS, 1)), dtype=torch.float32),
        }

    def prepare(self, weights: Mapping[str, Weight], bias: torch.Tensor | None, sizes: Sizes) -> Product:
        _check_scales(weights["scales"])
        _warn_on_gpu(self.name, weights["scales"].data.device)
        numbers = _unpack_awq(weights["qweight"].data)
        zeros, scales = _unpack_awq(weights["qzeros"].data), weights["scales"].data
        groups = torch.arange(sizes.inputs, device=scales.device) // (self._group_size or sizes.inputs)
        matrix = ((numbers - zeros[groups]) * scales[groups]).t().to(self._dtype)
        return make_product(pad_matrix(matrix, sizes).contiguous(), bias)


class Gptq:
    """`qweight` [in · bits / 32, out], `qzeros` [in / group, out · bits / 32], `scales` [in / group, out], and `g_idx`
    [in]: the group of each input, in any order where the most important ones were quantized first."""

    def __init__(self, quantization: Quantization, dtype: torch.dtype) -> None:
        self.name = f"gptq {quantization.bits}"
        self._quantization, self._dtype = quantization, dtype

    def layouts(self, num_inputs: int) -> Mapping[str, TensorLayout]:
        group = _group_axis(self._quantization.group_size, num_inputs)
        per_word = _WORD_BITS // self._quantization.bits
        return {
            "qweight": _integers("qweight", (INPUTS, per_word), (OUTPUTS, 1)),
            "qzeros": _integers("qzeros", group, (OUTPUTS, per_word)),
            "scales": TensorLayout(name="scales", axes=(group, (OUTPUTS, 1)), dtype=torch.float32),
            "g_idx": _integers("g_idx", (INPUTS, 1)),
        }

    def prepare(self, weights: Mapping[str, Weight], bias: torch.Tensor | None, sizes: Sizes) -> Product:
        _check_scales(weights["scales"])
        _warn_on_gpu(self.name, weights["scales"].data.device)
        bits = self._quantization.bits
        pieces = []
        for (_, words), (_, zero_words), (_, scales), (part, groups) in zip(
            *(weights[name].places() for name in ("qweight", "qzeros", "scales", "g_idx")), strict=True
        ):
            if not ((groups >= 0) & (groups < len(scales))).all():
                raise CheckpointError(f"tensor {part.tensor!r} has groups outside of 0 to {len(scales) - 1}")
            numbers = _unpack(words.t(), bits).t()
            zeros = _unpack(zero_words, bits) + self._quantization.zero_offset
            chosen = groups.long()
            pieces.append(((numbers - zeros[chosen]) * scales[chosen]).t().to(self._dtype))
        return make_product(pad_matrix(torch.cat(pieces), sizes).contiguous(), bias)


def _integers(name: str, *axes: tuple[int, int]) -> TensorLayout:
    return TensorLayout(name=name, axes=axes, dtypes=("I32",), dtype=torch.int32)


def _group_axis(group_size: int | None, num_inputs: int) -> tuple[int, int]:
    """Return the axis of groups of inputs; one group of all has no shards."""
    return (NEITHER, 1) if group_size is None or group_size >= num_inputs else (INPUTS, group_size)


def _unpack(words: torch.Tensor, bits: int) -> torch.Tensor:
    """Return the fields of int32 words [N, K] from the lowest on: int32 [N, K · 32 / bits]."""
    shifts = torch.arange(0, _WORD_BITS, bits, dtype=torch.int32, device=words.device)
    return ((words[:, :, None] >> shifts) & ((1 << bits) - 1)).flatten(1)


def _unpack_awq(words: torch.Tensor) -> torch.Tensor:
    """Return the fields of int32 words [N, K] in the order of outputs: int32 [N, K · 8]."""
    places = torch.tensor(_AWQ_PLACES, device=words.device)
    return _unpack(words, 4).view(*words.shape, 8).index_select(2, places).flatten(1)


def _check_scales(weight: Weight) -> None:
    for part, place in weight.places():
        if not place.isfinite().all():
            raise CheckpointError(f"tensor {part.tensor!r} has scales that are not finite")


def _warn_on_gpu(name: str, device: torch.device) -> None:
    if device.type == "cuda":
        _warn_once(name)


@cache
def _warn_once(name: str) -> None:
    logger.warning("%s weights are multiplied out: they take the memory and time of unquantized ones", name)
