"""LoRA adapters of a vision tower and its projector. A call of the tower has one adapter, or none, for all of its
items: only the tower knows which rows are those of which item.

Adapters are in host memory, and on the device for the time of a call.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch.nn import functional as F

from seesay.checkpoint.adapter_folder import AdapterFolder
from seesay.checkpoint.parts import Source
from seesay.device.linear.adapted import Adaptation
from seesay.device.linear.layer_loading import LoadedLayers
from seesay.device.linear.linear import Linear
from seesay.device.linear.low_rank_parts import (
    LayerSources,
    check_sizes,
    cut_magnitude,
    cut_outputs,
    make_gain,
    measure_squares,
    pad_inputs,
)
from seesay.device.transfers import PinnedMemory
from seesay.encoders.encoder import LoadedEncoder
from seesay.encoders.graphs import GraphedEncoder
from seesay.errors import CheckpointError


class _Factors(NamedTuple):
    """The place of a product of low rank in a tower: A [rank, in], from `first` on in the adapter's memory, and then B
    [rank, columns] for the outputs of the layer at `path` that are `columns`. magnitude: float32 [columns], or None, as
    `LowRank` has it."""

    path: str
    columns: range
    rank: int
    num_inputs: int
    first: int
    magnitude: torch.Tensor | None = None

    @property
    def size(self) -> int:
        return self.rank * (self.num_inputs + len(self.columns))

    def split(self, memory: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return views of A and B."""
        middle, stop = self.first + self.rank * self.num_inputs, self.first + self.size
        return memory[self.first : middle].view(self.rank, -1), memory[middle:stop].view(self.rank, -1)


@dataclass(frozen=True, slots=True, eq=False)
class TowerAdapter:
    """An adapter from a folder. key: stands for its content. memory: its factors, one after another."""

    key: str
    tower: AdaptedTower
    factors: tuple[_Factors, ...]
    memory: PinnedMemory

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Let the tower compute with it in the block."""
        with self.tower.applying(self):
            yield


class AdaptedTower:
    """A tower whose linear layers may have adapters. `read` may be called by any thread, `applying` by that of the
    tower."""

    def __init__(self, encoder: LoadedEncoder, stored: Container[str] = ()) -> None:
        """stored: the tensors of the checkpoint. An adapter of a layer whose tensors nothing reads has no effect."""
        self._encoder, self._stored = encoder, stored
        self._gains: dict[int, torch.Tensor] = {}  # by the places of factors
        self._num_changes = 0  # of the weights, when the gains were made

    def read(self, folder: AdapterFolder) -> TowerAdapter | None:
        """Return an adapter of this tower; None for one without effect. Raises `CheckpointError` naming a module that
        it does not have, or has with another size."""
        if folder.saved:
            raise CheckpointError(
                f"{folder.path}: it has the whole weight of {min(folder.saved)!r} (modules_to_save): those of the "
                "table of embeddings and the head are supported"
            )
        weights = self._layers(folder)
        own = _TowerNames(folder, weights, self._stored).find()
        found: list[_Factors] = []
        pieces: list[torch.Tensor] = []
        for path, linear, group, columns in _iterate_groups(weights):
            if (module := own.get(group[0].module)) is None:
                continue
            check_sizes(folder, module, group[0].num_outputs, linear.stored_inputs)
            low_rank = folder.modules[module]
            padded = pad_inputs(low_rank.a, linear)
            magnitude = None if low_rank.magnitude is None else cut_magnitude(low_rank.magnitude, group)
            first = found[-1].first + found[-1].size if found else 0
            found.append(_Factors(path, columns, len(padded), padded.shape[1], first, magnitude))
            pieces += [padded, cut_outputs(low_rank, group)]
        if not found:
            return None
        memory = PinnedMemory((sum(each.size for each in found),), weights.dtype, weights.device)
        torch.cat([piece.reshape(-1).to(weights.dtype) for piece in pieces], out=memory.tensor)
        return TowerAdapter(f"{folder.make_id():x}", self, tuple(found), memory)

    @contextmanager
    def applying(self, adapter: TowerAdapter) -> Iterator[None]:
        """Let the tower compute with an adapter in the block, without CUDA graphs."""
        weights, encoder = self._encoder.weights, self._encoder
        assert isinstance(weights, LoadedLayers)
        by_path: dict[str, list[_Part]] = {}
        memory = adapter.memory.tensor.to(weights.device, non_blocking=True)
        for factors in adapter.factors:
            a, b = factors.split(memory)
            gain = self._find_gain(factors, a, b, weights)
            by_path.setdefault(factors.path, []).append(_Part(factors.columns, a, b, gain))
        with encoder.without_graphs() if isinstance(encoder, GraphedEncoder) else nullcontext():
            try:
                for path, parts in by_path.items():
                    addition = _Addition(weights.linears[path], parts)
                    weights.linears[path].extend(adaptation=Adaptation(add=addition))
                yield
            finally:
                for path in by_path:
                    weights.linears[path].extend()

    def _find_gain(
        self, factors: _Factors, a: torch.Tensor, b: torch.Tensor, weights: LoadedLayers
    ) -> torch.Tensor | None:
        """Return what the sums with these factors A and B are multiplied by, less one; None: they stay as they are."""
        if factors.magnitude is None:
            return None
        if self._num_changes != weights.num_changes:
            self._gains.clear()
            self._num_changes = weights.num_changes
        if factors.first not in self._gains:
            linear, columns = weights.linears[factors.path], factors.columns

            def multiply(x: torch.Tensor) -> torch.Tensor:
                return linear.multiply(x)[:, columns.start : columns.stop] + F.linear(x, a) @ b

            squares = measure_squares(multiply, a.shape[1], device=weights.device, dtype=weights.dtype)
            self._gains[factors.first] = make_gain(factors.magnitude.to(weights.device), squares)
        return self._gains[factors.first]

    def _layers(self, folder: AdapterFolder) -> LoadedLayers:
        weights = self._encoder.weights
        if not isinstance(weights, LoadedLayers):
            raise CheckpointError(
                f"{folder.path}: {min(folder.names)!r} cannot have an adapter here: the vision tower of this model "
                "runs through Transformers' modules"
            )
        return weights


class _Part(NamedTuple):
    """Factors A and B on the device, for some columns of a layer's outputs, and what the sums with them are multiplied
    by, less one; None: nothing."""

    columns: range
    a: torch.Tensor
    b: torch.Tensor
    gain: torch.Tensor | None


class _Addition:
    """Adds products of low rank to columns of a layer's outputs, and gives the sums with them their magnitudes."""

    def __init__(self, linear: Linear, parts: Iterable[_Part]) -> None:
        self._linear, self._parts = linear, tuple(parts)

    def __call__(self, x: torch.Tensor, y: torch.Tensor) -> None:
        has_gains = any(part.gain is not None for part in self._parts)
        own = self._linear.multiply(x.flatten(0, -2)).view(*x.shape[:-1], -1) if has_gains else None
        for columns, a, b, gain in self._parts:
            added = F.linear(x, a) @ b
            if own is not None and gain is not None:
                added += (own[..., columns.start : columns.stop] + added) * gain
            y[..., columns.start : columns.stop].add_(added)


