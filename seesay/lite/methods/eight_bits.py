"""Weights in eight bits with one scale per output, for activations that are quantized token by token: FP8 without
calibration, and SmoothQuant (arXiv 2211.10438), which moves outliers of activations into weights first. Written in
compressed-tensors' formats.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from seesay.checkpoint.parts import TensorLayout, Weight
from seesay.config.checks import require
from seesay.device.linear.linear import UNQUANTIZED
from seesay.device.linear.linear_method import Product, Sizes
from seesay.device.linear.row_quantization import FP8_ROWS, INT8_ROWS, quantize_rows
from seesay.lite.methods.folding import Pair, norm_pairs
from seesay.lite.methods.method import Calibrated, PlainMatrix, Quantized, nothing_prepared, split_excluded
from seesay.lite.methods.plain_layer import PlainLayer
from seesay.lite.methods.rounding import round_rows_fp8, round_rows_int8
from seesay.lite.methods.search import MakeScales, ScaleSearch, scale_pairs
from seesay.lite.methods.statistics import InputStatistics

QuantDtype = Literal["int8", "fp8"]


class EightBits:
    """quant_dtype: of weights and activations. smooths: move scales into the norms; searches: choose each layer's ratio
    by the error, else it is 0.5."""

    def __init__(self, *, quant_dtype: QuantDtype, smooths: bool, searches: bool) -> None:
        require(quant_dtype in ("int8", "fp8"), "quant_dtype", quant_dtype, "must be 'int8' or 'fp8'")
        self.name = f"smooth_quant {quant_dtype}" if smooths else quant_dtype
        self.needs_inputs = smooths
        self._dtype, self._searches = quant_dtype, searches

    def gram_size(self, num_inputs: int) -> int | None:  # noqa: ARG002
        return None

    def config(self, excluded: Sequence[str]) -> dict[str, Any]:
        is_float = self._dtype == "fp8"
        common = {"num_bits": 8, "type": "float" if is_float else "int", "symmetric": True}
        group = {
            "targets": ["Linear"],
            "weights": {**common, "strategy": "channel", "dynamic": False},
            "input_activations": {**common, "strategy": "token", "dynamic": True},
            "output_activations": None,
        }
        return {
            "quant_method": "compressed-tensors",
            "format": "float-quantized" if is_float else "int-quantized",
            "quantization_status": "compressed",
            "global_compression_ratio": None,
            "config_groups": {"group_0": group},
            "ignore": ["lm_head", *_list_patterns(excluded)],
            "kv_cache_scheme": None,
        }

    def check_sizes(self, what: str, num_outputs: int, num_inputs: int) -> None:
        """Any size will do."""

    def prepare(self, layer: PlainLayer, calibrated: Calibrated) -> tuple[Calibrated, dict[str, Any]]:
        if not self.needs_inputs:
            return nothing_prepared(calibrated)
        search = None
        if self._searches:
            search = ScaleSearch(
                layer, calibrated.batches, calibrated.cache, self._round, lambda scales: _Simulated(scales, self._dtype)
            )

        def scales_for(pair: Pair, inputs: InputStatistics) -> MakeScales:
            return partial(_make_scales, inputs.abs_max, layer.matrices[pair.target].abs().amax(0))

        pairs = norm_pairs(layer)
        statistics, ratios = scale_pairs(layer, calibrated.statistics, pairs, scales_for, search)
        return replace(calibrated, statistics=statistics), {"ratios": ratios}

    def quantize(self, plain: PlainMatrix) -> Quantized:
        dtype = torch.bfloat16 if plain.stored_type == torch.bfloat16 else torch.float32
        round_rows = round_rows_fp8 if self._dtype == "fp8" else round_rows_int8
        numbers, scale = round_rows(plain.data, dtype)
        return Quantized(tensors={"weight": numbers, "scale": scale}, matrix=numbers.float() * scale.float())

    def _round(self, matrix: Tensor) -> Tensor:
        round_rows = round_rows_fp8 if self._dtype == "fp8" else round_rows_int8
        numbers, scale = round_rows(matrix, torch.float32)
        return numbers.float() * scale


def _list_patterns(excluded: Sequence[str]) -> list[str]:
    """Return the entries of `ignore` for modules and all in them, in newer and older spellings of their names. Modules
    of layers have one for all layers: there may be many of them, and many others to be compared with each."""
    outside, inside = split_excluded(excluded)
    found = [f"re:(.*\\.)?{re.escape(module)}(\\..*)?$" for module in outside]
    return found + [f"re:.*\\.{re.escape(name)}$" for name in inside]


class _Simulated:
    """Computes with inputs divided by scales [in] and rounded token by token, as an engine will."""

    name = "simulated"
    makes_matrix = False

    def __init__(self, scales: Tensor, dtype: QuantDtype) -> None:
        self._scales, self._dtype = scales, dtype

    def layouts(self, num_inputs: int) -> Mapping[str, TensorLayout]:
        return UNQUANTIZED.layouts(num_inputs)

    def prepare(self, weights: Mapping[str, Weight], bias: Tensor | None, sizes: Sizes) -> Product:  # noqa: ARG002
        weight = weights["weight"].data

        def run(x: Tensor) -> Tensor:
            return F.linear(_round_tokens(x / self._scales.to(x.dtype), self._dtype), weight, bias)

        def add(target: Tensor, x: Tensor) -> None:
            target.add_(run(x) if bias is None else run(x) - bias)

        return Product(tensors=(weight,) if bias is None else (weight, bias), run=run, add=add)


def _round_tokens(x: Tensor, dtype: QuantDtype) -> Tensor:
    rows = x.flatten(0, -2)
    numbers, scale = quantize_rows(rows, FP8_ROWS if dtype == "fp8" else INT8_ROWS)[:2]
    return (numbers.float() * scale).to(x.dtype).view_as(x)


def _make_scales(inputs: Tensor, weights: Tensor, ratio: float) -> Tensor:
    """Return scales that leave (1 - ratio) of the inputs' range with them, and move the rest into the weights."""
    scales = inputs.clamp(min=1e-5) ** ratio / weights.clamp(min=1e-5) ** (1 - ratio)
    scales = scales / (scales.max() * scales.min()).sqrt()
    return scales.clamp(min=1e-5)
