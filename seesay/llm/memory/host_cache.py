"""KV blocks in host memory, and their copies from and to the device's cache. Knows nothing about what they contain.

Copies are queued, and come out as if each had been made at once: what is queued later may overwrite a saved block, and
finds a loaded one. Between host and device they run on streams of their own, through staging buffers on the device, so
that the current stream computes meanwhile. It waits for what it loads, and for a buffer when all are full.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import accumulate, count

import torch

from seesay.device.query import measure_memory
from seesay.device.streams import StreamPoint, make_stream, on_stream, traced
from seesay.device.transfers import PinnedMemory
from seesay.errors import ConfigError
from seesay.llm.plans.step_plan import BlockCopy

_BUFFER_BYTES, _BUFFER_BLOCKS = 16 << 20, 64
"""Most that a staging buffer holds, though always a block: some of a 7B model, a fraction of a millisecond to copy."""

_NUM_BUFFERS = 16
"""Staging buffers: room for what a prefill step of a 7B model replaces, so that it does not wait for the host."""


def staging_bytes(block_bytes: int) -> int:
    """Bytes of the device's memory that a `HostCache` takes."""
    return _NUM_BUFFERS * _buffer_blocks(block_bytes) * block_bytes


def _buffer_blocks(block_bytes: int, buffer_bytes: int = _BUFFER_BYTES) -> int:
    return max(1, min(buffer_bytes // block_bytes, _BUFFER_BLOCKS))


class HostCache:
    """`num_slots` slots for the blocks of a device's cache, whose `pools` are [num_blocks, num_layers, …] each (see
    `KVCache`). Raises `ConfigError` where the host has not enough memory."""

    def __init__(self, pools: Sequence[torch.Tensor], num_slots: int, *, buffer_bytes: int = _BUFFER_BYTES) -> None:
        """`buffer_bytes`: most that a staging buffer holds, though always a block."""
        self._device = device = pools[0].device
        self._blocks = _Places([pool.flatten(2).view(torch.int64) for pool in pools])
        self._memory = _allocate_slots(self._blocks, num_slots)
        self._slots = self._blocks.make_alike(self._memory.tensor)
        self._buffers = _Buffers(self._blocks, buffer_bytes)
        self._save_stream = make_stream(device, is_urgent=False)
        self._load_stream = make_stream(device, is_urgent=False)
        self._saving: deque[tuple[StreamPoint, set[int]]] = deque()  # slots that may be being written to, until when

    def copy(self, saves: Sequence[BlockCopy], loads: Sequence[BlockCopy]) -> None:
        """Save blocks into slots, then load blocks from slots; among each, no block and no slot occurs twice."""
        with traced("copy KV blocks", self._device):
            self._save(saves)
            self._load(loads)

    def _save(self, copies: Sequence[BlockCopy]) -> None:
        while self._saving and self._saving[0][0].is_past:
            self._saving.popleft()
        for buffer, part in self._buffers.fill(copies):
            buffer.is_empty.wait()
            for place, copy in enumerate(part):
                _copy(self._blocks[copy.block_id], buffer.blocks[place])
            buffer.is_full.record()
            with on_stream(self._save_stream):
                buffer.is_full.wait()
                for place, copy in enumerate(part):
                    _copy(buffer.blocks[place], self._slots[copy.slot])
                buffer.is_empty.record()
                is_saved = StreamPoint(self._device)
                is_saved.record()
            self._saving.append((is_saved, {copy.slot for copy in part}))

    # Nothing is saved into a slot that is still being loaded from: the save stream waits for the current one, and that
    # has waited for all earlier loads. The load stream waits for nobody but the saves into its own slots, so that what
    # a step loads is on its way while the step before is being computed.
    def _load(self, copies: Sequence[BlockCopy]) -> None:
        for buffer, part in self._buffers.fill(copies):
            with on_stream(self._load_stream):
                buffer.is_empty.wait()
                for is_saved, slots in self._saving:
                    if not slots.isdisjoint(copy.slot for copy in part):
                        is_saved.wait()
                for place, copy in enumerate(part):
                    _copy(self._slots[copy.slot], buffer.blocks[place])
                buffer.is_full.record()
            buffer.is_full.wait()
            for place, copy in enumerate(part):
                _copy(buffer.blocks[place], self._blocks[copy.block_id])
            buffer.is_empty.record()


class _Places:
    """Places for blocks: `places[i]` is block i, a tensor [num_layers, words] for each layout of layers."""

    def __init__(self, pools: Sequence[torch.Tensor]) -> None:
        self._pools = pools

    def __getitem__(self, index: int) -> tuple[torch.Tensor, ...]:
        return tuple([pool[index] for pool in self._pools])

    @property
    def num_words(self) -> int:
        """int64 words of a block, as wide as possible: copies of narrow elements are slower."""
        return sum(pool[0].numel() for pool in self._pools)

    @property
    def device(self) -> torch.device:
        return self._pools[0].device

    def make_alike(self, memory: torch.Tensor) -> _Places:
        """Return places in `memory` int64 [num_places, num_words], contiguous each."""
        shapes = [pool.shape[1:] for pool in self._pools]
        stops = list(accumulate(shape.numel() for shape in shapes))
        parts = [memory[:, stop - shape.numel() : stop] for stop, shape in zip(stops, shapes, strict=True)]
        return _Places([part.view(-1, *shape) for part, shape in zip(parts, shapes, strict=True)])


def _copy(source: tuple[torch.Tensor, ...], target: tuple[torch.Tensor, ...]) -> None:
    for part, place in zip(source, target, strict=True):
        place.copy_(part, non_blocking=True)


class _Buffers:
    """Staging buffers that are used in turn."""

    def __init__(self, blocks: _Places, buffer_bytes: int) -> None:
        self._size = _buffer_blocks(blocks.num_words * 8, buffer_bytes)
        self._buffers = [_Buffer(blocks, self._size) for _ in range(_NUM_BUFFERS)]
        self._turn = count()

    def fill(self, copies: Sequence[BlockCopy]) -> Iterator[tuple[_Buffer, Sequence[BlockCopy]]]:
        """The buffers that take these copies, each with its part of them."""
        for start in range(0, len(copies), self._size):
            yield self._buffers[next(self._turn) % _NUM_BUFFERS], copies[start : start + self._size]


class _Buffer:
    """Places for `size` blocks like those of `blocks`, on their device."""

    def __init__(self, blocks: _Places, size: int) -> None:
        memory = torch.empty((size, blocks.num_words), dtype=torch.int64, device=blocks.device)
        self.blocks = blocks.make_alike(memory)
        self.is_full, self.is_empty = StreamPoint(blocks.device), StreamPoint(blocks.device)


def _allocate_slots(blocks: _Places, num_slots: int) -> PinnedMemory:
    """Host memory int64 [num_slots, num_words] for blocks like those of `blocks`."""
    block_bytes, free = blocks.num_words * 8, measure_memory(torch.device("cpu")).free_bytes
    if num_slots * block_bytes > free:
        raise ConfigError(
            f"num_cpu_blocks={num_slots}: {num_slots} KV blocks of {block_bytes} bytes take "
            f"{num_slots * block_bytes / 2**30:.1f} GiB, but the host has {free / 2**30:.1f} GiB free"
        )
    return PinnedMemory((num_slots, blocks.num_words), torch.int64, blocks.device)
