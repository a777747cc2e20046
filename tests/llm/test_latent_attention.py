"""Attention to latent rows, in torch and in Triton, against float64. On a GPU the tests run as they are, elsewhere in
Triton's interpreter: `test_interpreter.py` runs this file."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from triton_cases import DEVICE, DTYPES, MARKS, assert_close, parametrize_grid, random, runs_here

from seesay.errors import ConfigError
from seesay.llm.memory.kv_layout import KVFormat, KVLayout, LayerCache
from seesay.llm.ops import DecodeRows, Ops, RowLayout
from seesay.llm.ops.kv_codec import read_tokens, write_tokens
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


FORMATS: tuple[KVFormat, ...] = ("plain", "int8", "fp8")
ERRORS: dict[KVFormat, float] = {"plain": 1e-3, "int8": 8e-3, "fp8": 4e-2}
"""Of rows that are read again, ‖read - written‖ / ‖written‖."""


def make_empty(num_blocks: int, dtype: torch.dtype, format: KVFormat = "plain") -> LayerCache:
    layout = KVLayout(format=format, dtype=dtype, block_size=BLOCK, num_kv_heads=1, head_dim=DIM, turned_dim=TURNED)
    return LayerCache.zeros(layout, num_blocks, DEVICE)


def make_cache(num_blocks: int, dtype: torch.dtype, format: KVFormat = "plain") -> LayerCache:
    """A cache of random rows; what is rotated in them is larger than the rest."""
    cache = make_empty(num_blocks, dtype, format)
    rows = random(num_blocks * BLOCK, DIM, dtype=dtype, seed=9)
    rows[:, :TURNED] *= 3
    write_tokens(cache, torch.arange(len(rows), device=DEVICE), rows[:, None, None])
    return cache


def read_rows(cache: LayerCache, slots: list[int]) -> torch.Tensor:
    """Rows float64 [T, D]."""
    return read_tokens(cache, torch.tensor(slots, device=DEVICE), torch.float32)[:, 0, 0].double()


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
    outputs = []
    for row, (start, stop) in enumerate(zip(layout.cu_seqlens_q, layout.cu_seqlens_q[1:], strict=False)):
        length = int(layout.kv_lens[row])
        slots = [int(layout.block_table[row, place // BLOCK]) * BLOCK + place % BLOCK for place in range(length)]
        keys = read_rows(cache, slots)
        for token in range(start, stop):
            seen = keys[: length - (stop - 1 - token)]
            weights = (query[token].double() @ seen.t() * scale).softmax(-1)
            outputs.append(weights @ seen[:, TURNED:])
    return torch.stack(outputs)


@runs_here
@parametrize_grid(rows=ROWS, num_heads=[3, 18], dtype=DTYPES, format=FORMATS)
def test_attention_to_latent_rows(
    ops: Ops, rows: list[tuple[int, int]], num_heads: int, dtype: torch.dtype, format: KVFormat
) -> None:
    layout = make_layout(rows)
    cache = make_cache(layout.block_table.size, dtype, format)
    query = random(int(layout.cu_seqlens_q[-1]), num_heads, DIM, dtype=dtype, seed=num_heads)
    plan: Any = ops.plan_attention(layout, windows=frozenset([None]), device=DEVICE, dtype=dtype)
    output = ops.attend_latent(query, cache, plan, scale=0.2)
    assert_close(output, attend_exactly(query, cache, layout, 0.2), 2.0)


@runs_here
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("format", FORMATS)
def test_rows_are_written(ops: Ops, format: KVFormat, dtype: torch.dtype) -> None:
    """Against float64: turned, normed, and within the error of the format; all else of the cache stays as it was. Both
    parts have a scale of their own, so the large one costs the other no accuracy."""
    slots = [5, 2, 30, 7]
    cache = make_empty(10, dtype, format)
    wide = random(len(slots), DIM + 5, dtype=dtype, seed=3)
    rows, weight = wide[:, 5:], 1 + random(RANK, dtype=dtype, seed=4) / 4
    rows[:, :TURNED] *= 100
    angles = random(len(slots), 1, TURNED // 2, seed=5)
    cos, sin = angles.cos().repeat(1, 1, 2).to(dtype), torch.cat((-angles.sin(), angles.sin()), dim=2).to(dtype)
    faults = torch.zeros(len(slots), device=DEVICE)
    own, places = wide.clone(), torch.tensor(slots, device=DEVICE)
    ops.write_latent(rows, cos, sin, (weight, 1e-6), cache, places, faults)
    exact, turned = rows.double(), rows[:, :TURNED].double()
    exact[:, :TURNED] = turned * cos[:, 0].double() + turned.roll(TURNED // 2, 1) * sin[:, 0].double()
    latent = rows[:, TURNED:].double()
    exact[:, TURNED:] = latent / (latent.square().mean(1, keepdim=True) + 1e-6).sqrt() * weight.double()
    found = read_rows(cache, slots)
    for part in (slice(0, TURNED), slice(TURNED, DIM)):
        tolerance = ERRORS[format] * (5 if dtype == torch.bfloat16 else 1)
        assert (found[:, part] - exact[:, part]).norm() < tolerance * exact[:, part].norm()
    others = [slot for slot in range(40) if slot not in slots]
    assert not read_rows(cache, others).any() and torch.equal(wide, own) and not faults.any()


@runs_here
@pytest.mark.parametrize("format", ["int8", "fp8"])
def test_both_write_the_same_bytes(format: KVFormat) -> None:
    from seesay.llm.ops.triton_ops import TritonOps

    caches, rows = [], random(9, DIM, seed=6)
    rows[3] = 0
    angles = random(9, 1, TURNED, seed=5)
    for ops in (TorchOps(), TritonOps()):
        cache, faults = make_empty(3, torch.float32, format), torch.zeros(9, device=DEVICE)
        norm = torch.ones(RANK, device=DEVICE), 1e-6
        ops.write_latent(rows.clone(), angles.cos(), angles.sin(), norm, cache, torch.arange(9, device=DEVICE), faults)
        caches.append(cache)
    one, other = (cache.keys.reshape(-1, DIM).int() for cache in caches)
    assert (one != other).float().mean() < 0.01 and (one - other).abs().max() <= 1
    places = list(range(9))
    assert_close(read_rows(caches[1], places).float(), read_rows(caches[0], places), 1e3)


@runs_here
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy's, in the interpreter
@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("place", [0, TURNED + 1])
def test_a_token_that_is_not_finite_is_marked(ops: Ops, format: KVFormat, place: int) -> None:
    cache, faults = make_empty(2, torch.float32, format), torch.zeros(3, device=DEVICE)
    rows, turns = random(3, DIM), torch.ones(3, 1, TURNED, device=DEVICE)
    rows[1, place] = torch.inf
    norm = torch.ones(RANK, device=DEVICE), 1e-6
    ops.write_latent(rows, turns, 0 * turns, norm, cache, torch.arange(3, device=DEVICE), faults)
    assert faults.isnan().tolist() == [False, True, False]


def test_rows_of_eight_bits_are_small() -> None:
    """Those of DeepSeek-V2-Lite: 16 heads of 192 and 128 components of 16 bits are expanded keys and values."""
    for format in ("int8", "fp8"):
        layout = KVLayout(
            format=format, dtype=torch.bfloat16, block_size=64, num_kv_heads=1, head_dim=576, turned_dim=64
        )
        assert layout.block_bytes / layout.block_size == 584 <= 0.058 * 16 * (192 + 128) * 2
    with pytest.raises(
        ConfigError, match="latent rows are not kept in int4: take kv_cache_dtype='fp8', 'int8' or 'auto'"
    ):
        KVLayout(format="int4", dtype=torch.bfloat16, block_size=64, num_kv_heads=1, head_dim=576, turned_dim=64)


@runs_here
def test_rows_that_only_the_device_knows() -> None:
    from seesay.llm.ops.triton_ops import TritonOps

    ops, layout = TritonOps(), make_layout([(1, 5), (1, 70), (1, 1)])
    cache = make_cache(layout.block_table.size, torch.float32)
    query = random(3, 4, DIM)
    table, lens = (torch.from_numpy(each).int().to(DEVICE) for each in (layout.block_table, layout.kv_lens))
    rows = DecodeRows(kv_lens=lens, block_table=table)
    plan: Any = ops.plan_attention(rows, windows=frozenset([None]), device=DEVICE, dtype=torch.float32)
    output = ops.attend_latent(query, cache, plan, scale=0.3)
    assert_close(output, attend_exactly(query, cache, layout, 0.3), 2.0)


@runs_here
def test_what_is_not_finite_stays_with_its_sequence() -> None:
    from seesay.llm.ops.triton_ops import TritonOps

    ops, layout = TritonOps(), make_layout([(1, 30), (1, 70)])
    cache = make_cache(layout.block_table.size, torch.float32)
    cache.data[int(layout.block_table[1, 3])] = torch.nan
    plan: Any = ops.plan_attention(layout, windows=frozenset([None]), device=DEVICE, dtype=torch.float32)
    output = ops.attend_latent(random(2, 4, DIM), cache, plan, scale=0.3)
    assert bool(output[0].isfinite().all()) and not output[1].isfinite().any()
