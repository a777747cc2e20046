"""Adapters of a decoder's linear layers as they come from folders, laid out for the slots of the device."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch

from seesay.checkpoint.adapter_folder import AdapterFolder
from seesay.checkpoint.parts import Source
from seesay.device.linear.expert_linear import ExpertLinear
from seesay.device.linear.linear import Linear
from seesay.device.linear.low_rank_parts import (
    LayerSources,
    check_finite,
    check_sizes,
    cut_inputs,
    cut_magnitude,
    cut_outputs,
)
from seesay.device.linear.matrix_linear import MatrixLinear
from seesay.device.transfers import PinnedMemory
from seesay.errors import CheckpointError
from seesay.llm.models.adapters.adapted_ends import HEAD, TABLE, HostEnds
from seesay.llm.models.adapters.end_reader import EndReader
from seesay.llm.models.adapters.expert_reader import ExpertReader, HostExperts

RANK_MULTIPLE = 16
"""The largest rank is rounded up to a multiple of this."""
_OF_MEDIA = (".lora_a", ".lora_b")


@dataclass(frozen=True, slots=True)
class Site:
    """A linear layer. sources: its outputs by the stored modules they come from; bounds: the first output of each, and
    their number. offset: of its factors in a slot. first: of its sources among those of all layers."""

    path: str
    linear: Linear
    sources: tuple[tuple[Source, ...], ...]
    bounds: tuple[int, ...]
    offset: int
    first: int

    def size_of_a(self, max_rank: int) -> int:
        return len(self.sources) * max_rank * self.linear.in_features

    def size(self, max_rank: int) -> int:
        """Numbers of its factors in a slot."""
        return self.size_of_a(max_rank) + max_rank * self.linear.out_features

    def split(self, slots: torch.Tensor, max_rank: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return views of its factors in slots [S, size of a slot], see `SlotFactors`."""
        middle, stop = self.offset + self.size_of_a(max_rank), self.offset + self.size(max_rank)
        a = slots[:, self.offset : middle].view(len(slots), -1, self.linear.in_features)
        return a, slots[:, middle:stop].view(len(slots), max_rank, -1)


@dataclass(frozen=True, slots=True)
class HostAdapter:
    """An adapter from a folder, ready to be copied into a slot. memory: one slot; ranks: int32 [sources of all
    layers]. ends: what it makes of the table of embeddings and the head; None for nothing. experts: what it adds to
    experts; None for nothing. magnitudes: as `Magnitudes.add` takes them, of the layers that have some."""

    id: int
    folder: str
    memory: PinnedMemory
    ranks: npt.NDArray[np.int32]
    ends: HostEnds | None = None
    experts: HostExperts | None = None
    magnitudes: Mapping[str, torch.Tensor] = field(default_factory=dict)


