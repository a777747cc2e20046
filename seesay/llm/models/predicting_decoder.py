"""The layer with which some checkpoints predict the token after the next one (DeepSeek-V3, section 2.2), as a decoder.

A position takes the embedding of its token and the hidden state of the model one position before; both go through norms
of their own, and side by side through a product. What is behind the layer is the hidden state for the token after.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

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
_BEHIND = {
    "shared_head.norm.weight": "norm.weight",
    "shared_head.head.weight": "lm_head.weight",
    "embed_tokens.weight": "embed_tokens.weight",
}
"""Tensors of a layer behind the last one that have another name in a decoder of its own."""
_APART = "mtp."
_IN_APART = {
    "fc.weight": f"{_JOIN}.weight",
    "pre_fc_norm_embedding.weight": "enorm.weight",
    "pre_fc_norm_hidden.weight": "hnorm.weight",
    "norm.weight": "norm.weight",
    "embed_tokens.weight": "embed_tokens.weight",
}
"""Those of a layer that is stored apart from the others, with its parts (Qwen3-Next, Qwen3.5)."""
_SHARED = ("embed_tokens.weight", "lm_head.weight")
"""What it may share with the decoder."""
_OWN_NORMS = ("enorm", "hnorm")
_OWN = tuple(f"{name}." for name in (*_OWN_NORMS, _JOIN))


@dataclass(frozen=True, slots=True)
class PredictingLayer:
    """Where a checkpoint has the layer. prefix: of the names of its tensors. like: of those of a layer of the decoder
    of its kind, and `number` is that layer's. others: tensors whose names in a decoder are not those of a layer.
    passes_normed: the next token takes what is behind the last norm, and not before it."""

    prefix: str
    like: str
    number: int
    others: Mapping[str, str]
    passes_normed: bool


class PredictingDecoder(StateDecoder):
    """A `Decoder` of that layer, for hidden states behind the last norm of the model. passes_normed: see
    `PredictingLayer`."""

    passes_normed = False

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

    def _pass_on(self, states: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        return hidden if self.passes_normed else states


def find_layer(
    names: Iterable[str], decoder_name: Callable[[str], str | None], config: DecoderConfig
) -> PredictingLayer:
    """Return where a checkpoint of these tensors has the layer. decoder_name: maps them to those of its decoder, which
    `config` describes. Raises `ConfigError` where there is no such layer."""
    names, count = frozenset(names), config.num_layers
    if f"{_APART}fc.weight" in names:
        number = max((i for i, layer in enumerate(config.layers) if layer.other is None), default=-1)
        own = f"layers.{number}."
        for name in sorted(names):
            if (decoder_name(name) or "").startswith(own):
                like = name[: name.index(own) + len(own)]
                return PredictingLayer(f"{_APART}layers.0.", like, number, _find_others(names, _APART, _IN_APART), True)
    for name in names:
        if match := re.fullmatch(rf"(.*layers\.){count}\.{_JOIN}\.weight", name):
            prefix = f"{match[1]}{count}."
            others = _find_others(names, prefix, _BEHIND)
            return PredictingLayer(prefix, f"{match[1]}{count - 1}.", count - 1, others, False)
    raise ConfigError(
        f"speculative.method='mtp': the checkpoint has no layer {count} that predicts further tokens "
        f"(layers.{count}.{_JOIN}.weight, or {_APART}fc.weight)"
    )


def _find_others(names: frozenset[str], prefix: str, known: Mapping[str, str]) -> dict[str, str]:
    return {f"{prefix}{rest}": own for rest, own in known.items() if f"{prefix}{rest}" in names}


def make_predicting_config(config: DecoderConfig, layer: PredictingLayer, names: Iterable[str]) -> DecoderConfig:
    """Return the options of `layer` of a checkpoint with these tensors, which `config` describes."""
    spec = config.layers[layer.number]
    experts = spec.feed_forward.experts
    if experts is not None and f"{layer.prefix}mlp.experts.0.down_proj.weight" in frozenset(names):
        spec = replace(spec, feed_forward=replace(spec.feed_forward, experts=replace(experts, stacking=None)))
    has_head = "lm_head.weight" in layer.others.values()
    has_table = "embed_tokens.weight" in layer.others.values()
    tied = config.tied_embeddings and not (has_head or has_table)
    return replace(config, layers=(spec,), num_deep_layers=0, tied_embeddings=tied)


def make_predicting_names(
    layer: PredictingLayer, decoder_name: Callable[[str], str | None]
) -> Callable[[str], str | None]:
    """Return what maps the tensors of a checkpoint to those of `PredictingDecoder`, None for others. decoder_name: of
    its decoder. What the layer shares with that has one name for both, or two."""
    shared = [name for name in _SHARED if name not in layer.others.values()]

    def find(name: str) -> str | None:
        if name in layer.others:
            return layer.others[name]
        if not name.startswith(layer.prefix):
            there = decoder_name(name)
            return there if there in shared else None
        rest = name.removeprefix(layer.prefix)
        if rest.startswith(_OWN):
            return rest
        there = decoder_name(f"{layer.like}{rest}")
        return None if there is None else there.replace(f"layers.{layer.number}.", "layers.0.", 1)

    return find
