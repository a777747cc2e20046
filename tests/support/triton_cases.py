"""Where tests of Triton kernels run: on a GPU as they are, elsewhere in Triton's interpreter, which must be chosen
before Triton is imported. `kernels/test_interpreter.py` runs every test file there that imports from this module."""

from __future__ import annotations

import importlib.util
import itertools
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import fast_interpreter
import pytest
import torch
from pairs import every_pair, mark_sweep

HAS_TRITON = importlib.util.find_spec("triton") is not None
IS_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
ON_GPU = torch.cuda.is_available() and not IS_INTERPRETED
if HAS_TRITON and IS_INTERPRETED:
    fast_interpreter.hasten()
DEVICE = torch.device("cuda" if ON_GPU else "cpu")
DTYPES = [torch.float32, torch.float16, *([] if IS_INTERPRETED else [torch.bfloat16])]
"""The interpreter multiplies matrices of bfloat16 wrongly, and one type of 16 bits goes the way of the other."""
TOLERANCES = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 1.5e-2}
"""Largest relative error ‖ours - exact‖ / ‖exact‖ of one operation."""

MARKS = [pytest.mark.gpu] if ON_GPU else []
runs_here = pytest.mark.skipif(not (HAS_TRITON and (ON_GPU or IS_INTERPRETED)), reason="needs a GPU or the interpreter")
on_gpu = pytest.mark.skipif(not ON_GPU, reason="needs a GPU")
random_seeds = pytest.mark.parametrize(
    "seed", range(8) if ON_GPU else [pytest.param(seed, marks=pytest.mark.slow) for seed in range(4)]
)
"""For shapes and options that are drawn at random. Each draw compiles a kernel; in the interpreter they are slow."""


def parametrize_grid(is_possible: Callable[..., bool] = lambda *_: True, **axes: Iterable[Any]) -> pytest.MarkDecorator:
    """Parametrize a test by the possible combinations of these parameters: by all on a GPU. Elsewhere, as the
    interpreter is slow, by so many that every two values meet, or in tests that always run, every value is there."""
    if not ON_GPU:
        values = [list(axis) for axis in axes.values()]
        return pytest.mark.parametrize(tuple(axes), mark_sweep(every_pair(values, is_possible)))
    return pytest.mark.parametrize(
        tuple(axes), [each for each in itertools.product(*axes.values()) if is_possible(*each)]
    )


def random(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + sum(shape))).to(DEVICE, dtype)


def assert_close(
    ours: torch.Tensor,
    exact: torch.Tensor,
    factor: float = 1.0,
    *,
    tolerances: Mapping[torch.dtype, float] = TOLERANCES,
    least_norm: float = 1e-30,
) -> None:
    """Compare with float64. least_norm: ‖exact‖ counts as at least this."""
    assert ours.shape == exact.shape
    if ours.numel():
        error = (ours.double() - exact).norm() / exact.norm().clamp(min=least_norm)
        assert error <= factor * tolerances[ours.dtype], f"relative error {error:.2e}"


def make_scores(num_rows: int, size: int, spread: float, dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(size + int(10 * spread))
    return (torch.randn(num_rows, size, generator=generator) * spread).to(dtype)
