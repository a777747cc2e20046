"""Rows in FP8 and int8. On a GPU the tests run as they are, elsewhere in Triton's interpreter: `test_interpreter.py`
runs this file."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from triton_cases import DEVICE, IS_INTERPRETED, MARKS, on_gpu, parametrize_grid, random_seeds, runs_here

from seesay.device.linear.row_quantization import FP8_ROWS, INT8_ROWS, QuantizedRows, RowFormat
from seesay.device.linear.row_quantization import quantize_rows as quantize_rows_plainly

pytestmark = MARKS


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
    found, found_scale = quantize_rows(x, torch.float8_e4m3fn, 448.0)
    assert torch.equal(found_scale.cpu(), scale) and torch.equal(found.float().cpu(), numbers)


@runs_here
def test_rows_of_zeros_stay_zeros() -> None:
    from seesay.kernels.quantize import quantize_rows

    found, scale = quantize_rows(torch.zeros(2, 40, device=DEVICE), torch.float8_e4m3fn, 448.0)
    assert not found.float().any() and (scale > 0).all()


def draw(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(DEVICE, dtype)


def assert_same(found: tuple[torch.Tensor, torch.Tensor], expected: QuantizedRows, form: RowFormat) -> None:
    """Scales are the same; numbers are, but for those that are rounded the other way."""
    numbers, scale = found
    assert numbers.dtype == form.dtype and numbers.shape == expected.numbers.shape
    torch.testing.assert_close(scale, expected.scale, rtol=1e-5, atol=0)
    steps = (numbers.float() - expected.numbers.float()).abs()
    if form.dtype == torch.int8:
        assert steps.max() <= 1 and (steps > 0).float().mean() < 0.01
    elif IS_INTERPRETED:  # which rounds 127 to 64, not to 128
        assert (steps > 0).float().mean() < 0.1
    else:
        assert (steps <= expected.numbers.float().abs() / 7 + 2**-9).all() and (steps > 0).float().mean() < 0.02


FORMATS = [FP8_ROWS, INT8_ROWS, RowFormat(torch.float8_e4m3fn, 448.0, 32), RowFormat(torch.int8, 127.0, 128)]


@runs_here
@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize(("num_rows", "size"), [(1, 7), (5, 300), (3, 9000), (0, 16)])
def test_rows_equal_the_plain_version(num_rows: int, size: int, form: RowFormat) -> None:
    from seesay.kernels.quantize import quantize_rows

    x = draw(num_rows, size + 3)[:, :size] * torch.logspace(-6, 4, num_rows, device=DEVICE)[:, None]
    found = quantize_rows(x, form.dtype, form.largest, form.group_size)
    if num_rows:
        assert_same(found, quantize_rows_plainly(x, form), form)
    else:
        assert found[0].shape == (0, size) and not found[1].numel()


@runs_here
@parametrize_grid(shape=[(1, 7), (5, 300), (2, 3584)], adds=[True, False], form=FORMATS)
def test_the_norm_in_the_same_pass(shape: tuple[int, int], adds: bool, form: RowFormat) -> None:
    from seesay.kernels.quantize import quantize_norm

    num_rows, size = shape
    x, weight = draw(num_rows, size), draw(size) + 1
    residual = draw(num_rows, size + 5)[:, :size] if adds else None
    total = x.clone() if residual is None else residual + x
    expected = F.rms_norm(total, (size,), weight, 1e-6)
    to: Any = {"dtype": form.dtype, "largest": form.largest, "group_size": form.group_size}
    found = quantize_norm(x, residual, weight, 1e-6, **to)
    assert_same(found, quantize_rows_plainly(expected, form), form)
    if residual is not None:
        torch.testing.assert_close(residual, total)


@runs_here
@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize(("num_rows", "size"), [(1, 7), (5, 300), (2, 9000)])
def test_the_activation_in_the_same_pass(num_rows: int, size: int, form: RowFormat) -> None:
    from seesay.kernels.quantize import quantize_activation

    x = draw(num_rows, 2 * size)
    to: Any = {"dtype": form.dtype, "largest": form.largest, "group_size": form.group_size}
    expected = F.silu(x[:, :size]) * x[:, size:]
    assert_same(quantize_activation(x, "silu", **to), quantize_rows_plainly(expected, form), form)


def assert_within_half_a_step(found: tuple[torch.Tensor, torch.Tensor], exact: torch.Tensor, form: RowFormat) -> None:
    """Numbers times scales are float64 `exact` but for rounding, with the scale that its largest number asks for."""
    numbers, scale = (each.double() for each in found)
    size = exact.shape[1] if form.group_size is None else form.group_size
    groups = torch.arange(exact.shape[1], device=DEVICE) // size
    largest = torch.stack([exact[:, groups == group].abs().amax(1) for group in range(scale.shape[1])], 1)
    torch.testing.assert_close(scale, largest / form.largest, rtol=2e-5, atol=1e-30)
    step = scale[:, groups]
    errors = (numbers * step - exact).abs()
    if form.dtype == torch.int8:
        assert (errors <= 0.51 * step).all()
        return
    is_far = errors > (exact.abs() / 16).maximum(step * 2.0**-10) * 1.01
    assert is_far.double().mean() < (0.1 if IS_INTERPRETED else 1e-9), "the interpreter rounds 127 to 64"


@runs_here
@random_seeds
@pytest.mark.parametrize("form", FORMATS)
def test_random_shapes_against_float64(seed: int, form: RowFormat) -> None:
    from seesay.kernels.quantize import quantize_activation, quantize_norm, quantize_rows

    chance = Random(seed)
    num_rows, size = chance.randint(1, 40), chance.randint(1, 4000)
    to: Any = {"dtype": form.dtype, "largest": form.largest, "group_size": form.group_size}
    x, residual, weight = draw(num_rows, size), draw(num_rows, size + 5)[:, :size], draw(size) + 1
    assert_within_half_a_step(quantize_rows(x, **to), x.double(), form)
    total = x.double() + residual.double()
    exact = total / (total.square().mean(1, keepdim=True) + 1e-6).sqrt() * weight.double()
    assert_within_half_a_step(quantize_norm(x, residual, weight, 1e-6, **to), exact, form)
    pair = draw(num_rows, 2 * size)
    exact = F.silu(pair[:, :size].double()) * pair[:, size:].double()
    assert_within_half_a_step(quantize_activation(pair, "silu", **to), exact, form)


@runs_here
@pytest.mark.filterwarnings("ignore:invalid value", "ignore:All-NaN")
@pytest.mark.parametrize("form", FORMATS[1:2] + FORMATS[3:])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_integers_tell_by_their_scale_of_what_is_not_finite(bad: float, form: RowFormat) -> None:
    from seesay.kernels.quantize import quantize_activation, quantize_norm, quantize_rows

    x = draw(3, 256)
    x[1, 7] = bad
    to: Any = {"dtype": form.dtype, "largest": form.largest, "group_size": form.group_size}
    scales = [quantize_rows_plainly(x, form).scale, quantize_rows(x, **to)[1]]
    scales += [quantize_norm(x, None, torch.ones(256, device=DEVICE), 1e-6, **to)[1]]
    scales += [quantize_activation(torch.cat([x, x], 1), "silu", **to)[1]]
    for scale in scales:
        assert scale.isfinite().all(1).tolist() == [True, False, True]


@pytest.mark.gpu
@on_gpu
@pytest.mark.parametrize("size", [40, 3584, 18944])
def test_equals_the_plain_version(size: int) -> None:
    from seesay.kernels.quantize import quantize_rows

    x = torch.randn(33, size, device=DEVICE).bfloat16() * torch.logspace(-6, 4, 33, device=DEVICE)[:, None]
    x = x.bfloat16()
    found, scale = quantize_rows(x, torch.float8_e4m3fn, 448.0)
    expected, expected_scale = quantize_rows_plainly(x, FP8_ROWS)
    torch.testing.assert_close(scale, expected_scale, rtol=1e-6, atol=0)
    assert (found.float() != expected.float()).float().mean() < 1e-3, "more than ties are rounded otherwise"
    one_code = expected.float().abs() / 8 + 2.0**-9
    assert ((found.float() - expected.float()).abs() <= one_code).all()


@pytest.mark.gpu
@on_gpu
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_not_finite_does_not_get_lost(bad: float) -> None:
    from seesay.kernels.quantize import quantize_rows

    x = torch.randn(3, 100, device=DEVICE)
    x[1, 7] = bad
    found, scale = quantize_rows(x, torch.float8_e4m3fn, 448.0)
    sums = (found.float() * scale).sum(1)
    assert sums.isfinite().tolist() == [True, False, True]
