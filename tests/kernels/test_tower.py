"""The towers' kernels against float64. On a GPU the tests run as they are, elsewhere in Triton's interpreter:
`test_interpreter.py` runs this file."""

from __future__ import annotations

import itertools

import pytest
import torch
from triton_cases import DEVICE, DTYPES, MARKS, assert_close, parametrize_grid, random, runs_here

pytestmark = MARKS


def rotate_exactly(qkv: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    """The turned queries and keys of qkv: float64 [P, 2, heads, head_dim]."""
    half = qkv.shape[-1] // 2
    first, last = qkv[:, :2, :, :half].double(), qkv[:, :2, :, half:].double()
    cos, sin = (f(angles.double())[:, None, None] for f in (torch.cos, torch.sin))
    return torch.cat((first * cos - last * sin, last * cos + first * sin), dim=-1)


@runs_here
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("num_heads", "head_dim"), [(16, 80), (3, 6), (9, 32)])
def test_rotation(num_heads: int, head_dim: int, dtype: torch.dtype) -> None:
    from seesay.kernels import tower

    qkv = random(5, 3, num_heads, head_dim, dtype=dtype)
    angles = random(5, head_dim // 2, dtype=torch.float32, seed=1) * 4
    expected, value = rotate_exactly(qkv, angles), qkv[:, 2].clone()
    tower.rotate_(qkv, angles.cos(), angles.sin())
    assert_close(qkv[:, :2], expected)
    assert torch.equal(qkv[:, 2], value)


def attend_exactly(qkv: torch.Tensor, starts: list[int]) -> torch.Tensor:
    parts = []
    for start, stop in itertools.pairwise(starts):
        query, key, value = qkv[start:stop].double().unbind(1)
        scores = torch.einsum("qhd,khd->hqk", query, key) / qkv.shape[-1] ** 0.5
        parts.append(torch.einsum("hqk,khd->qhd", scores.softmax(-1), value))
    return torch.cat(parts)


@runs_here
@parametrize_grid(lengths=[[64, 64, 16, 8, 4, 64], [1], [4, 4, 3]], head_dim=[80, 32, 6], dtype=DTYPES)
def test_attention_inside_windows(lengths: list[int], head_dim: int, dtype: torch.dtype) -> None:
    from seesay.kernels import tower

    starts = [0, *itertools.accumulate(lengths)]
    qkv = random(starts[-1], 3, 3, head_dim, dtype=dtype) * 2
    angles = random(starts[-1], head_dim // 2, dtype=torch.float32, seed=1) * 4
    table = torch.tensor(starts, dtype=torch.int32, device=DEVICE)
    before = qkv.clone()
    found = tower.attend_windows(qkv, angles.cos(), angles.sin(), table, max(lengths))
    assert torch.equal(qkv, before)
    # Turned queries and keys are rounded to the type of qkv, as the towers do.
    qkv[:, :2] = rotate_exactly(qkv, angles).to(dtype)
    assert_close(found, attend_exactly(qkv, starts), factor=4 if dtype == torch.float32 else 1)


@runs_here
@parametrize_grid(lengths=[[64, 64, 16, 129], [1], [128, 3, 192]], head_dim=[80, 64, 6], dtype=DTYPES)
def test_attention_inside_segments(lengths: list[int], head_dim: int, dtype: torch.dtype) -> None:
    from seesay.kernels import tower

    starts = [0, *itertools.accumulate(lengths)]
    qkv = random(starts[-1], 3, 3, head_dim, dtype=dtype) * 2
    table = torch.tensor(starts, dtype=torch.int32, device=DEVICE)
    found = tower.attend_segments(qkv, table, max(lengths))
    assert_close(found, attend_exactly(qkv, starts), factor=4 if dtype == torch.float32 else 1)


@runs_here
@parametrize_grid(dtype=DTYPES, size=[1280, 96, 7], is_centered=[True, False], update=["none", "plain", "scaled"])
def test_norm_of_a_sum(dtype: torch.dtype, size: int, is_centered: bool, update: str) -> None:
    from seesay.kernels import tower

    x = random(2, 3, size, dtype=dtype) + 1
    weight, bias, scale = (random(size, dtype=dtype, seed=seed) for seed in (1, 2, 3))
    added = None if update == "none" else random(2, 3, size, dtype=dtype, seed=4)
    total = x.double()
    if added is not None:
        total = total + added.double() * (scale.double() if update == "scaled" else 1)
    found = tower.norm(
        x, added, weight, bias if is_centered else None, 1e-5, scale=scale if update == "scaled" else None
    )
    assert_close(x, total)
    rounded = x.double()
    if is_centered:
        exact = torch.nn.functional.layer_norm(rounded, (size,), weight.double(), bias.double(), 1e-5)
    else:
        exact = rounded / (rounded.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * weight.double()
    assert_close(found, exact)


@runs_here
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("is_centered", [True, False])
def test_norm_with_an_offset(dtype: torch.dtype, is_centered: bool) -> None:
    from seesay.kernels import tower

    x, weight, bias = random(5, 96, dtype=dtype), random(96, dtype=dtype, seed=1), random(96, dtype=dtype, seed=2)
    offset, before = random(96, dtype=torch.float32, seed=3), x.clone()
    total = x.double() + offset.double()
    if is_centered:
        exact = torch.nn.functional.layer_norm(total, (96,), weight.double(), bias.double(), 1e-5)
    else:
        exact = total / (total.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * weight.double()
    assert_close(tower.norm(x, None, weight, bias if is_centered else None, 1e-5, offset=offset), exact)
    assert torch.equal(x, before)


@runs_here
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(3, 5), (2, 4096), (1, 4097), (0, 8)])
def test_quick_gelu(dtype: torch.dtype, shape: tuple[int, int]) -> None:
    from seesay.kernels import tower

    x = random(*shape, dtype=dtype)
    exact = x.double() * torch.sigmoid(1.702 * x.double())
    found = tower.quick_gelu_(x)
    assert found is x
    if x.numel():
        assert_close(found, exact)
