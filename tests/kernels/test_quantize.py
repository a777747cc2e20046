"""Rows in FP8. On a GPU the tests run as they are, elsewhere in Triton's interpreter: the last test runs this file once
more in a process of its own."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from seesay.device import fp8

HAS_TRITON = importlib.util.find_spec("triton") is not None
IS_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
ON_GPU = torch.cuda.is_available() and not IS_INTERPRETED
DEVICE = torch.device("cuda" if ON_GPU else "cpu")
pytestmark = [pytest.mark.gpu] if ON_GPU else []
runs_here = pytest.mark.skipif(not (HAS_TRITON and (ON_GPU or IS_INTERPRETED)), reason="needs a GPU or the interpreter")


@runs_here
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("num_rows", "size"), [(1, 7), (5, 300), (3, 9000), (0, 16)])
def test_numbers_that_fp8_has_come_back(dtype: torch.dtype, num_rows: int, size: int) -> None:
    """The interpreter does not round as a GPU does, so these need no rounding."""
    from seesay.kernels.quantize import quantize_rows

    generator = torch.Generator().manual_seed(size)
    numbers = torch.randn(num_rows, size, generator=generator).mul(20).to(torch.float8_e4m3fn).float()
    numbers[:, size // 2] = -448.0
    scale = 2.0 ** -torch.arange(num_rows)[:, None]
    x = torch.zeros(num_rows, size + 3, dtype=dtype)[:, :size].copy_(numbers * scale).to(DEVICE)
    found, found_scale = quantize_rows(x, 448.0)
    assert torch.equal(found_scale.cpu(), scale) and torch.equal(found.float().cpu(), numbers)


@runs_here
def test_rows_of_zeros_stay_zeros() -> None:
    from seesay.kernels.quantize import quantize_rows

    found, scale = quantize_rows(torch.zeros(2, 40, device=DEVICE), 448.0)
    assert not found.float().any() and (scale > 0).all()


@pytest.mark.gpu
@pytest.mark.skipif(not ON_GPU, reason="needs a GPU")
@pytest.mark.parametrize("size", [40, 3584, 18944])
def test_equals_the_plain_version(size: int) -> None:
    from seesay.kernels.quantize import quantize_rows

    x = torch.randn(33, size, device=DEVICE).bfloat16() * torch.logspace(-6, 4, 33, device=DEVICE)[:, None]
    x = x.bfloat16()
    found, scale = quantize_rows(x, fp8.MAX_FP8)
    expected, expected_scale = fp8.quantize_rows(x)
    torch.testing.assert_close(scale, expected_scale, rtol=1e-6, atol=0)
    assert (found.float() != expected.float()).float().mean() < 1e-3, "more than ties are rounded otherwise"
    torch.testing.assert_close(found.float() * scale, expected.float() * expected_scale, rtol=0.13, atol=0)


@pytest.mark.gpu
@pytest.mark.skipif(not ON_GPU, reason="needs a GPU")
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_not_finite_does_not_get_lost(bad: float) -> None:
    from seesay.kernels.quantize import quantize_rows

    x = torch.randn(3, 100, device=DEVICE)
    x[1, 7] = bad
    found, scale = quantize_rows(x, fp8.MAX_FP8)
    sums = (found.float() * scale).sum(1)
    assert sums.isfinite().tolist() == [True, False, True]


@pytest.mark.skipif(not HAS_TRITON or IS_INTERPRETED or ON_GPU, reason="runs where the tests above cannot")
def test_in_the_interpreter() -> None:
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", str(Path(__file__).resolve())]
    done = subprocess.run(
        command, env={**os.environ, "TRITON_INTERPRET": "1"}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
