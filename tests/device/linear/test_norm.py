from __future__ import annotations

import pytest
import torch

from seesay.device.linear.norm import rms_norm


@pytest.mark.parametrize(
    "dtype, weight_dtype, tolerance",
    [
        (torch.float32, torch.float32, 1e-6),
        (torch.bfloat16, torch.bfloat16, 1e-2),
        (torch.bfloat16, torch.float32, 1e-2),
    ],
)
@pytest.mark.parametrize("size", [1.0, 1e-6, 1e4])
def test_rms_norm_is_its_formula(dtype: torch.dtype, weight_dtype: torch.dtype, tolerance: float, size: float) -> None:
    torch.manual_seed(0)
    wide = (torch.randn(4, 5, 48) * size).to(dtype)
    weight = torch.randn(33).to(weight_dtype)
    for x in (wide[..., :33], wide[1, :, 3:36], torch.zeros(2, 33, dtype=dtype)):
        before, double = x.clone(), x.double()
        expected = double / (double.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt() * weight.double()
        result = rms_norm(x, weight, 1e-6)
        assert result.dtype == dtype and torch.equal(x, before)
        torch.testing.assert_close(result.double(), expected, atol=tolerance, rtol=tolerance)
