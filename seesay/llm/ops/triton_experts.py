"""A mixture of experts by the kernels of `seesay.kernels.experts`."""

from __future__ import annotations

import torch

from seesay.device.linear.expert_linear import ExpertLinear
from seesay.kernels import experts as kernels
from seesay.llm.ops.interface import Activation, ExpertChoice
from seesay.llm.plans.routing import Routing


def choose_experts(logits: torch.Tensor, routing: Routing, bias: torch.Tensor | None) -> ExpertChoice:
    """See `Ops.choose_experts`."""
    found = kernels.choose(
        logits,
        bias,
        num_chosen=routing.num_chosen,
        is_sigmoid=routing.scores == "sigmoid",
        is_normalized=routing.is_normalized,
        least_sum=routing.least_sum,
        scale=routing.scale,
        groups=(routing.num_groups, routing.num_kept_groups),
        sums_two=routing.sums_two,
    )
    return ExpertChoice(*found)


def run_experts(
    x: torch.Tensor,
    choice: ExpertChoice,
    gate_up: ExpertLinear,
    down: ExpertLinear,
    activation: Activation,
    add_to: torch.Tensor | None = None,
) -> torch.Tensor:
    """See `Ops.run_experts`."""
    return kernels.run(
        x,
        *choice,
        _matrix(gate_up),
        _matrix(down),
        num_experts=down.num_experts,
        gate=kernels.Gate(activation),
        add_to=add_to,
    )


def _matrix(linear: ExpertLinear) -> kernels.ExpertMatrix:
    numbers, scale, group_size = linear.matrix
    return kernels.ExpertMatrix(numbers, linear.bias, scale, group_size)
