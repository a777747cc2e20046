"""A fused kernel of a linear layer whose output something is added to before what it is fused with comes."""

from __future__ import annotations

from collections.abc import Callable

import torch

from seesay.device.linear.linear_method import FusedKernel

Adapt = Callable[[torch.Tensor, torch.Tensor], None]
"""Adds something for inputs x [N, in] to outputs y [N, out] in place."""


def adapt_fused(fused: FusedKernel, adapt: Adapt | None) -> FusedKernel:
    """Return what computes what `fused` does, with what `adapt` adds to the product; without it, `fused`. The sum with
    the residual stays in the product; norm and activation are kernels of their own."""
    if adapt is None:
        return fused
    from seesay.kernels import token_kernels

    def run(
        x: torch.Tensor,
        *,
        norm: tuple[torch.Tensor, float] | None = None,
        activation: str | None = None,
        add_to: torch.Tensor | None = None,
    ) -> torch.Tensor:
        if norm is not None:
            x = token_kernels.norm(x, None, *norm)
        y = fused(x) if add_to is None else fused(x, add_to=add_to)
        adapt(x, y)
        return y if activation is None else token_kernels.act_and_mul(y, activation)

    return run
