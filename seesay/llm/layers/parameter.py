"""Weights declared as data: which checkpoint tensor fills which rows of which parameter. And their loader."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import torch

from seesay.checkpoint import Checkpoint, guess_stored_name, is_buffer
from seesay.errors import CheckpointError


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """`num_rows` rows of a parameter (its first axis) come from the tensor named `source`. Parts follow one another."""

    source: str
    num_rows: int


@dataclass(eq=False, slots=True, kw_only=True)
class Parameter:
    """One weight of a model. `data` is set by `load_parameters`."""

    shape: tuple[int, ...]
    parts: tuple[Part, ...]
    data: torch.Tensor = field(init=False, repr=False)

    def __post_init__(self) -> None:
        assert sum(part.num_rows for part in self.parts) == self.shape[0]


def plain_parameter(source: str, *shape: int) -> Parameter:
    """A parameter that is one checkpoint tensor."""
    return Parameter(shape=shape, parts=(Part(source=source, num_rows=shape[0]),))


def load_parameters(
    parameters: Iterable[Parameter],
    checkpoint: Checkpoint,
    *,
    model_name: Callable[[str], str | None],
    device: torch.device,
    dtype: torch.dtype,
    ignored: frozenset[str] = frozenset(),
) -> None:
    """Fill all `parameters` from the checkpoint, tensor by tensor, on `device` in `dtype`.

    `model_name` gives a checkpoint tensor's name in the model, or None when it is none of this model's. Model names in
    `ignored` may be there and are not read. Raises `CheckpointError` naming a tensor that is missing, unexpected,
    there twice, or of a shape that does not fit.
    """
    stored_as = _names_in_checkpoint(checkpoint, model_name)
    places: dict[str, tuple[Parameter, int, int]] = {}
    for parameter in parameters:
        start = 0
        for part in parameter.parts:
            if part.source not in stored_as:
                name = guess_stored_name(part.source, stored_as)
                raise CheckpointError(f"{checkpoint.path}: tensor {name!r} is missing from the checkpoint")
            stored = stored_as[part.source]
            expected, found = (part.num_rows, *parameter.shape[1:]), checkpoint.shape(stored)
            if found != expected:
                raise CheckpointError(
                    f"{checkpoint.path}: tensor {stored!r} has shape {list(found)}, the config says {list(expected)}"
                )
            places[stored] = (parameter, start, start + part.num_rows)
            start += part.num_rows
        parameter.data = torch.empty(parameter.shape, dtype=dtype, device=device)
    unexpected = sorted(name for source, name in stored_as.items() if name not in places and source not in ignored)
    if unexpected:
        more = f" (and {len(unexpected) - 1} more)" if len(unexpected) > 1 else ""
        raise CheckpointError(f"{checkpoint.path}: unexpected tensor {unexpected[0]!r}{more}")
    for stored, tensor in checkpoint.tensors(places, device):
        parameter, start, stop = places[stored]
        parameter.data[start:stop].copy_(tensor)


def _names_in_checkpoint(checkpoint: Checkpoint, model_name: Callable[[str], str | None]) -> dict[str, str]:
    names: dict[str, str] = {}
    for stored in sorted(checkpoint.tensor_names()):
        name = None if is_buffer(stored) else model_name(stored)
        if name is None:
            continue
        if name in names:
            raise CheckpointError(f"{checkpoint.path}: tensors {names[name]!r} and {stored!r} are both {name!r}")
        names[name] = stored
    return names
