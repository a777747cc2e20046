"""Layers that join or pad weights compute what the separate ones say. On a GPU where there is one."""

from __future__ import annotations

from typing import TypeVar

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from seesay.encoders.towers.layers import GatedMlp, RMSNorm, add_norm
from seesay.encoders.towers.vit_layers import Attention, LayerConfig
from seesay.encoders.towers.weights import finish_layers

ON_GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if ON_GPU else "cpu")
pytestmark = [pytest.mark.gpu] if ON_GPU else []


Layer = TypeVar("Layer", bound=nn.Module)


def fill(module: Layer) -> Layer:
    torch.manual_seed(0)
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.5)
    return module.to(DEVICE).eval().requires_grad_(False)


@pytest.mark.parametrize("activation", ["silu", "gelu"])
@pytest.mark.parametrize("inner_size", [50, 64, 1])
def test_a_gated_mlp_with_padded_weights(inner_size: int, activation: str) -> None:
    mlp = fill(GatedMlp(32, inner_size, activation))
    x = torch.randn(7, 32, device=DEVICE)
    gate, up = F.linear(x, mlp.gate_up_proj.weight, mlp.gate_up_proj.bias).chunk(2, dim=-1)
    expected = F.linear(getattr(F, activation)(gate) * up, mlp.down_proj.weight, mlp.down_proj.bias)
    torch.testing.assert_close(mlp(x), expected, rtol=0, atol=1e-4)
    finish_layers(mlp)
    with torch.inference_mode():
        assert mlp.inner(x).shape == (7, 64)
        torch.testing.assert_close(mlp(x), expected, rtol=0, atol=1e-4)
    assert not mlp.gate_up_proj.weight.numel() and not mlp.down_proj.weight.numel(), "weights are kept twice"


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("qk_norm_eps", [None, 1e-6])
def test_attention_with_joined_weights(bias: bool, qk_norm_eps: float | None) -> None:
    config = LayerConfig(
        hidden_size=32,
        num_heads=4,
        intermediate_size=48,
        activation="gelu",
        norm_eps=1e-5,
        has_qkv_bias=bias,
        qk_norm_eps=qk_norm_eps,
    )
    attention = fill(Attention(config))
    x = torch.randn(2, 9, 32, device=DEVICE)
    joined = attention.qkv
    biases = (None,) * 3 if joined.bias is None else joined.bias.chunk(3)
    q, k, v = (F.linear(x, w, b) for w, b in zip(joined.weight.chunk(3), biases, strict=True))
    q, k, v = (t.view(2, 9, 4, 8).transpose(1, 2) for t in (attention.q_norm(q), attention.k_norm(k), v))
    expected = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(2, 9, 32)
    finish_layers(attention)
    with torch.inference_mode():
        torch.testing.assert_close(attention(x), expected, rtol=0, atol=1e-5)
    assert not joined.weight.numel()


@pytest.mark.parametrize("has_scale", [True, False])
@pytest.mark.parametrize("norm", [RMSNorm(24, 1e-6), nn.LayerNorm(24, 1e-5), None])
def test_the_norm_of_a_sum(norm: RMSNorm | nn.LayerNorm | None, has_scale: bool) -> None:
    norm = norm and fill(norm)
    x, update = torch.randn(2, 5, 24, device=DEVICE), torch.randn(2, 5, 24, device=DEVICE)
    scale = torch.randn(24, device=DEVICE) if has_scale else None
    total = x + update * (1 if scale is None else scale)
    found = add_norm(x, update, norm, scale)
    torch.testing.assert_close(x, total)
    torch.testing.assert_close(found, total if norm is None else norm(total))
