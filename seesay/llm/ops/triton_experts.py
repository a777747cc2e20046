"""A mixture of experts by the kernels of `seesay.kernels.experts.mixture`."""

from __future__ import annotations

from functools import partial

import torch

from seesay.device.linear.expert_linear import ExpertLinear
from seesay.kernels import token_kernels
from seesay.kernels.experts import mixture as kernels
from seesay.llm.ops.activations import square_relu
from seesay.llm.ops.interface import AnyActivation
from seesay.llm.ops.torch_experts import ExpertChoice, run_experts
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
    if gate_up.is_apart:
        x = x if norm is None else token_kernels.norm(x, None, *norm)
        choice = kernels.choose(logits, make_choosing(routing, bias), down.experts)
        made = _run_apart(x, choice, gate_up, down, activation)
        return made if add_to is None else add_to.add_(made)
    if gate_up.expert_adaptation is not None and down.expert_adaptation is not None:
        x = x if norm is None else token_kernels.norm(x, None, *norm)
        choice = kernels.choose(logits, make_choosing(routing, bias), down.experts)
        return _mix_adapted(x, choice, gate_up, down, activation, add_to)
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


def _run_apart(
    x: torch.Tensor, choice: kernels.Choice, gate_up: ExpertLinear, down: ExpertLinear, activation: AnyActivation
) -> torch.Tensor:
    """Do `mix_experts` for chosen experts one after another, for each with its own product."""
    assert not choice.is_partial, "ranks have their experts in one matrix"
    activate = square_relu if activation == "relu2" else partial(token_kernels.act_and_mul, activation=activation)
    return run_experts(x, ExpertChoice(choice.experts.long(), choice.shares), gate_up, down, activate)


def _mix_adapted(
    x: torch.Tensor,
    choice: kernels.Choice,
    gate_up: ExpertLinear,
    down: ExpertLinear,
    activation: AnyActivation,
    add_to: torch.Tensor | None,
) -> torch.Tensor:
    """Do `mix_experts` for chosen experts, with what is added to their products."""
    assert gate_up.expert_adaptation is not None and down.expert_adaptation is not None
    num_chosen = choice.experts.shape[1]
    order, starts = kernels.sort(choice.experts, len(down.experts))
    if choice.is_partial:  # behind the places of all experts that are here, `order` is not written
        order = order.clamp(0, len(order) - 1)
    tokens = torch.arange(len(order), device=x.device) // num_chosen
    gate_up.expert_adaptation.begin(tokens, choice.experts.flatten().long())

    def multiply(rows: torch.Tensor, linear: ExpertLinear) -> torch.Tensor:
        sorted_rows = rows.index_select(0, order)
        return kernels.multiply_grouped(sorted_rows, order, starts, _matrix(linear), num_chosen=num_chosen)

    rows = x.index_select(0, tokens)
    outputs = multiply(rows, gate_up)
    if choice.is_partial:
        outputs.masked_fill_((choice.experts < 0).view(-1, 1), 0.0)
    gate_up.expert_adaptation.add(rows, outputs)
    is_plain = activation == "relu2"
    inner = square_relu(outputs) if is_plain else token_kernels.act_and_mul(outputs, activation)
    made = multiply(inner, down)
    down.expert_adaptation.add(inner, made)
    return kernels.combine(made, choice, add_to)


def _matrix(linear: ExpertLinear) -> kernels.ExpertMatrix:
    numbers, scale, group_size = linear.matrix
    return kernels.ExpertMatrix(numbers, linear.bias, scale, group_size)
