"""Adapters of a decoder's experts: products of low rank beside those of each expert, with factors of its own.

Factors are in the slots of adapters, of which each has a place for every expert of a layer. They are allocated with the
first adapter that has some, and are computed without CUDA graphs.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import torch

from seesay.device.linear.expert_linear import ExpertAdaptation
from seesay.device.transfers import upload
from seesay.llm.models.adapters.expert_reader import ExpertReader, ExpertSite, HostExperts
from seesay.llm.ops import Ops, SlotFactors, SlotRows
from seesay.llm.ops.low_rank import SlotOutputs, sort_there


class AdaptedExperts:
    """The adapters that change experts, by their ids. in_slot: the ids of adapters, by their slots; it may change from
    step to step. is_applied: whether the layers compute with some in this step."""

    def __init__(
        self,
        reader: ExpertReader,
        ops: Ops,
        in_slot: Mapping[int, int],
        *,
        num_slots: int,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        self._reader, self._ops, self._in_slot = reader, ops, in_slot
        self._num_slots, self._device, self._dtype = num_slots, device, dtype
        self._there: dict[int, HostExperts] = {}
        self._factors: dict[str, SlotFactors] = {}  # of all slots, by the paths of layers
        self._slots: torch.Tensor | None = None  # of the tokens of the step; None: none has such an adapter
        self._rows: SlotRows | None = None
        self.is_applied = False

    def allocate(self) -> None:
        """Allocate the slots, if they are not there. Raises `torch.OutOfMemoryError`."""
        if not self._factors:
            self._factors = {site.path: self._make_factors(site) for site in self._reader.sites}

    def add(self, adapter_id: int, experts: HostExperts) -> None:
        """Take what an adapter adds to experts. Raises `torch.OutOfMemoryError`; nothing is taken then."""
        self.allocate()
        self._there[adapter_id] = experts

    def drop(self, adapter_id: int) -> None:
        """Forget an adapter, of which no sequence is alive."""
        if self._there.pop(adapter_id, None) is not None and not self._there:
            self.free()

    def free(self) -> None:
        """Free the memory of all slots, until something is added again."""
        self._apply(is_there=False)
        self._factors.clear()

    def load(self, slot: int, adapter_id: int) -> None:
        """Copy an adapter into a slot, if it has experts."""
        if (experts := self._there.get(adapter_id)) is None:
            return
        for site in self._reader.sites:
            factors, own = self._factors[site.path], slice(slot * site.num_experts, (slot + 1) * site.num_experts)
            ranks = experts.ranks[site.first : site.first + site.num_ranks].reshape(site.num_experts, -1)
            factors.host_ranks[own] = ranks
            [there] = upload([ranks.copy()], self._device)
            factors.ranks[own].copy_(there)
            if (pair := experts.factors.get(site.path)) is not None:
                factors.a[own].copy_(pair[0].tensor, non_blocking=True)
                factors.b[own].copy_(pair[1].tensor, non_blocking=True)

    def are_used(self, slots: npt.NDArray[np.int64] | None) -> bool:
        """Return whether the adapter in any of these slots changes experts."""
        if not self._there or slots is None:
            return False
        return any(self._in_slot.get(slot) in self._there for slot in np.unique(slots).tolist())

    def begin(self, rows: SlotRows | None) -> None:
        """Let the layers compute a step whose `rows` have adapters."""
        runs = () if rows is None or not self._there else rows.runs or ()  # those of a graph have none
        own = [run for run in runs if self._in_slot.get(run.slot, 0) in self._there]
        if own:
            assert rows is not None
            self._slots = torch.full((len(rows.tokens),), -1, dtype=torch.int64, device=self._device)
            for run in own:
                self._slots.index_fill_(0, rows.tokens[run.start : run.stop].long(), run.slot)
        self._apply(is_there=bool(own))

    def _apply(self, *, is_there: bool) -> None:
        if is_there == self.is_applied:
            return
        self.is_applied = is_there
        for site in self._reader.sites:
            site.linear.expert_adaptation = self._adapt(site) if is_there else None

    def _adapt(self, site: ExpertSite) -> ExpertAdaptation:
        factors = self._factors[site.path]

        def begin(tokens: torch.Tensor, experts: torch.Tensor) -> None:
            assert self._slots is not None
            slots = self._slots.index_select(0, tokens)
            places = torch.where((slots < 0) | (experts < 0), -1, slots * site.num_experts + experts)
            self._rows = sort_there(places, self._num_slots * site.num_experts)

        def add(x: torch.Tensor, y: torch.Tensor) -> None:
            assert self._rows is not None
            self._ops.low_rank.add(y, x, self._rows, factors)

        return ExpertAdaptation(begin=begin, add=add)

    def _make_factors(self, site: ExpertSite) -> SlotFactors:
        count, max_rank, bounds = self._num_slots, self._reader.max_rank, site.bounds
        num_places, num_sources = count * site.num_experts, len(bounds) - 1

        def make(*sizes: int) -> torch.Tensor:
            return torch.zeros(num_places, *sizes, dtype=self._dtype, device=self._device)

        return SlotFactors(
            a=make(*site.shape_of_a(max_rank)[1:]),
            b=make(*site.shape_of_b(max_rank)[1:]),
            ranks=torch.zeros(num_places, num_sources, dtype=torch.int32, device=self._device),
            host_ranks=np.zeros((num_places, num_sources), dtype=np.int32),
            bounds=bounds,
            outputs=SlotOutputs.make(bounds, self._device),
        )
