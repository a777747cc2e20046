"""Products whose kernels for a few rows are plain torch, so that decoders on the CPU take the path of a few rows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F

from seesay.device.linear.linear_method import Product
from seesay.device.linear.matmul import make_product
from seesay.llm.ops.torch_ops import TorchOps


def make_fused(weight: torch.Tensor, bias: torch.Tensor | None) -> Product:
    """As `make_product`, with a kernel as `seesay.kernels.few_rows.few_row_matmul.multiply`."""

    def fused(
        x: torch.Tensor,
        *,
        norm: tuple[torch.Tensor, float] | None = None,
        activation: Any = None,
        add_to: torch.Tensor | None = None,
    ) -> torch.Tensor:
        ops = TorchOps()
        made = F.linear(x if norm is None else ops.rms_norm(x, *norm).to(x.dtype), weight, bias)
        if activation is not None:
            made = ops.act_and_mul(made, activation)
        return made if add_to is None else add_to.add_(made)

    return replace(make_product(weight, bias), fused=fused, max_fused_rows=32)
