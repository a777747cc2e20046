"""The layer with which some checkpoints predict the token after the next one (DeepSeek-V3, section 2.2), as a decoder.

A position takes the embedding of its token and the hidden state of the model one position before; both go through norms
of their own, and side by side through a product. What is behind the layer is the hidden state for the token after.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import torch

from seesay.checkpoint.parts import Source, Weight
from seesay.device.linear.linear import Linear
from seesay.errors import ConfigError
from seesay.llm.memory.kv_layout import LayerCache
from seesay.llm.models.composed_decoder import ComposedDecoder
from seesay.llm.models.decoder import ModelInput
from seesay.llm.models.division import WHOLE, Division
from seesay.llm.models.layer import Layer
from seesay.llm.models.norm import make_norm
from seesay.llm.models.spec import DecoderConfig

_JOIN = "eh_proj"
_SHARED = {
    "shared_head.norm.weight": "norm.weight",
    "shared_head.head.weight": "lm_head.weight",
    "embed_tokens.weight": "embed_tokens.weight",
}
"""Tensors of the layer that have another name in a decoder of its own."""
_OWN_NORMS = ("enorm", "hnorm")
_OWN = tuple(f"{name}." for name in (*_OWN_NORMS, _JOIN))


class PredictingDecoder(ComposedDecoder):
    """A `Decoder` of that layer. The embeddings of its input are hidden states [R, hidden] of the model.

    states: the hidden states before the last norm of what `forward` has returned last.
    """

    states: torch.Tensor

    def __init__(
        self,
        config: DecoderConfig,
        *,
        device: torch.device,
        dtype: torch.dtype,
        division: Division = WHOLE,
        layers: range | None = None,
    ) -> None:
        """See `ComposedDecoder`."""
        super().__init__(config, device=device, dtype=dtype, division=division, layers=layers)
        size = config.hidden_size
        with torch.device("meta"):
            self._join = Linear(2 * size, sources=[Source(module=_JOIN, num_outputs=size)], bias=False)
        self._token_norm, self._state_norm = (make_norm(name, size, config.norm, self._ops) for name in _OWN_NORMS)

    @property
    def linears(self) -> dict[str, Linear]:
        return super().linears | {_JOIN: self._join}

    @property
    def plain_weights(self) -> list[Weight]:
        return [*super().plain_weights, *self._token_norm.weights, *self._state_norm.weights]

    def embed(self, inputs: ModelInput) -> torch.Tensor:
        """Return what the layer takes: [T, hidden]. A token without a hidden state takes zeros."""
        tokens = self._table.look_up(inputs.input_ids)
        states = torch.zeros_like(tokens)
        if inputs.splice_rows is not None and inputs.splice_embeddings is not None:
            states.index_copy_(0, inputs.splice_rows, inputs.splice_embeddings.to(states.dtype))
        return self._join(torch.cat((self._token_norm(tokens), self._state_norm(states)), dim=-1))

    def _compute(
        self,
        inputs: ModelInput,
        layers: Sequence[Layer],
        caches: Sequence[LayerCache],
        wanted: torch.Tensor | None,
    ) -> torch.Tensor:
        delta, residual, left = self._run_layers(self.embed(inputs), inputs, layers, caches, wanted)
        residual = residual if delta is None else residual + delta
        self.states = residual if left is None else residual.index_select(0, left)
        return self._norm(self.states)


def make_predicting_config(config: DecoderConfig) -> DecoderConfig:
    """Return the options of the layer behind a decoder, which is of the kind of its last one."""
    rotaries = tuple(replace(spec, sections=()) for spec in config.rotaries)  # of its texts, all axes are equal
    return replace(config, layers=config.layers[-1:], num_deep_layers=0, tied_embeddings=False, rotaries=rotaries)


def make_predicting_names(
    names: Iterable[str], decoder_name: Callable[[str], str | None], num_layers: int
) -> Callable[[str], str | None]:
    """Return what maps the tensors of a checkpoint to those of `PredictingDecoder`, None for others. decoder_name: of
    its decoder of `num_layers`. What the layer shares with that has one name for both, or two. Raises `ConfigError`
    where there is no such layer."""
    names = frozenset(names)
    found = [match for name in names if (match := re.fullmatch(rf"(.*layers\.){num_layers}\.{_JOIN}\.weight", name))]
    if not found:
        raise ConfigError(
            f"speculative.method='mtp': the checkpoint has no layer {num_layers} that predicts further tokens "
            f"(layers.{num_layers}.{_JOIN}.weight)"
        )
    prefix = f"{found[0][1]}{num_layers}."
    last = f"{found[0][1]}{num_layers - 1}."
    own = {_SHARED[rest] for rest in _SHARED if f"{prefix}{rest}" in names}

    def find(name: str) -> str | None:
        if not name.startswith(prefix):
            shared = decoder_name(name)
            return shared if shared in _SHARED.values() and shared not in own else None
        rest = name.removeprefix(prefix)
        if rest in _SHARED:
            return _SHARED[rest]
        if rest.startswith(_OWN):
            return rest
        there = decoder_name(f"{last}{rest}")
        return None if there is None else there.replace(f"layers.{num_layers - 1}.", "layers.0.", 1)

    return find