class AdapterReader:
    """Reads adapters of the linear layers `linears`, by their paths in the decoder, of ranks up to `max_rank`. name_of:
    maps a checkpoint tensor's name to the decoder's. Of a layer that is a rank's slice, this rank's slice of an adapter
    is kept. Any thread may use it.

    ends, experts: read those of the table of embeddings and of the head, and those of experts. sites: the other layers
    that may have adapters. num_sources: those of all of them. size: numbers of a slot.
    """

    def __init__(
        self,
        linears: Mapping[str, Linear],
        ends: EndReader,
        *,
        name_of: Callable[[str], str | None],
        device: torch.device,
        dtype: torch.dtype,
        max_rank: int,
    ) -> None:
        self.max_rank = max_rank = -(-max_rank // RANK_MULTIPLE) * RANK_MULTIPLE
        self.ends, self._name_of, self._device, self._dtype = ends, name_of, device, dtype
        self.experts = ExpertReader(linears, device=device, dtype=dtype, max_rank=max_rank)
        named = {name for path, linear in linears.items() for name in linear.modules_in(path)}
        self._known = named | {TABLE, HEAD} | self.experts.known
        self.sites = list(_find_sites(linears, max_rank))
        self.num_sources = sum(len(site.sources) for site in self.sites)
        self.size = sum(site.size(max_rank) for site in self.sites)

    def read(self, folder: AdapterFolder) -> HostAdapter:
        """Return an adapter for `Adapters.add`. Raises `CheckpointError` naming a module that the decoder does not
        have, or has with another size, and for factors beyond the decoder's numbers."""
        own = {self._find_name(folder, module): module for module in folder.names}
        ends = self.ends.read(folder, own.pop(TABLE, None), own.pop(HEAD, None))
        self._check_supported(folder, own)
        memory = PinnedMemory((self.size,), self._dtype, self._device)
        memory.tensor.zero_()
        ranks = np.zeros(self.num_sources, dtype=np.int32)
        magnitudes: dict[str, torch.Tensor] = {}
        for site in self.sites:
            a, b = site.split(memory.tensor[None], self.max_rank)
            for index, sources in enumerate(site.sources):
                if (module := own.get(sources[0].module)) is None:
                    continue
                low_rank = folder.modules[module]
                check_sizes(folder, module, sources[0].num_outputs, site.linear.stored_inputs)
                rank = ranks[site.first + index] = len(low_rank.a)
                first = index * self.max_rank
                columns = slice(site.bounds[index], site.bounds[index + 1])
                a[0, first : first + rank] = cut_inputs(low_rank, site.linear)
                b[0, :rank, columns] = cut_outputs(low_rank, sources)
                if low_rank.magnitude is not None:
                    whole = magnitudes.setdefault(site.path, torch.full((site.linear.out_features,), torch.nan))
                    whole[columns] = cut_magnitude(low_rank.magnitude, sources)
        check_finite(folder, memory.tensor)
        return HostAdapter(
            folder.make_id(), str(folder.path), memory, ranks, ends, self.experts.read(folder, own), magnitudes
        )

    def _check_supported(self, folder: AdapterFolder, own: Mapping[str, str]) -> None:
        """Raise `CheckpointError` for an adapter that is not served here. own: its modules, by the decoder's names."""
        known = {name for site in self.sites for name in site.linear.modules_in(site.path)} | self.experts.known
        if left := own.keys() - known:
            raise CheckpointError(
                f"{folder.path}: {own[min(left)]!r} cannot have an adapter here: the layers that can are those of "
                f"attention and feed-forward, such as {self.sites[0].linear.modules_in('layers.0.x')}, the table of "
                "embeddings and the head"
            )
        if saved := folder.saved.keys() & own.values():
            raise CheckpointError(
                f"{folder.path}: it has the whole weight of {min(saved)!r} (modules_to_save): those of the table of "
                "embeddings and the head are supported"
            )
        max_rank = max((len(folder.modules[module].a) for module in own.values()), default=0)
        if max_rank > self.max_rank:
            raise CheckpointError(
                f"{folder.path}: its rank is {max_rank}, the slots of this engine take up to {self.max_rank}: start it "
                f"with max_adapter_rank={max_rank}"
            )

    def find_others(self, folder: AdapterFolder) -> frozenset[str]:
        """Return the modules of an adapter that are not the decoder's."""
        return frozenset(module for module in folder.names if self._try_find(folder, module) is None)

    def _try_find(self, folder: AdapterFolder, module: str) -> str | None:
        names = (self._name_of(f"{spelled}.weight") for spelled in folder.spell(module))
        own = (name.removesuffix(".weight") for name in names if name is not None)
        return next((name for name in own if name in self._known), None)

    def _find_name(self, folder: AdapterFolder, module: str) -> str:
        """Return the decoder's name of a module of the base model."""
        if (name := self._try_find(folder, module)) is not None:
            return name
        raise CheckpointError(f"{folder.path}: {module!r} belongs to no layer of the language model{folder.origin}")


def _find_sites(linears: Mapping[str, Linear], max_rank: int) -> Iterator[Site]:
    """Yield the layers that may have adapters, without those of experts, and those of which only the matrix is used.
    What is added to rows of media takes these rows alone."""
    offset = first = 0
    for path, linear in linears.items():
        if path == HEAD or path.endswith(_OF_MEDIA) or isinstance(linear, ExpertLinear | MatrixLinear):
            continue
        sources = LayerSources.of(linear, path)
        site = Site(path, linear, sources.groups, sources.bounds, offset, first)
        yield site
        offset += site.size(max_rank)
        first += len(sources.groups)