def _iterate_groups(weights: LoadedLayers) -> Iterator[tuple[str, Linear, tuple[Source, ...], range]]:
    """Yield the path of each linear layer, the layer, and what it has of each stored module, and where."""
    for path, linear in weights.linears.items():
        sources = LayerSources.of(linear, path)
        for group, columns in zip(sources.groups, sources.columns, strict=True):
            yield path, linear, group, columns


class _TowerNames:
    """The names that the modules of an adapter have in a tower. stored: the tensors of the checkpoint."""

    def __init__(self, folder: AdapterFolder, weights: LoadedLayers, stored: Container[str]) -> None:
        self._folder, self._weights, self._stored = folder, weights, stored
        self._known = {name for path, linear in weights.linears.items() for name in linear.modules_in(path)}

    def find(self) -> Mapping[str, str]:
        """Return the modules by their names in the tower, without those whose tensors nothing reads."""
        names = {module: self._find(module) for module in self._folder.modules}
        return {name: module for module, name in names.items() if name is not None}

    def _find(self, module: str) -> str | None:
        spelled = [f"{each}.weight" for each in self._folder.spell(module)]
        names = [name.removesuffix(".weight") for each in spelled if (name := self._weights.name_of(each)) is not None]
        if known := [name for name in names if name in self._known]:
            return known[0]
        if names:
            raise CheckpointError(
                f"{self._folder.path}: {module!r} cannot have an adapter here: only linear layers of the vision tower "
                "and the projector can"
            )
        if any(each in self._stored for each in spelled):
            return None
        raise CheckpointError(
            f"{self._folder.path}: {module!r} belongs to no layer of the language model or the vision tower"
            f"{self._folder.origin}"
        )
