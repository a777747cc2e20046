"""The experts of model types that have them: how each configuration calls their options."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from seesay.errors import CheckpointError
from seesay.llm.models.spec import ExpertsSpec, LayerSpec, StackingSpec
from seesay.llm.plans.routing import Routing

if TYPE_CHECKING:
    from seesay.checkpoint.model_config import ModelConfig

_OF_EXPERTS = re.compile(r"layers\.(?P<layer>\d+)\.mlp\.experts\.(?P<module>\d+|gate_up_proj|down_proj)\.")


def read_mixtral_experts(config: ModelConfig) -> ExpertsSpec:
    return ExpertsSpec(
        routing=Routing(num_experts=config.num_local_experts, num_chosen=config.num_experts_per_tok, is_normalized=True)
    )


def read_granite_experts(config: ModelConfig) -> ExpertsSpec:
    return replace(
        read_mixtral_experts(config),
        stacking=StackingSpec(),
        shared_size=getattr(config, "shared_intermediate_size", 0),
    )


def read_jamba_experts(config: ModelConfig) -> ExpertsSpec:
    return ExpertsSpec(routing=Routing(num_experts=config.num_experts, num_chosen=config.num_experts_per_tok))


def read_phi_experts(config: ModelConfig) -> ExpertsSpec:
    routing = Routing(
        num_experts=config.num_local_experts,
        num_chosen=config.num_experts_per_tok,
        jitter=float(config.router_jitter_noise),
    )
    return ExpertsSpec(routing=routing)


def read_gpt_oss_experts(config: ModelConfig) -> ExpertsSpec:
    for option, value in (("swiglu_alpha", 1.702), ("swiglu_limit", 7.0)):
        if (found := getattr(config, option, value)) != value:
            raise CheckpointError(f"{option}={found!r} is not supported: it must be {value}")
    return ExpertsSpec(
        routing=Routing(
            num_experts=config.num_local_experts, num_chosen=config.num_experts_per_tok, is_normalized=True
        ),
        has_bias=True,
        stacking=StackingSpec(is_transposed=True, alternates=True),
    )


def read_llama4_experts(config: ModelConfig) -> ExpertsSpec:
    """Read those of one chosen expert, whose share is 1: its input is scaled."""
    if config.num_experts_per_tok != 1:
        raise CheckpointError(f"num_experts_per_tok={config.num_experts_per_tok} is not supported: it must be 1")
    return ExpertsSpec(
        routing=Routing(num_experts=config.num_local_experts, num_chosen=1, is_normalized=True),
        scales_inputs=True,
        shared_size=config.intermediate_size,
        stacking=StackingSpec(is_transposed=True),
    )


def read_qwen_experts(config: ModelConfig, *, is_normalized: bool | None = None) -> ExpertsSpec:
    """is_normalized: instead of the configuration's option."""
    return ExpertsSpec(
        routing=Routing(
            num_experts=config.num_experts,
            num_chosen=config.num_experts_per_tok,
            is_normalized=bool(config.norm_topk_prob) if is_normalized is None else is_normalized,
        )
    )


def read_qwen2_experts(config: ModelConfig) -> ExpertsSpec:
    """Read those of DeepSeek-MoE, too, whose shared feed-forward has no gate."""
    return replace(
        read_qwen_experts(config),
        shared_size=config.shared_expert_intermediate_size,
        has_shared_gate=getattr(config, "has_shared_gate", True),
    )


def read_qwen3_vl_experts(config: ModelConfig) -> ExpertsSpec:
    experts = read_qwen_experts(config, is_normalized=True)
    return replace(experts, stacking=StackingSpec(is_transposed=None))


def read_glm_experts(config: ModelConfig, *, count_option: str = "n_routed_experts") -> ExpertsSpec:
    """Read those of DeepSeek-V3, too. count_option: what the configuration calls the number of experts."""
    num_experts = getattr(config, count_option)
    return ExpertsSpec(
        routing=Routing(
            num_experts=num_experts,
            num_chosen=config.num_experts_per_tok,
            scores="sigmoid",
            is_normalized=bool(config.norm_topk_prob),
            scale=float(config.routed_scaling_factor),
            num_groups=config.n_group,
            num_kept_groups=config.topk_group,
            sums_two=config.n_group > 1,
        ),
        choice_bias_shape=(num_experts,),
        is_router_exact=True,
        shared_size=config.moe_intermediate_size * (config.n_shared_experts or 0),
    )


