from __future__ import annotations

import gc
import random
from collections.abc import Iterable

import pytest
import torch

from seesay.errors import ConfigError
from seesay.llm.memory.host_cache import HostCache, staging_bytes
from seesay.llm.plans.step_plan import BlockCopy

NUM_LAYERS, NUM_BLOCKS, NUM_SLOTS = 3, 12, 9

on_gpu = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")]
devices = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=on_gpu)])


def make_blocks(device: str, block_size: int) -> torch.Tensor:
    """[NUM_BLOCKS, NUM_LAYERS, block_size, 2, 1, 8], where block b contains b, in the layout of `KVCache`."""
    pool = torch.zeros(NUM_LAYERS, NUM_BLOCKS, block_size, 2, 1, 8, dtype=torch.bfloat16, device=device)
    pool += torch.arange(NUM_BLOCKS, device=device).view(1, -1, 1, 1, 1, 1)
    return pool.transpose(0, 1)


def copies(pairs: Iterable[tuple[int, int]]) -> tuple[BlockCopy, ...]:
    return tuple(BlockCopy(block_id, slot) for block_id, slot in pairs)


@devices
@pytest.mark.parametrize("block_size", (1, 16384))
def test_copies_at_random_are_made_in_order(device: str, block_size: int) -> None:
    """Steps one after the other with nothing waited for: each overwrites blocks that it saves, and reads ones that it
    loads. The large blocks are still being copied when the next step comes; buffers of two blocks are used again and
    again."""
    blocks = make_blocks(device, block_size)
    cache = HostCache([blocks], NUM_SLOTS, buffer_bytes=2 * blocks[0].nbytes)
    rng = random.Random(0)
    expected, host = list(range(NUM_BLOCKS)), [-1] * NUM_SLOTS
    seen, wanted = [], []
    for step in range(40):
        saves = list(zip(rng.sample(range(NUM_BLOCKS), NUM_SLOTS), rng.sample(range(NUM_SLOTS), rng.randint(0, 6))))
        for block_id, slot in saves:
            host[slot] = expected[block_id]
        filled = [slot for slot in range(NUM_SLOTS) if host[slot] >= 0]
        slots = rng.sample(filled, rng.randint(0, len(filled)))
        loads = list(zip(rng.sample(range(NUM_BLOCKS), len(slots)), slots))
        for block_id, slot in loads:
            expected[block_id] = host[slot]
        cache.copy(copies(saves), copies(loads))
        seen.append(blocks.amax(dim=(1, 2, 3, 4, 5)) + blocks.amin(dim=(1, 2, 3, 4, 5)))
        wanted.append([2 * value for value in expected])
        written = rng.sample(range(NUM_BLOCKS), 5)
        for block_id in written:
            expected[block_id] = 20 + (7 * step + block_id) % 100
            blocks[block_id] = expected[block_id]
    assert torch.stack(seen).tolist() == wanted


@devices
def test_slots_have_no_memory_in_common(device: str) -> None:
    blocks = make_blocks(device, 4)
    cache = HostCache([blocks], NUM_SLOTS)
    cache.copy(copies((slot + 1, slot) for slot in range(NUM_SLOTS)), ())
    blocks.zero_()
    cache.copy((), copies((slot, slot) for slot in range(NUM_SLOTS)))
    assert blocks[:NUM_SLOTS, 1, 2, 1, 0, 5].tolist() == list(range(1, NUM_SLOTS + 1))
    assert not blocks[NUM_SLOTS:].any()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
def test_the_memory_is_pinned_as_long_as_the_cache_is_there() -> None:
    cache = HostCache([make_blocks("cuda", 16384)], NUM_SLOTS)
    slots = cache._memory.tensor
    assert slots.is_pinned() and cache._slots[-1][0].is_pinned()
    cache.copy(copies([(0, NUM_SLOTS - 1)]), ())
    del cache
    gc.collect()
    assert not slots.is_pinned()
    assert slots.view(torch.bfloat16)[-1].count_nonzero() == 0, "block 0 was saved before"


def test_more_than_the_host_has_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"num_cpu_blocks=1000000000000: .* GiB free"):
        HostCache([make_blocks("cpu", 16)], 10**12)


def test_staging_is_bounded() -> None:
    assert staging_bytes(3 << 20) <= 256 << 20
    assert staging_bytes(100 << 20) == 1600 << 20, "of blocks that large, a buffer has one"
