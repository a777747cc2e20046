"""States in slots: where they lie, and their copies."""

from __future__ import annotations

import pytest
import torch

from seesay.errors import ConfigError
from seesay.llm.memory.kv_cache import KVCache, bytes_per_block, make_layouts
from seesay.llm.memory.state_cache import StateCache, bytes_per_state
from seesay.llm.plans.step_plan import CopiedBlock
from seesay.llm.plans.traits import NO_KV, KVShape, StateTensor

SHAPES = (
    (StateTensor((3, 8)), StateTensor((2, 4, 5), is_exact=True)),
    (),
    (StateTensor((3, 8)), StateTensor((2, 4, 5), is_exact=True)),
    (StateTensor((3, 8)),),
)


def make_cache(num_slots: int = 4) -> StateCache:
    cache = StateCache(SHAPES, num_slots=num_slots, dtype=torch.bfloat16, device=torch.device("cpu"))
    for pool in cache.pools:
        pool.copy_(torch.randn(pool.shape))
    return cache


def test_layers_have_their_tensors() -> None:
    cache = make_cache()
    shapes = [[(tuple(tensor.shape), tensor.dtype) for tensor in layer] for layer in cache.layers]
    short, matrix = ((4, 3, 8), torch.bfloat16), ((4, 2, 4, 5), torch.float32)
    assert shapes == [[short, matrix], [], [short, matrix], [short]]
    tensors = [tensor for layer in cache.layers for tensor in layer]
    for number, tensor in enumerate(tensors):
        tensor.fill_(number)
    assert [float(tensor.max()) == float(tensor.min()) == n for n, tensor in enumerate(tensors)] == [True] * 5
    assert bytes_per_state(SHAPES, torch.bfloat16) == 3 * 24 * 2 + 2 * 40 * 4
    assert sum(pool[0].nbytes for pool in cache.pools) == bytes_per_state(SHAPES, torch.bfloat16)


def test_copies_are_made_one_after_another() -> None:
    cache = make_cache()
    before = [[tensor.clone() for tensor in layer] for layer in cache.layers]
    cache.copy([CopiedBlock(0, 1), CopiedBlock(1, 2), CopiedBlock(3, 0)])
    for layer, old in zip(cache.layers, before, strict=True):
        for tensor, was in zip(layer, old, strict=True):
            assert torch.equal(tensor, was[[3, 0, 0, 3]])


def test_slots_of_the_host_are_negative_numbers() -> None:
    cache = StateCache(SHAPES, num_slots=2, dtype=torch.bfloat16, device=torch.device("cpu"), num_host_slots=2)
    for pool in cache.pools:
        pool.copy_(torch.randn(pool.shape))
    before = [pool.clone() for pool in cache.pools]
    cache.copy([CopiedBlock(0, -1), CopiedBlock(1, -2), CopiedBlock(-2, 0), CopiedBlock(-1, 1)])
    assert all(torch.equal(pool, was[[1, 0]]) for pool, was in zip(cache.pools, before, strict=True))


def test_more_states_than_the_host_has_memory_for_are_refused() -> None:
    with pytest.raises(ConfigError, match="num_cpu_blocks: beside so many blocks, 1099511627776 states"):
        StateCache(SHAPES, num_slots=2, dtype=torch.float32, device=torch.device("cpu"), num_host_slots=1 << 40)


def test_sequences_begin_with_zeros() -> None:
    cache = make_cache()
    cache.layers[0][1][2, 0, 0, 0] = torch.nan
    cache.clear([2, 0])
    for layer in cache.layers:
        for tensor in layer:
            assert not tensor[[0, 2]].any() and bool(tensor[[1, 3]].any())


@pytest.mark.parametrize("format", ["plain", "int8", "int4", "fp8"])
def test_layers_with_states_take_no_blocks(format: str) -> None:
    shapes = (NO_KV, KVShape(num_kv_heads=2, head_dim=4), NO_KV, NO_KV)
    layouts = make_layouts(shapes, block_size=4, dtype=torch.float32, format=format)  # type: ignore[arg-type]
    cache = KVCache(layouts, num_blocks=5, device=torch.device("cpu"), states=make_cache())
    assert len(cache.pools) == 1 and bytes_per_block(layouts) == layouts[1].block_bytes
    assert [len(layer.states) for layer in cache.layers] == [2, 0, 2, 1]
    cache.clear([1])
    cache.copy([CopiedBlock(1, 2)])
