"""Finds scales of input channels by the error of the whole layer's output on some of the calibration tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from seesay.device.linear.linear import UNQUANTIZED
from seesay.device.linear.linear_method import LinearMethod
from seesay.lite.calibration.batches import Batch
from seesay.lite.methods.folding import Pair, fold
from seesay.lite.methods.plain_layer import PlainLayer
from seesay.lite.methods.statistics import InputStatistics
from seesay.llm.memory.kv_cache import KVCache

MAX_TOKENS = 4096
"""Most tokens that scales are tried with, unless one batch has more."""
NUM_RATIOS = 20
FIXED_RATIO = 0.5

Quantize = Callable[[Tensor], Tensor]
MakeScales = Callable[[float], Tensor]


class ScaleSearch:
    """Tries scales for the channels of one layer.

    quantize(matrix): the matrix with the precision it will have. method_for(scales [in]): how the linear layer computes
    whose inputs are divided by scales and quantized; None where inputs are not quantized.
    """

    def __init__(
        self,
        layer: PlainLayer,
        batches: Sequence[Batch],
        cache: KVCache,
        quantize: Quantize,
        method_for: Callable[[Tensor], LinearMethod] | None = None,
    ) -> None:
        self._layer, self._cache = layer, cache
        self._quantize, self._method_for = quantize, method_for
        self._batches = _pick(batches)
        self._expected = [layer.run(batch, batch.hidden, cache) for batch in self._batches]

    def find(self, pair: Pair, make_scales: MakeScales) -> tuple[Tensor, float]:
        """Return the scales [heads · size] of `make_scales(ratio)`, for ratios from 0 to 1, with which the layer errs
        least if the pair's target is quantized, and their ratio. No scales, ratio -1, are among those that are tried.
        """
        best, ratio = torch.ones_like(make_scales(0.0)), -1.0
        least = self._error(pair, best)
        for step in range(NUM_RATIOS + 1):
            scales = make_scales(step / NUM_RATIOS)
            error = self._error(pair, scales)
            if error < least:
                best, least, ratio = scales, error, step / NUM_RATIOS
        return best, ratio

    def _error(self, pair: Pair, scales: Tensor) -> float:
        """Return the squared error of the layer's output with the target quantized after it was scaled."""
        layer, spread = self._layer, pair.spread(scales)
        matrix = self._quantize(layer.matrices[pair.target] * spread)
        if self._method_for is None:
            layer.use_matrix(pair.target, matrix / spread, UNQUANTIZED)
        else:
            layer.use_matrix(pair.target, matrix, self._method_for(spread))
        total = 0.0
        for batch, expected in zip(self._batches, self._expected, strict=True):
            difference = layer.run(batch, batch.hidden, self._cache) - expected
            total += float(difference.float().square().sum())
        layer.use_matrix(pair.target, layer.matrices[pair.target])
        return total


def _pick(batches: Sequence[Batch]) -> list[Batch]:
    """Return batches of at most `MAX_TOKENS` tokens, spread evenly; at least one."""
    mean = sum(batch.num_tokens for batch in batches) / len(batches)
    count = min(len(batches), max(1, int(MAX_TOKENS / mean)))
    return [batches[i * len(batches) // count] for i in range(count)]


def scale_pairs(
    layer: PlainLayer,
    statistics: Mapping[str, InputStatistics],
    pairs: Sequence[Pair],
    scales_for: Callable[[Pair, InputStatistics], MakeScales],
    search: ScaleSearch | None,
) -> tuple[dict[str, InputStatistics], dict[str, float]]:
    """Fold scales into a layer, pair by pair: of the ratio that `search` finds, or else of 0.5. Returns the statistics
    of the changed layer, and the ratios by target (-1: no scales)."""
    changed, ratios = dict(statistics), {}
    for pair in pairs:
        make_scales = scales_for(pair, changed[pair.inputs or pair.target])
        scales, ratio = make_scales(FIXED_RATIO), FIXED_RATIO
        if search is not None:
            scales, ratio = search.find(pair, make_scales)
        ratios[pair.target] = ratio
        if ratio >= 0:
            spread = fold(layer, pair, scales)
            changed |= {piece: changed[piece].divide(spread) for piece in pair.takers(layer) if piece in changed}
            layer.use()
    return changed, ratios
