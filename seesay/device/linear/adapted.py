"""A linear layer to whose output something is added before what comes behind it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from seesay.device.linear.linear_method import FusedKernel, Product

if TYPE_CHECKING:
    from seesay.kernels.low_rank import SlotProducts


@dataclass(frozen=True, slots=True, kw_only=True)
class Adaptation:
    """An addition to the output of a layer.

    add(x, y): add it for inputs x [N, in] to outputs y [N, out] in place. gate(x, y, activation): return the
    activation of the first half times the second half of the sum, and change y at will; None where no kernel does both.
    find_products(x): return it as products of low rank, for kernels that multiply the one row x; None where there are
    none.
    """

    add: Callable[[torch.Tensor, torch.Tensor], None]
    gate: Callable[[torch.Tensor, torch.Tensor, str], torch.Tensor] | None = None
    find_products: Callable[[torch.Tensor], SlotProducts | None] | None = None


def adapt_fused(product: Product, adaptation: Adaptation) -> FusedKernel:
    """Return what computes what the fused kernel of a product does, with what is added. The sum with the residual stays
    in the product; norm and activation do for one row, and else are kernels of their own."""
    from seesay.kernels import token_kernels

    fused, find_products = product.fused, adaptation.find_products
    assert fused is not None

    def run(
        x: torch.Tensor,
        *,
        norm: tuple[torch.Tensor, float] | None = None,
        activation: str | None = None,
        add_to: torch.Tensor | None = None,
    ) -> torch.Tensor:
        if len(x) == 1 and product.fuses_low_rank and find_products is not None:
            products = find_products(x)
            if products is not None:
                return fused(x, norm=norm, activation=activation, add_to=add_to, products=products)
        if norm is not None:
            x = token_kernels.norm(x, None, *norm)
        y = fused(x) if add_to is None else fused(x, add_to=add_to)
        if activation is not None and adaptation.gate is not None:
            return adaptation.gate(x, y, activation)
        adaptation.add(x, y)
        return y if activation is None else token_kernels.act_and_mul(y, activation)

    return run
