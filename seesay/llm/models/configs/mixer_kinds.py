"""Mixers in the place of attention: how each configuration calls its options."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from seesay.errors import CheckpointError
from seesay.llm.models.mixer_spec import ConvolutionSpec, DeltaNetSpec, GateNorm, LatentSpec, StateSpaceSpec

if TYPE_CHECKING:
    from seesay.checkpoint.model_config import ModelConfig


_MOST = 256


def read_delta_net(config: ModelConfig, *, is_grouped: bool) -> DeltaNetSpec:
    """Raises `CheckpointError` for heads that cannot be grouped."""
    spec = DeltaNetSpec(
        num_key_heads=config.linear_num_key_heads,
        num_value_heads=config.linear_num_value_heads,
        key_dim=config.linear_key_head_dim,
        value_dim=config.linear_value_head_dim,
        num_taps=config.linear_conv_kernel_dim,
        is_grouped=is_grouped,
    )
    if spec.num_value_heads % spec.num_key_heads:
        raise CheckpointError(
            f"linear_num_value_heads={spec.num_value_heads} is no multiple of linear_num_key_heads={spec.num_key_heads}"
        )
    return spec


def read_channel_delta_net(config: ModelConfig) -> DeltaNetSpec:
    """Read the delta net of a Kimi-Linear. Raises `CheckpointError` for numbers that no delta net has."""
    names = ("linear_num_heads", "linear_head_dim", "linear_conv_kernel_dim")
    for option in names:
        if type(number := getattr(config, option)) is not int or number < 1:
            raise CheckpointError(f"{option} must be a positive integer, got {str(number)[:40]}")
    count, dim, num_taps = (int(getattr(config, name)) for name in names)
    return DeltaNetSpec(
        num_key_heads=count, num_value_heads=count, key_dim=dim, value_dim=dim, num_taps=num_taps, rank=dim
    )


def read_latent(config: ModelConfig, *, turns_neighbours: bool) -> LatentSpec:
    """Read the attention of a DeepSeek-V2 or V3."""
    return LatentSpec(
        rank=config.kv_lora_rank,
        query_rank=config.q_lora_rank or 0,
        turned_dim=config.qk_rope_head_dim,
        plain_dim=config.qk_nope_head_dim,
        value_dim=config.v_head_dim,
        turns_neighbours=turns_neighbours,
        num_heads=config.num_attention_heads,
    )


def read_convolution(config: ModelConfig) -> ConvolutionSpec:
    """Read the convolutions of an LFM2."""
    return ConvolutionSpec(size=config.hidden_size, num_taps=config.conv_L_cache, has_bias=bool(config.conv_bias))


class StateSpaceNames(NamedTuple):
    """The options of a configuration that describe its Mamba-2."""

    heads: str = "mamba_n_heads"
    head_dim: str = "mamba_d_head"
    groups: str = "mamba_n_groups"
    state_size: str = "mamba_d_state"
    taps: str = "mamba_d_conv"
    conv_bias: str = "mamba_conv_bias"
    bias: str = "mamba_proj_bias"
    activation: str = "hidden_act"


USUAL_NAMES = StateSpaceNames()
NEMOTRON_NAMES = StateSpaceNames(
    heads="mamba_num_heads",
    head_dim="mamba_head_dim",
    groups="n_groups",
    state_size="ssm_state_size",
    taps="conv_kernel",
    conv_bias="use_conv_bias",
    bias="use_bias",
    activation="mamba_hidden_act",
)


def read_state_space(config: ModelConfig, names: StateSpaceNames = USUAL_NAMES) -> StateSpaceSpec:
    """Read the Mamba-2 of a Granite 4, a Bamba or a Falcon-H1, or of others by their names. Raises `CheckpointError`
    for numbers that no state space has, and heads that cannot be grouped."""
    for option in (names.groups, names.taps):
        if type(number := getattr(config, option)) is not int or not 0 < number <= _MOST:
            raise CheckpointError(f"{option} must be an integer from 1 to {_MOST}, got {str(number)[:40]}")
    has_bias = bool(getattr(config, names.bias))
    spec = StateSpaceSpec(
        num_heads=getattr(config, names.heads),
        head_dim=getattr(config, names.head_dim),
        num_groups=getattr(config, names.groups),
        state_size=getattr(config, names.state_size),
        num_taps=getattr(config, names.taps),
        has_conv_bias=bool(getattr(config, names.conv_bias)),
        has_bias=has_bias,
        has_output_bias=has_bias,
        step_limits=read_step_limits(config),
    )
    return _check_groups(config, spec, activation=names.activation)


def read_scaled_state_space(config: ModelConfig) -> StateSpaceSpec:
    """Read the Mamba-2 of a Falcon-H1, whose parts of the first product have factors."""
    spec, scales = read_state_space(config), config.ssm_multipliers
    if len(scales) != 5 or (spec.has_bias and config.ssm_in_multiplier != 1.0):
        raise CheckpointError("ssm_multipliers must be 5 numbers, and mamba_proj_bias goes without ssm_in_multiplier")
    norm: GateNorm = "before" if config.mamba_norm_before_gate else "behind"
    return replace(
        spec,
        has_output_bias=bool(config.projectors_bias),
        norm=norm if config.mamba_rms_norm else "none",
        in_scales=tuple(float(scale) * config.ssm_in_multiplier for scale in scales),
    )


def read_mamba(config: ModelConfig) -> StateSpaceSpec:
    """Read the first Mamba, of a Jamba."""
    return _check_groups(
        config,
        StateSpaceSpec(
            num_heads=config.mamba_expand * config.hidden_size,
            head_dim=1,
            num_groups=1,
            state_size=config.mamba_d_state,
            num_taps=config.mamba_d_conv,
            has_conv_bias=bool(config.mamba_conv_bias),
            has_bias=bool(config.mamba_proj_bias),
            has_output_bias=bool(config.mamba_proj_bias),
            norm="none",
            step_rank=config.mamba_dt_rank,
        ),
    )


def _check_groups(config: ModelConfig, spec: StateSpaceSpec, *, activation: str = "hidden_act") -> StateSpaceSpec:
    """activation: the option that names it."""
    if spec.num_heads % spec.num_groups:
        raise CheckpointError(f"{spec.num_heads} heads of a state space cannot be in {spec.num_groups} groups")
    if (name := getattr(config, activation)) not in ("silu", "swish"):
        raise CheckpointError(f"{activation}={name!r} is not supported in a state space")
    return spec


def read_step_limits(config: ModelConfig) -> tuple[float, float]:
    """Return the least and the longest time step."""
    limits = config.time_step_limit or (0.0, math.inf)
    if len(limits) != 2 or not all(isinstance(limit, int | float) for limit in limits) or not limits[0] <= limits[1]:
        raise CheckpointError(f"time_step_limit must be two numbers, the smaller one first, got {str(limits)[:40]}")
    return float(limits[0]), float(limits[1])


def find_yarn_scale(config: ModelConfig, size: int) -> float:
    """Return the factor of attention scores of heads of `size` components, which YaRN scales, too."""
    parameters = getattr(config, "rope_parameters", None) or {}
    scale, factor, share = size**-0.5, parameters.get("factor", 1.0), parameters.get("mscale_all_dim", 0)
    if parameters.get("rope_type", "default") == "default" or not share:
        return float(scale)
    if any(isinstance(number, bool) or not isinstance(number, int | float) for number in (factor, share)):
        raise CheckpointError(f"rope_parameters={parameters!r}: factor and mscale_all_dim must be numbers")
    return float(scale * (0.1 * share * math.log(factor) + 1.0) ** 2) if factor > 1 else float(scale)


def find_lfm2_size(config: ModelConfig) -> int:
    """Return the inner size of the feed-forwards of an LFM2, which may be less than its configuration says."""
    size = int(config.intermediate_size)
    if not config.block_auto_adjust_ff_dim:
        return size
    size = int(2 * size / 3)
    if config.block_ffn_dim_multiplier is None:
        return size
    unit = int(config.block_multiple_of)
    return -(-int(config.block_ffn_dim_multiplier * size) // unit) * unit
