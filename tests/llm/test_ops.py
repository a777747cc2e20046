"""The operations against plain formulas. Every implementation must pass these."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from seesay.llm.memory.kv_layout import LayerCache
from seesay.llm.ops import RowLayout, pick_ops, torch_attention
from seesay.llm.ops.interface import Activation
from seesay.llm.plans.window import Chunk, Window

DEVICES = [
    "cpu",
    pytest.param(
        "cuda",
        marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU")],
    ),
]
HEADS, KV_HEADS, DIM, BLOCK = 6, 2, 8, 4


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> Any:
    torch.manual_seed(0)
    return torch.device(request.param)


def test_each_decoder_has_operations_of_its_own(device: Any) -> None:
    assert pick_ops(device) is not pick_ops(device)


def test_rms_norm_and_its_sum(device: Any) -> None:
    ops = pick_ops(device)
    x, residual = torch.randn(5, 12, device=device), torch.randn(5, 12, device=device)
    weight = torch.randn(12, device=device)
    expected_sum = x + residual

    def norm(v: Any) -> Any:
        return v / (v.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * weight

    torch.testing.assert_close(ops.rms_norm(x, weight, 1e-5), norm(x))
    torch.testing.assert_close(ops.rms_norm(x, weight, 1e-5, residual=residual), norm(expected_sum))
    torch.testing.assert_close(residual, expected_sum)


@pytest.mark.parametrize("rotated", [DIM, 4])
@pytest.mark.parametrize("is_normed", [False, True])
def test_rotate_turns_pairs_and_writes_keys_and_values(device: Any, rotated: Any, is_normed: bool) -> None:
    qkv = torch.randn(5, 3 + 2 * KV_HEADS, DIM, device=device)
    cache = torch.zeros(3, BLOCK, 2, KV_HEADS, DIM, device=device)
    slots = torch.tensor([9, 2, 11, 0, 4], device=device)
    angles = torch.rand(5, 1, rotated // 2, device=device) * 6
    cos = torch.cat((angles.cos(), angles.cos()), -1)
    sin = torch.cat((-angles.sin(), angles.sin()), -1)
    weights = torch.rand(2, DIM, device=device) + 0.5
    before, turned = qkv.clone(), 3 + KV_HEADS
    if is_normed:
        scale = (before[:, :turned].pow(2).mean(-1, keepdim=True) + 1e-6).rsqrt()
        before[:, :3] *= scale[:, :3] * weights[0]
        before[:, 3:turned] *= scale[:, 3:] * weights[1]
    expected, half = before.clone(), rotated // 2
    a, b = before[:, :turned, :half], before[:, :turned, half:rotated]
    expected[:, :turned, :half] = a * angles.cos() - b * angles.sin()
    expected[:, :turned, half:rotated] = b * angles.cos() + a * angles.sin()
    norms = (weights[0], weights[1], 1e-6) if is_normed else None
    pick_ops(device).rotate_and_write(qkv, cos, sin, LayerCache.plain(cache), slots, norms)
    torch.testing.assert_close(qkv, expected)
    torch.testing.assert_close(cache.flatten(0, 1)[slots], expected[:, 3:].view(5, 2, KV_HEADS, DIM))
    assert cache.count_nonzero() == 5 * 2 * KV_HEADS * DIM


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_tokens_whose_keys_or_values_are_not_finite_are_marked(device: Any, value: Any) -> None:
    qkv = torch.randn(6, 3 + 2 * KV_HEADS, DIM, device=device)
    qkv[0, 0, 0] = value  # a query is nobody's fault
    qkv[1, 3, DIM - 1] = value
    qkv[4, -1, 0] = value
    angles = torch.zeros(6, 1, DIM, device=device)
    cache, faults = torch.zeros(2, 4, 2, KV_HEADS, DIM, device=device), torch.zeros(6, device=device)
    slots = torch.arange(6, device=device)
    pick_ops(device).rotate_and_write(qkv, angles + 1, angles, LayerCache.plain(cache), slots, None, faults)
    assert faults.isnan().tolist() == [False, True, False, False, True, False]
    assert not faults[[0, 2, 3, 5]].any()


@pytest.mark.parametrize(
    ("activation", "formula"),
    [
        ("silu", lambda x: x / (1 + math.exp(-x))),
        ("gelu", lambda x: 0.5 * x * (1 + math.erf(x / 2**0.5))),
        ("gelu_tanh", lambda x: 0.5 * x * (1 + math.tanh((2 / math.pi) ** 0.5 * (x + 0.044715 * x**3)))),
    ],
)
def test_activation_times_the_other_half(device: Any, activation: Activation, formula: Any) -> None:
    x = torch.randn(3, 10, device=device) * 3
    expected = [[formula(gate) * up for gate, up in zip(row[:5], row[5:], strict=True)] for row in x.tolist()]
    torch.testing.assert_close(pick_ops(device).act_and_mul(x, activation), torch.tensor(expected, device=device))


def test_clamped_activation_times_one_more_than_the_other_half(device: Any) -> None:
    x = torch.tensor([[-30.0, 0.5, 9.0, 2.0, 3.0, -8.0, 8.0, 1.0]], device=device)
    gates, ups = (-30.0, 0.5, 7.0, 2.0), (3.0, -7.0, 7.0, 1.0)
    expected = [gate / (1 + math.exp(-1.702 * gate)) * (up + 1) for gate, up in zip(gates, ups, strict=True)]
    found = pick_ops(device).act_and_mul(x, "clamped_silu")
    torch.testing.assert_close(found, torch.tensor([expected], device=device))


def test_splice_writes_rows(device: Any) -> None:
    hidden, rows = torch.zeros(6, 3, device=device), torch.tensor([4, 1], device=device)
    pick_ops(device).splice(hidden, rows, torch.arange(6.0, device=device).view(2, 3))
    assert hidden[4].tolist() == [0, 1, 2] and hidden[1].tolist() == [3, 4, 5] and hidden.count_nonzero() == 5


def attend_plainly(query: Any, keys: Any, values: Any, *, scale: Any, window: Any, soft_cap: Any) -> Any:
    """One row: query [n, H, D] over keys and values [L, G, D]; its tokens are the last n of L."""
    n, length = len(query), len(keys)
    output = torch.empty_like(query)
    for i in range(n):
        own = length - n + i
        first = (
            0 if window is None else max(0, own - window + 1) if isinstance(window, int) else own - own % window.size
        )
        for head in range(HEADS):
            g = head // (HEADS // KV_HEADS)
            scores = keys[first : own + 1, g] @ query[i, head] * scale
            if soft_cap is not None:
                scores = soft_cap * torch.tanh(scores / soft_cap)
            output[i, head] = scores.softmax(0) @ values[first : own + 1, g]
    return output


def run_attention(device: Any, rows: Any, *, window: Any, soft_cap: Any, poison: Any = False) -> Any:
    """`rows` are (new tokens, all tokens). Returns ours and the plain one's."""
    ops = pick_ops(device)
    rows = sorted(rows, key=lambda row: row[0] > 1)
    num_blocks = [-(-length // BLOCK) for _, length in rows]
    ids = np.random.default_rng(0).permutation(sum(num_blocks) + 3)
    cache = torch.zeros(len(ids), BLOCK, 2, KV_HEADS, DIM, device=device)
    if poison:
        cache[torch.from_numpy(ids[sum(num_blocks) :].copy()).to(device)] = float("nan")
    table = np.zeros((len(rows), max(num_blocks)), dtype=np.int64)
    queries, expected, used = [], [], 0
    for index, ((num_new, length), count) in enumerate(zip(rows, num_blocks, strict=True)):
        own = ids[used : used + count]
        used += count
        table[index, :count] = own
        table[index, count:] = own[-1]
        pairs = torch.randn(length, 2, KV_HEADS, DIM, device=device)
        slots = own[np.arange(length) // BLOCK] * BLOCK + np.arange(length) % BLOCK
        cache.flatten(0, 1)[torch.from_numpy(slots).to(device)] = pairs
        query = torch.randn(num_new, HEADS, DIM, device=device)
        queries.append(query)
        options = {"scale": 0.4, "window": window, "soft_cap": soft_cap}
        expected.append(attend_plainly(query, pairs[:, 0], pairs[:, 1], **options))
    layout = RowLayout(
        cu_seqlens_q=np.cumsum([0] + [n for n, _ in rows]),
        kv_lens=np.array([length for _, length in rows]),
        block_table=table,
        block_size=BLOCK,
        num_decode=sum(n == 1 for n, _ in rows),
    )
    plan = ops.plan_attention(layout, windows=frozenset([window]), device=device, dtype=torch.float32)
    output = ops.attend(torch.cat(queries), LayerCache.plain(cache), plan, scale=0.4, window=window, soft_cap=soft_cap)
    return output, torch.cat(expected)


ROWS = {
    "one token": [(1, 1)],
    "decode": [(1, 9), (1, 1), (1, 16), (1, 30)],
    "whole prompt": [(13, 13)],
    "chunk": [(7, 21)],
    "mixed": [(1, 5), (7, 7), (3, 19), (1, 17), (20, 20)],
}


@pytest.mark.parametrize("rows", ROWS.values(), ids=ROWS)
@pytest.mark.parametrize("window", [None, 1, 6, 100, Chunk(1), Chunk(6), Chunk(100)])
@pytest.mark.parametrize("soft_cap", [None, 2.0])
def test_attention_is_the_plain_formula(device: Any, rows: Any, window: Window | None, soft_cap: float | None) -> None:
    ours, expected = run_attention(device, rows, window=window, soft_cap=soft_cap)
    torch.testing.assert_close(ours, expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("window", [None, 6, Chunk(6)])
def test_attention_in_small_groups_and_pieces_is_the_same(
    device: Any, monkeypatch: pytest.MonkeyPatch, window: Window | None
) -> None:
    monkeypatch.setattr(torch_attention, "MAX_GATHER_TOKENS", 20)
    monkeypatch.setattr(torch_attention, "MAX_MASK_ELEMENTS", 50)
    monkeypatch.setattr(torch_attention, "MAX_KEPT_MASK_ELEMENTS", 0)
    ours, expected = run_attention(device, [*ROWS["decode"], *ROWS["mixed"]], window=window, soft_cap=None)
    torch.testing.assert_close(ours, expected, atol=1e-5, rtol=1e-4)


def test_what_others_left_in_the_cache_is_never_read(device: Any) -> None:
    ours, expected = run_attention(device, ROWS["mixed"], window=None, soft_cap=None, poison=True)
    assert math.isfinite(ours.sum().item())
    torch.testing.assert_close(ours, expected, atol=1e-5, rtol=1e-4)
