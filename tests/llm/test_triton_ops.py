"""The torch and the Triton operations against float64, over random shapes.

On a GPU the tests run as they are. Elsewhere they run in Triton's interpreter, which must be chosen before Triton is
imported: `test_interpreter.py` runs this file, at small sizes."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from kernels.products import multiply_gate
from llm.attention_cases import Case, build, check_attention, random_cases
from triton_cases import (
    DEVICE,
    DTYPES,
    HAS_TRITON,
    IS_INTERPRETED,
    MARKS,
    ON_GPU,
    assert_close,
    parametrize_grid,
    random,
    runs_here,
)

from seesay.llm.memory.kv_layout import LayerCache
from seesay.llm.models.spec import RotarySpec
from seesay.llm.ops import DecodeRows, Ops, pick_ops
from seesay.llm.ops.interface import Activation
from seesay.llm.ops.torch_ops import TorchOps
from seesay.llm.plans.window import Chunk

pytestmark = MARKS


@pytest.fixture(params=["torch", "triton"])
def ops(request: pytest.FixtureRequest) -> Ops:
    if request.param == "torch":
        return TorchOps()
    from seesay.llm.ops.triton_ops import TritonOps

    return TritonOps()


def norm_exactly(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    x = x.double()
    return x / (x.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt() * weight.double()


@runs_here
@parametrize_grid(shape=[(0, 64), (1, 3584), (3, 100), (17, 1)], dtype=DTYPES, weight_dtype=[None, torch.float32])
def test_norm_alone_and_with_the_sum(
    ops: Ops, shape: tuple[int, int], dtype: torch.dtype, weight_dtype: torch.dtype | None
) -> None:
    num_tokens, size = shape
    x, residual = random(num_tokens, size, dtype=dtype), random(num_tokens, size, dtype=dtype, seed=1)
    weight = random(size, dtype=weight_dtype or dtype, seed=2)
    assert_close(ops.rms_norm(x, weight, 1e-6), norm_exactly(x, weight))
    total = residual.double() + x.double()
    normed = ops.rms_norm(x, weight, 1e-6, residual=residual)
    assert_close(residual, total)
    assert_close(normed, norm_exactly(residual, weight))
    other, before = random(num_tokens, size, dtype=dtype, seed=3), residual.clone()
    summed = x + other
    normed = ops.rms_norm(x.clone(), weight, 1e-6, residual=residual, other=other)
    assert torch.equal(residual, (before.float() + summed.float()).to(dtype))
    assert_close(normed, norm_exactly(residual, weight))


@runs_here
@pytest.mark.parametrize("dtype", DTYPES)
def test_norm_of_heads_inside_wider_tokens(ops: Ops, dtype: torch.dtype) -> None:
    wide, weight = random(7, 9, 80, dtype=dtype), random(80, dtype=dtype, seed=1)
    assert_close(ops.rms_norm(wide[:, 2:7], weight, 1e-6), norm_exactly(wide[:, 2:7], weight))


@runs_here
@parametrize_grid(dtype=DTYPES, sections=[(), (5, 4, 3)], kind=[None, "switch", "dynamic"], num_tokens=[0, 1, 7])
def test_rotary_tables(dtype: torch.dtype, sections: Any, kind: Any, num_tokens: int) -> None:
    from seesay.kernels.rotary import make_rotary_tables

    short, long = (tuple(float(base**-i) for i in range(12)) for base in (1.4, 1.9))
    spec = RotarySpec(dim=24, sections=sections, inv_freq=short, long_inv_freq=long, scale=1.3)
    rng = np.random.default_rng(0)
    positions = torch.from_numpy(rng.integers(0, 30000, (3, num_tokens) if sections else num_tokens)).to(DEVICE)
    axes = torch.from_numpy(spec.section_of_component()).to(DEVICE) if sections else None
    stretches = torch.from_numpy(rng.uniform(0, 3, num_tokens) * rng.integers(0, 2, num_tokens)).to(DEVICE)
    near, far = (torch.tensor(half * 2, dtype=torch.float32, device=DEVICE) for half in (short, long))
    exponents = torch.from_numpy(spec.stretch_exponents()).to(DEVICE)
    scaling = {"switch": (far, None, stretches), "dynamic": (None, exponents, stretches)}.get(kind, (far, None, None))
    cos, sin = make_rotary_tables(positions, axes, near, *scaling, scale=1.3, dtype=dtype)
    points = positions[:, None] if axes is None else positions[axes].t()
    inv_freq = near
    if kind == "switch":
        inv_freq = torch.where(stretches[:, None] > 0, far, near)
    elif kind == "dynamic":
        inv_freq = (near.double() / 2 ** (stretches[:, None] * exponents)).float()
    angles = (points.float() * inv_freq).double()  # float32 angles are the contract
    sign = torch.tensor([-1.0] * 12 + [1.0] * 12, device=DEVICE)
    assert_close(cos, (angles.cos() * 1.3)[:, None])
    assert_close(sin, (angles.sin() * 1.3 * sign)[:, None])


@runs_here
@parametrize_grid(
    shape=[(5, 1, 1, 8, 8), (4, 14, 2, 80, 32), (1, 28, 4, 128, 128), (2, 4, 4, 96, 96)],
    dtype=DTYPES,
    is_normed=[False, True],
)
def test_rotate_and_write(ops: Ops, shape: tuple[int, int, int, int, int], dtype: torch.dtype, is_normed: bool) -> None:
    num_tokens, heads, kv_heads, dim, rotated = shape
    qkv = random(num_tokens, heads + 2 * kv_heads, dim, dtype=dtype)
    before, half, turned = qkv.double(), rotated // 2, heads + kv_heads
    angles = random(num_tokens, 1, half, dtype=torch.float32) * 3
    cos = torch.cat((angles.cos(), angles.cos()), -1).to(dtype)
    sin = torch.cat((-angles.sin(), angles.sin()), -1).to(dtype)
    weights = random(2, dim, dtype=dtype, seed=3)
    if is_normed:
        before[:, :heads] = norm_exactly(qkv[:, :heads], weights[0])
        before[:, heads:turned] = norm_exactly(qkv[:, heads:turned], weights[1])
    expected, c, s = before.clone(), cos[..., :half].double(), sin[..., half:].double()
    first, last = before[:, :turned, :half], before[:, :turned, half:rotated]
    expected[:, :turned, :half] = first * c - last * s
    expected[:, :turned, half:rotated] = last * c + first * s
    cache = torch.zeros(5, 3, 2, kv_heads, dim, dtype=dtype, device=DEVICE)
    slots = torch.tensor([14, 0, 7, 3, 9], device=DEVICE)[:num_tokens]
    norms = (weights[0], weights[1], 1e-6) if is_normed else None
    ops.rotate_and_write(qkv, cos, sin, LayerCache.plain(cache), slots, norms)
    assert_close(qkv, expected)
    assert torch.equal(cache.flatten(0, 1)[slots], qkv[:, heads:].view(num_tokens, 2, kv_heads, dim))
    assert cache.count_nonzero() == qkv[:, heads:].count_nonzero()


@runs_here
@pytest.mark.filterwarnings("ignore:invalid value")  # of NumPy, in the interpreter
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rotated", [8, 12])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_tokens_whose_keys_or_values_are_not_finite_are_marked(
    ops: Ops, dtype: torch.dtype, rotated: int, value: Any
) -> None:
    heads, kv_heads, dim = 5, 2, 12
    qkv = random(6, heads + 2 * kv_heads, dim, dtype=dtype)
    qkv[0, 0, 0] = value  # a query is nobody's fault
    qkv[1, heads, dim - 1] = value
    qkv[2, heads + 1, 0] = value
    qkv[4, -1, rotated // 2] = value
    angles = torch.zeros(6, 1, rotated, dtype=dtype, device=DEVICE)
    cache = torch.zeros(3, 2, 2, kv_heads, dim, dtype=dtype, device=DEVICE)
    slots, faults = torch.arange(6, device=DEVICE), torch.zeros(6, device=DEVICE)
    ops.rotate_and_write(qkv, angles + 1, angles, LayerCache.plain(cache), slots, None, faults)
    assert faults.isnan().tolist() == [False, True, True, False, True, False]
    assert not faults[[0, 3, 5]].any()


@runs_here
@parametrize_grid(
    shape=[(0, 8), (1, 1), (3, 1500), (9, 64)], activation=["silu", "gelu", "gelu_tanh", "clamped_silu"], dtype=DTYPES
)
@pytest.mark.filterwarnings("ignore:overflow encountered in exp:RuntimeWarning")  # of the interpreter: exp is infinite
def test_act_and_mul(ops: Ops, shape: tuple[int, int], activation: Activation, dtype: torch.dtype) -> None:
    num_tokens, size = shape
    x = random(num_tokens, 2 * size, dtype=dtype) * 4
    gate, up = x.double().chunk(2, -1)
    assert_close(ops.act_and_mul(x, activation), multiply_gate(gate, up, activation))


@runs_here
@pytest.mark.parametrize("activation", ["silu", "gelu", "gelu_tanh", "clamped_silu"])
@pytest.mark.parametrize("place", [0, 3])
def test_what_is_no_number_stays_none(ops: Ops, activation: Activation, place: int) -> None:
    x = random(2, 6, dtype=torch.float32)
    x[1, place] = float("nan")
    assert ops.act_and_mul(x, activation).isnan().tolist() == [[False] * 3, [True, False, False]]


@runs_here
@pytest.mark.parametrize("dtype", DTYPES)
def test_splice(ops: Ops, dtype: torch.dtype) -> None:
    hidden, embeddings = torch.zeros(6, 40, dtype=dtype, device=DEVICE), random(2, 40, dtype=torch.float32)
    ops.splice(hidden, torch.tensor([4, 1], device=DEVICE), embeddings)
    assert_close(hidden[[4, 1]], embeddings.double())
    assert not hidden[[0, 2, 3, 5]].any()
    ops.splice(hidden, torch.zeros(0, dtype=torch.int64, device=DEVICE), embeddings[:0])
    assert not hidden[0].any()


SMALL = [(1, 1), (1, 70), (1, 64), (5, 5), (9, 40), (2, 2)]
CASES = [
    Case(rows=SMALL, block_size=1),
    Case(rows=SMALL, block_size=7, dim=80, heads=(4, 4)),
    Case(rows=SMALL, dtype=torch.float16, dim=128, heads=(7, 1)),
    Case(rows=SMALL, has_sinks=True, dim=80, heads=(3, 1), window=20, soft_cap=5.0, dtype=torch.float16),
    Case(rows=[(1, 300), (1, 2), (70, 130)], dim=16, has_sinks=True, heads=(4, 2)),
    Case(rows=[(1, 300), (1, 2), (1, 150)], dim=16, has_sinks=True, window=140, heads=(2, 1)),
    Case(rows=[(20, 40)], dim=256, heads=(2, 1)),
    Case(rows=SMALL, slopes=torch.float32),
    Case(rows=[(1, 300), (1, 2), (70, 400)], dim=16, heads=(4, 2), slopes=torch.bfloat16),
    Case(rows=[(1, 9), (70, 130)], heads=(2, 1), dim=16, run=50, window=20, block_size=16),
    Case(rows=[(1, 90), (1, 40), (70, 130), (20, 20)], heads=(4, 2), dim=16, prompts=(50, 40, 100, 20)),
    Case(
        rows=[(1, 90), (1, 40), (70, 130), (20, 20)],
        heads=(4, 2),
        dim=16,
        prompts=(50, 40, 100, 20),
        window=9,
        block_size=16,
    ),
    Case(rows=[(1, 300), (1, 2), (1, 64), (1, 65), (70, 130)], dim=16, heads=(4, 2), window=Chunk(64)),
    Case(rows=[(1, 300), (70, 130)], dim=16, heads=(2, 1), window=Chunk(50), has_sinks=True, block_size=16),
    Case(rows=[], heads=(2, 1)),
]
MORE_CASES = [
    Case(rows=SMALL),
    Case(rows=SMALL, block_size=48, dim=16, heads=(14, 2)),
    Case(rows=SMALL, window=20, block_size=16),
    Case(rows=SMALL, window=64, soft_cap=2.0),
    Case(rows=[(70, 130)], heads=(2, 1), dim=16, dtype=torch.float16),
    Case(rows=SMALL, run=7),
    Case(rows=SMALL, block_size=16, dim=96, heads=(3, 1)),
    Case(rows=SMALL, block_size=128, dim=64),
    Case(rows=SMALL, window=1),
    Case(rows=SMALL, window=Chunk(1)),
    Case(rows=[(1, 300), (70, 130)], dim=16, heads=(2, 1), window=Chunk(20), run=50),
    Case(rows=SMALL, soft_cap=30.0, block_size=5),
    Case(rows=SMALL, dtype=torch.bfloat16, dim=128, heads=(7, 1)),
    Case(rows=SMALL, dtype=torch.float16, dim=80, block_size=16, window=33),
    Case(rows=[(1, 17)], heads=(20, 1)),
    Case(rows=SMALL, slopes=torch.float32, heads=(5, 5), window=20, soft_cap=5.0, has_sinks=True, dim=80),
    Case(rows=SMALL, slopes=torch.float32, dtype=torch.float16, dim=128, block_size=16, run=7),
    Case(rows=SMALL, has_sinks=True),
    Case(rows=[(1, 300), (1, 2)], dim=16, heads=(2, 1)),
    Case(rows=[(1, 300), (1, 2), (1, 150)], dim=16, window=140, heads=(2, 1)),
    Case(rows=[(70, 130)], heads=(2, 1), dim=16),
    Case(rows=[(100, 100), (60, 130)], heads=(4, 2), dim=16, run=90, dtype=torch.float16),
]


def large_cases() -> list[Case]:
    fixed = [
        Case(rows=[(9000, 9000)], heads=(28, 4), dim=128, dtype=torch.bfloat16),
        Case(rows=[(1, 131072), (1, 5), (1, 65537)], heads=(28, 4), dim=128, dtype=torch.bfloat16),
        Case(rows=[(1, 131071)], heads=(28, 4), dim=128, dtype=torch.bfloat16, window=4096),
        Case(rows=[(1, 131071), (1, 9), (300, 9000)], heads=(64, 8), dim=64, dtype=torch.bfloat16, has_sinks=True),
        Case(rows=[(200, 131072)], heads=(4, 2), dim=128, dtype=torch.bfloat16),
        Case(rows=[(1, 900)] * 256, heads=(28, 4), dim=128, dtype=torch.bfloat16),
        Case(rows=[(1, 40000), *[(1, 30)] * 200, (700, 700)], heads=(28, 4), dim=128, dtype=torch.bfloat16),
        Case(rows=[(1, 1), (2000, 3000)], heads=(8, 8), dim=256, dtype=torch.float16, soft_cap=50.0, window=1000),
        Case(rows=[(500, 700)], heads=(8, 1), dim=256),
        Case(rows=[(1, 900), (500, 700)], heads=(64, 1), dim=128, dtype=torch.bfloat16),
        Case(rows=[(1, 9000), (500, 4000)], heads=(40, 40), dim=128, dtype=torch.bfloat16, slopes=torch.float32),
        Case(rows=[(1, 9000), (500, 4000)], heads=(64, 64), dim=64, dtype=torch.bfloat16, slopes=torch.bfloat16),
    ]
    return fixed + random_cases(1, 40)


@runs_here
@pytest.mark.parametrize(
    "case",
    [*CASES, *(pytest.param(case, marks=pytest.mark.slow) for case in MORE_CASES + (large_cases() if ON_GPU else []))],
    ids=lambda case: case.name,
)
def test_attention(ops: Ops, case: Any) -> None:
    if IS_INTERPRETED and case.dtype == torch.bfloat16:
        pytest.skip("the interpreter multiplies matrices of bfloat16 wrongly")
    check_attention(ops, case, float32_factor=4)


@runs_here
def test_many_rows_and_one_much_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    from seesay.llm.ops import triton_attention
    from seesay.llm.ops.triton_ops import TritonOps

    monkeypatch.setattr(triton_attention, "WHOLE_PROGRAMS", 8)
    monkeypatch.setattr(triton_attention, "TARGET_PROGRAMS", 12)
    test_attention(TritonOps(), Case(rows=[(1, 300), (1, 3), (1, 70), (1, 64)], dim=16, heads=(6, 2), has_sinks=True))


@runs_here
@pytest.mark.parametrize("window", [None, 100, 640])
@pytest.mark.parametrize("num_rows", [1, 3, 40, 300])
def test_contexts_are_divided_without_gaps(num_rows: int, window: int | None) -> None:
    from seesay.llm.ops import triton_attention

    rng = np.random.default_rng(num_rows)
    lens = rng.integers(1, 400, num_rows)
    lens[rng.integers(num_rows)] = 130_001
    device_rows = DecodeRows(
        kv_lens=torch.from_numpy(lens.astype(np.int32)).to(DEVICE),
        block_table=torch.zeros(num_rows, 1, dtype=torch.int32, device=DEVICE),
    )
    work = triton_attention.divide(triton_attention.make_plan(device_rows, DEVICE), 4, 2, 16, window, 64)
    items, parts = work.items.cpu().numpy(), work.parts.cpu().numpy()
    num_used = int(parts[:, 1].sum())
    assert num_used <= len(items) and not items[num_used:, 3].any() and items[:num_used, 3].all()
    for row, length in enumerate(lens):
        first, count = parts[row]
        own = items[first : first + count]
        assert (own[:, 0] == row).all() and (own[:, 3] == count).all()
        assert own[-1, 2] == length and (own[1:, 1] == own[:-1, 2]).all() and (own[:, 1] < own[:, 2]).all()
        assert own[0, 1] == (0 if window is None else max(length - window, 0) // 64 * 64)
    if window is None and num_rows < 100:
        sizes = items[:num_used, 2] - items[:num_used, 1]
        assert sizes.max() <= 2 * max(64, lens.sum() / len(items)) and num_used >= num_rows + 30


@runs_here
def test_rows_of_similar_lengths_stay_whole_where_there_are_many() -> None:
    from seesay.llm.ops import triton_attention

    lens = torch.linspace(500, 900, 300).to(DEVICE, torch.int32)
    table = torch.zeros(300, 1, dtype=torch.int32, device=DEVICE)
    for longest, is_whole in ((900, True), (5000, False)):
        lens[-1] = longest
        plan = triton_attention.make_plan(DecodeRows(kv_lens=lens, block_table=table), DEVICE)
        parts = triton_attention.divide(plan, 4, 2, 16, None, 64).parts
        assert bool((parts[:, 1] == 1).all()) == is_whole


DEVICE_ROWS = [*itertools.product((None, 100), (False, True))] if ON_GPU else [(None, False), (100, True)]


@runs_here
@pytest.mark.parametrize(("window", "has_sinks"), DEVICE_ROWS)
def test_rows_that_only_the_device_knows(window: int | None, has_sinks: bool) -> None:
    """What is computed, on a GPU as a graph, from other lengths and blocks than those it was made with."""
    from seesay.llm.ops.triton_ops import TritonOps

    lens = ([7, 300, 1, 64, 65], [1, 1, 200, 1, 1], [400, 399, 2, 128, 1])
    cases = [Case(rows=[(1, n) for n in own], dim=16, heads=(4, 2), window=window, has_sinks=has_sinks) for own in lens]
    built = [build(case) for case in cases]
    kv_lens = torch.ones(5, dtype=torch.int32, device=DEVICE)
    rows = DecodeRows(kv_lens=kv_lens, block_table=torch.zeros(5, 8, dtype=torch.int32, device=DEVICE))
    query = torch.zeros(5, 4, 16, device=DEVICE)
    cache = torch.zeros(max(len(own_cache.data) for _, own_cache, _, _ in built), 64, 2, 2, 16, device=DEVICE)
    options, ops = cases[0].options, TritonOps()

    def run() -> torch.Tensor:
        plan = ops.plan_attention(rows, windows=frozenset([window]), device=DEVICE, dtype=torch.float32)
        return ops.attend(query, LayerCache.plain(cache), plan, **options)

    output = run()
    if ON_GPU:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            output = run()
    for own_query, own_cache, layout, expected in built:
        width = layout.block_table.shape[1]
        kv_lens.copy_(torch.from_numpy(layout.kv_lens))
        rows.block_table[:, :width] = torch.from_numpy(layout.block_table)
        query.copy_(own_query)
        cache[: len(own_cache.data)] = own_cache.data
        if ON_GPU:
            output.fill_(float("nan"))
            graph.replay()
        else:
            output = run()
        assert_close(output, expected, factor=4)


@pytest.mark.skipif(not HAS_TRITON, reason="Triton is not installed")
@pytest.mark.skipif(not ON_GPU, reason="needs a CUDA GPU")
def test_a_gpu_gets_the_triton_operations() -> None:
    assert type(pick_ops(DEVICE)).__name__ == "TritonOps"
