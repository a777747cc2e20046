"""The softmax of attention, one tile of keys at a time (Milakov & Gimelshein 2018), in base 2 and in float32: what the
kernels over plain and over quantized keys share.
"""

# mypy: disable-error-code="untyped-decorator, no-untyped-def"

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def cap_scores(scores, scale, soft_cap):
    """Return soft_cap · tanh(scale · scores / soft_cap)."""
    # tanh(x) = 2 sigmoid(2x) - 1
    return soft_cap * (2.0 * tl.sigmoid(2.0 * scale / soft_cap * scores) - 1.0)


@triton.jit
def find_bias(slopes, keys, positions, scale):
    """Return what slopes add to scaled scores in base 2, for `keys` as seen from `positions`; all three broadcast. See
    `Ops.attend`.
    """
    if slopes.dtype == tl.bfloat16:
        slopes = slopes.to(tl.float32)
        bias = _round_to_bfloat16(slopes * _round_to_bfloat16(keys.to(tl.float32)))
        bias = (bias - slopes * positions.to(tl.float32)) * scale
    else:
        bias = slopes * (keys - positions).to(tl.float32)
    return bias * 1.4426950408889634


@triton.jit
def _round_to_bfloat16(x):
    """Round float32 to the nearest bfloat16, by integers: Triton's interpreter cuts bits off."""
    bits = x.to(tl.int32, bitcast=True)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & -65536).to(tl.float32, bitcast=True)


@triton.jit
def find_window(window, positions, IS_CHUNK: tl.constexpr):
    """Return how many keys the tokens at these positions see: `window`, or with IS_CHUNK those of a chunk of so many up
    to their own."""
    if IS_CHUNK:
        return positions % window + 1
    else:
        return window


@triton.jit
def hide_scores(scores, keys, kv_len, positions, reaches, window, HAS_WINDOW: tl.constexpr):
    """Set scores [M, N] of keys [N] to -inf that queries at positions [M] do not see: those behind `reaches` [M], those
    from kv_len on, and with HAS_WINDOW those that are `window` or more positions back: a number, or [M, 1]."""
    is_seen = (keys[None, :] <= reaches[:, None]) & (keys < kv_len)[None, :]
    if HAS_WINDOW:
        is_seen = is_seen & (keys[None, :] > positions[:, None] - window)
    return tl.where(is_seen, scores, float("-inf"))


@triton.jit
def weigh_scores(scores, factor, top, total, MASKED: tl.constexpr):
    """Return the weights [M, N] of a tile, 2^(factor · scores - the new maximum); what sums over earlier tiles are
    multiplied by [M]; the new maximum; the new sum of weights. MASKED: all scores of a row may be -inf.
    """
    # The factor comes after the maximum: it is then fused with the subtraction.
    new_top = tl.maximum(top, tl.max(scores, axis=1) * factor)
    base = tl.where(new_top == float("-inf"), 0.0, new_top) if MASKED else new_top
    weights = tl.exp2(scores * factor - base[:, None])
    fade = tl.exp2(top - base)
    return weights, fade, new_top, total * fade + tl.sum(weights, axis=1)
