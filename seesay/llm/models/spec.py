"""The shape of a text backbone, as one frozen value made from a model's configuration.

Every supported backbone is the same decoder with other options; what no option covers is refused by name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from seesay.errors import CheckpointError

if TYPE_CHECKING:
    from seesay.checkpoint.model_config import ModelConfig
    from seesay.llm.ops.interface import Activation


@dataclass(frozen=True, slots=True, kw_only=True)
class RotarySpec:
    """Rotary position embedding.

    `dim` leading components of each head are rotated. `sections` split the dim / 2 frequencies among the rows of
    multimodal positions [3, T]; empty means 1-D positions. A row takes neighbouring frequencies or, if they are
    interleaved, every third one, and the first row takes what is left. `inv_freq` has dim / 2 values. Scalings that
    depend on the length of a text (longrope, dynamic) have `long_inv_freq` too: it turns all tokens of a text that has
    more than `short_limit` positions. The keys of a text that grows beyond that are computed again, so that none of it
    mixes the two; the scheduler sees to that. `scale` multiplies cosine and sine.
    """

    dim: int
    sections: tuple[int, ...]
    inv_freq: tuple[float, ...]
    is_interleaved: bool = False
    long_inv_freq: tuple[float, ...] | None = None
    short_limit: int | None = None
    scale: float = 1.0

    def section_of_component(self) -> npt.NDArray[np.int64]:
        """int64 [dim]: the row of multimodal positions that turns each component."""
        rows = np.concatenate([np.full(size, i % 3) for i, size in enumerate(self.sections)])
        if self.is_interleaved:
            rows = np.zeros(self.dim // 2, dtype=np.int64)
            for row in (1, 2):
                rows[row : 3 * self.sections[row] : 3] = row
        return np.concatenate([rows, rows]).astype(np.int64)


NormPlacement = Literal["before", "around"]
"""Norms of a layer: before attention and before the MLP, or also behind each, before its output is added."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSpec:
    """The options in which the layers of one decoder may differ.

    window: the sliding window of its attention, in tokens; None for full attention. rotary: index of its
    `DecoderConfig.rotaries`.
    """

    window: int | None = None
    rotary: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderConfig:
    """Options of the decoder.

    rotaries: those that layers choose from. All turn the same components by the same rows of positions, and only the
    first one may have long frequencies. layers: one entry per layer.
    fused_checkpoint: the checkpoint stores q, k, v as one tensor and gate, up as one. has_grouped_qkv: it has
    one tensor `wqkv`, with each key-value head's query heads, key and value together.
    num_deep_layers: behind so many layers, the first ones, something is added to the residual stream at the tokens that
    take an embedding: an embedding has a further part of `hidden_size` for each of them.
    media_run: most neighbouring tokens that take embeddings; these see each other, and not only those before them. 0:
    no token sees later ones.
    norm_offset: the checkpoint stores norm weights less this. embedding_scale: factor of embeddings looked up by token
    ids. attention_scale: factor of attention scores.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    norm_eps: float
    max_position_embeddings: int
    attention_scale: float
    rotaries: tuple[RotarySpec, ...]
    layers: tuple[LayerSpec, ...]
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    tied_embeddings: bool = False
    fused_checkpoint: bool = False
    has_grouped_qkv: bool = False
    activation: Activation = "silu"
    attention_soft_cap: float | None = None
    logit_soft_cap: float | None = None
    num_deep_layers: int = 0
    media_run: int = 0
    norm_placement: NormPlacement = "before"
    norm_offset: float = 0.0
    embedding_scale: float = 1.0

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    @property
    def embedding_size(self) -> int:
        """The size of an embedding that takes the place of a token's."""
        return self.hidden_size * (1 + self.num_deep_layers)

    @property
    def mlp_norm(self) -> str:
        """The checkpoint's name of a layer's norm before the MLP."""
        return "post_attention_layernorm" if self.norm_placement == "before" else "pre_feedforward_layernorm"

    @property
    def rotary(self) -> RotarySpec:
        """The first of `rotaries`: what holds for the positions of all."""
        return self.rotaries[0]

    @property
    def flops_per_token(self) -> int:
        """Floating-point operations of the matrix products of one token, without attention and the output head."""
        attention = self.hidden_size * self.head_dim * 2 * (self.num_heads + self.num_kv_heads)
        return 2 * self.num_layers * (attention + 3 * self.hidden_size * self.intermediate_size)

    @classmethod
    def from_hf(
        cls,
        config: ModelConfig,
        *,
        tied_embeddings: bool | None = None,
        session_len: int | None = None,
        num_deep_layers: int = 0,
        has_grouped_qkv: bool = False,
        media_run: int = 0,
    ) -> DecoderConfig:
        """The decoder that the configuration of a text decoder describes.

        `tied_embeddings` overrides the config's own (VLM configs keep it one level up); `session_len` is the longest
        text, which dynamic rotary scaling needs. Raises `CheckpointError` naming what is not supported.
        """
        kind = _KINDS.get(config.model_type)
        if kind is None:
            known = ", ".join(sorted(_KINDS))
            raise CheckpointError(f"text backbone {config.model_type!r} is not supported (supported: {known})")
        _refuse_unsupported(config)
        attention_bias = bool(getattr(config, "attention_bias", False))
        tied = getattr(config, "tie_word_embeddings", False) if tied_embeddings is None else tied_embeddings
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        num_kv_heads = config.num_key_value_heads or config.num_attention_heads
        rotaries, layers = _make_layers(config, head_dim=head_dim, session_len=session_len)
        if num_deep_layers >= len(layers):
            raise CheckpointError(f"embeddings are added behind {num_deep_layers} layers of {len(layers)}")
        if config.num_attention_heads % num_kv_heads:
            raise CheckpointError(
                f"num_attention_heads={config.num_attention_heads} is no multiple of num_key_value_heads={num_kv_heads}"
            )
        return cls(
            vocab_size=config.vocab_size,
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            num_heads=config.num_attention_heads,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            norm_eps=config.rms_norm_eps,
            max_position_embeddings=config.max_position_embeddings,
            attention_scale=float(getattr(config, "query_pre_attn_scalar", head_dim) ** -0.5),
            rotaries=rotaries,
            layers=layers,
            qkv_bias=kind.qkv_bias or attention_bias,
            output_bias=attention_bias,
            mlp_bias=bool(getattr(config, "mlp_bias", False)),
            qk_norm=kind.qk_norm,
            tied_embeddings=bool(tied),
            fused_checkpoint=kind.fused_checkpoint,
            activation=_activation(config),
            attention_soft_cap=getattr(config, "attn_logit_softcapping", None),
            logit_soft_cap=getattr(config, "final_logit_softcapping", None),
            num_deep_layers=num_deep_layers,
            has_grouped_qkv=has_grouped_qkv,
            media_run=media_run,
            norm_placement=kind.norm_placement,
            norm_offset=kind.norm_offset,
            embedding_scale=float(config.hidden_size**0.5) if kind.scales_embeddings else 1.0,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind:
    """Properties that a model type implies without saying them in its config."""

    qkv_bias: bool = False
    qk_norm: bool = False
    fused_checkpoint: bool = False
    norm_placement: NormPlacement = "before"
    norm_offset: float = 0.0
    scales_embeddings: bool = False


_ACTIVATIONS: dict[str, Activation] = {"silu": "silu", "gelu": "gelu", "gelu_pytorch_tanh": "gelu_tanh"}
_KINDS = {
    "gemma": _Kind(norm_offset=1.0, scales_embeddings=True),
    "gemma2": _Kind(norm_placement="around", norm_offset=1.0, scales_embeddings=True),
    "gemma3_text": _Kind(norm_placement="around", norm_offset=1.0, scales_embeddings=True, qk_norm=True),
    "llama": _Kind(),
    "mistral": _Kind(),
    "phi3": _Kind(fused_checkpoint=True),
    "qwen2": _Kind(qkv_bias=True),
    "qwen2_vl_text": _Kind(qkv_bias=True),
    "qwen2_5_vl_text": _Kind(qkv_bias=True),
    "qwen3": _Kind(qk_norm=True),
    "qwen3_vl_text": _Kind(qk_norm=True),
    "smollm3": _Kind(),
}


def list_backbones() -> tuple[str, ...]:
    """The model types that `DecoderConfig.from_hf` knows."""
    return tuple(sorted(_KINDS))


def _refuse_unsupported(config: ModelConfig) -> None:
    for option in ("is_encoder_decoder", "use_bidirectional_attention"):
        if getattr(config, option, False):
            raise CheckpointError(f"{option}=True is not supported")


def _activation(config: ModelConfig) -> Activation:
    option = "hidden_activation" if getattr(config, "hidden_activation", None) else "hidden_act"
    name = getattr(config, option)
    if name not in _ACTIVATIONS:
        raise CheckpointError(f"{option}={name!r} is not supported (supported: {', '.join(_ACTIVATIONS)})")
    return _ACTIVATIONS[name]


def _make_layers(
    config: ModelConfig, *, head_dim: int, session_len: int | None
) -> tuple[tuple[RotarySpec, ...], tuple[LayerSpec, ...]]:
    """Return the rotary embeddings of a decoder, and its layers."""
    windows = _windows(config)
    parameters: dict[str, Any] = dict(config.rope_parameters or {})
    if parameters.keys() & set(_LAYER_TYPES):  # by type of layer
        kinds = [_LAYER_TYPES[window is not None] for window in windows]
        found = sorted(set(kinds))
        rotaries = [
            make_rotary(config, _of_layer_type(parameters, kind), head_dim=head_dim, session_len=None) for kind in found
        ]
        choices = [found.index(kind) for kind in kinds]
    else:
        rotaries = [make_rotary(config, parameters, head_dim=head_dim, session_len=session_len)]
        choices = [0] * len(windows)
        if unturned := [i for i, turns in enumerate(getattr(config, "no_rope_layers", None) or ()) if not turns]:
            if unturned[-1] >= len(windows):
                raise CheckpointError(f"no_rope_layers has more entries than the {len(windows)} layers")
            rotaries.append(_make_still(rotaries[0]))
            choices = [int(i in unturned) for i in range(len(windows))]
    layers = (LayerSpec(window=window, rotary=choice) for window, choice in zip(windows, choices, strict=True))
    return tuple(rotaries), tuple(layers)


def _of_layer_type(parameters: dict[str, Any], kind: str) -> dict[str, Any]:
    found = parameters.get(kind)
    if not isinstance(found, dict):
        raise CheckpointError(f"rope_parameters={parameters!r} has nothing for the layers of type {kind!r}")
    if found.get("rope_type", "default") not in ("default", "linear"):
        raise CheckpointError(f"rope_parameters.{kind}.rope_type={found['rope_type']!r} is not supported")
    return found


def _make_still(rotary: RotarySpec) -> RotarySpec:
    """Return a rotary embedding of the same form whose angles are all 0: it turns nothing."""
    return RotarySpec(dim=rotary.dim, sections=rotary.sections, inv_freq=(0.0,) * len(rotary.inv_freq))


_LAYER_TYPES = ("full_attention", "sliding_attention")


def _windows(config: ModelConfig) -> tuple[int | None, ...]:
    window: int | None = getattr(config, "sliding_window", None)
    kinds: list[str] | None = getattr(config, "layer_types", None)
    if kinds is None:
        return (window,) * int(config.num_hidden_layers)
    for kind in kinds:
        if kind not in _LAYER_TYPES:
            raise CheckpointError(f"layer_types: {kind!r} is not supported")
    if "sliding_attention" in kinds and window is None:
        raise CheckpointError("layer_types has 'sliding_attention' but sliding_window is not set")
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)


