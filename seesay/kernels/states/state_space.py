"""A Triton kernel of selective state spaces (Gu & Dao 2023, arXiv 2312.00752; Dao & Gu 2024, arXiv 2405.21060): each
row's tokens change its state, which is read once and written once."""

# mypy: disable-error-code="untyped-decorator, no-untyped-def"

from __future__ import annotations

import torch
import triton
import triton.language as tl

from seesay.kernels.sizes import power_of_2_from

ELEMENTS = 4096
"""Numbers of a state in a tile."""


@triton.jit
def scan_kernel(
    query_ptr,
    key_ptr,
    value_ptr,
    rate_ptr,
    log_rate_ptr,
    bias_ptr,
    skip_ptr,
    states_ptr,
    slots_ptr,
    bounds_ptr,
    out_ptr,
    query_stride,
    key_stride,
    value_stride,
    rate_stride,
    slot_stride,
    shortest,
    longest,
    STATE: tl.constexpr,
    INNER: tl.constexpr,
    HEAD: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_I: tl.constexpr,
    IS_PER_ELEMENT: tl.constexpr,
    HAS_BOUNDS: tl.constexpr,
):
    """Program (b, g, i) computes channels i · BLOCK_I … of group g for the tokens of row b: the state S [STATE, INNER]
    becomes exp(dt · rate) · S + key · (dt · value)ᵀ, and the output is queryᵀ S + skip · value."""
    row, group = tl.program_id(0).to(tl.int64), tl.program_id(1)
    keys = tl.arange(0, BLOCK_N)
    channels = tl.program_id(2) * BLOCK_I + tl.arange(0, BLOCK_I)
    is_key, is_channel = keys < STATE, channels < INNER
    is_inside = is_key[:, None] & is_channel[None, :]
    places = group * INNER + channels
    heads = places // HEAD
    if IS_PER_ELEMENT:
        log_rate = tl.load(log_rate_ptr + heads[None, :] * STATE + keys[:, None], mask=is_inside, other=0.0)
    else:
        log_rate = tl.load(log_rate_ptr + heads, mask=is_channel, other=0.0)[None, :]
    rates = -tl.exp(log_rate)
    bias = tl.load(bias_ptr + heads, mask=is_channel, other=0.0)
    skip = tl.load(skip_ptr + heads, mask=is_channel, other=0.0)
    slot = tl.load(slots_ptr + row)
    own = states_ptr + slot * slot_stride + group * (STATE * INNER) + keys[:, None] * INNER + channels[None, :]
    state = tl.load(own, mask=is_inside, other=0.0)
    first, stop = row, row + 1
    if HAS_BOUNDS:
        first, stop = tl.load(bounds_ptr + row), tl.load(bounds_ptr + row + 1)
    for token in range(first, stop):
        rate = tl.load(rate_ptr + token * rate_stride + heads, mask=is_channel, other=0.0).to(tl.float32) + bias
        step = tl.where(rate > 20.0, rate, tl.log(1.0 + tl.exp(tl.minimum(rate, 20.0))))
        step = tl.minimum(tl.maximum(step, shortest), longest)
        at = group * STATE + keys
        query = tl.load(query_ptr + token * query_stride + at, mask=is_key, other=0.0).to(tl.float32)
        key = tl.load(key_ptr + token * key_stride + at, mask=is_key, other=0.0).to(tl.float32)
        value = tl.load(value_ptr + token * value_stride + places, mask=is_channel, other=0.0).to(tl.float32)
        state = state * tl.exp(step[None, :] * rates) + key[:, None] * (step * value)[None, :]
        output = tl.sum(state * query[:, None], axis=0) + skip * value
        tl.store(out_ptr + token * WIDTH + places, output, mask=is_channel)
    tl.store(own, state, mask=is_inside)


def scan(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    rate: torch.Tensor,
    weights: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    limits: tuple[float, float],
    states: torch.Tensor,
    slots: torch.Tensor,
    bounds: torch.Tensor | None,
) -> torch.Tensor:
    """Return float32 [T, H, P]; see `run_state_space` in `seesay/llm/ops/states.py`. bounds int64 [B + 1]: where the
    tokens of rows begin; None where each has one. The states of rows, states[slots[b]], are changed; rows whose slots
    are the same are padding."""
    (num_tokens, num_heads, head_dim), (groups, state_size) = value.shape, key.shape[1:]
    inner, width = num_heads * head_dim // groups, num_heads * head_dim
    for x in (query, key, value):
        assert x.stride(2) == 1 and x.stride(1) == x.shape[2]
    log_rate, bias, skip = weights
    assert all(x.is_contiguous() and x.dtype == torch.float32 for x in weights)
    assert states[0].is_contiguous() and states.dtype == torch.float32
    assert rate.stride(1) == 1 and slots.is_contiguous()
    out = torch.empty(num_tokens, num_heads, head_dim, dtype=torch.float32, device=value.device)
    if not num_tokens:
        return out
    block_n = power_of_2_from(state_size)
    block_i = min(power_of_2_from(inner), max(16, ELEMENTS // block_n))
    scan_kernel[(len(slots), groups, -(-inner // block_i))](
        query,
        key,
        value,
        rate,
        log_rate,
        bias,
        skip,
        states,
        slots,
        slots if bounds is None else bounds,
        out,
        query.stride(0),
        key.stride(0),
        value.stride(0),
        rate.stride(0),
        states.stride(0),
        *limits,
        STATE=state_size,
        INNER=inner,
        HEAD=head_dim,
        WIDTH=width,
        BLOCK_N=block_n,
        BLOCK_I=block_i,
        IS_PER_ELEMENT=log_rate.dim() == 2,
        HAS_BOUNDS=bounds is not None,
        num_warps=4,
    )
    return out
