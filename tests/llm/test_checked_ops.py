"""Triton's operations on GPUs that are not NVIDIA's: those that differ from torch's are left out."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
import torch
from triton_cases import DEVICE, IS_INTERPRETED, ON_GPU

pytestmark = pytest.mark.skipif(not (IS_INTERPRETED or ON_GPU), reason="needs Triton's interpreter or a GPU")
if IS_INTERPRETED or ON_GPU:
    from seesay.llm.ops import checked_ops
    from seesay.llm.ops.torch_ops import TorchOps
    from seesay.llm.ops.triton_ops import TritonOps

DTYPE = torch.bfloat16 if ON_GPU else torch.float32
"""Triton's interpreter computes no products of bfloat16."""


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    checked_ops._find_wrong.cache_clear()
    yield
    checked_ops._find_wrong.cache_clear()


def test_all_that_are_right_are_used(caplog: pytest.LogCaptureFixture) -> None:
    ops = checked_ops.make_checked_ops(DEVICE, DTYPE)
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING], caplog.text
    assert isinstance(ops, TritonOps) and not ops.takes_device_rows and ops.needs_clean_blocks
    assert {name for name in vars(ops) if not name.startswith(("needs", "takes"))} == {
        "mix_experts", "quantize_norm", "quantize_activation",
    }  # fmt: skip


@pytest.mark.parametrize("fault", ["differs", "fails"])
@pytest.mark.parametrize("name", ["rms_norm", "act_and_mul", "attend", "rotate_and_write", "splice"])
def test_one_that_is_wrong_is_left_out(
    name: str, fault: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    right = getattr(TritonOps, name)

    def wrong(self: TritonOps, *args: torch.Tensor, **options: object) -> torch.Tensor | None:
        if fault == "fails":
            raise RuntimeError("no such instruction")
        found: torch.Tensor | None = right(self, *args, **options)
        changed = args[0] if found is None else found
        changed[0].mul_(1.2)
        return found

    monkeypatch.setattr(TritonOps, name, wrong)
    ops = checked_ops.make_checked_ops(DEVICE, DTYPE)
    assert isinstance(getattr(ops, name).__self__, TorchOps)
    assert f"{name}" in caplog.text and (fault if fault == "fails" else "differs by") in caplog.text
    others = {"rms_norm", "attend"} - {name} - ({"attend"} if name == "rotate_and_write" else set())
    assert all(getattr(ops, other).__self__ is ops for other in others)