def read_nemotron_experts(config: ModelConfig) -> ExpertsSpec:
    if (size := getattr(config, "moe_latent_size", None)) is not None:
        raise CheckpointError(f"moe_latent_size={size!r} is not supported: experts take the whole hidden state here")
    return replace(read_glm_experts(config), shared_size=config.moe_shared_expert_intermediate_size, is_gated=False)


def read_deepseek_experts(config: ModelConfig) -> ExpertsSpec:
    """Read those of DeepSeek-V2, whose chosen experts' shares are not normalized."""
    method = config.topk_method
    if method not in ("greedy", "group_limited_greedy"):
        raise CheckpointError(f"topk_method={method!r} is not supported")
    is_grouped = method != "greedy"
    return ExpertsSpec(
        routing=Routing(
            num_experts=config.n_routed_experts,
            num_chosen=config.num_experts_per_tok,
            scale=float(config.routed_scaling_factor),
            num_groups=config.n_group if is_grouped else 1,
            num_kept_groups=config.topk_group if is_grouped else 1,
        ),
        is_router_exact=True,
        shared_size=config.moe_intermediate_size * (config.n_shared_experts or 0),
    )


def read_ernie_experts(config: ModelConfig, *, size: int) -> ExpertsSpec:
    """size: the inner size of an expert."""
    return ExpertsSpec(
        routing=Routing(
            num_experts=config.moe_num_experts,
            num_chosen=config.moe_k,
            is_normalized=True,
            least_sum=float(config.moe_norm_min),
        ),
        choice_bias_shape=(1, config.moe_num_experts),
        is_router_exact=True,
        shared_size=size * (config.moe_num_shared_experts or 0),
    )


def find_stacked_experts(names: Iterable[str | None]) -> dict[int, bool]:
    """Return for each layer with experts whether a checkpoint, which has tensors of these names of the decoder, has
    them in tensors of all experts, or one by one."""
    matches = (_OF_EXPERTS.match(name) for name in names if name is not None and ".experts." in name)
    return {int(found["layer"]): not found["module"].isdigit() for found in matches if found is not None}


def restack_experts(layer: LayerSpec, *, is_stacked: bool | None) -> LayerSpec:
    """Return the options of a layer whose experts are stored so; None: as its kind says. What tools write that quantize
    or train differs there from what was published first."""
    experts = layer.feed_forward.experts
    if experts is None or is_stacked is None or is_stacked == (experts.stacking is not None):
        return layer
    experts = replace(experts, stacking=StackingSpec(is_transposed=None) if is_stacked else None)
    return replace(layer, feed_forward=replace(layer.feed_forward, experts=experts))


def read_ernie_vl_experts(config: ModelConfig) -> tuple[ExpertsSpec, int]:
    """Return those of text, beside which there are as many smaller ones for rows of media, and their inner size."""
    sizes = config.moe_intermediate_size
    is_pair = isinstance(sizes, list | tuple) and len(sizes) == 2
    if not is_pair or any(type(size) is not int or size < 1 for size in sizes):
        raise CheckpointError(
            f"moe_intermediate_size={str(sizes)[:80]} must be two positive integers: the inner sizes of the experts of "
            "text and of media"
        )
    experts = replace(
        read_ernie_experts(config, size=sizes[0]),
        choice_bias_shape=(2, config.moe_num_experts),
        is_router_transposed=True,
        media_size=sizes[1],
    )
    return experts, sizes[0]


def find_dense_qwen_layers(config: ModelConfig) -> frozenset[int]:
    """Return the layers without experts: those that the configuration lists, and all but every `decoder_sparse_step`-th
    one."""
    listed, step = frozenset(config.mlp_only_layers or ()), config.decoder_sparse_step
    layers = range(config.num_hidden_layers)
    return listed | {index for index in layers if not config.num_experts or (index + 1) % step}


def find_dense_ernie_layers(config: ModelConfig) -> frozenset[int]:
    """Return the layers without experts: all but every `moe_layer_interval`-th one between two."""
    last = config.moe_layer_end_index
    last = config.num_hidden_layers - 1 if last == -1 else last
    with_experts = range(config.moe_layer_start_index, last + 1)
    layers = range(config.num_hidden_layers)
    return frozenset(i for i in layers if i not in with_experts or (i + 1) % config.moe_layer_interval)
