"""Statistics of the inputs of a linear layer for calibration, gathered through `Linear.extend(observe=…)`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from seesay.errors import ConfigError
from seesay.lite.calibration.batches import Batch
from seesay.lite.methods.plain_layer import PlainLayer
from seesay.llm.memory.kv_cache import KVCache


@dataclass(frozen=True, slots=True, kw_only=True)
class InputStatistics:
    """Statistics over all tokens of a layer's inputs x, float32.

    abs_max, abs_mean [in]. gram [in / g, g, g]: the mean of x xᵀ within each group of g inputs, if it was asked for.
    """

    num_tokens: int
    abs_max: Tensor
    abs_mean: Tensor
    gram: Tensor | None = None

    def divide(self, scales: Tensor) -> InputStatistics:
        """Return the statistics of x / scales, for positive scales [in]."""
        gram = self.gram
        if gram is not None:
            grouped = scales.view(len(gram), -1)
            gram = gram / (grouped[:, :, None] * grouped[:, None, :])
        return InputStatistics(
            num_tokens=self.num_tokens, abs_max=self.abs_max / scales, abs_mean=self.abs_mean / scales, gram=gram
        )

    def need_gram(self) -> Tensor:
        assert self.gram is not None, "the statistics were gathered without it"
        return self.gram


class InputObserver:
    """Gathers the statistics of a layer with `num_inputs` inputs. group_size: of the Gram matrices; None for none."""

    def __init__(self, num_inputs: int, group_size: int | None) -> None:
        self._num_inputs, self._group_size = num_inputs, group_size
        self._num_tokens = 0
        self._abs_max: Tensor | None = None
        self._abs_sum: Tensor | None = None
        self._gram: Tensor | None = None

    def __call__(self, x: Tensor) -> None:
        x = x.detach().reshape(-1, x.shape[-1])[:, : self._num_inputs].float()
        size = x.abs()
        largest, total = size.amax(0), size.sum(0)
        self._num_tokens += len(x)
        self._abs_max = largest if self._abs_max is None else torch.maximum(self._abs_max, largest)
        self._abs_sum = total if self._abs_sum is None else self._abs_sum + total
        if self._group_size is not None:
            grouped = x.view(len(x), -1, self._group_size).transpose(0, 1)
            product = grouped.transpose(1, 2) @ grouped
            self._gram = product if self._gram is None else self._gram.add_(product)

    @property
    def num_tokens(self) -> int:
        return self._num_tokens

    def finish(self, what: str) -> InputStatistics:
        """Return what was gathered. Raises `ConfigError` if the layer saw no token or numbers that are not finite."""
        if self._abs_max is None or self._abs_sum is None:
            raise ConfigError(f"calib_dataset: {what} saw no token of it")
        if not (self._abs_max.isfinite().all() and self._abs_sum.isfinite().all()):
            raise ConfigError(f"dtype: the inputs of {what} are not finite: calibrate in another type")
        return InputStatistics(
            num_tokens=self._num_tokens,
            abs_max=self._abs_max,
            abs_mean=self._abs_sum / self._num_tokens,
            gram=None if self._gram is None else self._gram / self._num_tokens,
        )


def observe_layer(
    layer: PlainLayer, batches: Sequence[Batch], cache: KVCache, gram_size: Callable[[int], int | None]
) -> Mapping[str, InputStatistics]:
    """Return the statistics of all pieces of linear layers of `layer` over the batches, but for experts that no token
    chose. gram_size(number of inputs): the size of the groups of Gram matrices, or None."""
    observers = {
        piece: InputObserver(linear.in_features, gram_size(linear.in_features) if linear.is_quantizable else None)
        for name, linear in layer.linears.items()
        for piece in layer.name_pieces(name)
    }
    layer.observe(observers)
    for batch in batches:
        layer.run(batch, batch.hidden, cache)
    layer.observe({})
    return {
        name: observer.finish(f"layers.{layer.index}.{name}")
        for name, observer in observers.items()
        if observer.num_tokens or name in layer.linears
    }
