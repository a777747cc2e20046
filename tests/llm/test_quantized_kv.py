"""Quantized keys and values: what is written to the cache, and attention over it, against float64.

Written for the torch and the Triton operations like `test_triton_ops`: on a GPU the tests run as they are, elsewhere in
Triton's interpreter (`test_interpreter.py` runs them there).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from llm.attention_cases import Case, build, check_attention, random_cases
from pairs import mark_after, parametrize_sweep
from triton_cases import (
    DEVICE,
    HAS_TRITON,
    IS_INTERPRETED,
    MARKS,
    ON_GPU,
    assert_close,
    on_gpu,
    parametrize_grid,
    random,
    random_seeds,
    runs_here,
)

from seesay.device.query import has_fp8
from seesay.errors import ConfigError
from seesay.llm.memory.kv_layout import KVFormat, KVLayout, LayerCache
from seesay.llm.ops import DecodeRows, Ops
from seesay.llm.ops.kv_codec import dequantize, quantize, read_blocks, read_tokens, write_tokens
from seesay.llm.ops.torch_ops import TorchOps
from seesay.llm.plans.window import Chunk

pytestmark = MARKS
FORMATS: tuple[KVFormat, ...] = ("int8", "int4", "fp8")
if ON_GPU and not has_fp8(DEVICE):
    FORMATS = ("int8", "int4")
STEPS = {"int8": 255, "int4": 15}
formats = pytest.mark.parametrize("format", FORMATS)
few_formats = formats if ON_GPU else pytest.mark.parametrize("format", mark_after(1, FORMATS))
"""Where formats have one kernel, and what is tested lies in its other parts."""


@pytest.fixture(params=["torch", "triton"])
def ops(request: pytest.FixtureRequest) -> Ops:
    if request.param == "torch":
        return TorchOps()
    if not (HAS_TRITON and (ON_GPU or IS_INTERPRETED)):
        pytest.skip("needs a GPU or the interpreter")
    from seesay.llm.ops.triton_ops import TritonOps

    return TritonOps()


def make_cache(format: KVFormat, *, block_size: int, kv_heads: int, dim: int, num_blocks: int) -> LayerCache:
    layout = KVLayout(format=format, dtype=torch.float32, block_size=block_size, num_kv_heads=kv_heads, head_dim=dim)
    return LayerCache.zeros(layout, num_blocks, DEVICE)


def largest_error(format: KVFormat, x: torch.Tensor) -> torch.Tensor:
    """How far a component of the vectors x [..., D] may be from what is stored: half a step, and a little for scales
    and zero points that are rounded themselves (1e-5 for scales below the normal numbers of float16). FP8 rounds to a
    sixteenth, and below its normal numbers to half of 2^-9."""
    x = x.double()
    if format == "fp8":
        return x.abs() / 16 + x.abs().amax(-1, keepdim=True) * 2.0**-10 / 448 + 1e-12
    low, high = x.amin(-1, keepdim=True).clamp(max=0), x.amax(-1, keepdim=True).clamp(min=0)
    return ((high - low) * (0.5 / STEPS[format] + 2.0**-10) + 1e-5).expand(x.shape)


@formats
@pytest.mark.parametrize("dim", [2, 16, 128])
def test_a_vector_is_kept_to_half_a_step(format: KVFormat, dim: int) -> None:
    x = torch.cat(
        [
            random(40, dim, dtype=torch.float32) * 3,
            random(40, dim, dtype=torch.float32) + 30,  # far from zero, as with a bias
            random(4, dim, dtype=torch.float32) * 1e-4,
            random(4, dim, dtype=torch.float32) * 5000,
            random(1, 1, dtype=torch.float32).expand(1, dim),  # all the same
            torch.zeros(1, dim, device=DEVICE),
        ]
    )
    data, params = quantize(x, format)
    assert data.dtype == torch.uint8 and data.shape == (90, dim // 2 if format == "int4" else dim)
    assert params.shape[-1] * params.itemsize == 4
    found = dequantize(data, params.view(torch.float32).squeeze(-1), format)
    assert ((found.double() - x.double()).abs() <= largest_error(format, x)).all()
    assert not found[-1].any()


@formats
@pytest.mark.parametrize(("block_size", "kv_heads", "dim"), [(1, 1, 6), (7, 3, 16), (64, 2, 128)])
def test_tokens_are_read_as_they_were_written(format: KVFormat, block_size: int, kv_heads: int, dim: int) -> None:
    cache = make_cache(format, block_size=block_size, kv_heads=kv_heads, dim=dim, num_blocks=5)
    pairs = random(5 * block_size, 2, kv_heads, dim, dtype=torch.float32)
    slots = torch.from_numpy(np.random.default_rng(0).permutation(len(pairs))).to(DEVICE)
    write_tokens(cache, slots, pairs)
    found = read_tokens(cache, slots, torch.float32)
    assert ((found.double() - pairs.double()).abs() <= largest_error(format, pairs)).all()
    blocks = torch.tensor([3, 0, 4], device=DEVICE)
    whole = read_blocks(cache, blocks, torch.float32)
    own = blocks[:, None] * block_size + torch.arange(block_size, device=DEVICE)
    assert torch.equal(whole, read_tokens(cache, own.flatten(), torch.float32).view(whole.shape))


@pytest.mark.parametrize("block_size", [1, 5, 16, 64])
@pytest.mark.parametrize(("kv_heads", "dim"), [(1, 10), (3, 80), (4, 128)])
@formats
def test_blocks_are_aligned_and_as_small_as_promised(
    format: KVFormat, block_size: int, kv_heads: int, dim: int
) -> None:
    cache = make_cache(format, block_size=block_size, kv_heads=kv_heads, dim=dim, num_blocks=2)
    layout = cache.layout
    assert layout.block_bytes % 16 == layout.params_at % 16 == 0 and cache.data.shape == (2, layout.block_bytes)
    parts = [(part[0].data_ptr(), part[0].numel() * part.itemsize) for part in (cache.keys, cache.values, cache.params)]
    first = cache.data.data_ptr()
    assert parts[0][0] == first and sum(parts[0]) == parts[1][0] and sum(parts[1]) <= parts[2][0]
    assert sum(parts[2]) <= first + layout.block_bytes, "parts neither overlap nor leave the block"
    plain = KVLayout(dtype=torch.bfloat16, block_size=64, num_kv_heads=4, head_dim=128)
    if (block_size, dim) == (64, 128):
        assert plain.block_bytes / layout.block_bytes >= {"int8": 1.9, "fp8": 1.9, "int4": 3.6}[format]


def test_odd_heads_are_refused() -> None:
    with pytest.raises(ConfigError, match="a KV cache in int4 needs an even head_dim, got 7"):
        KVLayout(format="int4", dtype=torch.float32, block_size=4, num_kv_heads=1, head_dim=7)


@runs_here
@parametrize_grid(
    format=FORMATS,
    dtype=[torch.float32, torch.bfloat16],
    shape=[(5, 1, 1, 8, 8), (4, 14, 2, 80, 32), (1, 28, 4, 128, 128), (3, 20, 3, 12, 8)],
    is_normed=[False, True],
)
def test_keys_and_values_are_written_by_the_kernel_that_rotates(
    ops: Ops,
    format: KVFormat,
    dtype: torch.dtype,
    shape: tuple[int, int, int, int, int],
    is_normed: bool,
) -> None:
    """Plain keys and values of the same operation are what must be kept; the rest of the cache is left alone."""
    num_tokens, heads, kv_heads, dim, rotated = shape
    qkv = random(num_tokens, heads + 2 * kv_heads, dim, dtype=dtype)
    angles = random(num_tokens, 1, rotated // 2, dtype=torch.float32) * 3
    cos = torch.cat((angles.cos(), angles.cos()), -1).to(dtype)
    sin = torch.cat((-angles.sin(), angles.sin()), -1).to(dtype)
    weights = random(2, dim, dtype=dtype, seed=3)
    norms = (weights[0], weights[1], 1e-6) if is_normed else None
    slots = torch.tensor([14, 0, 7, 3, 9], device=DEVICE)[:num_tokens]
    plain = LayerCache.plain(torch.zeros(5, 3, 2, kv_heads, dim, dtype=dtype, device=DEVICE))
    cache = make_cache(format, block_size=3, kv_heads=kv_heads, dim=dim, num_blocks=5)
    expected = qkv.clone()
    ops.rotate_and_write(expected, cos, sin, plain, slots, norms)
    faults = torch.zeros(num_tokens, device=DEVICE)
    ops.rotate_and_write(qkv, cos, sin, cache, slots, norms, faults)
    assert_close(qkv, expected.double())
    assert not faults.any()
    pairs = read_tokens(plain, slots, dtype)
    found = read_tokens(cache, slots, torch.float32).double()
    assert ((found - pairs.double()).abs() <= largest_error(format, pairs)).all()
    others = [slot for slot in range(15) if slot not in slots.tolist()]
    assert not read_tokens(cache, torch.tensor(others, device=DEVICE), torch.float32).any()


@runs_here
@parametrize_grid(format=FORMATS, rotated=[8, 12], value=[float("nan"), float("inf"), -float("inf")])
@pytest.mark.filterwarnings("ignore:invalid value", "ignore:overflow", "ignore:divide by zero")  # of NumPy
def test_tokens_whose_keys_or_values_are_not_finite_are_marked(
    ops: Ops, format: KVFormat, rotated: int, value: float
) -> None:
    heads, kv_heads, dim = 5, 2, 12
    qkv = random(6, heads + 2 * kv_heads, dim, dtype=torch.float32)
    qkv[0, 0, 0] = value  # a query is nobody's fault
    qkv[1, heads, dim - 1] = value
    qkv[2, heads + 1, 0] = value
    qkv[4, -1, rotated // 2] = value
    angles = torch.zeros(6, 1, rotated, device=DEVICE)
    cache = make_cache(format, block_size=2, kv_heads=kv_heads, dim=dim, num_blocks=3)
    slots, faults = torch.arange(6, device=DEVICE), torch.zeros(6, device=DEVICE)
    ops.rotate_and_write(qkv, angles + 1, angles, cache, slots, None, faults)
    assert faults.isnan().tolist() == [False, True, True, False, True, False]
    assert not faults[[0, 3, 5]].any()


SMALL = [(1, 1), (1, 70), (1, 64), (5, 5), (9, 40), (2, 2)]
CASES = [
    Case(rows=SMALL[:4], block_size=1, heads=(2, 1), dim=16),
    Case(rows=SMALL, block_size=7, dim=80, heads=(4, 4)),
    Case(rows=SMALL, block_size=48, dim=16, heads=(7, 1)),
    Case(rows=SMALL, dtype=torch.bfloat16, dim=80, block_size=16, window=33),
    Case(rows=SMALL, has_sinks=True, dim=80, heads=(3, 1), window=20, soft_cap=5.0, dtype=torch.float16),
    Case(rows=[(1, 300), (1, 2), (70, 130)], dim=16, has_sinks=True, heads=(4, 2)),
    Case(rows=[(1, 300), (1, 64), (70, 130)], dim=16, heads=(4, 2), window=Chunk(64), has_sinks=True),
    Case(rows=[(1, 70), (20, 40)], dim=256, heads=(2, 1), dtype=torch.bfloat16),
    Case(rows=SMALL[:3], dim=128, heads=(40, 1), block_size=16, dtype=torch.bfloat16),
    Case(rows=[(70, 130)], heads=(2, 1), dim=16, dtype=torch.float16, run=50, window=20),
    Case(rows=SMALL, heads=(4, 2), slopes=torch.float32),
    Case(rows=[(1, 40), (70, 130)], heads=(2, 1), dim=16, dtype=torch.float16, prompts=(40, 100), window=20),
]
MORE_CASES = [
    Case(rows=SMALL, window=20, block_size=16),
    Case(rows=[(70, 130)], heads=(2, 1), dim=16, dtype=torch.float16),
    Case(rows=SMALL, block_size=128, dim=64),
    Case(rows=SMALL, window=64, soft_cap=2.0),
    Case(rows=SMALL, dtype=torch.bfloat16, dim=128, heads=(7, 1)),
    Case(rows=SMALL, dtype=torch.float16, dim=128, heads=(7, 1)),
    Case(rows=[(1, 300), (1, 2), (1, 150)], dim=16, has_sinks=True, window=140, heads=(2, 1)),
    Case(rows=SMALL[:3], dim=64, heads=(12, 1), dtype=torch.float16, has_sinks=True),
    Case(rows=SMALL, dim=128, heads=(5, 5), dtype=torch.float16, slopes=torch.float32, soft_cap=5.0),
    Case(rows=[(1, 300), (1, 2), (70, 400)], dim=16, heads=(4, 2), slopes=torch.bfloat16, has_sinks=True),
]


def large_cases() -> list[Case]:
    fixed = [
        Case(rows=[(9000, 9000)], heads=(28, 4), dim=128, dtype=torch.bfloat16),
        Case(rows=[(1, 131072), (1, 5), (1, 65537)], heads=(28, 4), dim=128, dtype=torch.bfloat16),
        Case(rows=[(1, 131071)], heads=(28, 4), dim=128, dtype=torch.bfloat16, window=4096),
        Case(rows=[(1, 131071), (1, 9), (300, 9000)], heads=(64, 8), dim=64, dtype=torch.bfloat16, has_sinks=True),
        Case(rows=[(1, 900)] * 256, heads=(28, 4), dim=128, dtype=torch.bfloat16),
        Case(
            rows=[(1, 1), (1, 3000), (2000, 3000)],
            heads=(8, 8),
            dim=256,
            dtype=torch.float16,
            soft_cap=50.0,
            window=1000,
        ),
    ]
    return fixed + random_cases(2, 30)


@runs_here
@pytest.mark.slow
@formats
@pytest.mark.parametrize("case", MORE_CASES + (large_cases() if ON_GPU else []), ids=lambda case: case.name)
def test_attention_of_more_shapes(ops: Ops, case: Any, format: KVFormat) -> None:
    check_attention(ops, replace(case, format=format), float32_factor=8)


@runs_here
@parametrize_sweep(format=FORMATS, case=CASES)
def test_attention(ops: Ops, case: Any, format: KVFormat) -> None:
    """Against the exact attention over what is stored. float16 products: their rounding is that of a float16 model."""
    check_attention(ops, replace(case, format=format), float32_factor=8)


@runs_here
@formats
@random_seeds
def test_attention_over_random_rows(ops: Ops, seed: int, format: KVFormat) -> None:
    [case] = random_cases(seed, 1, longest=3000 if ON_GPU else 150)
    check_attention(ops, replace(case, format=format), float32_factor=8)


@runs_here
@few_formats
def test_small_values_beside_a_much_more_likely_key_are_not_lost(ops: Ops, format: KVFormat) -> None:
    """A key takes most of the weight and has no value, as attention sinks do; thousands of unlikely ones make the
    output. Their weights times their scales would be too small for float16."""
    length, heads = 3000, 2
    cache = make_cache(format, block_size=64, kv_heads=1, dim=16, num_blocks=47)
    pairs = torch.zeros(length, 2, 1, 16, device=DEVICE)
    pairs[0, 0] = 1.0
    pairs[1:, 1] = 0.01 * (1 + random(length - 1, 1, 16, dtype=torch.float32).abs())
    slots = torch.arange(length, device=DEVICE)
    write_tokens(cache, slots, pairs)
    stored = read_tokens(cache, slots, torch.float32).double()
    query = torch.full((1, heads, 16), 3.0, device=DEVICE, dtype=torch.float16)  # scores 12 and 0
    rows = Case(rows=[(1, length)], heads=(heads, 1), dim=16, dtype=torch.float16)
    _, _, layout, _ = build(rows)
    layout = replace(layout, block_table=np.arange(47)[None])
    plan = ops.plan_attention(layout, windows=frozenset([None]), device=DEVICE, dtype=torch.float16)
    output = ops.attend(query, cache, plan, scale=0.25, window=None, soft_cap=None)
    weights = torch.softmax(stored[:, 0, 0] @ query[0, 0].double() * 0.25, 0)
    factor = 4 if isinstance(ops, TorchOps) else 1  # the former adds in float16
    assert_close(output, (weights @ stored[:, 1, 0]).expand(1, heads, 16), factor=factor)


@runs_here
@few_formats
def test_rows_that_only_the_device_knows(format: KVFormat) -> None:
    """As in a CUDA graph: lengths and blocks come from the device."""
    from seesay.llm.ops.triton_ops import TritonOps

    case = Case(rows=[(1, n) for n in (7, 300, 1, 64, 65)], dim=16, heads=(4, 2), format=format)
    query, cache, layout, expected = build(case)
    rows = DecodeRows(
        kv_lens=torch.from_numpy(layout.kv_lens.astype(np.int32)).to(DEVICE),
        block_table=torch.from_numpy(layout.block_table.astype(np.int32)).to(DEVICE),
    )
    ops = TritonOps()

    def run() -> torch.Tensor:
        plan = ops.plan_attention(rows, windows=frozenset([None]), device=DEVICE, dtype=torch.float32)
        return ops.attend(query, cache, plan, **case.options)

    output = run()
    if ON_GPU:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            output = run()
        output.fill_(float("nan"))
        graph.replay()
    assert_close(output, expected, factor=8)


@runs_here
def test_rows_are_shared_where_programs_are_small() -> None:
    """Kernels of one or two warps need more programs: those of whole rows are halved, unless they are very many."""
    from seesay.llm.ops import triton_attention

    for num_rows, num_splits in ((112, 2), (230, 1)):
        lens = torch.full((num_rows,), 8000, dtype=torch.int32, device=DEVICE)
        plan = triton_attention.make_plan(DecodeRows(kv_lens=lens, block_table=lens[:, None]), DEVICE)
        parts = triton_attention.divide(plan, 28, 4, 16, None, 64, num_shares=2).parts
        assert (parts[:, 1] == num_splits).all()


@pytest.mark.gpu
@on_gpu
def test_integers_are_unpacked_alike_with_and_without_ptx() -> None:
    import triton
    import triton.language as tl

    from seesay.kernels.attention.quantized_decode import _unpack, _unpack_int4

    @triton.jit  # type: ignore[untyped-decorator]
    def unpack_kernel(x_ptr, out_ptr, HAS_PTX: tl.constexpr):  # type: ignore[no-untyped-def]
        places = tl.arange(0, 256)
        x = tl.load(x_ptr + places)
        low, high = _unpack_int4(x, tl.float16, HAS_PTX)
        tl.store(out_ptr + places, _unpack(x, tl.float16, "int8", HAS_PTX))
        tl.store(out_ptr + 256 + places, low)
        tl.store(out_ptr + 512 + places, high)

    x = torch.arange(256, device=DEVICE).to(torch.uint8)
    expected = 1024 + torch.stack((x.int(), x.int() & 15, x.int() & 240))
    for has_ptx in (False, True):
        found = torch.zeros(3, 256, dtype=torch.float16, device=DEVICE)
        unpack_kernel[(1,)](x, found, has_ptx)
        assert torch.equal(found.int(), expected)
