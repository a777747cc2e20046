"""How the output of attention or of a feed-forward joins the residual stream."""

from __future__ import annotations

import torch

from seesay.device.linear.linear import Linear
from seesay.llm.models.norm import Norm


class Joint:
    """Adds scale · norm(output) to the residual stream; `norm` None: the output itself."""

    def __init__(self, norm: Norm | None, scale: float) -> None:
        self._norm, self._scale = norm, scale

    @property
    def is_plain(self) -> bool:
        """Whether the output is added as it is."""
        return self._norm is None and self._scale == 1.0

    def prepare(self, output: torch.Tensor) -> torch.Tensor:
        """Return the summand for an output [T, hidden], which may be changed in place."""
        if self._norm is not None:
            output = self._norm(output)
        return output if self._scale == 1.0 else output.mul_(self._scale)

    def add_product(self, residual: torch.Tensor, linear: Linear, x: torch.Tensor) -> None:
        """Add the summand for linear(x), which has a few rows, to the residual in place."""
        if linear.fused is None or len(x) > linear.max_fused_rows:
            residual.add_(self.prepare(linear(x)))
        elif self.is_plain:
            linear.fused(x, add_to=residual)
        else:
            residual.add_(self.prepare(linear.fused(x)))
