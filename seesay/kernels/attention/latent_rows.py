"""The Triton kernel that writes latent rows (DeepSeek-AI 2024, arXiv 2405.04434): it turns a part of each, norms the
other, and quantizes both where the cache is. All arithmetic is in float32."""

# mypy: disable-error-code="untyped-decorator, no-untyped-def"

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import triton
import triton.language as tl

from seesay.kernels.attention.quantized_kv import quantize_halves
from seesay.kernels.rotary import is_not_finite, note_fault
from seesay.kernels.sizes import power_of_2_from


@triton.jit
def write_kernel(
    rows_ptr,
    cos_ptr,
    sin_ptr,
    norm_ptr,
    cache_ptr,
    slots_ptr,
    faults_ptr,
    row_stride,
    eps,
    TURNED: tl.constexpr,
    RANK: tl.constexpr,
    KV: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_BYTES: tl.constexpr,
    PARAMS_AT: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_R: tl.constexpr,
):
    """Program t writes the row of token t to its slot. Both parts are taken in halves [1, BLOCK]."""
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots_ptr + token).to(tl.int64)
    pairs, dims = tl.arange(0, BLOCK_T)[None, :], tl.arange(0, BLOCK_R)[None, :]
    is_pair, is_dim = pairs < TURNED // 2, dims < RANK // 2
    own = rows_ptr + token * row_stride
    first = tl.load(own + pairs, mask=is_pair, other=0.0).to(tl.float32)
    last = tl.load(own + TURNED // 2 + pairs, mask=is_pair, other=0.0).to(tl.float32)
    angles = token * TURNED + pairs
    first_cos = tl.load(cos_ptr + angles, mask=is_pair, other=0.0).to(tl.float32)
    last_cos = tl.load(cos_ptr + angles + TURNED // 2, mask=is_pair, other=0.0).to(tl.float32)
    first_sin = tl.load(sin_ptr + angles, mask=is_pair, other=0.0).to(tl.float32)
    last_sin = tl.load(sin_ptr + angles + TURNED // 2, mask=is_pair, other=0.0).to(tl.float32)
    turned_first = _rounded(first * first_cos + last * first_sin, rows_ptr)
    turned_last = _rounded(last * last_cos + first * last_sin, rows_ptr)
    low = tl.load(own + TURNED + dims, mask=is_dim, other=0.0).to(tl.float32)
    high = tl.load(own + TURNED + RANK // 2 + dims, mask=is_dim, other=0.0).to(tl.float32)
    scale = 1.0 / tl.sqrt((tl.sum(low * low, axis=1) + tl.sum(high * high, axis=1)) / RANK + eps)[:, None]
    low *= scale * tl.load(norm_ptr + dims, mask=is_dim, other=0.0).to(tl.float32)
    high *= scale * tl.load(norm_ptr + RANK // 2 + dims, mask=is_dim, other=0.0).to(tl.float32)
    low, high = _rounded(low, rows_ptr), _rounded(high, rows_ptr)
    note_fault(faults_ptr + token, (is_not_finite(turned_first) | is_not_finite(turned_last)) & is_pair)
    note_fault(faults_ptr + token, (is_not_finite(low) | is_not_finite(high)) & is_dim)
    target = cache_ptr + slot * (TURNED + RANK)
    if KV != "plain":
        block_ptr, place = cache_ptr + (slot // BLOCK_SIZE) * BLOCK_BYTES, slot % BLOCK_SIZE
        turned_first, turned_last, turned_params, turned_scale = quantize_halves(turned_first, turned_last, KV)
        low, high, params, own_scale = quantize_halves(low, high, KV)
        target = block_ptr + place * (TURNED + RANK)
        params_ptr = (block_ptr + PARAMS_AT).to(tl.pointer_type(tl.int32)) + place + tl.arange(0, 1)
        tl.store(params_ptr, turned_params)
        tl.store(params_ptr + BLOCK_SIZE, params)
        note_fault(faults_ptr + token, is_not_finite(turned_scale) | is_not_finite(own_scale))
    kind = cache_ptr.dtype.element_ty
    tl.store(target + pairs, turned_first.to(kind), mask=is_pair)
    tl.store(target + TURNED // 2 + pairs, turned_last.to(kind), mask=is_pair)
    tl.store(target + TURNED + dims, low.to(kind), mask=is_dim)
    tl.store(target + TURNED + RANK // 2 + dims, high.to(kind), mask=is_dim)


@triton.jit
def _rounded(x, like_ptr):
    """Return x float32, rounded to the type of what a pointer points to."""
    return x.to(like_ptr.dtype.element_ty).to(tl.float32)


def write_rows(
    rows: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    norm: tuple[torch.Tensor, float],
    cache: torch.Tensor,
    slots: torch.Tensor,
    faults: torch.Tensor,
    *,
    format: Mapping[str, Any],
) -> None:
    """See `Ops.write_latent`. `format`: see `rotary.rotate_and_write`."""
    turned, rank, weight = cos.shape[-1], rows.shape[1] - cos.shape[-1], norm[0]
    assert rows.stride(1) == 1 and cos.is_contiguous() and sin.is_contiguous() and cache.is_contiguous()
    assert turned % 2 == rank % 2 == 0 and faults.is_contiguous() and weight.is_contiguous()
    if len(rows):
        write_kernel[(len(rows),)](
            rows,
            cos,
            sin,
            weight,
            cache,
            slots,
            faults,
            rows.stride(0),
            norm[1],
            TURNED=turned,
            RANK=rank,
            **format,
            BLOCK_T=power_of_2_from(turned // 2),
            BLOCK_R=power_of_2_from(rank // 2),
            num_warps=4,
        )
