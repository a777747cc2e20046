"""Attention of the deterministic mode: right, and for a token the same bits however a sequence is cut into steps."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from llm.attention_cases import Case, build, random_cases
from triton_cases import DEVICE, IS_INTERPRETED, MARKS, ON_GPU, random_seeds, runs_here

from seesay.llm.ops import DecodeRows, Ops, RowLayout
from seesay.llm.plans.window import Chunk

pytestmark = MARKS

KINDS = [
    pytest.param("torch", marks=pytest.mark.skipif(ON_GPU or IS_INTERPRETED, reason="is for the CPU")),
    pytest.param("triton", marks=runs_here),
]
CASES = [
    Case(rows=[(1, 300), (40, 300)], heads=(6, 2)),
    Case(rows=[(1, 260), (9, 600)], heads=(7, 1), dim=64, dtype=torch.float16),
    Case(rows=[(1, 300), (40, 300)], block_size=13, has_sinks=True, soft_cap=20.0),
    Case(rows=[(1, 300), (40, 300)], window=37, slopes=torch.float32),
    Case(rows=[(30, 310)], window=Chunk(50), dtype=torch.float16),
    Case(rows=[(64, 300)], run=19),
    Case(rows=[(1, 300), (40, 300)], format="int8", dtype=torch.float16),
    Case(rows=[(1, 300), (40, 300)], format="int4", dtype=torch.float16),
    Case(rows=[(1, 300), (40, 300)], format="fp8", has_sinks=True),
]


def make_ops(kind: str) -> Ops:
    if kind == "torch":
        from seesay.llm.ops.deterministic_ops import DeterministicOps

        return DeterministicOps()
    from seesay.llm.ops.deterministic_triton_ops import DeterministicTritonOps

    return DeterministicTritonOps()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_attention(kind: str, case: Case) -> None:
    if case.format != "plain" and kind == "torch":
        case = replace(case, dtype=torch.float32)
    check_deterministic(make_ops(kind), case)


@pytest.mark.parametrize("kind", KINDS)
@random_seeds
def test_attention_of_random_rows(kind: str, seed: int) -> None:
    for case in random_cases(seed, 4, longest=3000 if ON_GPU else 600):
        if case.rows:
            check_deterministic(make_ops(kind), case)


def check_deterministic(ops: Ops, case: Case) -> None:
    query, cache, layout, expected = build(case, is_clean=True)
    found = attend(ops, query, cache, layout, case)
    error = (found.double() - expected).norm() / expected.norm().clamp(min=1e-30)
    assert error < {torch.float32: 1e-4, torch.float16: 4e-3, torch.bfloat16: 2e-2}[case.dtype]


def attend(ops: Ops, query: torch.Tensor, cache: Any, layout: RowLayout | DecodeRows, case: Case) -> torch.Tensor:
    plan = ops.plan_attention(layout, windows=frozenset([case.window]), device=DEVICE, dtype=case.dtype)
    return ops.attend(query, cache, plan, **case.options)


def has_equal_rows() -> bool:
    """Whether a row of a product of NumPy has the same bits at any place."""
    numbers = np.random.default_rng(0).standard_normal((2, 32, 32), dtype=np.float32)
    return np.array_equal(np.roll(numbers[0] @ numbers[1], 5, axis=0), np.roll(numbers[0], 5, axis=0) @ numbers[1])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", [case for case in CASES if case.run is None], ids=lambda case: case.name)
def test_a_token_has_the_same_bits_in_steps_of_any_size(kind: str, case: Case) -> None:
    """The last tokens of a sequence, in one step, in pieces, and one by one beside other rows."""
    if kind == "triton" and DEVICE.type == "cpu" and not has_equal_rows():
        pytest.skip(
            "the interpreter multiplies by NumPy, whose products depend on the place of a row on this processor"
        )
    ops, (num_new, length) = make_ops(kind), case.rows[-1]
    query, cache, layout, _ = build(replace(case, rows=[(num_new, length)]), is_clean=True)
    whole = attend(ops, query, cache, layout, case)
    table = layout.block_table
    for sizes in ([7, num_new - 7], [1] * 3 + [num_new - 3], [num_new - 1, 1]):
        start = 0
        for size in sizes:
            part = make_layout([size], [length - num_new + start + size], table, case)
            found = attend(ops, query[start : start + size].contiguous(), cache, part, case)
            assert torch.equal(found, whole[start : start + size]), (sizes, start)
            start += size
    ends = [length - num_new + 1, length, length - 3]
    places = [end - (length - num_new) - 1 for end in ends]
    found = attend(ops, query[places].contiguous(), cache, make_layout([1] * 3, ends, table, case), case)
    assert torch.equal(found, whole[places])


def make_layout(counts: list[int], kv_lens: list[int], table: np.ndarray, case: Case) -> RowLayout:
    return RowLayout(
        cu_seqlens_q=np.cumsum([0, *counts]),
        kv_lens=np.array(kv_lens, np.int64),
        block_table=np.repeat(table, len(counts), axis=0),
        block_size=case.block_size,
        num_decode=counts.count(1),
    )


@runs_here
@pytest.mark.parametrize("case", [CASES[0], CASES[2], CASES[7]], ids=lambda case: case.name)
def test_many_and_few_decode_rows_and_those_of_a_graph_have_the_same_bits(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that are divided among programs, and rows that are not, with lengths that only the device knows."""
    from seesay.llm.ops import fixed_triton_attention

    ops, length = make_ops("triton"), case.rows[-1][1]
    query, cache, layout, _ = build(replace(case, rows=[(1, length)]), is_clean=True)
    divided = attend(ops, query, cache, layout, case)
    wide = np.pad(layout.block_table, ((0, 0), (0, 100)), mode="edge").astype(np.int32)
    rows = DecodeRows(
        kv_lens=torch.tensor([length], dtype=torch.int32, device=DEVICE), block_table=torch.from_numpy(wide).to(DEVICE)
    )
    assert torch.equal(attend(ops, query, cache, rows, case), divided)
    monkeypatch.setattr(fixed_triton_attention, "MOST_SPLITS", 0)
    assert torch.equal(attend(ops, query, cache, rows, case), divided)
