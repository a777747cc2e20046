"""The layer with which some checkpoints predict the token after the next one (DeepSeek-V3, section 2.2), as a decoder.

A position takes the embedding of its token and the hidden state of the model one position before; both go through norms
of their own, and side by side through a product. What is behind the layer is the hidden state for the token after.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import replace

import torch

from seesay.checkpoint.parts import Source, Weight
from seesay.device.linear.linear import Linear
from seesay.errors import ConfigError
from seesay.llm.models.decoder import ModelInput
from seesay.llm.models.division import WHOLE, Division
from seesay.llm.models.norm import make_norm
from seesay.llm.models.spec import DecoderConfig
from seesay.llm.models.state_decoder import StateDecoder

_JOIN = "eh_proj"
_SHARED = {
    "shared_head.norm.weight": "norm.weight",
    "shared_head.head.weight": "lm_head.weight",
    "embed_tokens.weight": "embed_tokens.weight",
}
"""Tensors of the layer that have another name in a decoder of its own."""
_OWN_NORMS = ("enorm", "hnorm")
_OWN = tuple(f"{name}." for name in (*_OWN_NORMS, _JOIN))


class PredictingDecoder(StateDecoder):
    """A `Decoder` of that layer, for hidden states behind the last norm of the model."""

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
        """Return what the layer takes: [T, hidden]."""
        tokens = self._table.look_up(inputs.input_ids)
        states = self._state_norm(self._find_states(inputs))
        return self._join(torch.cat((self._token_norm(tokens), states), dim=-1))


def make_predicting_config(config: DecoderConfig) -> DecoderConfig:
    """Return the options of the layer behind a decoder, which is of the kind of its last one."""
    return replace(config, layers=config.layers[-1:], num_deep_layers=0, tied_embeddings=False)


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
