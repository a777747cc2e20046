"""The shape of a text decoder, as frozen values: every layer is attention, a feed-forward and norms, with options."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt

from seesay.llm.models.mixer_spec import MixerSpec, StateSpaceSpec
from seesay.llm.plans.routing import Routing
from seesay.llm.plans.traits import NO_KV, DecoderTraits, KVShape, LengthScaling, MediaTokens
from seesay.llm.plans.window import Window

if TYPE_CHECKING:
    from seesay.llm.ops.interface import AnyActivation


@dataclass(frozen=True, slots=True, kw_only=True)
class RotarySpec:
    """Rotary position embedding.

    `dim` leading components of each head are rotated. `sections` split the dim / 2 frequencies among the rows of
    multimodal positions [3, T]; empty means 1-D positions. A row takes neighbouring frequencies or, if they are
    interleaved, every third one, and the first row takes what is left; or, if they alternate, `sections` are those
    of the second row, of the third, and of the first: the former two, which are as long, take turns. `inv_freq` has
    dim / 2 values. `length_scaling`: how they depend on the length of a sequence; `long_inv_freq` is the second set
    where it switches between two. The scheduler gives each sequence one stretch, so that none of it mixes two.
    `scale` multiplies cosine and sine.
    """

    dim: int
    sections: tuple[int, ...]
    inv_freq: tuple[float, ...]
    is_interleaved: bool = False
    alternates: bool = False
    length_scaling: LengthScaling | None = None
    long_inv_freq: tuple[float, ...] | None = None
    scale: float = 1.0

    def stretch_exponents(self) -> npt.NDArray[np.float64]:
        """float64 [dim]: the frequency of each component is divided by alpha to this power (see `LengthScaling`)."""
        half = np.arange(0, self.dim, 2) / (self.dim - 2)
        return np.concatenate([half, half])

    def section_of_component(self) -> npt.NDArray[np.int64]:
        """int64 [dim]: the row of multimodal positions that turns each component."""
        if self.alternates:
            rows = np.concatenate([np.tile((1, 2), self.sections[0]), np.zeros(self.sections[2], dtype=np.int64)])
            return np.concatenate([rows, rows]).astype(np.int64)
        rows = np.concatenate([np.full(size, i % 3) for i, size in enumerate(self.sections)])
        if self.is_interleaved:
            rows = np.zeros(self.dim // 2, dtype=np.int64)
            for row in (1, 2):
                rows[row : 3 * self.sections[row] : 3] = row
        return np.concatenate([rows, rows]).astype(np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class AlibiSpec:
    """Attention with linear biases (Press et al. 2022): scores fall with the distance of keys by these slopes, one per
    head. is_rounded: in bfloat16, as Falcon computes it (see `Ops.attend`)."""

    slopes: tuple[float, ...]
    is_rounded: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class NormSpec:
    """The norms of a decoder: x / sqrt(mean(x²) + eps), or that of x less its mean.

    offset: the checkpoint stores weights less this. has_weight, has_bias: what is stored; without a weight it is 1.
    """

    kind: Literal["rms", "layer"] = "rms"
    eps: float
    offset: float = 0.0
    has_weight: bool = True
    has_bias: bool = False


FeedForwardKind = Literal["gated", "plain", "experts"]
"""down(activation(gate(x)) · up(x)), or down(activation(up(x))); or the sum of some of many of these, those that a
router chooses for each token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StackingSpec:
    """How a checkpoint has the experts of a layer in tensors of all of them, `gate_up_proj` and `down_proj`.

    is_transposed: plain weights are [experts, inputs, outputs], and not [experts, outputs, inputs]; None where they are
    what their shape fits, as Transformers writes others than were published. alternates: outputs of gate and up take
    turns, and do not lie one after another.
    """

    is_transposed: bool | None = False
    alternates: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertsSpec:
    """The experts of a feed-forward, and what every token goes through beside them.

    choice_bias_shape: the stored shape of a bias per expert that is added to its scores to choose (see `Routing`);
    empty without one. has_bias: the router and the layers of experts have biases. is_router_exact: logits are not
    rounded to the model's type. scales_inputs: a token takes one expert, whose input is multiplied by the sigmoid of
    its logit. shared_size: the inner size of a gated feed-forward that all tokens go through; 0: there is none.
    has_shared_gate: its output is multiplied by the sigmoid of one more product. stacking: None where the checkpoint
    has the experts one by one. is_gated: experts, and what all tokens go through, are gated, and not plain.
    is_router_transposed: the checkpoint has the router's weight as [inputs, experts]. media_size: the inner size of
    further experts of the same number, with a router of their own, which rows of media go through in place of these; 0:
    there are none. `choice_bias_shape` then has a row of these and one of those.
    """

    routing: Routing
    choice_bias_shape: tuple[int, ...] = ()
    has_bias: bool = False
    stacking: StackingSpec | None = None
    is_router_exact: bool = False
    scales_inputs: bool = False
    shared_size: int = 0
    has_shared_gate: bool = False
    is_gated: bool = True
    is_router_transposed: bool = False
    media_size: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedForwardSpec:
    """The feed-forward of a layer. is_joined: the checkpoint stores gate and up as one tensor, `gate_up_proj`; up comes
    first if it `has_up_first`. size: the inner size, of each expert where there are `experts`; 0: there is none.
    has_bias: not of experts, but of what all tokens go through beside them. gate_scale, output_scale: of what the
    activation is of, and of the output, where it is gated."""

    kind: FeedForwardKind = "gated"
    size: int
    activation: AnyActivation = "silu"
    has_bias: bool = False
    is_joined: bool = False
    has_up_first: bool = False
    experts: ExpertsSpec | None = None
    gate_scale: float = 1.0
    output_scale: float = 1.0

    @property
    def total_size(self) -> int:
        """The sum of the inner sizes of all matrices that a token is multiplied with."""
        if self.experts is None:
            return self.size * (3 if self.kind == "gated" else 2)
        size = self.size * self.experts.routing.num_chosen + self.experts.shared_size
        return size * (3 if self.experts.is_gated else 2)


