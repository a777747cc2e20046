"""The residual stream before some layers of a decoder, for what predicts further tokens from it."""

from __future__ import annotations

import torch


class LayerStates:
    """What goes into the layers `places` of a decoder, of all tokens of its last step; one behind the last layer stands
    for what comes out of that. In a CUDA graph, the tensors stay at their addresses."""

    def __init__(self, places: tuple[int, ...]) -> None:
        self._places = frozenset(places)
        self._order = places
        self._taken: dict[int, torch.Tensor] = {}

    def take(self, place: int, residual: torch.Tensor, delta: torch.Tensor | None = None) -> None:
        """Keep the residual stream [T, hidden] before layer `place`, to which `delta` is still to be added, if that is
        a place to keep."""
        if place in self._places:
            self._taken[place] = residual.clone() if delta is None else residual + delta

    @property
    def states(self) -> torch.Tensor:
        """The states that were taken, side by side: [T, number of places · hidden]."""
        return torch.cat([self._taken[place] for place in self._order], dim=-1)
