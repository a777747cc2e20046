"""Triton kernels of attention to latent rows: all heads of a token attend to the same rows, which are keys, and but for
their first components, values (DeepSeek-AI 2024, arXiv 2405.04434)."""

# mypy: disable-error-code="untyped-decorator, no-untyped-def"

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import triton
import triton.language as tl

from seesay.kernels.attention.quantized_kv import UNIT, load_params, unpack
from seesay.kernels.gpu import has_ptx
from seesay.kernels.sizes import power_of_2_from

TARGET_PROGRAMS = 264
"""Programs worth having at once: two per multiprocessor of a large GPU. Fewer tokens are split further."""
MOST_SPLITS = 32
HEADS, KEYS = 16, 32
"""Of a tile."""


@triton.jit
def latent_kernel(
    query_ptr,
    cache_ptr,
    table_ptr,
    lens_ptr,
    rows_ptr,
    partials_ptr,
    sums_ptr,
    table_stride,
    factor,
    num_splits,
    NUM_HEADS: tl.constexpr,
    TURNED: tl.constexpr,
    RANK: tl.constexpr,
    KV: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_BYTES: tl.constexpr,
    PARAMS_AT: tl.constexpr,
    HAS_ROWS: tl.constexpr,
    HAS_PTX: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Program (t, h, s) attends with heads h · BLOCK_H … of token t to the s-th part of the rows that it sees, the
    first lens[t] of the sequence whose blocks are in row rows[t] of the table. Leaves sums of weighted rows, not
    divided, and the top score and the sum of the weights, in base 2. Quantized rows (see `quantized_kv`) are only cast:
    their scales and zero points are applied to scores and weights."""
    token = tl.program_id(0).to(tl.int64)
    split = tl.program_id(2)
    heads = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    turned, rank = tl.arange(0, BLOCK_T), tl.arange(0, BLOCK_R)
    is_head, is_turned, is_rank = heads < NUM_HEADS, turned < TURNED, rank < RANK
    length = tl.load(lens_ptr + token)
    row = token
    if HAS_ROWS:
        row = tl.load(rows_ptr + token).to(tl.int64)
    part = tl.cdiv(tl.cdiv(length, num_splits), BLOCK_N) * BLOCK_N
    start = split * part
    stop = tl.minimum(start + part, length)
    own = query_ptr + (token * NUM_HEADS + heads)[:, None] * (TURNED + RANK)
    query_turned = tl.load(own + turned[None, :], mask=is_head[:, None] & is_turned[None, :], other=0.0)
    query_latent = tl.load(own + TURNED + rank[None, :], mask=is_head[:, None] & is_rank[None, :], other=0.0)
    CENTRE: tl.constexpr = 128.0  # what unpacked integers are less
    turned_sum = tl.sum(query_turned.to(tl.float32), axis=1)[:, None]
    latent_sum = tl.sum(query_latent.to(tl.float32), axis=1)[:, None]
    top = tl.full((BLOCK_H,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK_H,), tl.float32)
    shift = tl.zeros((BLOCK_H,), tl.float32)
    output = tl.zeros((BLOCK_H, BLOCK_R), tl.float32)
    for first in range(start, stop, BLOCK_N):
        places = first + tl.arange(0, BLOCK_N)
        is_seen = places < stop
        blocks = tl.load(table_ptr + row * table_stride + places // BLOCK_SIZE, mask=is_seen, other=0).to(tl.int64)
        within = places % BLOCK_SIZE
        at = cache_ptr + (blocks * BLOCK_SIZE + within)[:, None] * (TURNED + RANK)
        if KV != "plain":
            at = cache_ptr + (blocks * BLOCK_BYTES + within * (TURNED + RANK))[:, None]
        key = tl.load(at + turned[None, :], mask=is_seen[:, None] & is_turned[None, :], other=0)
        latent = tl.load(at + TURNED + rank[None, :], mask=is_seen[:, None] & is_rank[None, :], other=0)
        if KV == "plain":
            scores = tl.dot(query_turned, tl.trans(key), input_precision="ieee")
            scores = tl.dot(query_latent, tl.trans(latent), scores, input_precision="ieee") * factor
        else:
            params_ptr = (cache_ptr + blocks * BLOCK_BYTES + PARAMS_AT).to(tl.pointer_type(tl.int32)) + within
            key_scale, key_zero = load_params(params_ptr, KV)
            scale, zero = load_params(params_ptr + BLOCK_SIZE, KV)
            scale, zero = tl.where(is_seen, scale, 0.0), tl.where(is_seen, zero, 0.0)
            key = unpack(key, query_turned.dtype, KV, HAS_PTX)
            latent = unpack(latent, query_latent.dtype, KV, HAS_PTX)
            scores = tl.dot(query_turned, tl.trans(key), input_precision="ieee")
            latent_scores = tl.dot(query_latent, tl.trans(latent), input_precision="ieee")
            if KV != "fp8":
                scores -= turned_sum * (key_zero - CENTRE)[None, :]
                latent_scores -= latent_sum * (zero - CENTRE)[None, :]
            scores = scores * (key_scale * factor)[None, :] + latent_scores * (scale * factor)[None, :]
        scores = tl.where(is_seen[None, :], scores, float("-inf"))
        base = tl.maximum(top, tl.max(scores, axis=1))
        weights = tl.exp2(scores - base[:, None])
        fade = tl.exp2(top - base)
        total = total * fade + tl.sum(weights, axis=1)
        if KV != "plain":
            weights = tl.minimum(weights * (scale * UNIT)[None, :], 65504.0)
        weights = weights.to(latent.dtype)
        if (KV != "plain") & (KV != "fp8"):
            shift = shift * fade + tl.sum(weights.to(tl.float32) * (zero - CENTRE)[None, :], axis=1)
        output = tl.dot(weights, latent, output * fade[:, None], input_precision="ieee")
        top = base
    if KV != "plain":
        output = (output - shift[:, None]) / UNIT
    place = (token * num_splits + split) * NUM_HEADS + heads
    target = partials_ptr + place[:, None] * RANK + rank[None, :]
    tl.store(target, output, mask=is_head[:, None] & is_rank[None, :])
    tl.store(sums_ptr + place * 2, top, mask=is_head)
    tl.store(sums_ptr + place * 2 + 1, total, mask=is_head)


@triton.jit
def join_latent_kernel(
    partials_ptr, sums_ptr, out_ptr, num_splits, NUM_HEADS: tl.constexpr, RANK: tl.constexpr, BLOCK_R: tl.constexpr
):
    """Program (t, h) joins what the splits of a token have found for a head."""
    token, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    rank = tl.arange(0, BLOCK_R)
    top, total = tl.full((), float("-inf"), tl.float32), tl.zeros((), tl.float32)
    output = tl.zeros((BLOCK_R,), tl.float32)
    for split in range(num_splits):
        place = (token * num_splits + split) * NUM_HEADS + head
        own_top, own_total = tl.load(sums_ptr + place * 2), tl.load(sums_ptr + place * 2 + 1)
        if own_total > 0:
            base = tl.maximum(top, own_top)
            fade, share = tl.exp2(top - base), tl.exp2(own_top - base)
            found = tl.load(partials_ptr + place * RANK + rank, mask=rank < RANK, other=0.0)
            output = output * fade + found * share
            total = total * fade + own_total * share
            top = base
        elif own_total != own_total:  # NaN stays with the sequence that made it
            total = own_total
    target = out_ptr + (token * NUM_HEADS + head) * RANK + rank
    tl.store(target, (output / total).to(out_ptr.dtype.element_ty), mask=rank < RANK)


def attend(
    query: torch.Tensor,
    cache: torch.Tensor,
    block_table: torch.Tensor,
    lens: torch.Tensor,
    rows: torch.Tensor | None,
    *,
    turned_dim: int,
    scale: float,
    format: Mapping[str, Any],
) -> torch.Tensor:
    """Return the weighted sums [T, H, R] of latent vectors, of query [T, H, turned_dim + R] over the rows
    of turned_dim + R components in the cache. Token t sees the first lens[t] rows of the sequence whose blocks are in
    row rows[t] of block_table int32 [B, M]; None: in row t. lens, rows int32 [T]. `format`: see
    `rotary.rotate_and_write`."""
    num_tokens, num_heads, dim = query.shape
    rank = dim - turned_dim
    assert query.is_contiguous() and cache.is_contiguous() and lens.is_contiguous() and block_table.stride(1) == 1
    out = torch.empty(num_tokens, num_heads, rank, dtype=query.dtype, device=query.device)
    if not num_tokens:
        return out
    num_groups = -(-num_heads // HEADS)
    num_splits = max(1, min(MOST_SPLITS, TARGET_PROGRAMS // (num_tokens * num_groups)))
    partials = torch.empty(num_tokens, num_splits, num_heads, rank, dtype=torch.float32, device=query.device)
    sums = torch.empty(num_tokens, num_splits, num_heads, 2, dtype=torch.float32, device=query.device)
    latent_kernel[(num_tokens, num_groups, num_splits)](
        query,
        cache,
        block_table,
        lens,
        lens if rows is None else rows,
        partials,
        sums,
        block_table.stride(0),
        scale * 1.4426950408889634,
        num_splits,
        NUM_HEADS=num_heads,
        TURNED=turned_dim,
        RANK=rank,
        **format,
        HAS_ROWS=rows is not None,
        HAS_PTX=has_ptx(query.get_device()),
        BLOCK_T=max(16, power_of_2_from(turned_dim)),
        BLOCK_R=max(16, power_of_2_from(rank)),
        BLOCK_H=HEADS,
        BLOCK_N=KEYS,
        num_warps=4,
        num_stages=2,
    )
    join_latent_kernel[(num_tokens, num_heads)](
        partials, sums, out, num_splits, NUM_HEADS=num_heads, RANK=rank, BLOCK_R=power_of_2_from(rank), num_warps=4
    )
    return out
