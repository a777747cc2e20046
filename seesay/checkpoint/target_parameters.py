"""Factors that PEFT has for parameters (`target_parameters`): the weights of all experts of a layer are one parameter,
and so are the factors of all of them.

A module with several such parameters is wrapped several times: the factors of the first one are those of its innermost
`base_layer`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from seesay.errors import CheckpointError

if TYPE_CHECKING:
    import torch

_STACKED = ("gate_up_proj", "up_proj", "down_proj")
"""Parameters of all experts, in the order in which Transformers' modules have them."""
_WEIGHT = "weight"
_WRAPPER = ".base_layer"


@dataclass(frozen=True, slots=True)
class TargetParameters:
    """The parameters that a configuration names by the endings of their names."""

    endings: tuple[str, ...] = ()

    @classmethod
    def read(cls, config: Mapping[str, object]) -> TargetParameters:
        """Return those of a configuration. Raises `CheckpointError` for others than those of experts, and weights."""
        endings = config.get("target_parameters") or []
        if not isinstance(endings, list) or not all(isinstance(name, str) for name in endings):
            raise CheckpointError(f"target_parameters must be a list of names, got {endings!r:.80}")
        supported = (*_STACKED, _WEIGHT)
        for name in endings:
            if name.rpartition(".")[2] not in supported:
                raise CheckpointError(
                    f"target_parameters: {name!r:.80} is not supported, names may end in {', '.join(supported)}"
                )
        return cls(tuple(endings))

    def find(self, module: str) -> str | None:
        """Return the name of the parameter of all experts that the factors of a module are for; None for a module
        that has its own."""
        bare = module
        while bare.endswith(_WRAPPER):
            bare = bare.removesuffix(_WRAPPER)
        there = [name for name in _STACKED if self._has(f"{bare}.{name}")]
        depth = (len(module) - len(bare)) // len(_WRAPPER)
        return f"{bare}.{there[-1 - depth]}" if depth < len(there) else None

    def find_all(self, path: Path, modules: Sequence[str]) -> Mapping[str, str | None]:
        """Return what `find` does, by modules of the folder at `path`. Raises `CheckpointError` where none of them has
        the factors of a parameter."""
        parameters = {module: self.find(module) for module in modules}
        found = [f".{parameter or f'{module}.{_WEIGHT}'}" for module, parameter in parameters.items()]
        for ending in self.endings:
            if not any(name.endswith(f".{ending}") for name in found):
                raise CheckpointError(f"{path}: target_parameters: it has nothing for {ending!r:.80}")
        return parameters

    def _has(self, parameter: str) -> bool:
        return any(f".{parameter}".endswith(f".{each}") for each in self.endings)


def split(
    parameter: str, a: torch.Tensor, b: torch.Tensor, rank: int
) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
    """Yield for each expert the name of its part of a parameter, `experts.gate_up_proj` being divided into
    `experts.0.gate_up_proj` and so on, and its factors A [rank, in] and B [out, rank]. a: those of all, one below the
    other, b: their columns in turn."""
    count = len(a) // rank
    if count * rank != len(a):
        raise CheckpointError(
            f"the factors of {parameter!r} have {len(a)} components, not a multiple of the rank {rank}"
        )
    parent, _, own = parameter.rpartition(".")
    for expert in range(count):
        yield f"{parent}.{expert}.{own}", a[expert * rank : (expert + 1) * rank], b[:, expert::count]
