"""The linear kernel against the plain formula, wherever it runs."""

from __future__ import annotations

import pytest
import torch

from seesay.device import linear
from seesay.device.linear import make_linear_kernel, rms_norm

SHAPES = [(1, 7, 3), (5, 64, 40), (130, 33, 257)]


@pytest.mark.parametrize("rows, in_features, out_features", SHAPES)
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("is_packed", [False, True])
def test_is_the_plain_formula(
    monkeypatch: pytest.MonkeyPatch, rows, in_features, out_features, has_bias, is_packed
) -> None:
    if not is_packed:
        monkeypatch.setattr(linear, "_try_packed_kernel", lambda weight, bias: None)
    torch.manual_seed(0)
    weight, x = torch.randn(out_features, in_features), torch.randn(rows, in_features)
    bias = torch.randn(out_features) if has_bias else None
    expected = (x.double() @ weight.double().t() + (0 if bias is None else bias.double())).float()
    with torch.inference_mode():
        kernel = make_linear_kernel(weight, bias)
        torch.testing.assert_close(kernel(x), expected, atol=1e-4, rtol=1e-5)
        wide = torch.randn(rows, 2 * in_features)
        wide[:, :in_features] = x
        torch.testing.assert_close(kernel(wide[:, :in_features]), expected, atol=1e-4, rtol=1e-5)
        torch.testing.assert_close(kernel(x[None])[0], expected, atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_works_with_or_without_a_packed_kernel(dtype) -> None:
    torch.manual_seed(0)
    weight, x = torch.randn(24, 32).to(dtype), torch.randn(6, 32).to(dtype)
    with torch.inference_mode():
        result = make_linear_kernel(weight, None)(x)
    assert result.dtype == dtype
    torch.testing.assert_close(result.float(), x.float() @ weight.float().t(), atol=0.1, rtol=0.02)


def test_a_processor_without_the_kernel_takes_the_plain_one(monkeypatch: pytest.MonkeyPatch) -> None:
    class Missing:
        def __getattr__(self, name):
            raise AttributeError(name)

    monkeypatch.setattr(torch.ops, "mkldnn", Missing())
    weight, x = torch.randn(4, 3), torch.randn(2, 3)
    torch.testing.assert_close(make_linear_kernel(weight, None)(x), x @ weight.t())


@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 1e-6), (torch.bfloat16, 1e-2)])
@pytest.mark.parametrize("size", [1.0, 1e-6, 1e4])
def test_rms_norm_is_its_formula(dtype, tolerance, size) -> None:
    torch.manual_seed(0)
    wide = (torch.randn(4, 5, 48) * size).to(dtype)
    weight = torch.randn(33).to(dtype)
    for x in (wide[..., :33], wide[1, :, 3:36], torch.zeros(2, 33, dtype=dtype)):
        before, double = x.clone(), x.double()
        expected = double / (double.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt() * weight.double()
        result = rms_norm(x, weight, 1e-6)
        assert result.dtype == dtype and torch.equal(x, before)
        torch.testing.assert_close(result.double(), expected, atol=tolerance, rtol=tolerance)
