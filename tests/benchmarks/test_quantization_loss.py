"""The first logits of every format that is made while loading, and of every KV cache, are those of an oracle in which
the same numbers are multiplied out: what is lost is the format's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from quantization_loss import FORMS, compare, round_scaled, round_shifted, write_texts


@pytest.mark.parametrize("form", FORMS)
def test_logits_are_those_of_the_numbers_multiplied_out(form: str, tiny_checkpoint: Callable[[str], Path]) -> None:
    found = compare(tiny_checkpoint("qwen2_5_vl"), form, write_texts(2), "float32")
    assert found["oracle_loses"] > 1e-4 and found["plain_from_plain"] < 1e-5
    assert found["seesay_from_oracle"] < 0.02 * found["oracle_loses"], found


def test_the_oracle_rounds_to_the_numbers_of_a_format() -> None:
    x = torch.randn(3, 64, generator=torch.Generator().manual_seed(0))
    for steps in (15, 255):
        rounded = round_shifted(x, steps)
        assert all(len(row.unique()) <= steps + 1 for row in rounded)
        assert float((rounded - x).abs().max()) < 0.51 * float((x.amax(1) - x.amin(1)).max()) / steps + 1e-2
    assert float((round_scaled(x, 127.0, torch.int8) - x).abs().max()) <= float(x.abs().max()) / 253
    assert float(((round_scaled(x, 448.0, torch.float8_e4m3fn) - x).abs() / x.abs()).max()) < 0.07
