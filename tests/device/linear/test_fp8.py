"""Products with FP8 weights: as GPUs compute them, and multiplied out."""

from __future__ import annotations

import logging
import re

import pytest
import torch
import torch.nn.functional as F

from seesay.device.linear import fp8
from seesay.device.linear.fp8 import FP8_NUMBERS, MAX_FP8, make_channel_product
from seesay.device.linear.linear import Linear
from seesay.device.linear.linear_method import Sizes
from seesay.device.linear.one_byte import OneByteInFlight
from seesay.device.linear.row_quantization import FP8_ROWS, quantize_rows
from seesay.device.linear.scaled_weights import warn_multiplied_out

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def test_rows_have_their_own_scale() -> None:
    x = torch.randn(5, 40) * torch.tensor([1.0, 1e-6, 1e4, 0.0, 3.0])[:, None]
    numbers, scale = quantize_rows(x, FP8_ROWS)
    assert numbers.dtype == torch.float8_e4m3fn and scale.shape == (5, 1)
    again = numbers.float() * scale
    assert ((again - x).abs() <= x.abs() / 16 + x.abs().amax(1, keepdim=True) / MAX_FP8 / 64).all()
    assert numbers.float().abs().amax(1).tolist() == [448, 448, 448, 0, 448]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize("num_rows", [1, 7, 130])
def test_scaled_products_are_near_the_exact_ones(device: str, has_bias: bool, num_rows: int) -> None:
    """What a GPU computes, also on the CPU, whose torch has the operation too."""
    if device == "cuda" and torch.cuda.get_device_capability() < (8, 9):
        pytest.skip("needs a GPU that multiplies FP8")
    torch.manual_seed(0)
    weight = torch.randn(48, 64, device=device) / 8
    bias = torch.randn(48, device=device).bfloat16() if has_bias else None
    x = torch.randn(num_rows, 64, device=device).bfloat16()
    numbers, scale = quantize_rows(weight, FP8_ROWS)
    product = fp8._make_scaled_product(numbers, scale.flatten(), bias)
    exact = F.linear(x.double(), numbers.double() * scale.double())
    with_bias = exact if bias is None else exact + bias.double()
    found = product.run(x)
    assert found.dtype == torch.bfloat16 and (found.double() - with_bias).norm() < 0.04 * with_bias.norm()
    assert torch.equal(product.run(x[None]), found[None])
    target = torch.ones(num_rows, 48, dtype=torch.bfloat16, device=device)
    product.add(target, x)
    assert (target.double() - 1 - exact).norm() < 0.04 * exact.norm() + 0.01 * (48 * num_rows) ** 0.5
    assert product.run(x[:0]).shape == (0, 48)


def test_rows_do_not_change_each_other() -> None:
    torch.manual_seed(0)
    numbers, scale = quantize_rows(torch.randn(32, 64), FP8_ROWS)
    product = fp8._make_scaled_product(numbers, scale.flatten(), None)
    x = torch.randn(4, 64).bfloat16() * torch.tensor([1, 1000, 1e-3, 1])[:, None]
    together = product.run(x.bfloat16())
    for row, found in zip(x.bfloat16(), together, strict=True):
        torch.testing.assert_close(product.run(row[None])[0], found)


def test_the_cpu_multiplies_weights_out_without_a_word(caplog: pytest.LogCaptureFixture) -> None:
    torch.manual_seed(0)
    numbers, scale = quantize_rows(torch.randn(6, 10), FP8_ROWS)
    x, bias = torch.randn(3, 10), torch.randn(6)
    with caplog.at_level(logging.WARNING, "seesay"), torch.inference_mode():
        product = make_channel_product(numbers, scale.flatten(), bias, Sizes(outputs=(6,), inputs=10), torch.float32)
        torch.testing.assert_close(product.run(x), F.linear(x, numbers.float() * scale, bias))
    assert not caplog.records


def test_padded_layers_are_padded_after_they_are_quantized() -> None:
    layer = Linear(10, 6, input_multiple=8, output_multiple=4)
    torch.manual_seed(0)
    for parameter in layer.parameters():
        parameter.copy_(torch.randn(parameter.shape))
    numbers, scale = quantize_rows(layer.weight, FP8_ROWS)
    assert layer.bias is not None
    x, expected_bias = torch.randn(3, 10), layer.bias.clone()
    layer.method = OneByteInFlight(FP8_NUMBERS)
    layer.finish()
    with torch.inference_mode():
        found = layer(F.pad(x, (0, 6)))
    torch.testing.assert_close(found[:, :6], F.linear(x, numbers.float() * scale, expected_bias))
    assert not found[:, 6:].any()


@pytest.mark.parametrize(
    ("shape", "dtype", "sizes", "reason"),
    [
        ((48, 64), torch.bfloat16, Sizes(outputs=(48,), inputs=64), None),
        ((48, 64), torch.float16, Sizes(outputs=(48,), inputs=64), "need dtype bfloat16, got float16"),
        ((48, 60), torch.bfloat16, Sizes(outputs=(48,), inputs=60), r"multiples of 16, got \(48, 60\)"),
        ((40, 64), torch.bfloat16, Sizes(outputs=(40,), inputs=64), r"multiples of 16, got \(40, 64\)"),
    ],
)
@pytest.mark.gpu
def test_what_a_gpu_cannot_multiply_is_said(
    shape: tuple[int, int], dtype: torch.dtype, sizes: Sizes, reason: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    if torch.cuda.get_device_capability() < (8, 9):
        reason = "need compute capability 8.9"
    warn_multiplied_out.cache_clear()
    numbers, scale = quantize_rows(torch.randn(shape, device="cuda"), FP8_ROWS)
    with caplog.at_level(logging.WARNING, "seesay"):
        product = make_channel_product(numbers, scale.flatten(), None, sizes, dtype)
    x = torch.randn(3, shape[1], device="cuda").to(dtype)
    exact = F.linear(x.double(), numbers.double() * scale.double())
    assert (product.run(x).double() - exact).norm() < 0.04 * exact.norm()
    if reason is None:
        assert not caplog.records
    else:
        assert len(caplog.records) == 1
        assert re.search(reason, caplog.records[0].getMessage())
