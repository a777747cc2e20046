"""Reads a configuration into a `DecoderConfig`. What no option covers is refused by name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, get_args

from seesay.errors import CheckpointError
from seesay.llm.models.configs.kinds import find_kind, list_backbones
from seesay.llm.models.configs.rope_parameters import (
    find_trained_length,
    make_rotary,
    read_rope_parameters,
    scale_dynamically,
)
from seesay.llm.models.decoder_kind import DecoderKind
from seesay.llm.models.spec import (
    DecoderConfig,
    FeedForwardSpec,
    LayerSpec,
    MediaRowsSpec,
    NormSpec,
    QKVLayout,
    RotarySpec,
)
from seesay.llm.plans.window import Chunk, Window

if TYPE_CHECKING:
    from seesay.checkpoint.model_config import ModelConfig
    from seesay.llm.ops.interface import AnyActivation

_ACTIVATIONS: dict[str, AnyActivation] = {
    "silu": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu2": "relu2",
}


def read_decoder_config(
    config: ModelConfig,
    *,
    tied_embeddings: bool | None = None,
    session_len: int | None = None,
    num_deep_layers: int = 0,
    media_run: int = 0,
    media_rows: MediaRowsSpec | None = None,
    is_prefix_lm: bool = False,
    kind: DecoderKind | None = None,
    rope_scaling_factor: float = 0.0,
    use_logn_attn: bool = False,
) -> DecoderConfig:
    """Return the decoder that the configuration of a text decoder describes.

    `tied_embeddings` overrides the config's own (VLM configs keep it one level up); `session_len` is the longest
    text, which dynamic rotary scaling needs. `kind`: how it departs from Llama, instead of what its `model_type` says.
    `rope_scaling_factor` and `use_logn_attn`: see `EngineConfig`. Raises
    `CheckpointError` naming what is not supported.
    """
    kind = find_kind(config) if kind is None else kind
    if kind is None:
        known = ", ".join(list_backbones())
        raise CheckpointError(f"text backbone {config.model_type!r} is not supported (supported: {known})")
    _refuse_unsupported(config, is_prefix_lm=is_prefix_lm)
    attention_bias = bool(getattr(config, "attention_bias", False))
    tied = getattr(config, "tie_word_embeddings", False) if tied_embeddings is None else tied_embeddings
    num_heads, num_kv_heads, head_dim = _find_heads(config, kind)
    rotaries, layers = _make_layers(
        config, kind, head_dim=head_dim, session_len=session_len, rope_scaling_factor=rope_scaling_factor
    )
    if num_deep_layers >= len(layers):
        raise CheckpointError(f"embeddings are added behind {num_deep_layers} layers of {len(layers)}")
    if num_heads % num_kv_heads:
        raise CheckpointError(f"num_attention_heads={num_heads} is no multiple of num_key_value_heads={num_kv_heads}")
    norm = _find_norm(config, kind)
    scale = getattr(config, "query_pre_attn_scalar", head_dim) ** -0.5
    return DecoderConfig(
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        norm=norm,
        attention_scale=float(scale if kind.attention_scale is None else kind.attention_scale),
        rotaries=rotaries,
        layers=layers,
        alibi=kind.alibi,
        has_embedding_norm=kind.has_embedding_norm,
        qkv=_qkv_layout(config, kind),
        qkv_bias=attention_bias if kind.qkv_bias is None else kind.qkv_bias,
        output_bias=attention_bias if kind.output_bias is None else kind.output_bias,
        qk_norm=kind.qk_norm,
        turns_neighbours=kind.turns_neighbours,
        qkv_limit=kind.qkv_limit,
        tied_embeddings=bool(tied),
        attention_soft_cap=getattr(config, "attn_logit_softcapping", None),
        logit_soft_cap=getattr(config, "final_logit_softcapping", None),
        num_deep_layers=num_deep_layers,
        media_run=media_run,
        media_rows=media_rows,
        is_prefix_lm=is_prefix_lm,
        embedding_scale=kind.embedding_scale,
        scales_media=kind.scales_media,
        residual_scale=kind.residual_scale,
        logit_scale=kind.logit_scale,
        num_added_tokens=kind.num_added_tokens or getattr(config, "num_added_tokens", 0),
        joins_added=kind.num_added_tokens > 0,
        has_unit_head=bool(getattr(config, "has_unit_head", False)),
        query_growth=kind.query_growth,
        has_sinks=kind.has_sinks,
        head_bias=kind.head_bias,
        has_output_gate=kind.has_output_gate,
        log_length=_log_length(config, use_logn_attn=use_logn_attn),
    )


def _log_length(config: ModelConfig, *, use_logn_attn: bool) -> int | None:
    """Return the base of the logarithm by which queries are scaled; None where they are not."""
    if not (use_logn_attn or getattr(config, "use_logn_attn", False)):
        return None
    length = find_trained_length(config)
    if length < 2:
        raise CheckpointError(f"use_logn_attn needs a trained length of at least 2 positions, got {length}")
    return length


def _qkv_layout(config: ModelConfig, kind: DecoderKind) -> QKVLayout:
    layout: QKVLayout = getattr(config, "qkv_layout", None) or kind.qkv
    if layout not in get_args(QKVLayout):
        raise CheckpointError(f"qkv_layout must be one of {', '.join(get_args(QKVLayout))}, got {str(layout)[:40]!r}")
    return layout


def _feed_forward(config: ModelConfig, kind: DecoderKind) -> FeedForwardSpec:
    has_up_first = bool(getattr(config, "has_up_first", False))
    return FeedForwardSpec(
        kind=kind.feed_forward,
        size=kind.inner_size or config.intermediate_size,
        activation=kind.activation or _activation(config, kind),
        has_bias=bool(getattr(config, "mlp_bias", False)) if kind.inner_bias is None else kind.inner_bias,
        is_joined=kind.joins_gate_up or has_up_first,
        has_up_first=has_up_first,
        gate_scale=kind.gate_scale,
        output_scale=kind.output_scale,
    )


def _experts(dense: FeedForwardSpec, kind: DecoderKind) -> FeedForwardSpec:
    """Return the feed-forward of layers with experts. Raises `CheckpointError` for numbers that contradict each
    other."""
    assert kind.experts is not None
    routing = kind.experts.routing
    if not 0 < routing.num_chosen <= routing.num_experts:
        raise CheckpointError(f"a token cannot take {routing.num_chosen} of {routing.num_experts} experts")
    group_size, rest = divmod(routing.num_experts, routing.num_groups)
    if rest or not 0 < routing.num_kept_groups <= routing.num_groups or (routing.sums_two and group_size < 2):
        raise CheckpointError(
            f"{routing.num_experts} experts cannot be in {routing.num_groups} groups, of which "
            f"{routing.num_kept_groups} are kept"
        )
    if routing.num_chosen > group_size * routing.num_kept_groups:
        raise CheckpointError(f"a token cannot take {routing.num_chosen} experts of {routing.num_kept_groups} groups")
    return replace(dense, kind="experts", size=kind.expert_size, experts=kind.experts)


def _find_heads(config: ModelConfig, kind: DecoderKind) -> tuple[int, int, int]:
    """Return the number of heads, that of key-value heads, and the size of a head."""
    num_heads = config.num_attention_heads
    head_dim = kind.head_dim or getattr(config, "head_dim", None) or config.hidden_size // num_heads
    return num_heads, kind.num_kv_heads or config.num_key_value_heads or num_heads, head_dim


def _find_norm(config: ModelConfig, kind: DecoderKind) -> NormSpec:
    norm = kind.norm or NormSpec(eps=config.rms_norm_eps)
    if not isinstance(norm.eps, int | float):
        raise CheckpointError(f"the epsilon of the norms must be a number, got {norm.eps!r}")
    return norm


def _refuse_unsupported(config: ModelConfig, *, is_prefix_lm: bool) -> None:
    for option in ("is_encoder_decoder", "use_bidirectional_attention"):
        if getattr(config, option, False) and not (is_prefix_lm and option == "use_bidirectional_attention"):
            raise CheckpointError(f"{option}=True is not supported")


def _activation(config: ModelConfig, kind: DecoderKind) -> AnyActivation:
    option, is_gated = kind.activation_option, kind.feed_forward == "gated"
    name = getattr(config, option)
    known = [found for found in _ACTIVATIONS if not (is_gated and found == "relu2")]
    if name not in known:
        raise CheckpointError(f"{option}={name!r} is not supported (supported: {', '.join(known)})")
    return _ACTIVATIONS[name]


def _find_rope_parameters(config: ModelConfig, kind: DecoderKind, scaling_factor: float) -> dict[str, object]:
    """Return those of the rotary embeddings, scaled; none where there are none. Raises `CheckpointError` where these
    cannot be scaled."""
    parameters = {} if _is_still(kind) else read_rope_parameters(config)
    if kind.sections:
        parameters.setdefault("mrope_section", kind.sections)
    return scale_dynamically(parameters, scaling_factor) if scaling_factor else parameters


def _is_still(kind: DecoderKind) -> bool:
    """Whether positions turn nothing."""
    return kind.is_still or kind.alibi is not None


def _make_layers(
    config: ModelConfig, kind: DecoderKind, *, head_dim: int, session_len: int | None, rope_scaling_factor: float
) -> tuple[tuple[RotarySpec, ...], tuple[LayerSpec, ...]]:
    """Return the rotary embeddings of a decoder, and its layers."""
    windows = (None,) * len(kind.halves) or _windows(config)
    parameters = _find_rope_parameters(config, kind, rope_scaling_factor)
    if _is_still(kind):
        rotaries, choices = [_make_still(head_dim)], [0] * len(windows)
    else:
        rotaries, choices = _make_rotaries(
            config,
            parameters,
            windows,
            head_dim=head_dim,
            session_len=session_len,
            alternates=kind.alternates_sections,
        )
    mixing = _find_mixing(config, kind)
    dense = _feed_forward(config, kind)
    experts = dense if kind.experts is None else _experts(dense, kind)
    layers = (
        LayerSpec(
            feed_forward=_pick_feed_forward(kind, index, dense, experts),
            mixer=kind.mixer if index in mixing else kind.other_mixer,
            beside=kind.beside,
            shares=kind.shares,
            norms=kind.norms,
            window=window,
            rotary=choice,
            attends_media=index in kind.media_layers,
            half=kind.halves[index] if kind.halves else None,
            norms_qk=not (kind.splits_turned and choice),
            grows_queries=bool(choice) if kind.splits_turned else True,
        )
        for index, (window, choice) in enumerate(zip(windows, choices, strict=True))
    )
    return tuple(rotaries), tuple(layers)


def _find_unturned(config: ModelConfig, num_layers: int) -> list[int]:
    """Return the layers without rotary embeddings."""
    unturned = [i for i, turns in enumerate(getattr(config, "no_rope_layers", None) or ()) if not turns]
    if unturned and unturned[-1] >= num_layers:
        raise CheckpointError(f"no_rope_layers has more entries than the {num_layers} layers")
    return unturned


def _make_rotaries(
    config: ModelConfig,
    parameters: dict[str, object],
    windows: Sequence[Window | None],
    *,
    head_dim: int,
    session_len: int | None,
    alternates: bool,
) -> tuple[list[RotarySpec], list[int]]:
    """Return the rotary embeddings of a decoder, and which of them each layer has. alternates: see `RotarySpec`."""
    if parameters.keys() & set(_LAYER_TYPES):
        types = [_LAYER_TYPES[window is not None] for window in windows]
        found = sorted(set(types))
        return [_make_of_type(config, parameters, name, head_dim) for name in found], [found.index(n) for n in types]
    turning = make_rotary(config, parameters, head_dim=head_dim, session_len=session_len, alternates=alternates)
    unturned = _find_unturned(config, len(windows))
    if not unturned:
        return [turning], [0] * len(windows)
    return [turning, _make_still(turning.dim, turning.sections)], [int(i in unturned) for i in range(len(windows))]


def _make_of_type(config: ModelConfig, parameters: dict[str, object], name: str, head_dim: int) -> RotarySpec:
    """Return the rotary embedding of a type of layers."""
    return make_rotary(config, _of_layer_type(parameters, name), head_dim=head_dim, session_len=None)


def _pick_feed_forward(
    kind: DecoderKind, index: int, dense: FeedForwardSpec, experts: FeedForwardSpec
) -> FeedForwardSpec:
    """Return that of layer `index`."""
    if kind.halves and kind.halves[index] == "mixer":
        return FeedForwardSpec(size=0)
    return dense if index in kind.dense_layers else experts


def _of_layer_type(parameters: dict[str, object], kind: str) -> dict[str, object]:
    found = parameters.get(kind)
    if not isinstance(found, dict):
        raise CheckpointError(f"rope_parameters={parameters!r} has nothing for the layers of type {kind!r}")
    if found.get("rope_type", "default") not in ("default", "linear"):
        raise CheckpointError(f"rope_parameters.{kind}.rope_type={found['rope_type']!r} is not supported")
    return found


def _make_still(dim: int, sections: tuple[int, ...] = ()) -> RotarySpec:
    """Return a rotary embedding whose angles are all 0: it turns nothing."""
    return RotarySpec(dim=dim // 2 * 2, sections=sections, inv_freq=(0.0,) * (dim // 2))


_LAYER_TYPES = ("full_attention", "sliding_attention")
_MIXERS = ("linear_attention", "conv")


def _find_mixing(config: ModelConfig, kind: DecoderKind) -> frozenset[int]:
    """Return the layers that have something in the place of attention."""
    types: list[str] = getattr(config, "layer_types", None) or []
    found = frozenset(index for index, name in enumerate(types) if name in _MIXERS)
    if kind.mixing_layers is not None:
        return kind.mixing_layers
    if found and kind.mixer is None:
        raise CheckpointError(f"layer_types: {types[min(found)]!r} is not supported in a {config.model_type}")
    return found


def _windows(config: ModelConfig) -> tuple[Window | None, ...]:
    window: int | None = getattr(config, "sliding_window", None) or None  # 0, too, is written where there is none
    kinds: list[str] | None = getattr(config, "layer_types", None)
    if kinds is None:
        return (window,) * int(config.num_hidden_layers)
    for kind in kinds:
        if kind not in (*_LAYER_TYPES, "chunked_attention", "hybrid", *_MIXERS):
            raise CheckpointError(f"layer_types: {kind!r} is not supported")
    if "sliding_attention" in kinds and window is None:
        raise CheckpointError("layer_types has 'sliding_attention' but sliding_window is not set")
    found: dict[str, Window | None] = {"sliding_attention": window}
    if "chunked_attention" in kinds:
        found["chunked_attention"] = _read_chunk(config)
    return tuple(found.get(kind) for kind in kinds)


def _read_chunk(config: ModelConfig) -> Chunk:
    size = getattr(config, "attention_chunk_size", None)
    if type(size) is not int or size < 1:
        raise CheckpointError(f"layer_types has 'chunked_attention' but attention_chunk_size is {size!r}")
    return Chunk(size)
