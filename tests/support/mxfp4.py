"""MXFP4 as the microscaling specification has it, written here for itself: to compare with."""

from __future__ import annotations

from typing import NamedTuple

import torch

GROUP = 32
VALUES = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])


class Mxfp4(NamedTuple):
    """blocks uint8 [..., groups, 16]; scales uint8 [..., groups]; values: the numbers that they stand for."""

    blocks: torch.Tensor
    scales: torch.Tensor
    values: torch.Tensor


def quantize(weight: torch.Tensor) -> Mxfp4:
    """Round a weight [..., inputs] to the nearest numbers, with the largest of each group about 6."""
    groups = weight.view(*weight.shape[:-1], -1, GROUP)
    exponents = (groups.abs().amax(-1, keepdim=True) / 6).clamp(min=2.0**-126).log2().ceil()
    scaled = groups / exponents.exp2()
    codes = (scaled.abs()[..., None] - VALUES).abs().argmin(-1)
    values = VALUES[codes] * scaled.sign() * exponents.exp2()
    codes = (codes + 8 * (scaled < 0)).to(torch.uint8)
    blocks = codes[..., ::2] | codes[..., 1::2] << 4
    return Mxfp4(blocks, (exponents[..., 0] + 127).to(torch.uint8), values.flatten(-2))


def multiply_out(blocks: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Return the numbers [..., inputs] that blocks uint8 [..., groups, 16] and scales uint8 [..., groups] stand for."""
    codes = torch.stack((blocks & 15, blocks >> 4), dim=-1).flatten(-2).long()
    values = torch.cat((VALUES, -VALUES))[codes] * (scales.float() - 127).exp2()[..., None]
    return values.flatten(-2)
