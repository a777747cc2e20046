"""Kernels or torch: decided in one place."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path

import pytest
import torch

import seesay
from seesay.device.backends import has_kernels
from seesay.llm.ops import pick_ops
from seesay.llm.ops.torch_ops import TorchOps


def test_the_cpu_has_no_kernels() -> None:
    assert not has_kernels(torch.device("cpu"))
    assert isinstance(pick_ops(torch.device("cpu")), TorchOps)


def test_a_gpu_has_them_with_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    choose = has_kernels.__wrapped__
    assert choose(torch.device("cuda:1")) == (importlib.util.find_spec("triton") is not None)
    monkeypatch.setitem(sys.modules, "triton", None)
    assert not choose(torch.device("cuda:1"))


def test_nobody_else_looks_for_triton() -> None:
    package = Path(seesay.__file__).parent
    asking = [
        str(path.relative_to(package))
        for path in package.rglob("*.py")
        if re.search(r"find_spec\(.triton.\)", path.read_text())
    ]
    assert asking == ["device/backends.py"]
