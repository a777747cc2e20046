"""Layers whose weights are fused compute the same. On a GPU the tests run as they are, elsewhere in Triton's
interpreter: the last test runs this file once more in a process of its own."""

from __future__ import annotations

import copy
import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from seesay.encoders.layers import GatedMlp, RMSNorm, SplitAttention, add_norm

HAS_TRITON = importlib.util.find_spec("triton") is not None
IS_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
ON_GPU = torch.cuda.is_available() and not IS_INTERPRETED
DEVICE = torch.device("cuda" if ON_GPU else "cpu")
pytestmark = [pytest.mark.gpu] if ON_GPU else []
runs_here = pytest.mark.skipif(not (HAS_TRITON and (ON_GPU or IS_INTERPRETED)), reason="needs a GPU or the interpreter")


def fill(module: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.5)
    return module.to(DEVICE).eval().requires_grad_(False)


@runs_here
@pytest.mark.parametrize("inner_size", [50, 64, 1])
def test_a_gated_mlp_with_padded_weights(inner_size: int) -> None:
    mlp = fill(GatedMlp(32, inner_size, "silu"))
    fused = copy.deepcopy(mlp)
    fused.fuse()
    x = torch.randn(7, 32, device=DEVICE)
    torch.testing.assert_close(fused(x), mlp(x), rtol=0, atol=1e-4)
    assert not fused.gate_proj.weight.numel() and not fused.up_proj.weight.numel(), "weights are kept twice"
    assert fused.down_proj.weight.shape == (32, 64)


@runs_here
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("make_norm", [nn.Identity, lambda: RMSNorm(32, 1e-6)])
def test_attention_with_joined_weights(bias: bool, make_norm: Callable[[], nn.Module]) -> None:
    attention = SplitAttention(32, 4, bias=bias)
    attention.q_norm, attention.k_norm = make_norm(), make_norm()
    fill(attention)
    fused = copy.deepcopy(attention)
    fused.fuse()
    x = torch.randn(2, 9, 32, device=DEVICE)
    torch.testing.assert_close(fused.attend(x), attention.attend(x), rtol=0, atol=1e-5)
    assert not fused.q_proj.weight.numel()


@pytest.mark.parametrize("has_scale", [True, False])
@pytest.mark.parametrize("norm", [RMSNorm(24, 1e-6), nn.LayerNorm(24, 1e-5), None])
def test_the_norm_of_a_sum(norm: RMSNorm | nn.LayerNorm | None, has_scale: bool) -> None:
    norm = norm and fill(norm)  # type: ignore[assignment]
    x, update = torch.randn(2, 5, 24, device=DEVICE), torch.randn(2, 5, 24, device=DEVICE)
    scale = torch.randn(24, device=DEVICE) if has_scale else None
    total = x + update * (1 if scale is None else scale)
    found = add_norm(x, update, norm, scale)
    torch.testing.assert_close(x, total)
    torch.testing.assert_close(found, total if norm is None else norm(total))


@pytest.mark.skipif(not HAS_TRITON or IS_INTERPRETED or ON_GPU, reason="runs where the tests above cannot")
def test_in_the_interpreter() -> None:
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", str(Path(__file__).resolve())]
    done = subprocess.run(
        command, env={**os.environ, "TRITON_INTERPRET": "1"}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