def make_rotary(
    config: ModelConfig, parameters: dict[str, Any], *, head_dim: int, session_len: int | None
) -> RotarySpec:
    """The rotary embedding that `parameters` describe, of `config.rope_parameters`; frequencies by Transformers' own
    functions."""
    kind = parameters.get("rope_type", "default")
    if "rope_theta" not in parameters:
        raise CheckpointError(f"rope_parameters={parameters!r} has no rope_theta")
    dim = int(head_dim * parameters.get("partial_rotary_factor", 1.0))
    sections = tuple(parameters.get("mrope_section") or ())
    is_interleaved = bool(parameters.get("mrope_interleaved"))
    if sections and sum(sections) * 2 != dim:
        raise CheckpointError(f"rope_parameters.mrope_section={sections}: adds up to {sum(sections)}, not {dim // 2}")
    if is_interleaved and (len(sections) != 3 or any(3 * sections[i] - 3 + i >= dim // 2 for i in (1, 2))):
        raise CheckpointError(f"rope_parameters.mrope_section={sections} cannot be interleaved")
    inv_freq, scale = _frequencies(config, parameters, dim, seq_len=None)
    long_inv_freq = short_limit = None
    if kind == "longrope":
        short_limit = int(parameters["original_max_position_embeddings"])
        long_inv_freq, _ = _frequencies(config, parameters, dim, seq_len=short_limit + 1)
    elif kind == "dynamic" and (session_len or 0) > config.max_position_embeddings:
        short_limit = int(config.max_position_embeddings)
        long_inv_freq, _ = _frequencies(config, parameters, dim, seq_len=session_len)
    return RotarySpec(
        dim=dim,
        sections=sections,
        inv_freq=inv_freq,
        is_interleaved=is_interleaved,
        long_inv_freq=long_inv_freq,
        short_limit=short_limit,
        scale=scale,
    )


def _frequencies(
    config: ModelConfig, parameters: dict[str, Any], dim: int, *, seq_len: int | None
) -> tuple[tuple[float, ...], float]:
    import torch

    kind = parameters.get("rope_type", "default")
    if kind in ("default", "linear"):
        factor = parameters.get("factor", 1.0) if kind == "linear" else 1.0
        if not isinstance(factor, (int, float)) or not factor > 0:
            raise CheckpointError(f"rope_parameters.factor={factor!r} must be a positive number")
        exponents = torch.arange(0, dim, 2, dtype=torch.float32) / dim
        return tuple((1.0 / (parameters["rope_theta"] ** exponents) / factor).tolist()), 1.0
    if kind not in ("dynamic", "yarn", "longrope", "llama3"):
        raise CheckpointError(f"rope_parameters.rope_type={kind!r} is not supported")
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    try:
        inv_freq, scale = ROPE_INIT_FUNCTIONS[kind](config.to_transformers(), torch.device("cpu"), seq_len=seq_len)
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"rope_parameters of rope_type {kind!r} are incomplete or wrong: {error!r}") from None
    if len(inv_freq) * 2 != dim:
        raise CheckpointError(f"rope_parameters of rope_type {kind!r} give {len(inv_freq)} frequencies, not {dim // 2}")
    return tuple(inv_freq.tolist()), float(scale)
