"""Rotary embeddings as configurations describe them. Imports torch and Transformers only to make frequencies.

Scalings by kind (`rope_type`), where L is the length of a text and M that for which the model was trained:

- linear (Chen et al. 2023), yarn (Peng et al. 2023) and llama3 (Meta 2024) change the frequencies of all texts.
- dynamic (NTK-aware, u/emozilla 2023), doubling (Qwen 2023) and longrope (Ding et al. 2024) change those of texts with
  L > M, each text by its own length: see `LengthScaling`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from seesay.errors import CheckpointError
from seesay.llm.models.configs.kinds import find_kind
from seesay.llm.models.spec import RotarySpec
from seesay.llm.plans.traits import LengthScaling

if TYPE_CHECKING:
    from seesay.checkpoint.model_config import ModelConfig

_BESIDE_SCALING = ("rope_theta", "partial_rotary_factor", "mrope_section", "mrope_interleaved")
"""Rotary parameters that are not part of a scaling."""
_BY_LENGTH = ("dynamic", "doubling")
"""Scalings whose base depends on the length of a prompt."""
_LARGEST_FACTOR = 1024


def make_rotary(
    config: ModelConfig, parameters: dict[str, Any], *, head_dim: int, session_len: int | None, alternates: bool = False
) -> RotarySpec:
    """The rotary embedding that `parameters` describe, of `config.rope_parameters`; frequencies by Transformers' own
    functions. alternates: see `RotarySpec`."""
    kind = parameters.get("rope_type", "default")
    if "rope_theta" not in parameters:
        raise CheckpointError(f"rope_parameters={parameters!r} has no rope_theta")
    dim = int(head_dim * parameters.get("partial_rotary_factor", 1.0))
    sections, is_interleaved = _read_sections(parameters, dim)
    if alternates:
        _check_alternating(sections, is_interleaved=is_interleaved)
    inv_freq, scale = _frequencies(config, parameters, dim, seq_len=None)
    long_inv_freq = scaling = None
    if kind == "longrope":
        scaling = LengthScaling(kind="switch", trained=int(parameters["original_max_position_embeddings"]))
        long_inv_freq, _ = _frequencies(config, parameters, dim, seq_len=scaling.trained + 1)
    elif kind in _BY_LENGTH and session_len is not None and session_len > (trained := find_trained_length(config)):
        factor = parameters.get("factor", 1.0)
        scaling = LengthScaling(kind="dynamic" if kind == "dynamic" else "doubling", trained=trained, factor=factor)
    return RotarySpec(
        dim=dim,
        sections=sections,
        inv_freq=inv_freq,
        is_interleaved=is_interleaved,
        alternates=alternates,
        length_scaling=scaling,
        long_inv_freq=long_inv_freq,
        scale=scale,
    )


def _check_alternating(sections: tuple[int, ...], *, is_interleaved: bool) -> None:
    if is_interleaved or len(sections) != 3 or sections[0] != sections[1]:
        raise CheckpointError(f"rope_parameters.mrope_section={sections}: the first two of three must be equal here")


def _read_sections(parameters: dict[str, Any], dim: int) -> tuple[tuple[int, ...], bool]:
    """Return how many frequencies each axis of positions has, none where there is one axis, and whether their
    components take turns."""
    sections = tuple(parameters.get("mrope_section") or ())
    is_interleaved = bool(parameters.get("mrope_interleaved"))
    if sections and sum(sections) * 2 != dim:
        raise CheckpointError(f"rope_parameters.mrope_section={sections}: adds up to {sum(sections)}, not {dim // 2}")
    if is_interleaved and (len(sections) != 3 or any(3 * sections[i] - 3 + i >= dim // 2 for i in (1, 2))):
        raise CheckpointError(f"rope_parameters.mrope_section={sections} cannot be interleaved")
    return sections, is_interleaved


def read_rope_parameters(config: ModelConfig) -> dict[str, Any]:
    """Return the rotary parameters of a configuration, with the scaling that the first Qwen calls by another option."""
    parameters = dict(getattr(config, "rope_parameters", None) or {})
    return {**parameters, "rope_type": "doubling"} if getattr(config, "doubles_ntk", False) else parameters


def can_scale_dynamically(config: ModelConfig) -> bool:
    """Return whether `rope_scaling_factor` can be set: all layers have one rotary embedding."""
    return "rope_theta" in read_rope_parameters(config)


def scale_dynamically(parameters: dict[str, object], factor: float) -> dict[str, Any]:
    """Return `parameters` with dynamic NTK of this factor in place of their own scaling. Raises `CheckpointError` for
    layers of several kinds, whose lengths differ."""
    if "rope_theta" not in parameters:
        raise CheckpointError(
            f"rope_scaling_factor={factor} needs one rotary embedding for all layers; rope_parameters={parameters!r}"
        )
    kept = {name: value for name, value in parameters.items() if name in _BESIDE_SCALING}
    return {**kept, "rope_type": "dynamic", "factor": factor}


def find_trained_length(config: ModelConfig) -> int:
    """Return how many positions the model was trained for, without any scaling of its rotary embedding that reaches
    further."""
    return int(getattr(config, "trained_length", None) or config.max_position_embeddings)


def find_covered_length(config: ModelConfig) -> int:
    """Return how many positions are covered by the training and the rotary scaling of the configuration.

    Some configurations have in `max_position_embeddings` the length with the scaling, some that without: yarn says
    which by `original_max_position_embeddings`. Dynamic scaling covers any length, and so does ALiBi.
    """
    trained = find_trained_length(config)
    own = find_kind(config)
    if own is not None and own.alibi is not None:
        return 1 << 62
    parameters = read_rope_parameters(config)
    kind, factor = parameters.get("rope_type", "default"), parameters.get("factor")
    if kind in _BY_LENGTH:
        return 1 << 62
    if kind == "yarn" and isinstance(factor, int | float):
        return max(trained, int((parameters.get("original_max_position_embeddings") or trained) * factor))
    return trained


def _plain_frequencies(base: float, dim: int) -> tuple[float, ...]:
    import torch

    exponents = torch.arange(0, dim, 2, dtype=torch.float32) / dim
    return tuple((1.0 / (base**exponents)).tolist())


def _frequencies(
    config: ModelConfig, parameters: dict[str, Any], dim: int, *, seq_len: int | None
) -> tuple[tuple[float, ...], float]:
    kind = parameters.get("rope_type", "default")
    if kind == "default":
        return _plain_frequencies(parameters["rope_theta"], dim), 1.0
    if kind in ("linear", *_BY_LENGTH):  # those by length: of texts that need none
        factor = _read_factor(parameters, kind, dim)
        by = factor if kind == "linear" else 1.0
        return tuple(value / by for value in _plain_frequencies(parameters["rope_theta"], dim)), 1.0
    if kind in ("yarn", "longrope", "llama3"):
        return _published_frequencies(config, parameters, dim, kind, seq_len)
    raise CheckpointError(f"rope_parameters.rope_type={kind!r} is not supported")


def _read_factor(parameters: dict[str, Any], kind: str, dim: int) -> float:
    """Return the factor of a scaling that is linear or depends on the length."""
    if kind == "doubling" and dim <= 2:
        raise CheckpointError(f"use_dynamic_ntk needs heads of more than 2 components, got {dim}")
    factor: Any = parameters.get("factor", None if kind == "dynamic" else 1.0)
    if isinstance(factor, bool) or not isinstance(factor, int | float) or not factor > 0:
        raise CheckpointError(f"rope_parameters.factor={factor!r} must be a positive number")
    if kind == "dynamic" and not (1 <= factor <= _LARGEST_FACTOR and dim > 2):
        raise CheckpointError(
            f"rope_parameters.factor={factor!r} must be in [1, {_LARGEST_FACTOR}] for dynamic scaling, which needs "
            f"more than 2 components, got {dim}"
        )
    return factor


def _published_frequencies(
    config: ModelConfig, parameters: dict[str, Any], dim: int, kind: str, seq_len: int | None
) -> tuple[tuple[float, ...], float]:
    """Return the frequencies and the factor of cosine and sine that Transformers computes."""
    import torch
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    try:
        inv_freq, scale = ROPE_INIT_FUNCTIONS[kind](config.to_transformers(), torch.device("cpu"), seq_len=seq_len)
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"rope_parameters of rope_type {kind!r} are incomplete or wrong: {error!r}") from None
    if len(inv_freq) * 2 != dim:
        raise CheckpointError(f"rope_parameters of rope_type {kind!r} give {len(inv_freq)} frequencies, not {dim // 2}")
    return tuple(inv_freq.tolist()), _read_scale(parameters, scale)


def _read_scale(parameters: dict[str, Any], scale: float) -> float:
    """Return the factor of cosine and sine: the one that a Phi-3.5-MoE states, or else `scale`."""
    short, long = (parameters.get(f"{name}_mscale", scale) for name in ("short", "long"))
    if short != long:
        raise CheckpointError(f"rope_parameters.short_mscale={short!r} with another long_mscale is not supported")
    return float(short)
