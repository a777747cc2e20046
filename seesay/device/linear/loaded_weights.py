"""The weights of a decoder or a tower as `ModelWeights` knows them: replaced, moved and dropped together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import torch

from seesay.checkpoint.parts import Part
from seesay.checkpoint.source import TensorSource


class LoadedWeights(Protocol):
    """All weights of a decoder or a tower, on `device`."""

    @property
    def device(self) -> torch.device: ...

    def name_of(self, name: str, /) -> str | None:
        """The model's name of a checkpoint tensor; None when it belongs to another part."""
        ...

    def is_unread(self, name: str) -> bool:
        """Whether a tensor of the model's name `name` may be in a checkpoint and is not read."""
        ...

    def parts(self) -> Mapping[str, Part]:
        """Return the part that is taken of each tensor, by the model's name."""
        ...

    def tensors(self) -> Sequence[torch.Tensor]:
        """All tensors that are there."""
        ...

    def check(self, source: TensorSource, *, is_partial: bool) -> None:
        """Raise what `replace` would raise. Nothing is replaced."""
        ...

    def replace(self, source: TensorSource, *, is_partial: bool) -> None:
        """Load new weights in place of those that are there or were dropped; with `is_partial`, those of `source`."""
        ...

    def drop(self) -> None:
        """Free all weights."""
        ...
