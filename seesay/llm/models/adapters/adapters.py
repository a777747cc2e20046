"""LoRA adapters of a decoder's linear layers: each adds a product of low rank for the tokens of its sequences (Hu et
al. 2021). A step without such tokens is computed as if there were no adapters.

Those in use are in slots on the device, whose tensors are allocated once: CUDA graphs stay valid while adapters change.
All are in host memory, each as one tensor that is laid out like a slot.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import numpy.typing as npt
import torch

from seesay.device.streams import on_stream
from seesay.device.transfers import upload
from seesay.llm.models.adapters.adapted_ends import AdaptedEnds
from seesay.llm.models.adapters.adapted_experts import AdaptedExperts
from seesay.llm.models.adapters.adapted_step import AdaptedStep
from seesay.llm.models.adapters.adapter_reader import AdapterReader, HostAdapter, Site
from seesay.llm.models.adapters.magnitudes import Magnitudes
from seesay.llm.ops import Ops, SlotFactors, SlotRows
from seesay.llm.ops.low_rank import JoinedFactors, SlotOutputs
from seesay.llm.plans.step_plan import AdapterLoad


class Adapters:
    """The adapters of the layers that `reader` reads some for. `num_slots` adapters may be in use at a time. Used by
    the runner's thread; `reader` by any."""

    def __init__(
        self,
        reader: AdapterReader,
        ops: Ops,
        *,
        device: torch.device,
        dtype: torch.dtype,
        num_slots: int,
        sum_ranks: Callable[[torch.Tensor], torch.Tensor],
    ) -> None:
        """sum_ranks: sums a tensor over all ranks."""
        self.reader = reader
        self._device = device
        self._slots = torch.zeros(num_slots, reader.size, dtype=dtype, device=device)
        self._ranks = torch.zeros(num_slots, reader.num_sources, dtype=torch.int32, device=device)
        self._host_ranks = np.zeros((num_slots, reader.num_sources), dtype=np.int32)
        self._adapters: dict[int, HostAdapter] = {}
        self._in_slot: dict[int, int] = {}  # ids, by slot
        self._is_there = False  # in the layers
        self.ends = AdaptedEnds(self._in_slot, tokens=reader.ends.tokens, is_base=reader.ends.is_base, device=device)
        self.magnitudes = Magnitudes(ops, self._in_slot, sum_ranks=sum_ranks, device=device, dtype=dtype)
        self.experts = AdaptedExperts(
            reader.experts, ops, self._in_slot, num_slots=num_slots, device=device, dtype=dtype
        )
        self._step = AdaptedStep(ops, self.magnitudes)
        outputs: dict[tuple[int, ...], SlotOutputs] = {}
        factors = [(site, self._make_factors(site, outputs)) for site in reader.sites]
        self._joined = [(site, own.joined) for site, own in factors if own.joined is not None]
        self._adaptations = {site.path: self._step.adapt(site, own) for site, own in factors}

    def add(self, adapter: HostAdapter) -> None:
        """Take an adapter; nothing happens where it is there already. Raises `torch.OutOfMemoryError`."""
        if adapter.ends is not None:
            self.ends.add(adapter.id, adapter.ends)
        if adapter.experts is not None:
            self.experts.add(adapter.id, adapter.experts)
        if adapter.magnitudes:
            self.magnitudes.add(adapter.id, adapter.magnitudes)
        self._adapters.setdefault(adapter.id, adapter)

    def drop(self, adapter_id: int) -> None:
        """Forget an adapter, of which no sequence is alive."""
        self._adapters.pop(adapter_id, None)
        for slot in [slot for slot, other in self._in_slot.items() if other == adapter_id]:
            del self._in_slot[slot]
        self.ends.drop(adapter_id)
        self.experts.drop(adapter_id)
        self.magnitudes.drop(adapter_id)

    def free_slots(self) -> None:
        """Free the memory of all slots, and what adapters have beside them. No step with adapters is computed before
        `restore_slots`."""
        self._slots.untyped_storage().resize_(0)
        for _, joined in self._joined:
            joined.free()
        for adapter_id in self._adapters:
            self.ends.drop(adapter_id)
        self.experts.free()
        self.magnitudes.measure_again()

    def restore_slots(self) -> None:
        """Allocate the slots' memory again, at other addresses, and copy the adapters there that were in them. Raises
        `torch.OutOfMemoryError`; they are still freed then."""
        num_bytes = self._slots.numel() * self._slots.itemsize
        if self._slots.untyped_storage().nbytes() == num_bytes:
            return
        self._slots.untyped_storage().resize_(num_bytes)
        self._slots.zero_()
        try:
            for _, joined in self._joined:
                joined.restore()
            for adapter in self._adapters.values():
                self.add(adapter)
        except BaseException:
            self.free_slots()
            raise
        there = dict(self._in_slot)
        self._in_slot.clear()
        self.load([AdapterLoad(*each) for each in there.items() if each[1] in self._adapters], None)

    def load(self, loads: Iterable[AdapterLoad], stream: torch.Stream | None) -> None:
        """Copy adapters into slots, behind all work that is queued on the stream of steps."""
        with torch.inference_mode(), on_stream(stream):
            for slot, adapter_id in loads:
                if self._in_slot.get(slot) != adapter_id:
                    self._load(slot, adapter_id)

    def _load(self, slot: int, adapter_id: int) -> None:
        adapter = self._adapters[adapter_id]
        self._slots[slot].copy_(adapter.memory.tensor, non_blocking=True)
        self._host_ranks[slot] = adapter.ranks
        [ranks] = upload([adapter.ranks.copy()], self._device)
        self._ranks[slot].copy_(ranks)
        for site, joined in self._joined:
            joined.take(slot, adapter.ranks[site.first : site.first + len(site.sources)])
        self.experts.load(slot, adapter_id)
        self._in_slot[slot] = adapter_id

    def begin(self, rows: SlotRows | None) -> None:
        """Let the layers compute a step whose `rows` have adapters."""
        self._step.begin(rows)
        self.experts.begin(rows)
        if (rows is not None) == self._is_there:
            return
        self._is_there = rows is not None
        for site in self.reader.sites:
            site.linear.extend(adaptation=self._adaptations[site.path] if self._is_there else None)

    def try_pick(self, wanted: torch.Tensor) -> bool:
        """Let the last layer of the step compute the tokens `wanted` int64 [N] alone, once it has written keys and
        values. Returns whether it can."""
        return not self.experts.is_applied and self._step.try_pick(wanted, len(self._host_ranks))

    def take_graphs(self, slots: npt.NDArray[np.int64] | None) -> bool:
        """Return whether CUDA graphs compute steps with the adapters in these slots."""
        parts = self.ends.are_changed, self.experts.are_used, self.magnitudes.are_used
        return not any(is_used(slots) for is_used in parts)

    def _make_factors(self, site: Site, outputs: dict[tuple[int, ...], SlotOutputs]) -> SlotFactors:
        a, b = site.split(self._slots, self.reader.max_rank)
        if site.bounds not in outputs:
            outputs[site.bounds] = SlotOutputs.make(site.bounds, self._device)
        own = slice(site.first, site.first + len(site.sources))
        return SlotFactors(
            a=a,
            b=b,
            ranks=self._ranks[:, own],
            host_ranks=self._host_ranks[:, own],
            bounds=site.bounds,
            outputs=outputs[site.bounds],
            joined=JoinedFactors(a, b, site.bounds) if self._device.type == "cpu" else None,
        )
