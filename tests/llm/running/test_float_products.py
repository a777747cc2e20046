"""Products in whole numbers have the bits of float64's."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
import torch

from seesay.llm.running.float_products import Scaled, multiply, split_floats

COUNT = 50_000
rng = np.random.default_rng(0)
WHOLES = rng.integers(0, 1 << 62, COUNT) >> rng.integers(0, 62, COUNT)
WHOLES[:10] = [0, 1, 2, 2**53 - 1, 2**53, 2**53 + 1, 2**54 + 2, 2**54 + 6, 2**62 - 1, 2**62 - 257]
FACTORS = {
    "uniform": rng.random(COUNT),
    "small": rng.random(COUNT) * 2.0 ** -rng.integers(0, 80, COUNT),
    "hundredths": rng.integers(0, 101, COUNT) / 100,
    "extreme": rng.choice([0.0, 5e-324, 1e-310, 2.2250738585072014e-308, 0.5, 1 - 2.0**-53, 1.0], COUNT),
}


def round_both(products: npt.NDArray[np.float64]) -> list[list[int]]:
    return [rounded(products).astype(np.int64).tolist() for rounded in (np.floor, np.ceil)]


@pytest.mark.parametrize("wholes", [WHOLES, rng.integers(1, 1000, COUNT) << rng.integers(0, 50, COUNT)])
@pytest.mark.parametrize("factors", FACTORS.values(), ids=FACTORS)
def test_products_with_floats(factors: npt.NDArray[np.float64], wholes: npt.NDArray[np.int64]) -> None:
    found = multiply(split_floats(torch.from_numpy(factors.view(np.int64))), torch.from_numpy(wholes))
    assert [each.tolist() for each in found] == round_both(factors * wholes.astype(np.float64))


def test_products_with_a_common_exponent() -> None:
    numbers = rng.integers(0, 1 << 32, COUNT) * 2 + 1
    found = multiply(Scaled(torch.from_numpy(numbers), -33), torch.from_numpy(WHOLES))
    assert [each.tolist() for each in found] == round_both(numbers / 2.0**33 * WHOLES.astype(np.float64))
