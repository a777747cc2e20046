"""Reads what an adapter adds to the experts of a decoder, laid out for the slots of the device.

An adapter has factors of each expert's own layers (`experts.3.gate_proj`), or of all experts' weights in one
(`experts.gate_up_proj`), which `AdapterFolder` names by experts as well (`experts.3.gate_up_proj`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch

from seesay.checkpoint.adapter_folder import AdapterFolder, LowRank
from seesay.checkpoint.parts import Source
from seesay.device.linear.expert_linear import ExpertLinear
from seesay.device.linear.linear import Linear
from seesay.device.linear.low_rank_parts import check_finite, check_sizes, cut_inputs, cut_outputs
from seesay.device.transfers import PinnedMemory
from seesay.errors import CheckpointError


@dataclass(frozen=True, slots=True)
class ExpertSite:
    """A layer of experts. first: of the ranks of its experts' sources among those of all layers."""

    path: str
    linear: ExpertLinear
    first: int

    @property
    def bounds(self) -> tuple[int, ...]:
        """The first output of each source of an expert, and their number."""
        return (0, *np.cumsum([source.num_picked for source in self.linear.expert_sources]).tolist())

    @property
    def num_experts(self) -> int:
        return len(self.linear.experts)

    @property
    def num_ranks(self) -> int:
        return self.num_experts * len(self.linear.expert_sources)

    def shape_of_a(self, max_rank: int) -> tuple[int, int, int]:
        return self.num_experts, len(self.linear.expert_sources) * max_rank, self.linear.in_features

    def shape_of_b(self, max_rank: int) -> tuple[int, int, int]:
        return self.num_experts, max_rank, self.bounds[-1]

    def list_modules(self) -> Iterator[str]:
        """Yield the names that modules of any expert may have in an adapter, those of other ranks', too."""
        for expert in range(self.linear.num_experts):
            for index in range(len(self.linear.expert_sources)):
                yield from (source.module for source in self.list_sources(expert, index))

    def list_sources(self, expert: int, index: int) -> Iterator[Source]:
        """Yield the modules of an adapter that may have a source of an expert: its own, and that of all sources."""
        parent, _, joined = self.path.rpartition(".")
        sources = self.linear.expert_sources
        own = sources[index]
        yield replace(own, module=f"{parent}.{expert}.{own.module}")
        if own.module != joined and len(sources) > 1:
            offset = sum(source.num_outputs for source in sources[:index])
            picks = tuple(
                range(pick.start + offset, pick.stop + offset, pick.step)
                for pick in own.picks or (range(own.num_outputs),)
            )
            total = sum(source.num_outputs for source in sources)
            yield Source(module=f"{parent}.{expert}.{joined}", num_outputs=total, picks=picks)


@dataclass(frozen=True, slots=True)
class HostExperts:
    """The factors of an adapter for experts. factors: A [experts, sources · R, in] and B [experts, R, out] by the paths
    of layers, of those that it adapts. ranks: int32 [sources of the experts of all layers]."""

    factors: Mapping[str, tuple[PinnedMemory, PinnedMemory]]
    ranks: npt.NDArray[np.int32]


class ExpertReader:
    """Reads adapters of the layers of experts among `linears`, of ranks up to `max_rank`."""

    def __init__(
        self, linears: Mapping[str, Linear], *, device: torch.device, dtype: torch.dtype, max_rank: int
    ) -> None:
        self.max_rank, self._device, self._dtype = max_rank, device, dtype
        self.sites: list[ExpertSite] = []
        for path, linear in linears.items():
            if isinstance(linear, ExpertLinear):
                self.sites.append(ExpertSite(path, linear, self.num_ranks))
        self.known = frozenset(module for site in self.sites for module in site.list_modules())

    @property
    def num_ranks(self) -> int:
        return self.sites[-1].first + self.sites[-1].num_ranks if self.sites else 0

    def read(self, folder: AdapterFolder, own: Mapping[str, str]) -> HostExperts | None:
        """Return what an adapter adds to experts; None for nothing. own: its modules, by the decoder's names. Raises
        `CheckpointError` naming a module with another size than the layer."""
        if not self.known.intersection(own):
            return None
        ranks = np.zeros(self.num_ranks, dtype=np.int32)
        factors = {}
        for site in self.sites:
            if own.keys().isdisjoint(site.list_modules()):
                continue
            a = PinnedMemory(site.shape_of_a(self.max_rank), self._dtype, self._device)
            b = PinnedMemory(site.shape_of_b(self.max_rank), self._dtype, self._device)
            found = ranks[site.first : site.first + site.num_ranks].reshape(site.num_experts, -1)
            self._fill(site, folder, own, (a.tensor.zero_(), b.tensor.zero_()), found)
            if found.any():
                factors[site.path] = a, b
        return HostExperts(factors, ranks)

    def _fill(
        self,
        site: ExpertSite,
        folder: AdapterFolder,
        own: Mapping[str, str],
        factors: tuple[torch.Tensor, torch.Tensor],
        ranks: npt.NDArray[np.int32],
    ) -> None:
        """Write the factors of a layer, and the ranks int32 [experts, sources] that they have."""
        (a, b), bounds = factors, site.bounds
        for place, expert in enumerate(site.linear.experts):
            for index in range(ranks.shape[1]):
                sources = [source for source in site.list_sources(expert, index) if source.module in own]
                if not sources:
                    continue
                if len(sources) > 1:
                    twice = sorted(own[source.module] for source in sources)
                    raise CheckpointError(f"{folder.path}: {twice[0]!r} and {twice[1]!r} are for the same weights")
                low_rank = _find_low_rank(folder, own[sources[0].module], sources[0], site.linear)
                rank = ranks[place, index] = len(low_rank.a)
                first, columns = index * self.max_rank, slice(bounds[index], bounds[index + 1])
                a[place, first : first + rank] = cut_inputs(low_rank, site.linear)
                b[place, :rank, columns] = cut_outputs(low_rank, sources[:1])
        check_finite(folder, a, b)


def _find_low_rank(folder: AdapterFolder, module: str, source: Source, linear: ExpertLinear) -> LowRank:
    """Return the product of a module that has this source. PEFT writes that of a weight [experts, in, out] the other
    way round where it takes it for one [experts, out, in]."""
    low_rank = folder.modules[module]
    if low_rank.magnitude is not None:
        raise CheckpointError(f"{folder.path}: {module!r} has a magnitude (DoRA), which is not supported for experts")
    if low_rank.is_stacked and low_rank.shape == (linear.stored_inputs, source.num_outputs) != low_rank.shape[::-1]:
        return low_rank.turn()
    check_sizes(folder, module, source.num_outputs, linear.stored_inputs)
    return low_rank
