"""The product with a plain weight against its formula, wherever it runs."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from seesay.device.linear import matmul
from seesay.device.linear.matmul import make_product

SHAPES = [(1, 7, 3), (5, 64, 40), (130, 33, 257)]


@pytest.mark.parametrize("rows, in_features, out_features", SHAPES)
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("is_packed", [False, True])
def test_is_the_plain_formula(
    monkeypatch: pytest.MonkeyPatch, rows: int, in_features: int, out_features: int, has_bias: bool, is_packed: bool
) -> None:
    if not is_packed:
        monkeypatch.setattr(matmul, "try_packed", lambda weight, bias: None)
    torch.manual_seed(0)
    weight, x = torch.randn(out_features, in_features), torch.randn(rows, in_features)
    bias = torch.randn(out_features) if has_bias else None
    expected = (x.double() @ weight.double().t() + (0 if bias is None else bias.double())).float()
    with torch.inference_mode():
        product = make_product(weight, bias)
        kernel = product.run
        torch.testing.assert_close(kernel(x), expected, atol=1e-4, rtol=1e-5)
        wide = torch.randn(rows, 2 * in_features)
        wide[:, :in_features] = x
        torch.testing.assert_close(kernel(wide[:, :in_features]), expected, atol=1e-4, rtol=1e-5)
        torch.testing.assert_close(kernel(x[None])[0], expected, atol=1e-4, rtol=1e-5)
        target = torch.randn(rows, out_features)
        total = target + (x.double() @ weight.double().t()).float()
        product.add(target, x)
        torch.testing.assert_close(target, total, atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_works_with_or_without_a_packed_kernel(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    weight, x = torch.randn(24, 32).to(dtype), torch.randn(6, 32).to(dtype)
    with torch.inference_mode():
        result = make_product(weight, None).run(x)
    assert result.dtype == dtype
    torch.testing.assert_close(result.float(), x.float() @ weight.float().t(), atol=0.1, rtol=0.02)


def test_a_processor_without_the_kernel_takes_the_plain_one(monkeypatch: pytest.MonkeyPatch) -> None:
    class Missing:
        def __getattr__(self, name: Any) -> None:
            raise AttributeError(name)

    monkeypatch.setattr(torch.ops, "mkldnn", Missing())
    weight, x = torch.randn(4, 3), torch.randn(2, 3)
    torch.testing.assert_close(make_product(weight, None).run(x), x @ weight.t())
