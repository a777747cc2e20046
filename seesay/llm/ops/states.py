"""Operations over states in slots: which implementation computes them on a device."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F

from seesay.device.backends import has_kernels
from seesay.device.linear.norm import rms_norm
from seesay.llm.ops import torch_state_space, torch_states
from seesay.llm.ops.state_plan import StatePlan


def convolve(
    x: torch.Tensor,
    states: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    plan: StatePlan,
    *,
    activates: bool = True,
) -> torch.Tensor:
    """Return SiLU of `torch_states.convolve`, or that itself."""
    if plan.taps is None and has_kernels(x.device):
        from seesay.kernels.states import short_convolution

        return short_convolution.convolve_step(x, states, weight, bias, plan.slots, activates=activates)
    y = torch_states.convolve(x, states, weight, bias, plan)
    return F.silu(y) if activates else y


def gate_heads(
    output: torch.Tensor, gate: torch.Tensor, weight: torch.Tensor, eps: float, *, is_sigmoid: bool = False
) -> torch.Tensor:
    """Return the norm of each head's output, float32 [T, H, V], with weight [V], times SiLU of the gate [T, H · V], in
    its type and shape. The norm's input and output are rounded to that type. is_sigmoid: times its sigmoid; then
    nothing is rounded before."""
    if has_kernels(output.device):
        from seesay.kernels.states import gated_heads

        return gated_heads.gate_heads(output, gate, weight, eps, is_sigmoid=is_sigmoid)
    opened = gate.float().sigmoid() if is_sigmoid else F.silu(gate.float())
    output = output if is_sigmoid else output.to(gate.dtype)
    normed = rms_norm(output, weight.to(output.dtype), eps).float()
    return normed.mul_(opened.view_as(normed)).to(gate.dtype).reshape(gate.shape)


def run_delta_rule(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    beta: torch.Tensor,
    rate: torch.Tensor,
    rates: tuple[torch.Tensor, torch.Tensor],
    states: torch.Tensor,
    plan: StatePlan,
    faults: torch.Tensor,
) -> torch.Tensor:
    """See `torch_states.delta_rule`; returns float32 [T, H, V]. Queries and keys [T, G, K] of G heads, each for H / G
    of the values [T, H, V], are brought to length 1, and queries scaled. beta [T, H] is what a sigmoid takes, and rate
    [T, H] is what decays are made of with `rates`, log_rate and bias [H]. faults [T] become NaN where an output is not
    finite. Where each component of a key has its own decay, rate is [T, H, K] and the bias [H, K]; G is H then."""
    if plan.chunks is None and has_kernels(value.device):
        from seesay.kernels.states import delta_rule

        return delta_rule.step(query, key, value, beta, rate, rates, states, plan.slots, faults)
    query, key = torch_states.normalize(query) * query.shape[-1] ** -0.5, torch_states.normalize(key)
    group = value.shape[1] // key.shape[1]
    output = torch_states.delta_rule(
        query.repeat_interleave(group, dim=1),
        key.repeat_interleave(group, dim=1),
        value.float(),
        torch_states.softplus_decay(rate, *rates),
        beta.float().sigmoid(),
        states,
        plan,
    )
    note_faults(output, faults)
    return output


class SpaceWeights(NamedTuple):
    """Of the heads of a state space, in float32: the logarithms of their rates [H], or of those of each element of a
    state [H, N]; what is added to time steps [H]; and how much of a value is added to the output [H]."""

    log_rate: torch.Tensor
    step_bias: torch.Tensor
    skip: torch.Tensor


def run_state_space(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    rate: torch.Tensor,
    weights: SpaceWeights,
    limits: tuple[float, float],
    states: torch.Tensor,
    plan: StatePlan,
    faults: torch.Tensor,
) -> torch.Tensor:
    """See `torch_state_space.scan`; returns float32 [T, H, P], the outputs and the weighted values. Queries and keys
    [T, G, N] are of G groups of heads. rate [T, H] is what time steps within `limits` are made of. faults [T] become
    NaN where an output is not finite."""
    is_scan = plan.chunks is None or weights.log_rate.dim() == 2
    if is_scan and has_kernels(value.device):
        from seesay.kernels.states import state_space

        output = state_space.scan(query, key, value, rate, weights, limits, states, plan.slots, plan.bounds)
    else:
        steps, value = torch_state_space.find_time_steps(rate, weights.step_bias, limits), value.float()
        rates = -weights.log_rate.exp()
        output = torch_state_space.scan(query.float(), key.float(), value, steps, rates, states, plan)
        output = output.addcmul_(weights.skip[:, None], value)
    note_faults(output, faults)
    return output


def note_faults(output: torch.Tensor, faults: torch.Tensor) -> None:
    """Set faults [T] to NaN where an output [T, …] is not finite: what made it so is in the state."""
    output = output.flatten(1)
    if has_kernels(output.device):
        from seesay.kernels.states import faults as kernels

        kernels.note_faults(output, faults)
        return
    faults.masked_fill_(~output.sum(dim=1).isfinite(), math.nan)
