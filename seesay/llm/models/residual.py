"""How the output of attention or of a feed-forward joins the residual stream.

Where a decoder is divided, that output is a rank's summand, and this is where the ranks' are summed up: nowhere else in
a layer.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from seesay.device.linear.linear import Linear
from seesay.device.ranks import Ranks
from seesay.llm.models.norm import Norm

MIN_PIECE_TOKENS = 1024
"""Least tokens whose sum over the ranks is worth a call of its own."""


class Joint:
    """Adds scale · norm(output) to the residual stream; `norm` None: the output itself. ranks: those whose outputs
    together are the output; None where each computes all of it."""

    def __init__(self, norm: Norm | None, scale: float, ranks: Ranks | None = None) -> None:
        self._norm, self._scale, self._ranks = norm, scale, ranks

    @property
    def is_divided(self) -> bool:
        return self._ranks is not None

    @property
    def is_plain(self) -> bool:
        """Whether the output is added as it is."""
        return self._norm is None and self._scale == 1.0 and self._ranks is None

    def prepare(self, output: torch.Tensor) -> torch.Tensor:
        """Return the summand for an output [T, hidden], which may be changed in place."""
        if self._ranks is not None and len(output):
            output = self._ranks.sum(output)
        return self._finish(output)

    def has_pieces(self, num_tokens: int) -> bool:
        """Return whether so many tokens are computed in two pieces, so that one's outputs are summed up while the other
        is computed."""
        return self._ranks is not None and num_tokens >= 2 * MIN_PIECE_TOKENS

    def begin(self, output: torch.Tensor) -> Callable[[], torch.Tensor]:
        """Begin what `prepare` does, beside what is queued next, and return what waits for it."""
        assert self._ranks is not None
        finish_sum = self._ranks.begin_sum(output)
        return lambda: self._finish(finish_sum())

    def _finish(self, output: torch.Tensor) -> torch.Tensor:
        if self._norm is not None:
            output = self._norm(output)
        return output if self._scale == 1.0 else output.mul_(self._scale)

    def add_product(self, residual: torch.Tensor, linear: Linear, x: torch.Tensor) -> None:
        """Add the summand for linear(x), which has a few rows, to the residual in place."""
        if self.is_plain and linear.fused is not None and len(x) <= linear.max_fused_rows:
            linear.fused(x, add_to=residual)
        elif self._ranks is not None and self._norm is None and self._scale == 1.0:
            self._ranks.sum_add(multiply_few(linear, x), residual)
        else:
            residual.add_(self.prepare(multiply_few(linear, x)))


def multiply_few(linear: Linear, x: torch.Tensor) -> torch.Tensor:
    """Return linear(x) for x with a few rows."""
    return linear(x) if linear.fused is None or len(x) > linear.max_fused_rows else linear.fused(x)
