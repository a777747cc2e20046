"""The calibration set on its way through the decoder, layer by layer: through the quantized layers, and what is held
out of calibration through the plain ones, too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from seesay.checkpoint import Checkpoint
from seesay.lite.calibration.batches import Batch, Prompt, check_memory, make_batches, make_cache
from seesay.lite.methods.method import Calibrated, Method
from seesay.lite.methods.plain_layer import PlainLayer, Source
from seesay.lite.methods.statistics import InputStatistics, observe_layer
from seesay.llm.models.composed_decoder import ComposedDecoder

_MAX_LOGITS = 1 << 26
"""Most logits that are made at once."""


class Passage:
    """Hidden states of all prompts before the next layer.

    batches: those of the calibration set behind quantized layers. Hidden states are in host memory, within the limit of
    `check_memory`.
    """

    def __init__(self, source: Source, prompts: Sequence[Prompt], held_out: Sequence[Prompt], batch_size: int) -> None:
        self._source = source
        config, dtype = source.config, source.dtype
        self.batches = make_batches(prompts, config, batch_size)
        self._plain_held_out = make_batches(held_out, config, batch_size)
        self._held_out = make_batches(held_out, config, batch_size)
        everything = [*self.batches, *self._plain_held_out, *self._held_out]
        check_memory(everything, config, dtype)
        self._cache = make_cache(everything, config, device=source.device, dtype=dtype)
        decoder = source.load_ends(embeds=True)
        for batch in everything:
            batch.hidden = decoder.embed(batch.make_input(source.device)).cpu()

    @property
    def num_tokens(self) -> int:
        """Tokens of the calibration set."""
        return sum(batch.num_tokens for batch in self.batches)

    def calibrate(self, layer: PlainLayer, method: Method) -> Calibrated:
        """Return what `method` must know of the layer's inputs."""
        statistics = observe_layer(layer, self.batches, self._cache, method.gram_size)
        return Calibrated(statistics=statistics, batches=self.batches, cache=self._cache)

    def observe(self, layer: PlainLayer) -> dict[str, InputStatistics]:
        """Return the statistics of the layer's inputs without Gram matrices."""
        return dict(observe_layer(layer, self.batches, self._cache, lambda _: None))

    def advance(self, layer: PlainLayer, quantized: Checkpoint | None) -> float | None:
        """Let all prompts pass the layer, as `quantized` has it or else plain. Returns the squared error of what the
        quantized layer adds to the residual stream, relative to that of the plain one."""
        decoder = None if quantized is None else self._source.load_quantized(layer.index, quantized)
        off = total = 0.0
        for batch in self.batches:
            expected = layer.run(batch, batch.hidden, self._cache)
            got = expected if decoder is None else self._run(decoder, layer.index, batch)
            total += _sum_of_squares(expected - batch.hidden.to(expected.device))
            off += _sum_of_squares(got - expected)
            batch.hidden = got.cpu()
        for batch in self._plain_held_out:
            batch.hidden = layer.run(batch, batch.hidden, self._cache).cpu()
        if decoder is None:
            return None
        for batch in self._held_out:
            batch.hidden = self._run(decoder, layer.index, batch).cpu()
        return off / max(total, 1e-30)

    def perplexities(self) -> tuple[int, float, float]:
        """Behind the last layer, return the number of held-out text tokens, and the perplexity of the plain and of the
        quantized model for them."""
        decoder = self._source.load_ends(embeds=False)
        num_tokens, plain = _sum_losses(decoder, self._plain_held_out)
        _, quantized = _sum_losses(decoder, self._held_out)
        count = max(1, num_tokens)
        return num_tokens, math.exp(min(plain / count, 700.0)), math.exp(min(quantized / count, 700.0))

    def _run(self, decoder: ComposedDecoder, index: int, batch: Batch) -> Tensor:
        return self._source.run(decoder, index, batch, batch.hidden, self._cache)


def _sum_losses(decoder: ComposedDecoder, batches: Sequence[Batch]) -> tuple[int, float]:
    """Return the number of text tokens and the sum of their negative log-probabilities."""
    count, total = 0, 0.0
    rows_at_once = max(1, _MAX_LOGITS // decoder.config.vocab_size)
    for batch in batches:
        rows, targets = batch.text_targets()
        hidden = decoder.normalize(batch.hidden[rows].to(decoder.device))
        for piece, wanted in zip(torch.split(hidden, rows_at_once), torch.split(targets, rows_at_once), strict=True):
            logits = decoder.logits(piece).float()
            total += float(torch.nn.functional.cross_entropy(logits, wanted.to(logits.device), reduction="sum"))
        count += len(targets)
    return count, total


def _sum_of_squares(x: Tensor) -> float:
    return float(x.float().square().sum())
