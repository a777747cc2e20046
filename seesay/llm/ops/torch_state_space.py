"""Selective state spaces over states in slots, in plain torch: the oracle of other implementations. Nothing here waits
for the device.

Per group of channels, with a key and a query of N components that its channels share, a state is a matrix [N, I]: each
token multiplies its elements by exp(dt · rate) and adds key · (dt · value)ᵀ, and the output is queryᵀ state. The rate
is that of a channel's head (Mamba-2, Dao & Gu 2024, arXiv 2405.21060), or of each element (Mamba, Gu & Dao 2023, arXiv
2312.00752).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from seesay.llm.ops.state_plan import CHUNK, Chunks, StatePlan
from seesay.llm.ops.torch_states import decays_between, join, split


def find_time_steps(rate: torch.Tensor, bias: torch.Tensor, limits: tuple[float, float]) -> torch.Tensor:
    """softplus(rate + bias) within the limits: how long each token lasts for each head, float32 [T, H]."""
    return F.softplus(rate.float() + bias).clamp_(*limits)


def scan(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    steps: torch.Tensor,
    rates: torch.Tensor,
    states: torch.Tensor,
    plan: StatePlan,
) -> torch.Tensor:
    """Return float32 [T, H, P] for queries and keys [T, G, N], values [T, H, P], time steps [T, H] and rates [H] or
    [H, N], all float32. states float32 [slots, G, N, H · P / G] are changed."""
    value = value * steps[..., None]
    parts, count = [], plan.num_decode
    if count:
        own = plan.slots[:count]
        state = states.index_select(0, own)
        fades = _find_fades(steps[:count], rates, state.shape)
        inputs = value[:count].reshape(count, state.shape[1], 1, -1)
        parts.append(_step(query[:count], key[:count], inputs, fades, state).view(-1, *value.shape[1:]))
        states.index_copy_(0, own, state)
    if plan.chunks is not None:
        run = _run_chunks if rates.dim() == 1 else _run_tokens
        parts.append(run(query, key, value, steps, rates, states, plan.chunks))
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _find_fades(steps: torch.Tensor, rates: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    """What states [B, G, N, I] of this shape are multiplied by for tokens with steps [B, H]: [B, G, N or 1, I]."""
    count, groups, _, inner = shape
    if rates.dim() == 1:
        heads = (steps * rates).exp_().view(count, groups, 1, -1)
        return heads.repeat_interleave(inner // heads.shape[-1], dim=-1)
    fades = (steps[..., None] * rates).exp_().view(count, groups, -1, rates.shape[1])
    return fades.transpose(2, 3).repeat_interleave(inner // fades.shape[2], dim=-1)


def _step(
    query: torch.Tensor, key: torch.Tensor, inputs: torch.Tensor, fades: torch.Tensor, state: torch.Tensor
) -> torch.Tensor:
    """One token of each row, with inputs [B, G, 1, I] and state [B, G, N, I], which is changed → [B, G, 1, I]."""
    state.mul_(fades).addcmul_(key[..., None], inputs)
    return query[..., None, :] @ state


def _run_chunks(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    steps: torch.Tensor,
    rates: torch.Tensor,
    states: torch.Tensor,
    chunks: Chunks,
) -> torch.Tensor:
    """Longer rows, chunk by chunk: what the tokens of a chunk do to each other is a product of queries and keys, times
    what is left of each token at each later one (arXiv 2405.21060, section 6)."""
    num_heads, head_dim = value.shape[1:]
    query, key, value, decay = (split(x, chunks) for x in (query, key, value, steps * rates))
    count, groups = query.shape[:2]
    decay = decay.cumsum(-1)
    pairs = (query @ key.transpose(-1, -2))[:, :, None] * decays_between(decay).view(count, groups, -1, CHUNK, CHUNK)
    output = pairs @ value.view(count, groups, -1, CHUNK, head_dim)
    output = output.transpose(2, 3).flatten(3)
    last = decay[..., -1:]
    spread = decay.view(count, groups, -1, CHUNK).transpose(2, 3).exp().repeat_interleave(head_dim, dim=-1)
    left = value * (last - decay).exp_()[..., None]
    left = left.view(count, groups, -1, CHUNK, head_dim).transpose(2, 3).flatten(3)
    fades = last.exp_().view(count, groups, 1, -1).repeat_interleave(head_dim, dim=-1)
    key = key.transpose(-1, -2)
    state, first = states.index_select(0, chunks.slots), 0
    for num_rows in chunks.counts:
        own, rows = slice(first, first + num_rows), state[:num_rows]
        output[own] += (query[own] @ rows) * spread[own]
        rows.mul_(fades[own]).add_(key[own] @ left[own])
        first += num_rows
    states.index_copy_(0, chunks.slots, state)
    heads = output.view(count, groups, CHUNK, -1, head_dim).transpose(2, 3).reshape(count, num_heads, CHUNK, head_dim)
    return join(heads, chunks)


def _run_tokens(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    steps: torch.Tensor,
    rates: torch.Tensor,
    states: torch.Tensor,
    chunks: Chunks,
) -> torch.Tensor:
    """Longer rows, token by token, for elements of a state fade at rates of their own. Places behind the end of a row
    have time steps of 0, and change nothing."""
    query, key, value, steps = (split(x, chunks) for x in (query, key, value, steps))
    output = torch.empty_like(value)
    state, first = states.index_select(0, chunks.slots), 0
    for num_rows in chunks.counts:
        own, rows = slice(first, first + num_rows), state[:num_rows]
        for token in range(CHUNK):
            inputs = value[own, :, token].reshape(num_rows, rows.shape[1], 1, -1)
            fades = _find_fades(steps[own, :, token], rates, rows.shape)
            made = _step(query[own, :, token], key[own, :, token], inputs, fades, rows)
            output[own, :, token] = made.view(num_rows, *output.shape[1::2])
        first += num_rows
    states.index_copy_(0, chunks.slots, state)
    return join(output, chunks)
