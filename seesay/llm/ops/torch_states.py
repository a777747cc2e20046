"""Short convolutions and gated delta rules over states in slots, in plain torch: the oracle of other implementations.

Nothing here waits for the device. A step of one token per row reads and writes the slots that a tensor on the device
names, so that it may be captured in a graph.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from seesay.llm.ops.state_plan import CHUNK, Chunks, StatePlan

BLOCK = 16
"""Tokens of a chunk between each two of which decays of components are computed."""


def convolve(
    x: torch.Tensor, states: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, plan: StatePlan
) -> torch.Tensor:
    """Causal convolution of each component of x [T, C] by weight [C, K], and bias [C], over the last K tokens of its
    sequence → [T, C]. states [slots, K - 1, C] have the inputs before, and then the last ones."""
    num_old = states.shape[1]
    old = states.index_select(0, plan.slots).to(x.dtype)
    if plan.taps is None:
        windows = torch.cat((old, x[:, None]), dim=1)
        states.index_copy_(0, plan.slots, windows[:, 1:].to(states.dtype))
        y = (windows * weight.t()).sum(dim=1)
    else:
        inputs = torch.cat((old.reshape(-1, x.shape[1]), x))
        tails = inputs.index_select(0, plan.taps.tails).view(-1, num_old, x.shape[1])
        states.index_copy_(0, plan.slots, tails.to(states.dtype))
        taps = plan.taps.taps.view(num_old + 1, -1)
        y = torch.zeros_like(x)
        for number in range(num_old + 1):
            y.addcmul_(inputs.index_select(0, taps[number]), weight[:, number])
    return y if bias is None else y.add_(bias)


def delta_rule(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    decay: torch.Tensor,
    beta: torch.Tensor,
    states: torch.Tensor,
    plan: StatePlan,
) -> torch.Tensor:
    """The gated delta rule (Yang et al. 2024, arXiv 2412.06464): per head, S ← exp(decay) · S, then
    S ← S + beta · k (v - kᵀ S), and the output is qᵀ S.

    query, key [T, H, K], value [T, H, V], decay, beta [T, H] → [T, H, V]; all float32. states float32 [slots, H, K, V].
    decay [T, H, K]: each line of S fades by a number of its own (Kimi delta attention, arXiv 2510.26692, equation 1).
    """
    parts, count = [], plan.num_decode
    if count:
        own = plan.slots[:count]
        state = states.index_select(0, own)
        parts.append(_step(query[:count], key[:count], value[:count], decay[:count], beta[:count], state))
        states.index_copy_(0, own, state)
    if plan.chunks is not None:
        parts.append(_run_chunks(query, key, value, decay, beta, states, plan.chunks))
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _step(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    decay: torch.Tensor,
    beta: torch.Tensor,
    state: torch.Tensor,
) -> torch.Tensor:
    """One token of each row, with state [B, H, K, V], which is changed."""
    state.mul_(_spread(decay, beta).exp()[..., None])
    known = torch.einsum("bhk,bhkv->bhv", key, state)
    change = (value - known) * beta[..., None]
    state.addcmul_(key[..., None], change[..., None, :])
    return torch.einsum("bhk,bhkv->bhv", query, state)


def _run_chunks(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    decay: torch.Tensor,
    beta: torch.Tensor,
    states: torch.Tensor,
    chunks: Chunks,
) -> torch.Tensor:
    """Longer rows, chunk by chunk: what the tokens of a chunk do to each other is one triangular system (the WY form of
    products of Householder matrices), so that all is products of matrices."""
    query, key, value, decay, beta = (split(x, chunks) for x in (query, key, value, decay, beta))
    decay = decay.cumsum(2)
    weighted = key * beta[..., None]
    system, within = multiply_decayed(torch.stack((weighted, query)), key, decay)
    decay = _spread(decay, beta)
    both = torch.cat((value * beta[..., None], weighted * decay.exp()), dim=-1)
    both = torch.linalg.solve_triangular(system, both, upper=False, unitriangular=True)
    new, read = both.split([value.shape[-1], key.shape[-1]], dim=-1)
    query = query * decay.exp()
    last = decay[:, :, -1:]
    key = (key * (last - decay).exp()).transpose(-1, -2)
    fade = last.exp().transpose(-1, -2)
    state = states.index_select(0, chunks.slots)
    output, first = torch.empty_like(value), 0
    for count in chunks.counts:
        own, rows = slice(first, first + count), state[:count]
        added = new[own] - read[own] @ rows
        output[own] = query[own] @ rows + within[own] @ added
        rows.mul_(fade[own]).add_(key[own] @ added)
        first += count
    states.index_copy_(0, chunks.slots, state)
    return join(output, chunks)


def split(x: torch.Tensor, chunks: Chunks) -> torch.Tensor:
    """x [T, H, …] as chunks [N, H, CHUNK, …]; zeros where they are not full."""
    padded = torch.cat((x, x.new_zeros(1, *x.shape[1:])))
    return padded.index_select(0, chunks.tokens).view(-1, CHUNK, *x.shape[1:]).transpose(1, 2).contiguous()


def join(x: torch.Tensor, chunks: Chunks) -> torch.Tensor:
    """Chunks [N, H, CHUNK, V] as the tokens of their rows, [L, H, V]."""
    return x.transpose(1, 2).flatten(0, 1).index_select(0, chunks.places)


def decays_between(total: torch.Tensor) -> torch.Tensor:
    """exp(total_i - total_j) for each token i [N, H, CHUNK] and each one j up to it → [N, H, CHUNK, CHUNK]; else 0."""
    later = torch.ones(CHUNK, CHUNK, dtype=torch.bool, device=total.device).triu(1)
    return (total[..., None] - total[..., None, :]).masked_fill_(later, float("-inf")).exp_()


def multiply_decayed(left: torch.Tensor, right: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
    """The product of each token i of left [M, N, H, CHUNK, K] with each one j up to it of right [N, H, CHUNK, K], faded
    by exp(total_i - total_j) → [M, N, H, CHUNK, CHUNK]; else 0. total [N, H, CHUNK], or [N, H, CHUNK, K] for each
    component, falls from token to token.

    With components, the decay between two blocks of tokens is divided at the first token of the later one, so that no
    factor is above 1; within a block, it is computed for each pair of tokens.
    """
    if total.dim() == 3:
        return (left @ right.transpose(-1, -2)) * decays_between(total)
    product = left.new_zeros(*left.shape[:-1], CHUNK)
    later = torch.ones(BLOCK, BLOCK, dtype=torch.bool, device=total.device).triu(1)
    for first in range(0, CHUNK, BLOCK):
        own = slice(first, first + BLOCK)
        start = total[:, :, first : first + 1]
        fading = left[..., own, :] * (total[:, :, own] - start).exp()
        before = right[:, :, :first] * (start - total[:, :, :first]).exp()
        product[..., own, :first] = fading @ before.transpose(-1, -2)
        between = total[:, :, own, None] - total[:, :, None, own]
        between = between.masked_fill(later[..., None], float("-inf")).exp_() * right[:, :, None, own]
        product[..., own, own] = torch.einsum("mnhik,nhijk->mnhij", left[..., own, :], between)
    return product


def _spread(decay: torch.Tensor, beta: torch.Tensor) -> torch.Tensor:
    """Give decays of heads, which have the axes of beta, one for the components of keys."""
    return decay if decay.dim() > beta.dim() else decay[..., None]


def normalize(x: torch.Tensor) -> torch.Tensor:
    """x [T, H, D] in float32, each head of length 1."""
    return x.float() * (x.float().square().sum(dim=-1, keepdim=True) + 1e-6).rsqrt()


def softplus_decay(a: torch.Tensor, log_rate: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """-exp(log_rate) · softplus(a + bias), in float32: the logarithm of what is left of a state. a [T, H] and bias [H],
    or with an axis of components more; log_rate [H]."""
    rate = log_rate.float().exp() if bias.dim() == 1 else log_rate.float().exp()[:, None]
    return F.softplus(a.float() + bias.float()).mul_(-rate)
