"""How the output of attention or of a feed-forward joins the residual stream.

Where a decoder is divided, that output is a rank's summand, and this is where the ranks' are summed up: nowhere else in
a layer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeAlias

import torch

from seesay.device.linear.linear import Linear
from seesay.device.ranks import OpenSum, Ranks
from seesay.llm.models.norm import Norm

MIN_PIECE_TOKENS = 1024
"""Least tokens whose sum over the ranks is worth a call of its own."""


class Piece(NamedTuple):
    """Some rows of the residual stream, and what waits for the ranks' sum that is to be added to them."""

    residual: torch.Tensor
    finish: Callable[[], OpenSum]


class Pieces(tuple[Piece, ...]):
    """The summands of a layer for the residual stream, in pieces of its tokens: while the next layer computes the first
    piece, the ranks sum up the last."""

    __slots__ = ()

    def waited(self) -> Iterator[tuple[OpenSum, torch.Tensor]]:
        """Yield the summand of each piece of the residual stream, and that piece."""
        for piece in self:
            yield piece.finish(), piece.residual


LayerDelta: TypeAlias = torch.Tensor | Pieces | None
"""The summand of a layer for the residual stream, [T, hidden]; None where it is added already."""


def settle(delta: LayerDelta) -> torch.Tensor | None:
    """Add pieces to the residual stream; anything else is returned as it is."""
    if not isinstance(delta, Pieces):
        return delta
    for found, residual in delta.waited():
        residual.add_(found.close())
    return None


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

    def begin(self, output: torch.Tensor) -> Callable[[], OpenSum]:
        """Begin what `prepare` does, beside what is queued next, and return what waits for it."""
        assert self._ranks is not None
        finish_sum = self._ranks.begin_sum(output)
        if self._norm is None and self._scale == 1.0:
            return finish_sum
        return lambda: OpenSum(self._finish(finish_sum().close()))

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
