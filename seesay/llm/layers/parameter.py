"""Weights declared as data: which checkpoint tensor fills which rows of which parameter."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import torch

from seesay.checkpoint import Checkpoint
from seesay.checkpoint.loading import load_tensors


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
    """Fill all `parameters` from the checkpoint, on `device` in `dtype`: see `load_tensors`."""
    parameters = list(parameters)
    shapes = {
        part.source: (part.num_rows, *parameter.shape[1:]) for parameter in parameters for part in parameter.parts
    }

    def allocate() -> dict[str, torch.Tensor]:
        targets: dict[str, torch.Tensor] = {}
        for parameter in parameters:
            parameter.data = torch.empty(parameter.shape, dtype=dtype, device=device)
            rows = torch.split(parameter.data, [part.num_rows for part in parameter.parts])
            targets.update(zip((part.source for part in parameter.parts), rows, strict=True))
        return targets

    load_tensors(checkpoint, shapes, name_of=model_name, allocate=allocate, device=device, ignored=ignored)
