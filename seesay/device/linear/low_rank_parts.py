"""The parts of an adapter's matrices that a linear layer takes: its outputs come from one or several stored modules,
and a rank's slice has some of their inputs or outputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import torch
from torch.nn import functional as F

from seesay.checkpoint.adapter_folder import AdapterFolder, LowRank
from seesay.checkpoint.parts import Source
from seesay.checkpoint.tensors import is_finite
from seesay.device.linear.linear import Linear
from seesay.errors import CheckpointError

_MAX_UNIT_VECTORS = 1024
"""Those that are multiplied at once, which bounds the memory that they take."""


@dataclass(frozen=True, slots=True)
class LayerSources:
    """The outputs of a layer by the stored modules they come from. bounds: the first output of each, and their number.
    columns: where those of each are in memory, between padding."""

    groups: tuple[tuple[Source, ...], ...]
    bounds: tuple[int, ...]
    columns: tuple[range, ...]

    @classmethod
    def of(cls, linear: Linear, path: str) -> LayerSources:
        """Return those of the layer at `path`."""
        groups = tuple(tuple(group) for _, group in groupby(linear.sources_at(path), key=lambda each: each.module))
        sizes = [sum(source.num_picked for source in group) for group in groups]
        multiple = linear.sizes.output_multiple
        starts = (0, *np.cumsum([-(-size // multiple) * multiple for size in sizes]).tolist())
        columns = tuple(range(start, start + size) for start, size in zip(starts, sizes, strict=False))
        return cls(groups, (0, *np.cumsum(sizes).tolist()), columns)


def cut_inputs(low_rank: LowRank, linear: Linear) -> torch.Tensor:
    """Return A [rank, in] for the inputs that a layer takes."""
    inputs = linear.inputs
    return low_rank.a if inputs is None else low_rank.a[:, inputs.start : inputs.stop]


def pad_inputs(a: torch.Tensor, linear: Linear) -> torch.Tensor:
    """Return A [rank, in] for the inputs of a layer with their padding."""
    return F.pad(a, (0, -linear.sizes.inputs % linear.sizes.input_multiple))


def cut_outputs(low_rank: LowRank, sources: Sequence[Source]) -> torch.Tensor:
    """Return scale · Bᵀ [rank, out] for the outputs that a layer has of a stored module."""
    return _pick(low_rank.b, sources).float().mul_(low_rank.scale).t()


def cut_magnitude(magnitude: torch.Tensor, sources: Sequence[Source]) -> torch.Tensor:
    """Return the magnitude, float32 [out], of the outputs that a layer has of a stored module."""
    return _pick(magnitude, sources).float()


def _pick(stored: torch.Tensor, sources: Sequence[Source]) -> torch.Tensor:
    """Return the rows of a stored tensor that are outputs of a layer."""
    return torch.cat(
        [
            stored[pick.start : pick.stop : pick.step]
            for source in sources
            for pick in source.picks or (range(source.num_outputs),)
        ]
    )


def measure_squares(
    multiply: Callable[[torch.Tensor], torch.Tensor], num_inputs: int, *, device: torch.device, dtype: torch.dtype
) -> torch.Tensor:
    """Return the square of the length of each row of a matrix, float32 [out], by multiplying unit vectors: whatever the
    format of the matrix is, it is that of what is computed with. multiply(x) returns x Wᵀ [N, out] for x [N, in]."""
    squares = torch.zeros((), device=device)
    for first in range(0, num_inputs, _MAX_UNIT_VECTORS):
        count = min(_MAX_UNIT_VECTORS, num_inputs - first)
        unit = torch.zeros(count, num_inputs, dtype=dtype, device=device)
        unit.diagonal(first).fill_(1)
        squares = squares + multiply(unit).float().square_().sum(0)
    return squares


def make_gain(magnitude: torch.Tensor, squares: torch.Tensor) -> torch.Tensor:
    """Return what rows of these lengths are to be multiplied by, less one, so that they have the lengths `magnitude`;
    where that is NaN, they keep theirs."""
    lengths = squares.sqrt().clamp_(min=torch.finfo(torch.float32).tiny)
    return torch.where(magnitude.isnan(), 1.0, magnitude / lengths) - 1.0


def check_sizes(folder: AdapterFolder, module: str, num_outputs: int, num_inputs: int) -> None:
    """Raise `CheckpointError` for an adapter of a layer of other sizes."""
    low_rank = folder.modules[module]
    found = low_rank.b.shape[0], low_rank.a.shape[1]
    if found != (num_outputs, num_inputs):
        base = "another base model" if folder.base is None else f"another base model, {folder.base}"
        raise CheckpointError(
            f"{folder.path}: the adapter of {module!r} has {found[1]} inputs and {found[0]} outputs, the layer has "
            f"{num_inputs} and {num_outputs}: it was made for {base}"
        )


def check_finite(folder: AdapterFolder, *factors: torch.Tensor) -> None:
    """Raise `CheckpointError` for factors with numbers that their type does not have."""
    for tensor in factors:
        if not is_finite(tensor):
            name = str(tensor.dtype).removeprefix("torch.")
            raise CheckpointError(
                f"{folder.path}: times its scale, its factors are too large for {name}: see lora_alpha"
            )
