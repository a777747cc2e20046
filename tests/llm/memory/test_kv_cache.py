from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from llm import backbones

from seesay.device.accelerator import Memory
from seesay.llm.memory.host_cache import HostCache
from seesay.llm.memory.kv_cache import KVCache, bytes_per_block, make_layouts, plan_num_blocks
from seesay.llm.memory.kv_layout import KVFormat
from seesay.llm.models.configs.reading import read_decoder_config
from seesay.llm.plans.step_plan import BlockCopy, CopiedBlock


def read_resident_bytes() -> int:
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(fields["VmRSS"].split()[0]) * 1024


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_cache_on_the_cpu_takes_memory_when_it_is_written_to(tmp_path: Path, dtype: torch.dtype) -> None:
    text_config = backbones.make_backbone("qwen2", tmp_path).text_config
    config = read_decoder_config(text_config, tied_embeddings=True, session_len=64)
    before = read_resident_bytes()
    layouts = make_layouts(config.traits.kv_shapes, block_size=32, dtype=dtype)
    cache = KVCache(layouts, num_blocks=40_000, device=torch.device("cpu"))
    [blocks] = cache.pools
    size = sum(layer.data.nbytes for layer in cache.layers)
    assert size > 280 << 20 and read_resident_bytes() - before < 40 << 20
    assert blocks.shape[:2] == (40_000, 3) and cache.layers[0].data.dtype == dtype
    cache.layers[2].data[5:7] = 1.0
    assert blocks[4:8].float().mean(dim=(2, 3, 4, 5)).tolist() == [[0, 0, 0], [0, 0, 1], [0, 0, 1], [0, 0, 0]]
    assert read_resident_bytes() - before < 60 << 20
    assert not blocks[::999].any()


@pytest.mark.parametrize("format", ["plain", "int4"])
def test_copies_are_read_before_any_is_written(tmp_path: Path, format: KVFormat) -> None:
    text_config = backbones.make_backbone("qwen2", tmp_path).text_config
    config = read_decoder_config(text_config, tied_embeddings=True, session_len=64)
    layouts = make_layouts(config.traits.kv_shapes, block_size=4, dtype=torch.float32, format=format)
    cache = KVCache(layouts, num_blocks=5, device=torch.device("cpu"))
    for pool in cache.pools:
        pool.copy_(torch.arange(1, 6).view(-1, *[1] * (pool.dim() - 1)).expand(pool.shape))
    cache.copy((CopiedBlock(0, 1), CopiedBlock(1, 2), CopiedBlock(0, 4)))
    for layer in cache.layers:
        assert [block.unique().tolist() for block in layer.data] == [[1], [1], [2], [4], [1]]


def test_layers_of_different_layouts_have_pools_of_their_own(tmp_path: Path) -> None:
    """Blocks are cleared and copied to the host and back in all of them."""
    text_config = backbones.make_backbone("qwen2", tmp_path).text_config
    config = read_decoder_config(text_config, tied_embeddings=True, session_len=64)
    kinds: tuple[KVFormat, ...] = ("plain", "int4", "plain")
    made = {
        kind: make_layouts(config.traits.kv_shapes, block_size=8, dtype=torch.float32, format=kind)[0] for kind in kinds
    }
    layouts = [made[kind] for kind in kinds]
    cache = KVCache(layouts, num_blocks=6, device=torch.device("cpu"))
    assert [layer.layout for layer in cache.layers] == layouts and len(cache.pools) == 2
    assert sum(layer.data[0].nbytes for layer in cache.layers) == bytes_per_block(layouts)
    for layer in cache.layers:
        layer.data.copy_(torch.arange(1, 7).view(-1, *[1] * (layer.data.dim() - 1)))
    host = HostCache(cache.pools, 3)
    host.copy([BlockCopy(4, 2), BlockCopy(1, 0)], ())
    cache.clear([4, 1, 0])
    for layer in cache.layers:
        assert layer.data.flatten(1).amax(1).tolist() == [0, 0, 3, 4, 0, 6]
    host.copy((), [BlockCopy(0, 2), BlockCopy(3, 0)])
    for layer in cache.layers:
        assert layer.data.flatten(1).amin(1).tolist() == layer.data.flatten(1).amax(1).tolist() == [5, 0, 3, 2, 0, 6]


def test_more_tokens_fit_in_fewer_bits(tmp_path: Path) -> None:
    text_config = backbones.make_backbone("qwen2", tmp_path).text_config
    config = read_decoder_config(text_config, tied_embeddings=True, session_len=64)
    config = replace(config, head_dim=128)
    memory = Memory(free_bytes=64 << 30, total_bytes=80 << 30)
    formats: tuple[KVFormat, ...] = ("plain", "int8", "fp8", "int4")
    tokens = {}
    for kind in formats:
        block_bytes = bytes_per_block(
            make_layouts(config.traits.kv_shapes, block_size=64, dtype=torch.bfloat16, format=kind)
        )
        tokens[kind] = 64 * plan_num_blocks(
            memory=memory,
            reserved_bytes=1 << 30,
            share=0.8,
            block_bytes=block_bytes,
            num_blocks_of_full_batch=1,
            is_cpu=False,
        )
    assert tokens["int8"] >= 1.9 * tokens["plain"] and tokens["fp8"] >= 1.9 * tokens["plain"]
    assert tokens["int4"] >= 3.6 * tokens["plain"]
