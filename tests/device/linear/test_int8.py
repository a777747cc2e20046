"""Products with int8 weights and with FP8 weights in blocks: as GPUs compute them, and multiplied out."""

from __future__ import annotations

import logging

import pytest
import torch
import torch.nn.functional as F

from seesay.device.linear import int8
from seesay.device.linear.block_fp8 import make_block_product
from seesay.device.linear.int8 import INT8_NUMBERS, make_int8_product
from seesay.device.linear.linear import Linear
from seesay.device.linear.linear_method import Sizes
from seesay.device.linear.one_byte import OneByteInFlight
from seesay.device.linear.row_quantization import INT8_ROWS, quantize_rows
from seesay.device.linear.scaled_weights import multiply_out

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def test_rows_have_their_own_scale() -> None:
    x = torch.randn(5, 40) * torch.tensor([1.0, 1e-6, 1e4, 0.0, 3.0])[:, None]
    numbers, scale = quantize_rows(x, INT8_ROWS)
    assert numbers.dtype == torch.int8 and scale.shape == (5, 1)
    assert ((numbers.float() * scale - x).abs() <= 0.51 * scale).all()
    assert numbers.abs().amax(1).tolist() == [127, 127, 127, 0, 127]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize("num_rows", [1, 7, 130])
def test_int8_products_are_near_the_exact_ones(
    device: str, has_bias: bool, num_rows: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(int8, "_why_not", lambda *_: None)
    torch.manual_seed(0)
    numbers, scale = quantize_rows(torch.randn(48, 64, device=device) / 8, INT8_ROWS)
    bias = torch.randn(48, device=device).to(dtype) if has_bias else None
    x = torch.randn(num_rows, 64, device=device).to(dtype)
    product = make_int8_product(numbers, scale.flatten(), bias, Sizes(outputs=(48,), inputs=64), dtype)
    exact = F.linear(x.double(), numbers.double() * scale.double())
    with_bias = exact if bias is None else exact + bias.double()
    found = product.run(x)
    assert found.dtype == dtype and (found.double() - with_bias).norm() < 0.012 * with_bias.norm()
    assert torch.equal(product.run(x[None]), found[None])
    assert product.rows == INT8_ROWS and product.run_rows is not None
    rows = quantize_rows(x, INT8_ROWS)
    torch.testing.assert_close(product.run_rows(rows), found, rtol=0.02, atol=0.02)
    target = torch.ones(num_rows, 48, dtype=dtype, device=device)
    product.add(target, x)
    assert (target.double() - 1 - exact).norm() < 0.012 * exact.norm() + 0.01 * (48 * num_rows) ** 0.5
    assert product.run(x[:0]).shape == (0, 48)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("num_rows", [1, 7, 130])
def test_block_products_are_near_the_exact_ones(device: str, num_rows: int) -> None:
    """The last block of inputs is smaller than the others."""
    if device == "cuda" and torch.cuda.get_device_capability() < (8, 9):
        pytest.skip("needs a GPU that multiplies FP8")
    torch.manual_seed(0)
    numbers = (torch.randn(48, 320, device=device) * 20).to(torch.float8_e4m3fn)
    scale = (torch.rand(3, 48, device=device) + 0.1).t() / 200
    bias = torch.randn(48, device=device).bfloat16()
    x = torch.randn(num_rows, 320, device=device).bfloat16() * torch.logspace(-2, 2, 320, device=device).bfloat16()
    product = make_block_product(numbers, scale, bias, torch.bfloat16, 128)
    exact = x.double() @ multiply_out(numbers, scale, 128, torch.float64).t()
    found = product.run(x)
    assert (found.double() - bias.double() - exact).norm() < 0.05 * exact.norm()
    assert product.rows is not None and product.rows.group_size == 128
    if product.fused is not None and num_rows <= product.max_fused_rows:
        few = product.fused(x)
        assert (few.double() - bias.double() - exact).norm() < 0.01 * exact.norm()


def test_rows_do_not_change_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(int8, "_why_not", lambda *_: None)
    torch.manual_seed(0)
    numbers, scale = quantize_rows(torch.randn(32, 64), INT8_ROWS)
    sizes = Sizes(outputs=(32,), inputs=64)
    product = make_int8_product(numbers, scale.flatten(), None, sizes, torch.float32)
    x = torch.randn(4, 64) * torch.tensor([1, 1000, 1e-3, 1])[:, None]
    x[3, 5] = float("nan")
    together = product.run(x)
    for row, found in zip(x[:3], together[:3], strict=True):
        assert torch.equal(product.run(row[None])[0], found)
    assert together[3].isnan().all()


def test_the_cpu_multiplies_weights_out_without_a_word(caplog: pytest.LogCaptureFixture) -> None:
    layer = Linear(10, 6, input_multiple=8, output_multiple=4)
    torch.manual_seed(0)
    for parameter in layer.parameters():
        parameter.copy_(torch.randn(parameter.shape))
    numbers, scale = quantize_rows(layer.weight, INT8_ROWS)
    x, expected_bias = torch.randn(3, 10), layer.bias.clone()  # type: ignore[union-attr]
    layer.method = OneByteInFlight(INT8_NUMBERS)
    with caplog.at_level(logging.WARNING, "seesay"), torch.inference_mode():
        layer.finish()
        found = layer(F.pad(x, (0, 6)))
    torch.testing.assert_close(found[:, :6], F.linear(x, numbers.float() * scale, expected_bias))
    assert not found[:, 6:].any() and not caplog.records
