"""LoRA adapters of a decoder's linear layers: each adds a product of low rank for the tokens of its sequences (Hu et
al. 2021). A step without such tokens is computed as if there were no adapters.

Those in use are in slots on the device, whose tensors are allocated once: CUDA graphs stay valid while adapters change.
All are in host memory, each as one tensor that is laid out like a slot.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby

import numpy as np
import numpy.typing as npt
import torch

from seesay.checkpoint.adapter_folder import AdapterFolder, LowRank
from seesay.checkpoint.parts import Source
from seesay.device.linear.expert_linear import ExpertLinear
from seesay.device.linear.linear import Linear
from seesay.device.streams import on_stream
from seesay.device.transfers import PinnedMemory, upload
from seesay.errors import CheckpointError
from seesay.llm.ops import Ops, SlotFactors, SlotRows
from seesay.llm.ops.low_rank import make_spans
from seesay.llm.plans.step_plan import AdapterLoad

RANK_MULTIPLE = 16
"""The largest rank is rounded up to a multiple of this."""
_HEAD = "lm_head"


@dataclass(frozen=True, slots=True)
class _Site:
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
    layers]."""

    id: int
    folder: str
    memory: PinnedMemory
    ranks: npt.NDArray[np.int32]


class Adapters:
    """The adapters of the linear layers `linears`, by their paths in the decoder. name_of: maps a checkpoint tensor's
    name to the decoder's. Of a layer that is a rank's slice, this rank's slice of an adapter is kept. `num_slots`
    adapters may be in use at a time, of ranks up to `max_rank`.

    `read` may be called by any thread; everything else is the runner's.
    """

    def __init__(
        self,
        linears: Mapping[str, Linear],
        ops: Ops,
        *,
        name_of: Callable[[str], str | None],
        device: torch.device,
        dtype: torch.dtype,
        num_slots: int,
        max_rank: int,
    ) -> None:
        self.num_slots = num_slots
        self._ops, self._name_of, self._device, self._dtype = ops, name_of, device, dtype
        self._max_rank = -(-max_rank // RANK_MULTIPLE) * RANK_MULTIPLE
        self._sites = list(_find_sites(linears, self._max_rank))
        self._num_sources = sum(len(site.sources) for site in self._sites)
        self._size = sum(site.size(self._max_rank) for site in self._sites)
        self._slots = torch.zeros(num_slots, self._size, dtype=dtype, device=device)
        self._ranks = torch.zeros(num_slots, self._num_sources, dtype=torch.int32, device=device)
        self._host_ranks = np.zeros((num_slots, self._num_sources), dtype=np.int32)
        self._adapters: dict[int, HostAdapter] = {}
        self._in_slot: dict[int, int] = {}  # ids, by slot
        self._rows: SlotRows | None = None
        self._is_there = False  # in the layers
        spans: dict[tuple[int, ...], torch.Tensor] = {}
        self._adapts = {site.path: partial(self._adapt, self._make_factors(site, spans)) for site in self._sites}

    def read(self, folder: AdapterFolder) -> HostAdapter:
        """Return an adapter for `add`. Raises `CheckpointError` naming a module that the decoder does not have, or has
        with another size."""
        own = {self._find_name(folder, module): module for module in folder.modules}
        self._check_supported(folder, own)
        memory = PinnedMemory((self._size,), self._dtype, self._device)
        memory.tensor.zero_()
        ranks = np.zeros(self._num_sources, dtype=np.int32)
        for site in self._sites:
            a, b = site.split(memory.tensor[None], self._max_rank)
            for index, sources in enumerate(site.sources):
                if (module := own.get(sources[0].module)) is None:
                    continue
                low_rank = folder.modules[module]
                _check_sizes(folder, module, low_rank, sources[0].num_outputs, site.linear.stored_inputs)
                rank = ranks[site.first + index] = len(low_rank.a)
                first = index * self._max_rank
                a[0, first : first + rank] = _cut_inputs(low_rank, site.linear)
                b[0, :rank, site.bounds[index] : site.bounds[index + 1]] = _cut_outputs(low_rank, sources)
        return HostAdapter(folder.make_id(), str(folder.path), memory, ranks)

    def add(self, adapter: HostAdapter) -> None:
        """Take an adapter; nothing happens where it is there already."""
        self._adapters.setdefault(adapter.id, adapter)

    def drop(self, adapter_id: int) -> None:
        """Forget an adapter, of which no sequence is alive."""
        self._adapters.pop(adapter_id, None)

    def free_slots(self) -> None:
        """Free the memory of all slots. No step with adapters is computed before `restore_slots`."""
        self._slots.untyped_storage().resize_(0)

    def restore_slots(self) -> None:
        """Allocate the slots' memory again, at other addresses, and copy the adapters there that were in them. Raises
        `torch.OutOfMemoryError`; they are still freed then."""
        num_bytes = self._slots.numel() * self._slots.itemsize
        if self._slots.untyped_storage().nbytes() == num_bytes:
            return
        self._slots.untyped_storage().resize_(num_bytes)
        self._slots.zero_()
        there, self._in_slot = self._in_slot, {}
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
        self._in_slot[slot] = adapter_id

    def begin(self, rows: SlotRows | None) -> None:
        """Let the layers compute a step whose `rows` have adapters."""
        self._rows = rows
        if (rows is not None) == self._is_there:
            return
        self._is_there = rows is not None
        for site in self._sites:
            site.linear.extend(adapt=self._adapts[site.path] if self._is_there else None)

    def _adapt(self, factors: SlotFactors, x: torch.Tensor, y: torch.Tensor) -> None:
        assert self._rows is not None
        self._ops.add_low_rank(y, x, self._rows, factors)

    def _make_factors(self, site: _Site, spans: dict[tuple[int, ...], torch.Tensor]) -> SlotFactors:
        a, b = site.split(self._slots, self._max_rank)
        if site.bounds not in spans:
            spans[site.bounds] = torch.from_numpy(make_spans(site.bounds)).to(self._device)
        own = slice(site.first, site.first + len(site.sources))
        return SlotFactors(
            a=a,
            b=b,
            ranks=self._ranks[:, own],
            host_ranks=self._host_ranks[:, own],
            bounds=site.bounds,
            spans=spans[site.bounds],
        )

    def _check_supported(self, folder: AdapterFolder, own: Mapping[str, str]) -> None:
        """Raise `CheckpointError` for an adapter that is not served here. own: its modules, by the decoder's names."""
        known = {name for site in self._sites for name in site.linear.modules_in(site.path)}
        if left := own.keys() - known:
            raise CheckpointError(
                f"{folder.path}: {own[min(left)]!r} cannot have an adapter here: the layers that can are those of "
                f"attention and feed-forward, such as {self._sites[0].linear.modules_in('layers.0.x')}"
            )
        if any(module.magnitude is not None for module in folder.modules.values()):
            raise CheckpointError(
                f"{folder.path}: adapters with use_dora (DoRA) are not served beside their base: merge it by `seesay "
                "lite merge`, and serve what that writes"
            )
        if folder.max_rank > self._max_rank:
            raise CheckpointError(
                f"{folder.path}: its rank is {folder.max_rank}, the slots of this engine take up to {self._max_rank}: "
                f"start it with max_adapter_rank={folder.max_rank}"
            )

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


def _find_sites(linears: Mapping[str, Linear], max_rank: int) -> Iterator[_Site]:
    """Yield the layers that may have adapters. Kernels of experts add nothing to a router or to single experts."""
    offset = first = 0
    for path, linear in linears.items():
        if path == _HEAD or not linear.is_quantizable or isinstance(linear, ExpertLinear):
            continue
        sources = tuple(tuple(group) for _, group in groupby(linear.sources_at(path), key=lambda each: each.module))
        sizes = [sum(source.num_picked for source in group) for group in sources]
        site = _Site(path, linear, sources, (0, *np.cumsum(sizes).tolist()), offset, first)
        yield site
        offset += site.size(max_rank)
        first += len(sources)


def _cut_inputs(low_rank: LowRank, linear: Linear) -> torch.Tensor:
    """Return A [rank, in] for the inputs that a layer takes."""
    inputs = linear.inputs
    return low_rank.a if inputs is None else low_rank.a[:, inputs.start : inputs.stop]


def _cut_outputs(low_rank: LowRank, sources: Sequence[Source]) -> torch.Tensor:
    """Return scale · Bᵀ [rank, out] for the outputs that a layer has of a stored module."""
    pieces = [
        low_rank.b[pick.start : pick.stop : pick.step]
        for source in sources
        for pick in source.picks or (range(source.num_outputs),)
    ]
    return torch.cat(pieces).float().mul_(low_rank.scale).t()


def _check_sizes(folder: AdapterFolder, module: str, low_rank: LowRank, num_outputs: int, num_inputs: int) -> None:
    found = low_rank.b.shape[0], low_rank.a.shape[1]
    if found != (num_outputs, num_inputs):
        base = "another base model" if folder.base is None else f"another base model, {folder.base}"
        raise CheckpointError(
            f"{folder.path}: the adapter of {module!r} has {found[1]} inputs and {found[0]} outputs, the layer has "
            f"{num_inputs} and {num_outputs}: it was made for {base}"
        )
