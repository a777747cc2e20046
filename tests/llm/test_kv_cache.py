from __future__ import annotations

from pathlib import Path

import pytest
import torch
from llm import backbones

from seesay.llm.kv_cache import KVCache
from seesay.llm.models.spec import DecoderConfig


def read_resident_bytes() -> int:
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(fields["VmRSS"].split()[0]) * 1024


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_cache_on_the_cpu_takes_memory_when_it_is_written_to(tmp_path: Path, dtype: torch.dtype) -> None:
    text_config = backbones.make_backbone("qwen2", tmp_path).text_config
    config = DecoderConfig.from_hf(text_config, tied_embeddings=True, session_len=64)
    before = read_resident_bytes()
    cache = KVCache(config, num_blocks=40_000, block_size=32, device=torch.device("cpu"), dtype=dtype)
    size = sum(layer.nbytes for layer in cache.layers)
    assert size > 280 << 20 and read_resident_bytes() - before < 40 << 20
    assert cache.blocks.shape[:2] == (40_000, 3) and cache.layers[0].dtype == dtype
    cache.layers[2][5:7] = 1.0
    assert cache.blocks[4:8].float().mean(dim=(2, 3, 4, 5)).tolist() == [[0, 0, 0], [0, 0, 1], [0, 0, 1], [0, 0, 0]]
    assert read_resident_bytes() - before < 60 << 20
    assert not cache.blocks[::999].any()
