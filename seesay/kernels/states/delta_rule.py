"""A Triton kernel of one step of the gated delta rule (Yang et al. 2024, arXiv 2412.06464): each row's token changes
its state where that lies, so that a state is read once and written once."""

# mypy: disable-error-code="untyped-decorator, no-untyped-def"

from __future__ import annotations

import torch
import triton
import triton.language as tl

from seesay.kernels.dependent_launch import wait
from seesay.kernels.gpu import has_dependent_launch, nvidia_options
from seesay.kernels.sizes import power_of_2_from

VALUES = 32
"""Components of values of a tile: with keys of 128 components, 4,096 numbers of a state."""


@triton.jit
def delta_step_kernel(
    query_ptr,
    key_ptr,
    value_ptr,
    beta_ptr,
    rate_ptr,
    log_rate_ptr,
    rate_bias_ptr,
    states_ptr,
    slots_ptr,
    out_ptr,
    faults_ptr,
    query_stride,
    key_stride,
    value_stride,
    beta_stride,
    rate_stride,
    slot_stride,
    scale,
    NUM_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    KEY: tl.constexpr,
    VALUE: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_V: tl.constexpr,
    BY_COMPONENT: tl.constexpr,
    IS_DEPENDENT: tl.constexpr,
):
    """Program (b, h, v) computes components v · BLOCK_V … of head h of row b: the state S [KEY, VALUE] becomes
    decay · S + k (beta · (v - decay · kᵀ S)), and the output is qᵀ S. Queries and keys are brought to length 1. A decay
    is that of a head or, BY_COMPONENT, of each component of its key. The row's fault becomes NaN where an output is not
    finite."""
    wait(IS_DEPENDENT)
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    keys = tl.arange(0, BLOCK_K)
    values = tl.program_id(2) * BLOCK_V + tl.arange(0, BLOCK_V)
    is_key, is_value = keys < KEY, values < VALUE
    at = head // GROUP * KEY + keys
    query = tl.load(query_ptr + row * query_stride + at, mask=is_key, other=0.0).to(tl.float32)
    key = tl.load(key_ptr + row * key_stride + at, mask=is_key, other=0.0).to(tl.float32)
    query = query * tl.rsqrt(tl.sum(query * query) + 1e-6) * scale
    key = key * tl.rsqrt(tl.sum(key * key) + 1e-6)
    value = tl.load(value_ptr + row * value_stride + head * VALUE + values, mask=is_value, other=0.0).to(tl.float32)
    beta = tl.sigmoid(tl.load(beta_ptr + row * beta_stride + head).to(tl.float32))
    if BY_COMPONENT:
        at = head * KEY + keys
        rate = tl.load(rate_ptr + row * rate_stride + at, mask=is_key, other=0.0).to(tl.float32)[:, None]
        rate += tl.load(rate_bias_ptr + at, mask=is_key, other=0.0)[:, None]
    else:
        rate = tl.load(rate_ptr + row * rate_stride + head).to(tl.float32) + tl.load(rate_bias_ptr + head)
    soft = tl.where(rate > 20.0, rate, tl.log(1.0 + tl.exp(tl.minimum(rate, 20.0))))
    decay = tl.exp(-tl.exp(tl.load(log_rate_ptr + head)) * soft)
    slot = tl.load(slots_ptr + row)
    own = states_ptr + slot * slot_stride + head * (KEY * VALUE) + keys[:, None] * VALUE + values[None, :]
    is_inside = is_key[:, None] & is_value[None, :]
    state = tl.load(own, mask=is_inside, other=0.0) * decay
    change = (value - tl.sum(state * key[:, None], axis=0)) * beta
    state += key[:, None] * change[None, :]
    tl.store(own, state, mask=is_inside)
    output = tl.sum(state * query[:, None], axis=0)
    tl.store(out_ptr + (row * NUM_HEADS + head) * VALUE + values, output, mask=is_value)
    is_bad = tl.max(tl.where(is_value & ~(tl.abs(output) < float("inf")), 1, 0), axis=0) > 0
    tl.store(faults_ptr + row, float("nan"), mask=is_bad)


def step(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    beta: torch.Tensor,
    rate: torch.Tensor,
    rates: tuple[torch.Tensor, torch.Tensor],
    states: torch.Tensor,
    slots: torch.Tensor,
    faults: torch.Tensor,
) -> torch.Tensor:
    """Return float32 [B, H, V] of one token of each row; see `run_delta_rule` in `seesay/llm/ops/states.py`. The states
    of rows, states[slots[b]], are changed; rows whose slots are the same are padding."""
    num_rows, num_heads, value_dim = value.shape
    group, key_dim = num_heads // key.shape[1], key.shape[2]
    for x in (query, key, value):
        assert x.stride(2) == 1 and x.stride(1) == x.shape[2]
    assert states.stride(1) == key_dim * value_dim and states.stride(2) == value_dim and states.stride(3) == 1
    by_component = rate.dim() == 3
    assert rate.stride(-1) == 1 and (not by_component or (rate.stride(1) == key_dim and group == 1))
    assert rates[1].is_contiguous() and beta.stride(1) == 1 and slots.is_contiguous() and states.dtype == torch.float32
    out = torch.empty(num_rows, num_heads, value_dim, dtype=torch.float32, device=value.device)
    if not num_rows:
        return out
    is_dependent = has_dependent_launch(value.get_device())
    block = min(VALUES, power_of_2_from(value_dim))
    delta_step_kernel[(num_rows, num_heads, -(-value_dim // block))](
        query,
        key,
        value,
        beta,
        rate,
        rates[0],
        rates[1],
        states,
        slots,
        out,
        faults,
        query.stride(0),
        key.stride(0),
        value.stride(0),
        beta.stride(0),
        rate.stride(0),
        states.stride(0),
        key_dim**-0.5,
        NUM_HEADS=num_heads,
        GROUP=group,
        KEY=key_dim,
        VALUE=value_dim,
        BLOCK_K=power_of_2_from(key_dim),
        BLOCK_V=block,
        BY_COMPONENT=by_component,
        IS_DEPENDENT=is_dependent,
        num_warps=4,
        **nvidia_options(launch_pdl=is_dependent),
    )
    return out
