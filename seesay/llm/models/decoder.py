"""The one decoder of all text backbones: what differs between them is in `DecoderConfig`.

Input is packed: the tokens of all rows of a step after one another, no batch axis and no padding.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import torch
import torch.nn.functional as F

from seesay.checkpoint import Checkpoint
from seesay.checkpoint.parts import Source, Weight, plain_weight
from seesay.device.layer_loading import LoadedLayers
from seesay.device.linear import Linear
from seesay.llm.kv_layout import LayerCache
from seesay.llm.models.rotary import Rotary
from seesay.llm.models.spec import DecoderConfig
from seesay.llm.ops import Activation, DecodeRows, Ops, RowLayout, pick_ops

_HEAD = "lm_head"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInput:
    """One step's input, T packed tokens.

    input_ids int64 [T]; positions int64 [T] or [3, T]; is_long bool [T] or None (see `Rotary.tables`);
    slot_mapping int64 [T]: block · block_size + offset where each token's KV goes; layout: the rows;
    splice_rows int64 [R] and splice_embeddings [R, embedding_size]: the tokens that take an embedding instead of their
    id's.
    faults: float32 [T] of zeros; becomes NaN for tokens that left something not finite in the KV cache.
    """

    input_ids: torch.Tensor
    positions: torch.Tensor
    slot_mapping: torch.Tensor
    layout: RowLayout | DecodeRows
    faults: torch.Tensor
    is_long: torch.Tensor | None = None
    splice_rows: torch.Tensor | None = None
    splice_embeddings: torch.Tensor | None = None


@dataclass(frozen=True, slots=True)
class _Step:
    """Values that all layers share in a step. turns: (cos, sin) of each rotary embedding."""

    turns: Sequence[tuple[torch.Tensor, torch.Tensor]]
    slots: torch.Tensor
    attention: Any
    faults: torch.Tensor


class _Layer:
    """Attention and MLP with their norms. Works on the residual stream in place."""

    def __init__(self, config: DecoderConfig, index: int, ops: Ops) -> None:
        self._ops = ops
        self._eps, self._activation = config.norm_eps, config.activation
        self._num_heads, self._num_kv_heads, self._head_dim = config.num_heads, config.num_kv_heads, config.head_dim
        self._scale, self._soft_cap = config.attention_scale, config.attention_soft_cap
        self._window, self._rotary = config.layers[index].window, config.layers[index].rotary
        hidden, name = config.hidden_size, f"layers.{index}"
        self._input_norm = norm_weight(config, f"{name}.input_layernorm", hidden)
        self._attended_norm: Weight | None = None
        self._output_norm: Weight | None = None
        self._mlp_norm = norm_weight(config, f"{name}.{config.mlp_norm}", hidden)
        if config.norm_placement == "around":
            self._attended_norm = norm_weight(config, f"{name}.post_attention_layernorm", hidden)
            self._output_norm = norm_weight(config, f"{name}.post_feedforward_layernorm", hidden)
        self._qkv = Linear(hidden, bias=config.qkv_bias, sources=_qkv_sources(config))
        self._out = Linear(config.num_heads * config.head_dim, hidden, bias=config.output_bias)
        self._gate_up = Linear(hidden, bias=config.mlp_bias, sources=_gate_up_sources(config))
        self._down = Linear(config.intermediate_size, hidden, bias=config.mlp_bias)
        self._qk_norms: tuple[Weight, ...] = ()
        if config.qk_norm:
            self._qk_norms = (
                norm_weight(config, f"{name}.self_attn.q_norm", config.head_dim),
                norm_weight(config, f"{name}.self_attn.k_norm", config.head_dim),
            )
        norms = (self._input_norm, self._attended_norm, self._mlp_norm, self._output_norm, *self._qk_norms)
        self.norms = tuple(norm for norm in norms if norm is not None)
        self.linears = {
            f"{name}.self_attn.qkv_proj": self._qkv,
            f"{name}.self_attn.o_proj": self._out,
            f"{name}.mlp.gate_up_proj": self._gate_up,
            f"{name}.mlp.down_proj": self._down,
        }

    @property
    def kind(self) -> tuple[object, ...]:
        """The properties that decide which kernels the layer uses."""
        return self._window, *(linear.method.name for linear in self.linears.values())

    def run(
        self,
        delta: torch.Tensor | None,
        residual: torch.Tensor,
        cache: LayerCache,
        step: _Step,
        wanted: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """`delta` [T, hidden] is what the layer before adds to `residual`; returns what this layer adds, and to what.

        wanted int64 [N]: the tokens that are needed after this layer. All others only leave keys and values.
        """
        qkv = self._multiply_normed(self._qkv, delta, residual, self._input_norm)
        x = self._attend_to(qkv.view(len(qkv), -1, self._head_dim), cache, step)
        if wanted is not None:
            x, residual = x.index_select(0, wanted), residual.index_select(0, wanted)
        x = self._multiply_normed(
            self._gate_up, self._norm(self._out(x), self._attended_norm), residual, self._mlp_norm
        )
        return self._norm(self._multiply_activated(self._down, x), self._output_norm), residual

    def run_few(self, x: torch.Tensor, cache: LayerCache, step: _Step) -> None:
        """As `run` for a few tokens, whose residual stream x [T, hidden] is changed in place: norms, the activation and
        the sums are fused into the products of layers that have kernels for so many rows."""
        mixed = self._project(self._qkv, x, self._input_norm)
        attended = self._attend_to(mixed.view(len(x), -1, self._head_dim), cache, step)
        self._add_to(x, self._out, attended, self._attended_norm)
        gated = self._project(self._gate_up, x, self._mlp_norm, self._activation)
        self._add_to(x, self._down, gated, self._output_norm)

    def _project(
        self, linear: Linear, x: torch.Tensor, norm: Weight, activation: Activation | None = None
    ) -> torch.Tensor:
        """Return the layer's output for the norm of x, or activation(first half) · second half of it."""
        if linear.fused is not None and len(x) <= linear.max_fused_rows:
            return linear.fused(x, norm=(norm.data, self._eps), activation=activation)
        y = self._multiply_normed(linear, None, x, norm)
        return y if activation is None else self._ops.act_and_mul(y, activation)

    def _multiply_normed(
        self, linear: Linear, delta: torch.Tensor | None, residual: torch.Tensor, norm: Weight
    ) -> torch.Tensor:
        """Add `delta` to the residual, and return the layer's output for the norm of the sum."""
        ops, weight, eps = self._ops, norm.data, self._eps
        if linear.quantized is not None:
            form, multiply = linear.quantized
            if delta is None:
                return multiply(ops.quantize_norm(residual, None, weight, eps, form))
            return multiply(ops.quantize_norm(delta, residual, weight, eps, form))
        if delta is None:
            return linear(ops.rms_norm(residual, weight, eps))
        return linear(ops.add_rms_norm(delta, residual, weight, eps))

    def _multiply_activated(self, linear: Linear, x: torch.Tensor) -> torch.Tensor:
        """Return the layer's output for activation(first half) · second half of x."""
        if linear.quantized is not None:
            form, multiply = linear.quantized
            return multiply(self._ops.quantize_activation(x, self._activation, form))
        return linear(self._ops.act_and_mul(x, self._activation))

    def _add_to(self, residual: torch.Tensor, linear: Linear, x: torch.Tensor, norm: Weight | None) -> None:
        """Add the layer's output, or the norm of it, to the residual."""
        if linear.fused is None or len(x) > linear.max_fused_rows:
            residual.add_(self._norm(linear(x), norm))
        elif norm is None:
            linear.fused(x, add_to=residual)
        else:
            residual.add_(self._norm(linear.fused(x), norm))

    def _norm(self, x: torch.Tensor, norm: Weight | None) -> torch.Tensor:
        """Return the norm of x; x itself without one."""
        return x if norm is None else self._ops.rms_norm(x, norm.data, self._eps)

    def _attend_to(self, qkv: torch.Tensor, cache: LayerCache, step: _Step) -> torch.Tensor:
        """Attention output [T, H · D] of queries, keys and values [T, H + 2 G, D]."""
        norms = None
        if self._qk_norms:
            norms = self._qk_norms[0].data, self._qk_norms[1].data, self._eps
        cos, sin = step.turns[self._rotary]
        self._ops.rotate_and_write(qkv, cos, sin, cache, step.slots, norms, step.faults)
        output = self._ops.attend(
            qkv[:, : self._num_heads],
            cache,
            step.attention,
            scale=self._scale,
            window=self._window,
            soft_cap=self._soft_cap,
        )
        return output.reshape(len(qkv), -1)