NormPlacement = Literal["before", "around", "behind", "parallel", "parallel_pair"]
"""Where a layer has norms: before attention and before the feed-forward; also behind each, before its output is added;
only behind each. `parallel`: attention and feed-forward both take the layer's input, from one norm; `parallel_pair`:
each from a norm of its own."""


HalfLayer = Literal["mixer", "feed_forward"]
"""What a layer has alone, behind a norm of its own: attention or what is in its place, or a feed-forward."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSpec:
    """The options in which the layers of one decoder may differ.

    mixer: what it has in the place of attention; None for attention. beside: what it has beside attention, of the same
    norm; their outputs are added up with these `shares`.
    window: of its attention: see `Window`; None for full attention. rotary: index of its `DecoderConfig.rotaries`.
    attends_media: it has no attention of text, but one of the media that a token sees (`DecoderTraits.attends_media`),
    whose output and that of its feed-forward are multiplied by the tangents of learned gates; tokens that see none pass
    unchanged.
    half: what it has alone; None: both.
    norms_qk, grows_queries: whether `DecoderConfig.qk_norm` and `query_growth` are of this layer, too.
    """

    feed_forward: FeedForwardSpec
    mixer: MixerSpec | None = None
    beside: StateSpaceSpec | None = None
    shares: tuple[float, float] = (1.0, 1.0)
    norms: NormPlacement = "before"
    window: Window | None = None
    rotary: int = 0
    attends_media: bool = False
    half: HalfLayer | None = None
    norms_qk: bool = True
    grows_queries: bool = True

    @property
    def other(self) -> MixerSpec | None:
        """What it has in the place of attention, or beside it."""
        return self.mixer if self.mixer is not None else self.beside

    @property
    def kv_shape(self) -> KVShape | None:
        """What it keeps of a token; None: keys and values of all heads."""
        if self.half == "feed_forward":
            return NO_KV
        return None if self.mixer is None else self.mixer.kv_shape

    @property
    def feed_forward_norm(self) -> str:
        """The name of the norm before the feed-forward where attention comes first."""
        return "post_attention_layernorm" if self.norms == "before" else "pre_feedforward_layernorm"


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaRowsSpec:
    """How linear layers compute the rows of media otherwise than those of text.

    tokens: which tokens these are. rank: something of this rank is added to what they compute for rows of text,
    times `scale` (partial LoRA, arXiv 2401.16420); None: rows of media have weights of their own (a visual expert,
    arXiv 2311.03079), of which those of queries, keys and values have a bias with `qkv_bias`. qkv_rank, qkv_scale:
    of what is added to queries, keys and values; without that rank, they are `rank` and `scale`. reach: what this
    holds for: all of a layer, its feed-forward alone, or experts alone, of which there are `ExpertsSpec.media_size`
    ones for media.
    """

    tokens: MediaTokens = "all"
    rank: int | None = None
    scale: float = 1.0
    qkv_rank: int | None = None
    qkv_scale: float = 1.0
    qkv_bias: bool = False
    reach: Literal["layer", "feed_forward", "experts"] = "layer"

    @property
    def for_qkv(self) -> MediaRowsSpec:
        """Settings of queries, keys and values."""
        return self if self.qkv_rank is None else replace(self, rank=self.qkv_rank, scale=self.qkv_scale)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryGrowth:
    """The query of the token at place p is multiplied by 1 + beta · log(1 + ⌊(p + first) / length⌋) (Meta 2025,
    Llama 4)."""

    beta: float
    length: int
    first: int = 0


QKVLayout = Literal["separate", "joined", "grouped"]
"""How the checkpoint stores queries, keys and values: as three tensors; as one, `qkv_proj`, one after another; or as
one in which each key-value head's query heads, key and value lie together."""
QKNorm = Literal["head", "whole", "per_head", "plain"]
"""A norm of queries and keys before they are rotated: of each head, with a weight that all heads share; of all heads
together; of each head, with a weight of its own; of each head, without a weight."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderConfig:
    """Options of the decoder.

    rotaries: those that layers choose from. All turn the same components by the same rows of positions, and only the
    first one may have long frequencies. A decoder without any has one that turns nothing. layers: one entry per layer.
    alibi: of all layers; None for attention without biases. has_embedding_norm: embeddings go through a norm first.
    turns_neighbours: of the checkpoint's heads, components 2 i and 2 i + 1 are turned together, and not i and
    i + dim / 2: outputs of q and k are reordered while they are loaded.
    has_output_gate: what attention gives is multiplied by the sigmoid of something of each token, which the checkpoint
    has behind the query of each head.
    qkv_limit: queries, keys and values are clamped to ± this.
    num_deep_layers: behind so many layers, the first ones, something is added to the residual stream at the tokens that
    take an embedding: an embedding has a further part of `hidden_size` for each of them.
    media_run: most neighbouring tokens that take embeddings; these see each other, and not only those before them. 0:
    these see no later ones either. is_prefix_lm: each token of a prompt sees all of its prompt.
    media_rows: how linear layers compute rows of media; None: as those of text.
    embedding_scale: factor of embeddings looked up by token ids, and with `scales_media` of the others, too.
    attention_scale: factor of attention scores. residual_scale: of what attention and feed-forward add. logit_scale:
    of logits. num_added_tokens: token ids from `vocab_size` on that only prompts have: the checkpoint stores their
    embeddings as `embed_tokens.added`, or behind those of the others if it `joins_added`, and the head has no logits of
    them. has_unit_head: each row of the head's weight is divided by its length.
    query_growth: None: never.
    attended_size: components that queries, keys and values are products of; None: `hidden_size`.
    has_sinks: see `Ops.attend`. head_bias: logits have one.
    projection_size: numbers of the vector that `embedding_head` makes of a hidden state, for late interaction; 0: there
    is no such head.
    log_length: the query of the token at place p, from 1 on, is multiplied by log p / log log_length where that is more
    than 1 (Su 2021, logn attention); None: never.
    """

    vocab_size: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    norm: NormSpec
    attention_scale: float
    rotaries: tuple[RotarySpec, ...]
    layers: tuple[LayerSpec, ...]
    alibi: AlibiSpec | None = None
    qkv: QKVLayout = "separate"
    qkv_bias: bool = False
    output_bias: bool = False
    qk_norm: QKNorm | None = None
    turns_neighbours: bool = False
    has_output_gate: bool = False
    qkv_limit: float | None = None
    has_embedding_norm: bool = False
    tied_embeddings: bool = False
    attention_soft_cap: float | None = None
    logit_soft_cap: float | None = None
    num_deep_layers: int = 0
    media_run: int = 0
    media_rows: MediaRowsSpec | None = None
    is_prefix_lm: bool = False
    embedding_scale: float = 1.0
    scales_media: bool = False
    residual_scale: float = 1.0
    logit_scale: float = 1.0
    num_added_tokens: int = 0
    joins_added: bool = False
    has_unit_head: bool = False
    query_growth: QueryGrowth | None = None
    has_sinks: bool = False
    head_bias: bool = False
    projection_size: int = 0
    log_length: int | None = None
    attended_size: int | None = None

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    @property
    def num_taps(self) -> int:
        """Tokens of the convolutions; 0 without any."""
        return max((layer.other.num_taps for layer in self.layers if layer.other is not None), default=0)

    def _mixed_size(self, layer: LayerSpec) -> int:
        """The sum of the inner sizes of the matrices of attention, and of what is in its place or beside it."""
        is_other = layer.mixer is not None or layer.half == "feed_forward"
        own = 0 if is_other else self.head_dim * 2 * (self.num_heads + self.num_kv_heads)
        return own + (0 if layer.other is None else layer.other.total_size)

    @property
    def traits(self) -> DecoderTraits:
        """Return the properties by which the engine plans steps."""
        mixed = sum(map(self._mixed_size, self.layers))
        own = [layer for layer in self.layers if not layer.attends_media]
        num_media_layers = self.num_layers - len(own)
        inner = sum(layer.feed_forward.total_size for layer in self.layers)
        kv_shape = KVShape(num_kv_heads=self.num_kv_heads, head_dim=self.head_dim)
        states = tuple(() if layer.other is None else layer.other.state for layer in self.layers)
        return DecoderTraits(
            vocab_size=self.vocab_size,
            embedding_size=2 * num_media_layers * self.num_kv_heads * self.head_dim
            or self.hidden_size * (1 + self.num_deep_layers),
            kv_shapes=tuple(layer.kv_shape or kv_shape for layer in own),
            state_shapes=states if any(states) else (),
            attends_media=num_media_layers > 0,
            num_position_axes=3 if self.rotaries[0].sections else 1,
            media_run=self.media_run,
            media_rows=None if self.media_rows is None else self.media_rows.tokens,
            is_prefix_lm=self.is_prefix_lm,
            length_scaling=self.rotaries[0].length_scaling,
            flops_per_token=2 * self.hidden_size * (mixed + inner),
        )
