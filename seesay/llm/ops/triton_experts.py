"""A mixture of experts by the kernels of `seesay.kernels.experts`."""

from __future__ import annotations

import torch

from seesay.device.linear.expert_linear import ExpertLinear
from seesay.kernels import experts as kernels
from seesay.llm.ops.interface import AnyActivation
from seesay.llm.plans.routing import Routing


def make_choosing(routing: Routing, bias: torch.Tensor | None) -> kernels.Choosing:
    """Return how the kernels choose."""
    return kernels.Choosing(
        num_chosen=routing.num_chosen,
        is_sigmoid=routing.scores == "sigmoid",
        is_normalized=routing.is_normalized,
        least_sum=routing.least_sum,
        scale=routing.scale,
        groups=(routing.num_groups, routing.num_kept_groups),
        sums_two=routing.sums_two,
        jitter=routing.jitter,
        bias=bias,
    )


def mix_experts(
    x: torch.Tensor,
    logits: torch.Tensor,
    routing: Routing,
    bias: torch.Tensor | None,
    gate_up: ExpertLinear,
    down: ExpertLinear,
    activation: AnyActivation,
    norm: tuple[torch.Tensor, float] | None,
    add_to: torch.Tensor | None,
) -> torch.Tensor:
    """See `Ops.mix_experts`."""
    return kernels.mix(
        x,
        logits,
        make_choosing(routing, bias),
        _matrix(gate_up),
        _matrix(down),
        own=down.experts,
        activation=activation,
        norm=norm,
        add_to=add_to,
    )


def _matrix(linear: ExpertLinear) -> kernels.ExpertMatrix:
    numbers, scale, group_size = linear.matrix
    return kernels.ExpertMatrix(numbers, linear.bias, scale, group_size)
