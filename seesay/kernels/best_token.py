"""Triton kernels that find the greatest logit of each row: `torch.max` takes two to three times as long."""

# mypy: disable-error-code="untyped-decorator, no-untyped-def"

from __future__ import annotations

import torch
import triton
import triton.language as tl

from seesay.kernels.dependent_launch import wait
from seesay.kernels.gpu import has_dependent_launch, nvidia_options
from seesay.kernels.sizes import power_of_2_from

_SPAN = 4096
"""Tokens that a program looks at."""
_NONE = tl.constexpr(0x7FFFFFFF)
"""Greater than the number of any token."""


@triton.jit
def _take_greater(one, other):
    return tl.maximum(one, other, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _find(logits, tokens):
    """Return the greatest of the logits, NaN where there is one, and the first token that has it; of NaN, none has."""
    greatest = tl.reduce(logits, 0, _take_greater)
    return greatest, tl.min(tl.where(logits == greatest, tokens, _NONE), axis=0)


@triton.jit
def best_part_kernel(
    logits_ptr,
    parts_ptr,
    tokens_ptr,
    row_stride,
    num_tokens,
    num_parts,
    SPAN: tl.constexpr,
    IS_DEPENDENT: tl.constexpr,
):
    """Program (p, r) looks at SPAN logits of row r."""
    part, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    tokens = part * SPAN + tl.arange(0, SPAN)
    wait(IS_DEPENDENT)
    logits = tl.load(logits_ptr + row * row_stride + tokens, mask=tokens < num_tokens, other=float("-inf"))
    greatest, token = _find(logits.to(tl.float32), tokens)
    tl.store(parts_ptr + row * num_parts + part, greatest)
    tl.store(tokens_ptr + row * num_parts + part, token)


@triton.jit
def best_token_kernel(
    parts_ptr,
    tokens_ptr,
    faults_ptr,
    best_ptr,
    token_ids_ptr,
    num_tokens,
    num_parts,
    PARTS: tl.constexpr,
    HAS_FAULTS: tl.constexpr,
    IS_DEPENDENT: tl.constexpr,
):
    """Program r takes the greatest of the parts of row r."""
    row, parts = tl.program_id(0), tl.arange(0, PARTS)
    is_part = parts < num_parts
    wait(IS_DEPENDENT)
    tokens = tl.load(tokens_ptr + row * num_parts + parts, mask=is_part, other=_NONE)
    best, token = _find(tl.load(parts_ptr + row * num_parts + parts, mask=is_part, other=float("-inf")), tokens)
    if HAS_FAULTS:
        best += tl.load(faults_ptr + row)
    tl.store(best_ptr + row, best.to(best_ptr.dtype.element_ty))
    tl.store(token_ids_ptr + row, tl.minimum(token, num_tokens - 1).to(tl.int64))


def find_best(logits: torch.Tensor, faults: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the greatest of each row of logits [N, V] of up to 32 bits, and the first token that has it, int64 [N].

    With NaN in a row, the greatest is NaN and the token any one. faults: float32 [N], added to the greatest.
    """
    num_rows, num_tokens = logits.shape
    assert logits.stride(1) == 1 and logits.itemsize <= 4 and num_tokens
    num_parts, is_dependent = -(-num_tokens // _SPAN), has_dependent_launch(logits.get_device())
    parts = torch.empty(num_rows, num_parts, dtype=torch.float32, device=logits.device)
    tokens = torch.empty(num_rows, num_parts, dtype=torch.int32, device=logits.device)
    best, token_ids = logits.new_empty(num_rows), logits.new_empty(num_rows, dtype=torch.int64)
    if not num_rows:
        return best, token_ids
    options = {"IS_DEPENDENT": is_dependent, **nvidia_options(launch_pdl=is_dependent)}
    best_part_kernel[(num_parts, num_rows)](
        logits, parts, tokens, logits.stride(0), num_tokens, num_parts, SPAN=_SPAN, num_warps=8, **options
    )
    best_token_kernel[(num_rows,)](
        parts,
        tokens,
        best if faults is None else faults,
        best,
        token_ids,
        num_tokens,
        num_parts,
        PARTS=power_of_2_from(num_parts),
        HAS_FAULTS=faults is not None,
        num_warps=1,
        **options,
    )
    return best, token_ids
