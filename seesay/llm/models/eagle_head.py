"""EAGLE-3 heads (Li et al. 2025, arXiv 2503.01840): a layer, in a folder of its own, that predicts further tokens from
what goes into three layers of a model.

A position takes the embedding of the next token and the states of the model at its own place, which a product joins to
one. Both go through norms of their own, and side by side into queries, keys and values. What is behind the layer is the
state for the token after. A head may know only some of the model's tokens: `d2t` says how much greater the ids of these
are than its own.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch

from seesay.checkpoint.parts import Weight
from seesay.device.linear.layer_loading import LoadedLayers
from seesay.device.linear.linear import Linear
from seesay.device.transfers import upload
from seesay.llm.memory.kv_layout import LayerCache
from seesay.llm.models.configs.eagle_config import LAYER, HeadConfig, find_name, read_known_ids
from seesay.llm.models.decoder import ModelInput
from seesay.llm.models.division import WHOLE
from seesay.llm.models.feed_forward import make_feed_forward
from seesay.llm.models.layer import Layer, make_mixer
from seesay.llm.models.layer_states import LayerStates
from seesay.llm.models.mixers.attention import AttentionStep
from seesay.llm.models.norm import make_norm
from seesay.llm.models.residual import Joint, LayerDelta, multiply_few
from seesay.llm.models.state_decoder import StateDecoder

if TYPE_CHECKING:
    from seesay.checkpoint import Checkpoint
    from seesay.llm.models.composed_decoder import ComposedDecoder
    from seesay.llm.ops import Ops

_PLAIN = Joint(None, 1.0)


class JoinedLayer:
    """The layer of a head. A row of its residual stream [T, 2 · hidden] is an embedding and a state, and behind it the
    state [T, hidden] alone; where rows are few, it stands in the second half of the row."""

    def __init__(self, config: HeadConfig, ops: Ops) -> None:
        decoder, self._norms_residual = config.decoder, config.norms_residual
        self._size = decoder.hidden_size
        self._attention = make_mixer(decoder, 0, ops, WHOLE)
        self._feed_forward = make_feed_forward(
            decoder.hidden_size, decoder.layers[0].feed_forward, ops, None, layer=LAYER, division=WHOLE
        )
        linears = {**self._attention.linears, **self._feed_forward.linears}
        self.linears: Mapping[str, Linear] = {f"{LAYER}.{path}": linear for path, linear in linears.items()}
        self._token_norm, self._state_norm, self._inner_norm = (
            make_norm(f"{LAYER}.{name}", decoder.hidden_size, decoder.norm, ops)
            for name in ("input_layernorm", "hidden_norm", "post_attention_layernorm")
        )
        norms = (self._token_norm, self._state_norm, self._inner_norm)
        own = (*self._attention.norms, *self._feed_forward.weights)
        self.norms: tuple[Weight, ...] = own + tuple(weight for norm in norms for weight in norm.weights)

    @property
    def kind(self) -> tuple[object, ...]:
        """See `Layer`."""
        return self._attention.window, *(linear.method.name for linear in self.linears.values())

    def _split(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return what attention takes of rows [T, 2 · hidden], and what the layer adds to."""
        tokens, states = (half.contiguous() for half in torch.split(rows, self._size, dim=-1))
        normed = self._state_norm(states)
        return torch.cat((self._token_norm(tokens), normed), dim=-1), normed if self._norms_residual else states

    def run(
        self,
        delta: LayerDelta,
        residual: torch.Tensor,
        cache: LayerCache,
        step: AttentionStep,
        wanted: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See `Layer`. It is the first one: there is no `delta`."""
        assert delta is None
        attention = self._attention
        joined, residual = self._split(residual)
        x = attention.attend(attention.qkv(joined, step.rows), cache, step)
        if wanted is not None:
            x, residual = x.index_select(0, wanted), residual.index_select(0, wanted)
        made = self._feed_forward.run(self._inner_norm, attention.out(x, step.rows), residual, step.rows)
        return made, residual

    def run_few(self, residual: torch.Tensor, cache: LayerCache, step: AttentionStep) -> None:
        """See `Layer`."""
        attention = self._attention
        joined, states = self._split(residual)
        x = attention.attend(multiply_few(attention.qkv.text, joined), cache, step)
        _PLAIN.add_product(states, attention.out.text, x)
        self._feed_forward.run_few(self._inner_norm, states, _PLAIN, states)
        residual[:, self._size :] = states


class EagleHead(StateDecoder):
    """A `Decoder` of a head. Its logits are those of all tokens of the model: of those that it does not know, -inf."""

    def __init__(
        self, config: HeadConfig, main: ComposedDecoder, known_ids: npt.NDArray[np.int64] | None, given: LayerStates
    ) -> None:
        """main: the model, whose embeddings it takes unless it has its own. known_ids: see `read_known_ids`. given: the
        states of the model."""
        decoder = config.decoder
        super().__init__(decoder, device=main.device, dtype=main.dtype)
        self._given, self._options = given, config
        if not config.has_table:
            self._table = main._table
        num_joined = len(config.places) * config.target_size
        with torch.device("meta"):
            self._layers: list[Layer] = [JoinedLayer(config, self._ops)]
            self._join = Linear(num_joined, decoder.hidden_size, bias=False)
            self._head = Linear(decoder.hidden_size, config.num_tokens, bias=False)
        self._all_norm = make_norm("input_norm", num_joined, decoder.norm, self._ops) if config.norms_joined else None
        self._each_norm = [
            make_norm(f"fc_norm.{i}", config.target_size, decoder.norm, self._ops)
            for i in range(len(config.places) if config.norms_each else 0)
        ]
        self._known_ids = None if known_ids is None else upload([known_ids], self.device)[0]

    @property
    def linears(self) -> dict[str, Linear]:
        return super().linears | {"fc": self._join}

    @property
    def plain_weights(self) -> list[Weight]:
        table = [self._table.weight] if self._options.has_table else []
        norms = [self._norm, *self._each_norm, *(() if self._all_norm is None else (self._all_norm,))]
        return [*table, *(weight for norm in norms for weight in norm.weights), *self._layers[0].norms]

    def join(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the states [T, hidden] that tokens take of the model's last step, in place of its hidden states."""
        del hidden
        states = self._given.states
        if self._all_norm is not None:
            states = self._all_norm(states)
        if self._each_norm:
            parts = torch.split(states, self._options.target_size, dim=-1)
            states = torch.cat([norm(p.contiguous()) for norm, p in zip(self._each_norm, parts, strict=True)], dim=-1)
        return multiply_few(self._join, states)

    def embed(self, inputs: ModelInput) -> torch.Tensor:
        """Return what the layer takes: [T, 2 · hidden]."""
        return torch.cat((self._table.look_up(inputs.input_ids), self._find_states(inputs)), dim=-1)

    def _take_own(self, residual: torch.Tensor) -> torch.Tensor:
        return residual[:, -self.config.hidden_size :].contiguous()

    def _pass_on(self, states: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        return hidden if self._options.passes_normed else states

    @property
    def known_ids(self) -> torch.Tensor | None:
        return self._known_ids

    def known_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """See `StateDecoder`."""
        return super().logits(hidden)

    def logits(self, hidden: torch.Tensor, slots: npt.NDArray[np.int64] | None = None) -> torch.Tensor:
        """See `ComposedDecoder.logits`."""
        own = super().logits(hidden, slots)
        if self._known_ids is None:
            return own
        return own.new_full((len(own), self.config.vocab_size), -math.inf).index_copy_(1, self._known_ids, own)


def load_head(checkpoint: Checkpoint, config: HeadConfig, main: ComposedDecoder) -> EagleHead:
    """Load a head, and let the model keep the states that it takes. Raises `CheckpointError`."""
    states = LayerStates(config.places)
    head = EagleHead(config, main, read_known_ids(checkpoint, config), states)
    owner = weakref.ref(head)  # a cycle would keep the weights until the next garbage collection

    def renew() -> None:
        if (found := owner()) is not None:
            found._renew()

    head.weights = LoadedLayers(
        head.linears, head.plain_weights, name_of=find_name, device=head.device, dtype=head.dtype, on_change=renew
    )
    head.weights.load(checkpoint)
    main.layer_states = states
    return head
