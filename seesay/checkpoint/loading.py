"""Strict loading: every tensor of a model has one in the checkpoint, and every checkpoint tensor that belongs to the
model has a place in it. For decoders and towers alike.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from seesay.checkpoint import Checkpoint, guess_stored_name, is_buffer
from seesay.errors import CheckpointError

if TYPE_CHECKING:
    import torch


def load_tensors(
    checkpoint: Checkpoint,
    shapes: Mapping[str, tuple[int, ...]],
    *,
    name_of: Callable[[str], str | None],
    allocate: Callable[[], Mapping[str, torch.Tensor]],
    device: torch.device,
    ignored: frozenset[str] = frozenset(),
) -> None:
    """Copy the tensors named in `shapes` from the checkpoint, one by one, each straight to `device`.

    `name_of` maps a checkpoint tensor's name to the model's, or to None for tensors of other parts. `allocate` returns
    the memory of each tensor; it is called after all names and shapes have been checked. Tensors whose model name is in
    `ignored` may be in the checkpoint and are not read. A stored tensor with more axes than the matrix it fills is
    flattened behind its first axis: a convolution whose stride is its size is a linear layer.

    Raises `CheckpointError` naming a tensor that is missing, unexpected, there twice, or of a shape that does not fit.
    """
    stored_as = _find_names(checkpoint, name_of)
    if missing := [name for name in shapes if name not in stored_as]:
        name = guess_stored_name(missing[0], stored_as)
        raise CheckpointError(f"{checkpoint.path}: tensor {name!r} is missing from the checkpoint")
    if unexpected := sorted(stored_as[name] for name in stored_as.keys() - shapes.keys() - ignored):
        more = f" (and {len(unexpected) - 1} more)" if len(unexpected) > 1 else ""
        raise CheckpointError(f"{checkpoint.path}: unexpected tensor {unexpected[0]!r}{more}")
    for name, expected in shapes.items():
        stored_shape = checkpoint.shape(stored_as[name])
        if stored_shape != expected and _flatten(stored_shape, len(expected)) != expected:
            raise CheckpointError(
                f"{checkpoint.path}: tensor {stored_as[name]!r} has shape {list(stored_shape)}, "
                f"the config says {list(expected)}"
            )
    targets = allocate()
    by_stored = {stored_as[name]: targets[name] for name in shapes}
    for stored, tensor in checkpoint.tensors(by_stored, device):
        target = by_stored[stored]
        target.copy_(tensor.view(target.shape))


def _find_names(checkpoint: Checkpoint, name_of: Callable[[str], str | None]) -> dict[str, str]:
    """Return the checkpoint's names by the model's. Buffers belong to no model."""
    names: dict[str, str] = {}
    for stored in sorted(checkpoint.tensor_names()):
        name = None if is_buffer(stored) else name_of(stored)
        if name is None:
            continue
        if name in names:
            raise CheckpointError(f"{checkpoint.path}: tensors {names[name]!r} and {stored!r} are both {name!r}")
        names[name] = stored
    return names


def _flatten(shape: tuple[int, ...], num_axes: int) -> tuple[int, ...]:
    """Return the shape of a tensor whose axes behind the first are joined, for a matrix."""
    return (shape[0], math.prod(shape[1:])) if num_axes == 2 and len(shape) > 2 else shape
