"""A Triton kernel that takes tokens away which a bit mask forbids: it reads bits, and writes no logit that stays."""

# mypy: disable-error-code="untyped-decorator, no-untyped-def"

from __future__ import annotations

import torch
import triton
import triton.language as tl

BLOCK = 4096
"""Tokens per program."""


@triton.jit(do_not_specialize=["num_words"], do_not_specialize_on_alignment=["rows_ptr", "bits_ptr"])
def mask_kernel(scores_ptr, rows_ptr, bits_ptr, row_stride, num_words, num_tokens, BLOCK: tl.constexpr):
    index = tl.program_id(1).to(tl.int64)
    row = tl.load(rows_ptr + index)
    tokens = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    is_inside = tokens < num_tokens
    words = tl.load(bits_ptr + index * num_words + tokens // 32, mask=is_inside, other=-1)
    is_forbidden = is_inside & (((words >> (tokens % 32)) & 1) == 0)
    nothing = tl.full([BLOCK], float("-inf"), tl.float32).to(scores_ptr.dtype.element_ty)
    tl.store(scores_ptr + row * row_stride + tokens, nothing, mask=is_forbidden)


def mask_tokens(scores: torch.Tensor, rows: torch.Tensor, bits: torch.Tensor) -> None:
    """Set to -inf, in place, what `bits` int32 [R, ceil(V / 32) or more] forbid in `rows` int64 [R] of scores [N, V]:
    token i where bit i % 32 of word i // 32 is 0."""
    num_rows, num_words = bits.shape
    num_tokens = scores.shape[1]
    assert scores.stride(1) == 1 and bits.is_contiguous() and num_words >= triton.cdiv(num_tokens, 32)
    mask_kernel[(triton.cdiv(num_tokens, BLOCK), num_rows)](
        scores, rows, bits, scores.stride(0), num_words, num_tokens, BLOCK=BLOCK, num_warps=8
    )
