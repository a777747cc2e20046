"""The experts of model types that have them: how each configuration calls their options."""

from __future__ import annotations

from typing import TYPE_CHECKING

from seesay.llm.models.spec import ExpertsSpec
from seesay.llm.plans.routing import Routing

if TYPE_CHECKING:
    from seesay.checkpoint.model_config import ModelConfig


def read_mixtral_experts(config: ModelConfig) -> ExpertsSpec:
    return ExpertsSpec(
        routing=Routing(num_experts=config.num_local_experts, num_chosen=config.num_experts_per_tok, is_normalized=True)
    )


def read_qwen_experts(config: ModelConfig) -> ExpertsSpec:
    return ExpertsSpec(
        routing=Routing(
            num_experts=config.num_experts,
            num_chosen=config.num_experts_per_tok,
            is_normalized=bool(config.norm_topk_prob),
        )
    )


def find_dense_layers(config: ModelConfig) -> frozenset[int]:
    """Return the layers of a Qwen-MoE without experts: those that its configuration lists, and all but every
    `decoder_sparse_step`-th one."""
    layers, step = range(config.num_hidden_layers), config.decoder_sparse_step
    listed = frozenset(config.mlp_only_layers or ())
    return listed | {index for index in layers if not config.num_experts or (index + 1) % step}
