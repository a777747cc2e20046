"""Triton's operations on GPUs that are not NVIDIA's: those that differ from torch's are left out."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Iterator

import pytest
import torch
from triton_cases import DEVICE, IS_INTERPRETED, ON_GPU

pytestmark = pytest.mark.skipif(not (IS_INTERPRETED or ON_GPU), reason="needs Triton's interpreter or a GPU")
if IS_INTERPRETED or ON_GPU:
    from seesay.llm.ops import checked_ops
    from seesay.llm.ops.triton_low_rank import TritonLowRank
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


def test_each_operation_is_checked_or_left_to_torch() -> None:
    found = {name for name, value in vars(TritonOps).items() if inspect.isfunction(value)} | {"low_rank"}
    checked = {name for check in checked_ops._CHECKS for name in check.methods}
    assert checked | set(checked_ops._UNCHECKED) == found and not checked & set(checked_ops._UNCHECKED)


@pytest.mark.parametrize("fault", ["differs", "fails"])
@pytest.mark.parametrize(
    "name",
    ["rms_norm", "act_and_mul", "attend", "attend_latent", "write_latent", "rotate_and_write", "splice", "low_rank"],
)
def test_one_that_is_wrong_is_left_out(
    name: str, fault: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    owner, method = (TritonLowRank, "add") if name == "low_rank" else (TritonOps, name)
    right = getattr(owner, method)

    def wrong(self: object, *args: torch.Tensor, **options: object) -> torch.Tensor | None:
        if fault == "fails":
            raise RuntimeError("no such instruction")
        found: torch.Tensor | None = right(self, *args, **options)
        changed = args[0] if found is None else found
        changed[0].mul_(1.2)
        return found

    uses = [check for check in checked_ops._CHECKS if name in check.methods]
    monkeypatch.setattr(checked_ops, "_CHECKS", (checked_ops._CHECKS[0], uses[0], uses[-1]))  # the others take time
    monkeypatch.setattr(owner, method, wrong)
    ops = checked_ops.make_checked_ops(DEVICE, DTYPE)
    assert f"torch computes {', '.join(uses[0].methods)}: Triton's kernel" in caplog.text
    assert (fault if fault == "fails" else "differs by") in caplog.text
    replaced = {each for each in vars(ops) if not each.startswith(("needs", "takes"))}
    assert replaced == {*uses[0].methods, *checked_ops._UNCHECKED}
    assert not any("triton" in getattr(ops, each).__module__ for each in replaced)
