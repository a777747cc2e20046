"""The kernel that takes tokens away, held against torch's version."""

from __future__ import annotations

import pytest
import torch
from triton_cases import DEVICE, runs_here

from seesay.llm.running import logit_changes


@runs_here
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("size", [4096 + 40, 61])
def test_masks(dtype: torch.dtype, size: int) -> None:
    """Rows of all tokens, of none, of some; rows without a mask between them, in a view of a wider array."""
    from seesay.kernels import token_masks

    generator = torch.Generator().manual_seed(size)
    wide = torch.randn(6, size + 8, generator=generator).to(dtype)
    rows = torch.tensor([5, 0, 2, 3])
    bits = torch.randint(-(1 << 31), 1 << 31, (4, -(-size // 32)), generator=generator).int()
    bits[0], bits[1] = -1, 0
    expected, found = wide[:, :size].clone(), wide.to(DEVICE, copy=True)
    logit_changes.mask_tokens(expected, rows, bits)
    token_masks.mask_tokens(found[:, :size], rows.to(DEVICE), bits.to(DEVICE))
    assert torch.equal(found[:, :size].cpu(), expected) and torch.equal(found[:, size:].cpu(), wide[:, size:])
    is_allowed = (bits[3, torch.arange(size) // 32] >> (torch.arange(size) % 32)) & 1 == 1
    assert torch.equal(expected[3], wide[3, :size].masked_fill(~is_allowed, float("-inf")))
    assert torch.equal(expected[[1, 4]], wide[[1, 4], :size]) and 0 < int(is_allowed.sum()) < size
