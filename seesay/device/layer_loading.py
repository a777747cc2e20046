"""Loads linear layers and the weights beside them from a checkpoint: decoder and towers go this one way."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import torch

from seesay.checkpoint import Checkpoint
from seesay.checkpoint.loading import WeightGroup, load_weights
from seesay.checkpoint.parts import Weight
from seesay.device.linear import Linear


def load_layers(
    linears: Mapping[str, Linear],
    plain: Iterable[Weight],
    checkpoint: Checkpoint,
    *,
    name_of: Callable[[str], str | None],
    device: torch.device,
    dtype: torch.dtype,
    ignored: frozenset[str] = frozenset(),
) -> None:
    """Load `linears`, which are at the given paths in the model, and the weights `plain`, which belong to none of them.
    A layer is finished as soon as its tensors are loaded. Parameters and errors: see `load_weights`."""
    groups = [WeightGroup(weights=(weight,)) for weight in plain]
    groups += [linear.make_group(path) for path, linear in linears.items()]
    load_weights(groups, checkpoint, name_of=name_of, device=device, dtype=dtype, ignored=ignored)
