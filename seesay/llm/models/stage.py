"""A decoder that is divided into stages, of some layers each.

The first stage has the embedding table, the last norm and the head beside its layers: what it samples is what it begins
the next step with, and grammars and penalties are there. So the last stage sends the residual stream back to it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from seesay.checkpoint.parts import Weight
from seesay.device.linear.linear import Linear
from seesay.device.ranks import Place
from seesay.errors import ConfigError
from seesay.llm.memory.kv_layout import LayerCache
from seesay.llm.models.composed_decoder import ComposedDecoder
from seesay.llm.models.decoder import ModelInput
from seesay.llm.models.layer import Layer
from seesay.llm.models.spec import DecoderConfig

_FLOPS_PER_WEIGHT = 2


class LaterStage(ComposedDecoder):
    """A stage behind the first one: layers, and nothing else. `forward` and `logits` are for trials of its kernels and
    memory, and what they return has no meaning."""

    @property
    def linears(self) -> dict[str, Linear]:
        return {path: linear for layer in self._layers for path, linear in layer.linears.items()}

    @property
    def plain_weights(self) -> list[Weight]:
        return [norm for layer in self._layers for norm in layer.norms]

    def _renew(self) -> None:
        self._max_few_rows = max(linear.max_fused_rows for linear in self.linears.values())

    def _compute(
        self,
        inputs: ModelInput,
        layers: Sequence[Layer],
        caches: Sequence[LayerCache],
        wanted: torch.Tensor | None,
    ) -> torch.Tensor:
        shape = len(inputs.input_ids), self.config.hidden_size
        residual = torch.zeros(shape, dtype=self.dtype, device=self.device)
        _, residual, left = self._run_layers(residual, inputs, layers, caches, wanted)
        return residual if left is None else residual.index_select(0, left)

    def logits(self, hidden: torch.Tensor, slots: npt.NDArray[np.int64] | None = None) -> torch.Tensor:
        assert slots is None, "stages have no adapters"
        return hidden.new_zeros(len(hidden), self.config.vocab_size)


def split_layers(config: DecoderConfig, place: Place) -> range:
    """Return the layers of a stage: as many as make all stages take the same time, with the head on the first one,
    which also adds what embeddings have for further layers (`num_deep_layers`). Raises `ConfigError` for fewer layers
    than stages, and for one that attends to media."""
    count, size = config.num_layers, place.size
    if config.traits.attends_media:
        raise ConfigError(f"pp={size}: a decoder that attends to pictures beside the text is not divided here")
    if count < size:
        raise ConfigError(f"pp={size}: the model has {count} layer{'s' * (count > 1)}, and each stage needs one")
    weights_per_layer = config.traits.flops_per_token / _FLOPS_PER_WEIGHT / count
    head = config.vocab_size * config.hidden_size / weights_per_layer
    least = max(1, min(config.num_deep_layers, count - size + 1))
    first = min(count - size + 1, max(least, round((count + head) / size - head)))
    borders = [0, *(first + (count - first) * rank // (size - 1) for rank in range(size))]
    return range(borders[place.rank], borders[place.rank + 1])
