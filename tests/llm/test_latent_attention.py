"""Attention to latent rows, in torch and in Triton, against float64. On a GPU the tests run as they are, elsewhere in
Triton's interpreter: `test_interpreter.py` runs this file."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from triton_cases import DEVICE, DTYPES, MARKS, assert_close, random, runs_here

from seesay.llm.memory.kv_layout import KVLayout, LayerCache
from seesay.llm.ops import DecodeRows, Ops, RowLayout
from seesay.llm.ops.torch_ops import TorchOps

pytestmark = MARKS
TURNED, RANK, BLOCK = 16, 40, 4
DIM = TURNED + RANK
ROWS = [[(1, 1), (1, 37), (1, 70)], [(1, 9), (5, 5), (33, 75)], [(2, 40)], [(1, 300)]]
"""By row, its new tokens and all tokens of its sequence."""


@pytest.fixture(params=["torch", "triton"])
def ops(request: pytest.FixtureRequest) -> Ops:
    if request.param == "torch":
        return TorchOps()
    from seesay.llm.ops.triton_ops import TritonOps

    return TritonOps()


def make_cache(num_blocks: int, dtype: torch.dtype) -> LayerCache:
    layout = KVLayout(dtype=dtype, block_size=BLOCK, num_kv_heads=1, head_dim=DIM, is_latent=True)
    assert layout.block_bytes == BLOCK * DIM * dtype.itemsize
    return LayerCache(layout=layout, data=random(num_blocks, *layout.block_shape, dtype=dtype, seed=9))


def make_layout(rows: list[tuple[int, int]]) -> RowLayout:
    lens = np.array([length for _, length in rows])
    width = -(-int(lens.max()) // BLOCK)
    table = np.random.default_rng(1).permutation(len(rows) * width).reshape(len(rows), width)
    return RowLayout(
        cu_seqlens_q=np.cumsum([0, *(count for count, _ in rows)]),
        kv_lens=lens,
        block_table=table,
        block_size=BLOCK,
        num_decode=sum(count == 1 for count, _ in rows),
    )


def attend_exactly(query: torch.Tensor, cache: LayerCache, layout: RowLayout, scale: float) -> torch.Tensor:
    outputs, data = [], cache.data.double().flatten(1, 3).view(-1, DIM)
    for row, (start, stop) in enumerate(zip(layout.cu_seqlens_q, layout.cu_seqlens_q[1:], strict=False)):
        length = int(layout.kv_lens[row])
        slots = [int(layout.block_table[row, place // BLOCK]) * BLOCK + place % BLOCK for place in range(length)]
        keys = data[slots]
        for token in range(start, stop):
            seen = keys[: length - (stop - 1 - token)]
            weights = (query[token].double() @ seen.t() * scale).softmax(-1)
            outputs.append(weights @ seen[:, TURNED:])
    return torch.stack(outputs)


@runs_here
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("num_heads", [3, 18])
@pytest.mark.parametrize("rows", ROWS, ids=str)
def test_attention_to_latent_rows(ops: Ops, rows: list[tuple[int, int]], num_heads: int, dtype: torch.dtype) -> None:
    layout = make_layout(rows)
    cache = make_cache(layout.block_table.size, dtype)
    query = random(int(layout.cu_seqlens_q[-1]), num_heads, DIM, dtype=dtype, seed=num_heads)
    plan: Any = ops.plan_attention(layout, windows=frozenset([None]), device=DEVICE, dtype=dtype)
    output = ops.attend_latent(query, cache, plan, scale=0.2, turned_dim=TURNED)
    assert_close(output, attend_exactly(query, cache, layout, 0.2), 2.0)


@runs_here
def test_rows_that_only_the_device_knows() -> None:
    from seesay.llm.ops.triton_ops import TritonOps

    ops, layout = TritonOps(), make_layout([(1, 5), (1, 70), (1, 1)])
    cache = make_cache(layout.block_table.size, torch.float32)
    query = random(3, 4, DIM)
    table, lens = (torch.from_numpy(each).int().to(DEVICE) for each in (layout.block_table, layout.kv_lens))
    rows = DecodeRows(kv_lens=lens, block_table=table)
    plan: Any = ops.plan_attention(rows, windows=frozenset([None]), device=DEVICE, dtype=torch.float32)
    output = ops.attend_latent(query, cache, plan, scale=0.3, turned_dim=TURNED)
    assert_close(output, attend_exactly(query, cache, layout, 0.3), 2.0)


@runs_here
def test_what_is_not_finite_stays_with_its_sequence() -> None:
    from seesay.llm.ops.triton_ops import TritonOps

    ops, layout = TritonOps(), make_layout([(1, 30), (1, 70)])
    cache = make_cache(layout.block_table.size, torch.float32)
    cache.data[int(layout.block_table[1, 3])] = torch.nan
    plan: Any = ops.plan_attention(layout, windows=frozenset([None]), device=DEVICE, dtype=torch.float32)
    output = ops.attend_latent(random(2, 4, DIM), cache, plan, scale=0.3, turned_dim=TURNED)
    assert bool(output[0].isfinite().all()) and not output[1].isfinite().any()