def norm_weight(config: DecoderConfig, name: str, size: int) -> Weight:
    """Return the weight of an RMS norm. One that is stored less an offset is kept in float32: near the offset, few bits
    would lose most of what was stored."""
    dtype = torch.float32 if config.norm_offset else None
    return plain_weight(f"{name}.weight", size, offset=config.norm_offset, dtype=dtype)


def _qkv_sources(config: DecoderConfig) -> list[Source]:
    q, kv = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    if config.has_grouped_qkv:
        return _cut_groups("wqkv", config.num_kv_heads, q // config.num_kv_heads, config.head_dim, config.head_dim)
    if config.fused_checkpoint:
        return _cut("qkv_proj", q, kv, kv)
    return [Source(module=f"{part}_proj", num_outputs=size) for part, size in (("q", q), ("k", kv), ("v", kv))]


def _gate_up_sources(config: DecoderConfig) -> list[Source]:
    size = config.intermediate_size
    if config.fused_checkpoint:
        return _cut("gate_up_proj", size, size)
    return [Source(module=f"{part}_proj", num_outputs=size) for part in ("gate", "up")]


def _cut(module: str, *sizes: int) -> list[Source]:
    """Cut the outputs of one stored module into pieces of these sizes."""
    stops = list(accumulate(sizes))
    return [
        Source(module=module, num_outputs=stops[-1], picks=(range(stop - size, stop),))
        for size, stop in zip(sizes, stops, strict=True)
    ]


def _cut_groups(module: str, num_groups: int, *sizes: int) -> list[Source]:
    """Cut the outputs of one stored module, equal groups, into pieces of these sizes of each group."""
    size = sum(sizes)
    return [
        Source(
            module=module,
            num_outputs=num_groups * size,
            picks=tuple(range(start + first, start + stop) for start in range(0, num_groups * size, size)),
        )
        for first, stop in pairwise([0, *accumulate(sizes)])
    ]


class Decoder:
    """A text backbone. `weights` loads, replaces and drops all of its weights."""

    weights: LoadedLayers

    def __init__(self, config: DecoderConfig, *, device: torch.device, dtype: torch.dtype) -> None:
        self.config = config
        self.device = device
        self.dtype = dtype
        self._ops = pick_ops(device)
        self._embed = plain_weight("embed_tokens.weight", config.vocab_size, config.hidden_size)
        with torch.device("meta"):
            self._layers = [_Layer(config, index, self._ops) for index in range(config.num_layers)]
            self._head = Linear(config.hidden_size, config.vocab_size, bias=False)
        self._norm = norm_weight(config, "norm", config.hidden_size)
        self._max_few_rows = 0
        self._rotaries = [Rotary(spec, device=device, dtype=dtype) for spec in config.rotaries]
        self._windows = frozenset(layer.window for layer in config.layers)
        self._embedding_scale = torch.tensor(config.embedding_scale, dtype=dtype).item()  # rounded, as published

    @classmethod
    def load(
        cls,
        checkpoint: Checkpoint,
        config: DecoderConfig,
        *,
        decoder_name: Callable[[str], str | None],
        device: torch.device,
        dtype: torch.dtype,
    ) -> Decoder:
        """The decoder with its weights from `checkpoint`.

        `decoder_name` maps a checkpoint tensor's name to ours (`embed_tokens.weight`, `norm.weight`, `lm_head.weight`,
        `layers.0.self_attn.q_proj.weight`, …), or to None when it belongs to another part. Raises `CheckpointError`
        naming the tensor that is missing, unexpected or of a wrong shape.
        """
        decoder = cls(config, device=device, dtype=dtype)
        is_tied = config.tied_embeddings
        owner = weakref.ref(decoder)  # a cycle would keep the weights until the next garbage collection

        def renew() -> None:
            if (found := owner()) is not None:
                found._renew()

        decoder.weights = LoadedLayers(
            {path: linear for path, linear in decoder.linears.items() if not (is_tied and path == _HEAD)},
            decoder.plain_weights,
            name_of=decoder_name,
            device=device,
            dtype=dtype,
            ignored=frozenset([f"{_HEAD}.weight"]) if is_tied else frozenset(),
            on_change=renew,
        )
        decoder.weights.load(checkpoint, may_quantize=True)
        return decoder

    def _renew(self) -> None:
        """Renew what is made of the weights, which have changed."""
        in_layers = [linear for layer in self._layers for linear in layer.linears.values()]
        self._max_few_rows = max(linear.max_fused_rows for linear in in_layers)
        if self.config.tied_embeddings:
            if hasattr(self._embed, "data"):
                self._head.use(self._embed.data)
            else:
                self._head.drop()

    @property
    def needs_clean_blocks(self) -> bool:
        """See `Ops.needs_clean_blocks`."""
        return self._ops.needs_clean_blocks

    def forget_blocks(self) -> None:
        """See `Ops.forget_blocks`."""
        self._ops.forget_blocks()

    @property
    def linears(self) -> dict[str, Linear]:
        """The linear layers by their paths. With tied embeddings the head's weight is the embedding table."""
        return {path: linear for layer in self._layers for path, linear in layer.linears.items()} | {_HEAD: self._head}

    @property
    def plain_weights(self) -> list[Weight]:
        """All weights that belong to no linear layer."""
        return [self._embed, self._norm, *(norm for layer in self._layers for norm in layer.norms)]

    def forward(
        self, inputs: ModelInput, caches: Sequence[LayerCache], wanted: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Hidden states [N, hidden] after the last norm, of the tokens `wanted` int64 [N] or of all. Writes keys and
        values of all tokens to `caches`, one per layer.

        Most of the last layer is computed for wanted tokens only; of a prompt that is its last one. On the meta device,
        which has no values, a layer of each kind stands for all of its kind.
        """
        if self.device.type == "meta":
            return self._compute_kinds(inputs, caches, wanted)
        return self._compute(inputs, self._layers, caches, wanted)

    def warm_up(self, inputs: ModelInput, caches: Sequence[LayerCache], wanted: torch.Tensor) -> None:
        """Compute logits with a layer of each kind, for the sake of the kernels they take."""
        self.logits(self._compute_kinds(inputs, caches, wanted))

    def _compute_kinds(
        self, inputs: ModelInput, caches: Sequence[LayerCache], wanted: torch.Tensor | None
    ) -> torch.Tensor:
        """Compute a layer of each kind, and one more as the last."""
        kinds = list({layer.kind: index for index, layer in reversed(list(enumerate(self._layers)))}.values())
        kinds.append(kinds[-1])
        return self._compute(inputs, [self._layers[i] for i in kinds], [caches[i] for i in kinds], wanted)

    def _compute(
        self,
        inputs: ModelInput,
        layers: Sequence[_Layer],
        caches: Sequence[LayerCache],
        wanted: torch.Tensor | None,
    ) -> torch.Tensor:
        ops = self._ops
        residual = self.embed(inputs)
        step = self._begin_step(inputs)
        if 0 < len(residual) <= self._max_few_rows:
            for index, (layer, cache) in enumerate(zip(layers, caches, strict=True)):
                layer.run_few(residual, cache, step)
                self._add_deep(residual, inputs, index)
            hidden = ops.rms_norm(residual, self._norm.data, self.config.norm_eps)
            return hidden if wanted is None else hidden.index_select(0, wanted)
        delta = None
        for number, (layer, cache) in enumerate(zip(layers, caches, strict=True), 1):
            is_last = number == len(layers)
            delta, residual = layer.run(delta, residual, cache, step, wanted if is_last else None)
            if not is_last:
                self._add_deep(residual, inputs, number - 1)
        assert delta is not None
        return ops.add_rms_norm(delta, residual, self._norm.data, self.config.norm_eps)

    # --- layer by layer, where the weights of one layer at a time are loaded ------------------------------------------

    def embed(self, inputs: ModelInput) -> torch.Tensor:
        """Return what the first layer takes: the residual stream [T, hidden]."""
        residual = F.embedding(inputs.input_ids, self._embed.data)
        if self._embedding_scale != 1.0:
            residual.mul_(self._embedding_scale)
        if inputs.splice_rows is not None and inputs.splice_embeddings is not None:
            first = inputs.splice_embeddings[:, : self.config.hidden_size]
            self._ops.splice(residual, inputs.splice_rows, first)
        return residual

    def _add_deep(self, residual: torch.Tensor, inputs: ModelInput, index: int) -> None:
        """Add to the residual stream behind layer `index` what the embeddings have for it, if anything."""
        if index >= self.config.num_deep_layers or inputs.splice_rows is None or inputs.splice_embeddings is None:
            return
        size = self.config.hidden_size
        part = inputs.splice_embeddings[:, (index + 1) * size : (index + 2) * size]
        residual.index_add_(0, inputs.splice_rows, part.to(residual.dtype))

    def forward_layer(self, index: int, residual: torch.Tensor, inputs: ModelInput, cache: LayerCache) -> torch.Tensor:
        """Return the residual stream behind layer `index`. `residual` [T, hidden] is changed."""
        delta, residual = self._layers[index].run(None, residual, cache, self._begin_step(inputs))
        self._add_deep(residual, inputs, index)
        return residual.add_(delta)

    def normalize(self, residual: torch.Tensor) -> torch.Tensor:
        """Return what `logits` takes: the last norm of the residual stream behind the last layer."""
        return self._ops.rms_norm(residual, self._norm.data, self.config.norm_eps)

    def _begin_step(self, inputs: ModelInput) -> _Step:
        turns = [rotary.tables(inputs.positions, inputs.is_long) for rotary in self._rotaries]
        plan = self._ops.plan_attention(inputs.layout, windows=self._windows, device=self.device, dtype=self.dtype)
        return _Step(turns, inputs.slot_mapping, plan, inputs.faults)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits [N, vocab] of hidden states [N, hidden], in the model's dtype."""
        head = self._head
        if head.fused is not None and 0 < len(hidden) <= head.max_fused_rows:
            logits = head.fused(hidden)
        else:
            logits = head(hidden)
        cap = self.config.logit_soft_cap
        return logits if cap is None else logits.div_(cap).tanh_().mul_(cap)
