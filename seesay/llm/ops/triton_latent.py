"""Attention to latent rows, on the host's side: which token sees how many rows of which sequence."""

from __future__ import annotations

import torch

from seesay.kernels.attention import latent_attention
from seesay.llm.memory.kv_layout import LayerCache
from seesay.llm.ops.triton_attention import AttentionPlan, describe_format


def attend(query: torch.Tensor, cache: LayerCache, plan: AttentionPlan, *, scale: float) -> torch.Tensor:
    """See `Ops.attend_latent`. Nothing waits for the device."""
    lens, rows = plan.kv_lens, None
    if len(query) > plan.num_decode:
        assert plan.cu_seqlens_q is not None
        stops = plan.cu_seqlens_q[1:]
        tokens = torch.arange(len(query), dtype=torch.int32, device=query.device)
        rows = torch.searchsorted(stops, tokens, right=True, out_int32=True)
        lens = plan.kv_lens[rows] - (stops[rows] - 1 - tokens)
    return latent_attention.attend(
        query.contiguous(),
        cache.data,
        plan.block_table,
        lens,
        rows,
        turned_dim=cache.layout.turned_dim,
        scale=scale,
        format=describe_format(cache.layout),
    )
