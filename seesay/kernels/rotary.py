"""Triton kernels of rotary embedding: its tables, and one that turns queries and keys, norms them where a model does,
and writes keys and values to the cache.

Strides count elements. All arithmetic is in float32.
"""

# mypy: disable-error-code="untyped-decorator, no-untyped-def"

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import triton
import triton.language as tl

from seesay.kernels.attention.quantized_kv import write_quantized
from seesay.kernels.gpu import has_dependent_launch, nvidia_options
from seesay.kernels.sizes import power_of_2_from

HEADS_PER_PROGRAM = 16


@triton.jit(do_not_specialize=["num_tokens", "axis_stride"])
def angles_kernel(
    positions_ptr,
    axes_ptr,
    inv_freq_ptr,
    scaling_ptr,
    stretches_ptr,
    cos_ptr,
    sin_ptr,
    num_tokens,
    axis_stride,
    scale,
    DIM: tl.constexpr,
    TOKENS: tl.constexpr,
    BLOCK: tl.constexpr,
    HAS_AXES: tl.constexpr,
    HAS_LONG: tl.constexpr,
    HAS_EXPONENTS: tl.constexpr,
    IS_DEPENDENT: tl.constexpr,
):
    """Program i computes tokens i · TOKENS …. `axes` [DIM] is the row of positions for each component; `scaling` [DIM]
    are the long frequencies or the exponents."""
    if IS_DEPENDENT:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    tokens = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    components = tl.arange(0, BLOCK)
    is_component = components < DIM
    is_inside = (tokens < num_tokens)[:, None] & is_component[None, :]
    places = tokens[:, None] + tl.zeros((1, BLOCK), tl.int32)
    if HAS_AXES:
        places += (tl.load(axes_ptr + components, mask=is_component, other=0) * axis_stride).to(tl.int32)[None, :]
    positions = tl.load(positions_ptr + places, mask=is_inside, other=0).to(tl.float32)
    inv_freq = tl.load(inv_freq_ptr + components, mask=is_component, other=0.0)[None, :]
    if HAS_LONG:
        is_long = tl.load(stretches_ptr + tokens, mask=tokens < num_tokens, other=0.0) > 0
        long_inv_freq = tl.load(scaling_ptr + components, mask=is_component, other=0.0)[None, :]
        inv_freq = tl.where(is_long[:, None], long_inv_freq, inv_freq)
    elif HAS_EXPONENTS:
        stretches = tl.load(stretches_ptr + tokens, mask=tokens < num_tokens, other=0.0)
        exponents = tl.load(scaling_ptr + components, mask=is_component, other=0.0)
        scales = tl.exp2(-stretches[:, None] * exponents[None, :])
        inv_freq = (inv_freq.to(tl.float64) * scales).to(tl.float32)
    angles = positions * inv_freq
    sign = tl.where(components < DIM // 2, -scale, scale)[None, :]
    targets = tokens.to(tl.int64)[:, None] * DIM + components[None, :]
    tl.store(cos_ptr + targets, (tl.cos(angles) * scale).to(cos_ptr.dtype.element_ty), mask=is_inside)
    tl.store(sin_ptr + targets, (tl.sin(angles) * sign).to(sin_ptr.dtype.element_ty), mask=is_inside)


@triton.jit
def rotate_and_write_kernel(
    qkv_ptr,
    cos_ptr,
    sin_ptr,
    cache_ptr,
    slots_ptr,
    query_norm_ptr,
    key_norm_ptr,
    faults_ptr,
    token_stride,
    eps,
    NUM_HEADS: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    HALF: tl.constexpr,
    HEADS: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_REST: tl.constexpr,
    HAS_NORM: tl.constexpr,
    HAS_FAULTS: tl.constexpr,
    IS_DEPENDENT: tl.constexpr,
    KV: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_BYTES: tl.constexpr,
    PARAMS_AT: tl.constexpr,
    BLOCK_LOW: tl.constexpr,
):
    """Program (t, p) computes heads p · HEADS … of token t. Queries and keys are rotated in place with tables of 2 ·
    HALF components, in which the first half of sin is negated. Keys and values are also written to the token's slot of
    the cache, whose format is KV (see `quantized_kv`). If a value is not finite there, the token's fault is set to NaN;
    otherwise it is not written."""
    if IS_DEPENDENT:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    token = tl.program_id(0).to(tl.int64)
    heads = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    pairs = tl.arange(0, BLOCK)
    is_pair = pairs < HALF
    is_head = heads < NUM_HEADS + 2 * NUM_KV_HEADS
    is_turned = heads < NUM_HEADS + NUM_KV_HEADS
    is_query = heads < NUM_HEADS
    angles = token * (2 * HALF) + pairs
    first_cos = tl.load(cos_ptr + angles, mask=is_pair, other=0.0).to(tl.float32)
    first_sin = tl.load(sin_ptr + angles, mask=is_pair, other=0.0).to(tl.float32)
    last_cos = tl.load(cos_ptr + angles + HALF, mask=is_pair, other=0.0)
    last_sin = tl.load(sin_ptr + angles + HALF, mask=is_pair, other=0.0)
    is_inside = is_head[:, None] & is_pair[None, :]
    places = qkv_ptr + token * token_stride + heads[:, None] * DIM + pairs[None, :]
    first = tl.load(places, mask=is_inside, other=0.0).to(tl.float32)
    last = tl.load(places + HALF, mask=is_inside, other=0.0).to(tl.float32)
    others = 2 * HALF + tl.arange(0, BLOCK_REST)
    is_other = is_head[:, None] & (others < DIM)[None, :]
    rest_places = qkv_ptr + token * token_stride + heads[:, None] * DIM + others[None, :]
    rest = tl.zeros([HEADS, BLOCK_REST], tl.float32)
    if 2 * HALF < DIM:
        rest = tl.load(rest_places, mask=is_other, other=0.0).to(tl.float32)
    if HAS_NORM:
        squares = tl.sum(first * first, axis=1) + tl.sum(last * last, axis=1) + tl.sum(rest * rest, axis=1)
        scale = 1.0 / tl.sqrt(squares / DIM + eps)[:, None]
        first = _normed(first, scale, query_norm_ptr, key_norm_ptr, pairs, is_pair, is_query, is_turned, qkv_ptr)
        last = _normed(last, scale, query_norm_ptr, key_norm_ptr, pairs + HALF, is_pair, is_query, is_turned, qkv_ptr)
        if 2 * HALF < DIM:
            rest = _normed(
                rest, scale, query_norm_ptr, key_norm_ptr, others, others < DIM, is_query, is_turned, qkv_ptr
            )
    turned_first = first * first_cos[None, :] + last * first_sin[None, :]
    turned_last = last * last_cos.to(tl.float32)[None, :] + first * last_sin.to(tl.float32)[None, :]
    turned_first = tl.where(is_turned[:, None], turned_first, first)
    turned_last = tl.where(is_turned[:, None], turned_last, last)
    is_changed = is_inside & is_turned[:, None]
    tl.store(places, turned_first.to(qkv_ptr.dtype.element_ty), mask=is_changed)
    tl.store(places + HALF, turned_last.to(qkv_ptr.dtype.element_ty), mask=is_changed)
    if (2 * HALF < DIM) & HAS_NORM:
        tl.store(rest_places, rest.to(qkv_ptr.dtype.element_ty), mask=is_other & is_turned[:, None])
    slot = tl.load(slots_ptr + token).to(tl.int64)
    if KV != "plain":
        if 2 * HALF == DIM:
            dims = pairs
            low = turned_first.to(qkv_ptr.dtype.element_ty).to(tl.float32)
            high = turned_last.to(qkv_ptr.dtype.element_ty).to(tl.float32)
        else:
            tl.debug_barrier()  # threads read what others have written
            dims = tl.arange(0, BLOCK_LOW)
            halves = qkv_ptr + token * token_stride + heads[:, None] * DIM + dims[None, :]
            is_half = is_head[:, None] & (dims < DIM // 2)[None, :]
            low = tl.load(halves, mask=is_half, other=0.0).to(tl.float32)
            high = tl.load(halves + DIM // 2, mask=is_half, other=0.0).to(tl.float32)
        is_written = is_head & (heads >= NUM_HEADS)
        scales = write_quantized(
            low, high, dims < DIM // 2, dims, heads, is_written, cache_ptr, slot, KV, NUM_HEADS, NUM_KV_HEADS, DIM,
            BLOCK_SIZE, BLOCK_BYTES, PARAMS_AT,
        )  # fmt: skip
        if HAS_FAULTS:
            is_bad = is_not_finite(low) | is_not_finite(high) | is_not_finite(scales)[:, None]
            note_fault(faults_ptr + token, is_bad & is_written[:, None] & (dims < DIM // 2)[None, :])
        return
    targets = cache_ptr + slot * (2 * NUM_KV_HEADS * DIM) + (heads - NUM_HEADS)[:, None] * DIM
    is_kept = (heads >= NUM_HEADS)[:, None]
    kept_first = turned_first.to(cache_ptr.dtype.element_ty)
    kept_last = turned_last.to(cache_ptr.dtype.element_ty)
    tl.store(targets + pairs[None, :], kept_first, mask=is_inside & is_kept)
    tl.store(targets + HALF + pairs[None, :], kept_last, mask=is_inside & is_kept)
    if HAS_FAULTS:
        is_bad = is_not_finite(kept_first) | is_not_finite(kept_last)
        note_fault(faults_ptr + token, is_bad & is_inside & is_kept)
    if 2 * HALF < DIM:
        kept_rest = rest.to(cache_ptr.dtype.element_ty)
        tl.store(targets + others[None, :], kept_rest, mask=is_other & is_kept)
        if HAS_FAULTS:
            note_fault(faults_ptr + token, is_not_finite(kept_rest) & is_other & is_kept)


@triton.jit
def is_not_finite(x):
    """Return whether x is not finite. Comparisons with NaN are false, so the test is negated."""
    return (tl.abs(x.to(tl.float32)) < float("inf")) == 0


@triton.jit
def note_fault(fault_ptr, is_bad):
    """Write NaN to `fault_ptr` if any element is bad."""
    nan = tl.full(is_bad.shape, float("nan"), tl.float32)
    tl.store(fault_ptr + tl.zeros(is_bad.shape, tl.int32), nan, mask=is_bad)


@triton.jit
def _normed(x, scale, query_norm_ptr, key_norm_ptr, columns, is_column, is_query, is_turned, like_ptr):
    """Return x · scale · the norm weight of queries or keys, rounded as a separate kernel would. Values are
    unchanged."""
    query_weight = tl.load(query_norm_ptr + columns, mask=is_column, other=0.0).to(tl.float32)[None, :]
    key_weight = tl.load(key_norm_ptr + columns, mask=is_column, other=0.0).to(tl.float32)[None, :]
    normed = x * scale * tl.where(is_query[:, None], query_weight, key_weight)
    return tl.where(is_turned[:, None], normed.to(like_ptr.dtype.element_ty).to(tl.float32), x)


def make_rotary_tables(
    positions: torch.Tensor,
    axes: torch.Tensor | None,
    inv_freq: torch.Tensor,
    long_inv_freq: torch.Tensor | None,
    exponents: torch.Tensor | None,
    stretches: torch.Tensor | None,
    *,
    scale: float,
    dtype: torch.dtype,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return cos and sin [T, 1, dim], times `scale`, of int64 positions [T] or [3, T] times inv_freq float32 [dim]. The
    first half of sin is negated.

    Tokens with a stretch, float64 [T], above 0 take long_inv_freq float32 [dim] instead; or, without it, inv_freq times
    2 ** (-stretch · exponents), in float64, where exponents are float64 [dim].

    axes int64 [dim]: the row of positions for each component; without it, positions have one row.
    """
    num_tokens, dim = positions.shape[-1], len(inv_freq)
    assert positions.stride(-1) == 1 or num_tokens <= 1
    cos, sin = torch.empty((2, num_tokens, 1, dim), dtype=dtype, device=positions.device)
    tokens, is_dependent = 4, has_dependent_launch(positions.get_device())
    scaling = exponents if long_inv_freq is None else long_inv_freq
    if num_tokens:
        angles_kernel[(-(-num_tokens // tokens),)](
            positions,
            positions if axes is None else axes,
            inv_freq,
            inv_freq if scaling is None else scaling,
            positions if stretches is None else stretches,
            cos,
            sin,
            num_tokens,
            positions.stride(0) if positions.dim() == 2 else 0,
            scale,
            DIM=dim,
            TOKENS=tokens,
            BLOCK=power_of_2_from(dim),
            HAS_AXES=axes is not None,
            HAS_LONG=stretches is not None and long_inv_freq is not None,
            HAS_EXPONENTS=stretches is not None and exponents is not None,
            IS_DEPENDENT=is_dependent,
            **nvidia_options(launch_pdl=is_dependent),
        )
    return cos, sin


def rotate_and_write(
    qkv: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    cache: torch.Tensor,
    slots: torch.Tensor,
    norms: tuple[torch.Tensor, torch.Tensor, float] | None,
    faults: torch.Tensor | None = None,
    *,
    num_kv_heads: int,
    format: Mapping[str, Any],
) -> None:
    """See `Ops.rotate_and_write`. `format` has the kernel's arguments for the cache's format: KV, BLOCK_SIZE,
    BLOCK_BYTES, PARAMS_AT."""
    num_tokens, num_all, dim = qkv.shape
    half = cos.shape[-1] // 2
    if not qkv.numel():
        return
    assert qkv.stride(1) == dim and qkv.stride(2) == 1 and cache.is_contiguous() and half
    assert cos.is_contiguous() and sin.is_contiguous() and (faults is None or faults.is_contiguous())
    heads = min(HEADS_PER_PROGRAM, power_of_2_from(num_all))
    is_dependent = has_dependent_launch(qkv.get_device())
    rotate_and_write_kernel[(num_tokens, -(-num_all // heads))](
        qkv,
        cos,
        sin,
        cache,
        slots,
        qkv if norms is None else norms[0],
        qkv if norms is None else norms[1],
        qkv if faults is None else faults,
        qkv.stride(0),
        0.0 if norms is None else norms[2],
        NUM_HEADS=num_all - 2 * num_kv_heads,
        NUM_KV_HEADS=num_kv_heads,
        DIM=dim,
        HALF=half,
        HEADS=heads,
        BLOCK=power_of_2_from(half),
        BLOCK_REST=power_of_2_from(max(1, dim - 2 * half)),
        HAS_NORM=norms is not None,
        HAS_FAULTS=faults is not None,
        IS_DEPENDENT=is_dependent,
        **format,
        BLOCK_LOW=power_of_2_from(dim // 2),
        **nvidia_options(launch_pdl=is_dependent),
    )
