"""Matrix-vector products against float64: on a GPU, else in Triton's interpreter, in a process of its own."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F

HAS_TRITON = importlib.util.find_spec("triton") is not None
IS_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
ON_GPU = torch.cuda.is_available() and not IS_INTERPRETED
DEVICE = torch.device("cuda" if ON_GPU else "cpu")
TOLERANCES = {torch.float32: 1e-6, torch.float16: 2e-3, torch.bfloat16: 1.5e-2}

runs_here = [
    pytest.mark.skipif(not (HAS_TRITON and (ON_GPU or IS_INTERPRETED)), reason="needs a GPU or the interpreter"),
    *([pytest.mark.gpu] if ON_GPU else []),
]


def random(*shape: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + sum(shape))).to(DEVICE, dtype)


@pytest.mark.parametrize(
    "case",
    [
        pytest.param((size, rows, dtype, has_bias, has_norm, tail), marks=runs_here)
        for size, rows in ((1, 1), (96, 5), (3584, 7), (2049, 2))
        for dtype in TOLERANCES
        for has_bias, has_norm, tail in (
            (False, False, ""),
            (True, True, ""),
            (True, True, "gate"),
            (False, False, "gelu gate"),
            (False, False, "add"),
            (True, False, "add"),
        )
    ],
    ids=str,
)
def test_product_with_what_rides_along(case: tuple[int, int, torch.dtype, bool, bool, str]) -> None:
    from seesay.kernels.vector import gemv

    size, rows, dtype, has_bias, has_norm, tail = case
    num_out = 2 * rows if "gate" in tail else rows
    x, weight = random(1, size, dtype=dtype), random(num_out, size, dtype=dtype, seed=1) / size**0.5
    bias = random(num_out, dtype=dtype, seed=2) if has_bias else None
    norm = (random(size, dtype=dtype, seed=3), 1e-6) if has_norm else None
    expected = x.double()
    if norm is not None:
        expected = expected / (expected.pow(2).mean() + norm[1]).sqrt() * norm[0].double()
    expected = expected @ weight.double().t() + (0 if bias is None else bias.double())
    residual = None
    if "gate" in tail:
        gate, up = expected.chunk(2, -1)
        expected = (F.silu(gate) if tail == "gate" else F.gelu(gate)) * up
    if tail == "add":
        residual = random(1, rows, dtype=dtype, seed=4)
        expected = expected + residual.double()
    result = gemv(
        x, weight, bias, norm=norm, activation={"gate": "silu", "gelu gate": "gelu"}.get(tail), add_to=residual
    )
    assert residual is None or result is residual
    assert result.shape == (1, rows)
    assert (result.double() - expected).norm() <= TOLERANCES[dtype] * expected.norm().clamp(min=1.0)


@pytest.mark.skipif(not HAS_TRITON or IS_INTERPRETED or ON_GPU, reason="runs where the tests above cannot")
def test_in_the_interpreter() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__]
    done = subprocess.run(
        command, env={**os.environ, "TRITON_INTERPRET": "1"}, capture_output=True, text=True, timeout=250, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:]
    assert "passed" in done.stdout
