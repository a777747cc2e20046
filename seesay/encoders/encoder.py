"""The interface between a vision tower and the worker that feeds it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from seesay.device.linear.loaded_weights import LoadedWeights


class EncoderLostError(Exception):
    """The process in which an encoder computes has ended. The next call has another one."""


class Encoder(Protocol):
    """Turns preprocessed media into embeddings, on `device`."""

    device: torch.device

    def encode(self, features: Sequence[Mapping[str, Any]]) -> list[Tensor]:
        """Encode items of any sizes in one call. `features[i]` is the family's input for item i. Returns one
        [R_i, hidden] tensor per item, in the same order, on the language model's device; R_i is the number of the
        item's slots. Items do not influence each other's rows."""
        ...

    def disable_graphs(self) -> None:
        """Never record CUDA graphs."""
        ...


class LoadedEncoder(Encoder, Protocol):
    """An encoder whose weights came from a checkpoint, and may be replaced or dropped between its calls."""

    @property
    def weights(self) -> LoadedWeights: ...

    def forget_graphs(self) -> None:
        """Drop the CUDA graphs that were recorded. Called when weights have changed their addresses or are gone."""
        ...
