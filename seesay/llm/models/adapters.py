"""LoRA adapters of a decoder's linear layers: each adds a product of low rank for the tokens of its sequences (Hu et
al. 2021). A step without such tokens is computed as if there were no adapters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import NamedTuple

import torch

from seesay.checkpoint.adapter_folder import AdapterFolder, LowRank
from seesay.checkpoint.parts import Source
from seesay.device.linear.expert_linear import ExpertLinear
from seesay.device.linear.linear import Linear
from seesay.errors import CheckpointError
from seesay.llm.models.decoder import AdapterRows

_HEAD = "lm_head"


class _Summand(NamedTuple):
    """Adds x aᵀ b to outputs `start` … `stop` - 1: a [rank, in], b [rank, outputs], which has the scale in it."""

    a: torch.Tensor
    b: torch.Tensor
    start: int
    stop: int


class Adapters:
    """The adapters of the linear layers `linears`, by their paths in the decoder. name_of: maps a checkpoint tensor's
    name to the decoder's. Of a layer that is a rank's slice, this rank's slice of an adapter is kept."""

    def __init__(
        self,
        linears: Mapping[str, Linear],
        *,
        name_of: Callable[[str], str | None],
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        self._linears = {
            path: linear
            for path, linear in linears.items()
            # Kernels of experts add nothing to a router or to single experts.
            if path != _HEAD and linear.is_quantizable and not isinstance(linear, ExpertLinear)
        }
        self._name_of, self._device, self._dtype = name_of, device, dtype
        self._summands: dict[str, dict[int, list[_Summand]]] = {path: {} for path in self._linears}
        self._ids: set[int] = set()
        self._rows: Sequence[AdapterRows] = ()
        self._is_there = False  # in the layers, which have no fused kernels then

    def add(self, folder: AdapterFolder) -> int:
        """Take an adapter, and return its id; of one that is there already, the same. Raises `CheckpointError` naming
        a module that the decoder does not have, or has with another size."""
        adapter_id = folder.make_id()
        if adapter_id in self._ids:
            return adapter_id
        own = {self._find_name(folder, module): module for module in folder.modules}
        found: dict[str, list[_Summand]] = {}
        left = set(own)
        for path, linear in self._linears.items():
            if summands := list(self._make_summands(folder, path, linear, own)):
                found[path] = summands
            left.difference_update(linear.modules_in(path))
        if left:
            raise CheckpointError(
                f"{folder.path}: {own[min(left)]!r} cannot have an adapter here: the layers that can are those of "
                f"attention and feed-forward, such as {next(iter(self._linears.items()))[1].modules_in('layers.0.x')}"
            )
        for path, summands in found.items():
            self._summands[path][adapter_id] = summands
        self._ids.add(adapter_id)
        return adapter_id

    def begin(self, rows: Sequence[AdapterRows]) -> None:
        """Let the layers compute a step in which `rows` have adapters."""
        self._rows = rows
        if bool(rows) == self._is_there:
            return
        self._is_there = bool(rows)
        for path, linear in self._linears.items():
            linear.extend(adapt=partial(self._adapt, path) if rows and self._summands[path] else None)

    def _adapt(self, path: str, x: torch.Tensor, y: torch.Tensor) -> None:
        of_layer = self._summands[path]
        for adapter_id, rows in self._rows:
            for a, b, start, stop in of_layer.get(adapter_id, ()):
                y[:, start:stop].index_add_(0, rows, (x.index_select(0, rows) @ a.t()) @ b)

    def _find_name(self, folder: AdapterFolder, module: str) -> str:
        """Return the decoder's name of a module of the base model."""
        for spelled in folder.spell(module):
            if (name := self._name_of(f"{spelled}.weight")) is not None:
                return name.removesuffix(".weight")
        base = "" if folder.base is None else f" (it was made for {folder.base})"
        raise CheckpointError(
            f"{folder.path}: {module!r} belongs to no layer of the language model{base}: adapters of other parts are "
            "not supported"
        )

    def _make_summands(
        self, folder: AdapterFolder, path: str, linear: Linear, own: Mapping[str, str]
    ) -> Iterator[_Summand]:
        start = 0
        for module, group in groupby(linear.sources_at(path), key=lambda source: source.module):
            sources = list(group)
            stop = start + sum(source.num_picked for source in sources)
            if module in own:
                name = own[module]
                low_rank = folder.modules[name]
                _check_sizes(folder, name, low_rank, sources[0].num_outputs, linear.stored_inputs)
                yield self._cut(low_rank, sources, linear, start, stop)
            start = stop

    def _cut(self, low_rank: LowRank, sources: Sequence[Source], linear: Linear, start: int, stop: int) -> _Summand:
        inputs = linear.inputs
        a = low_rank.a if inputs is None else low_rank.a[:, inputs.start : inputs.stop]
        pieces = [
            low_rank.b[pick.start : pick.stop : pick.step]
            for source in sources
            for pick in source.picks or (range(source.num_outputs),)
        ]
        b = torch.cat(pieces).float().mul_(low_rank.scale).t()
        return _Summand(
            a.to(self._device, self._dtype).contiguous(), b.to(self._device, self._dtype).contiguous(), start, stop
        )


def _check_sizes(folder: AdapterFolder, module: str, low_rank: LowRank, num_outputs: int, num_inputs: int) -> None:
    found = low_rank.b.shape[0], low_rank.a.shape[1]
    if found != (num_outputs, num_inputs):
        base = "another base model" if folder.base is None else f"another base model, {folder.base}"
        raise CheckpointError(
            f"{folder.path}: the adapter of {module!r} has {found[1]} inputs and {found[0]} outputs, the layer has "
            f"{num_inputs} and {num_outputs}: it was made for {base}"
        )
