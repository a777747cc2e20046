"""Where tensors come from: a model folder, or tensors that were handed over."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch

    from seesay.checkpoint.tensors import StoredTensor, TensorSlices


class TensorSource(Protocol):
    """Tensors by their names in a checkpoint. `path` names the source in messages, and `remedy` says what to do if a
    tensor is missing."""

    @property
    def path(self) -> Path: ...

    @property
    def remedy(self) -> str: ...

    def tensor_names(self) -> frozenset[str]:
        """Return the names of all tensors."""
        ...

    def find(self, name: str) -> StoredTensor:
        """Return the type and shape of a tensor. Raises `CheckpointError` that names it if it is missing."""
        ...

    def slices(self, names: Iterable[str], device: torch.device | str) -> Iterator[tuple[str, TensorSlices]]:
        """Open tensors one at a time, to read all or part of each, to `device` where the source can."""
        ...
