"""What `device_type` may be, and what is said of devices that are not there."""

from __future__ import annotations

import re

import pytest

from seesay import EngineConfig
from seesay.device.query import describe_devices, pick_device
from seesay.device.registry import all_accelerators, find_accelerator
from seesay.errors import ConfigError

TYPES = {
    "cuda": "cuda", "cpu": "cpu", "ascend": "npu", "npu": "npu", "rocm": "cuda", "xpu": "xpu", "mps": "mps",
}  # fmt: skip
MISSING = {
    "ascend": "the package torch-npu is not installed",
    "rocm": "is not built for ROCm: install a ROCm build of torch",
    "xpu": "is not built for XPU: install an XPU build of torch",
    "mps": "is not built for MPS",
}
"""What a build of torch for CUDA or the CPU lacks."""


@pytest.mark.parametrize("name", TYPES)
def test_a_name_means_a_type_of_device(name: str) -> None:
    kind = find_accelerator(name)
    assert kind is not None and kind.type == TYPES[name]
    assert EngineConfig(device_type=name).device_type == name


@pytest.mark.parametrize("name", MISSING)
@pytest.mark.parametrize("number", ["", ":1"])
def test_what_a_device_lacks_is_named(name: str, number: str) -> None:
    if (kind := find_accelerator(name)) is not None and kind.missing is None:
        pytest.skip("this device is there")
    pattern = f"encoder_device='{name}{number}': .*{MISSING[name]}.*; use 'auto' or 'cpu'$"
    with pytest.raises(ConfigError, match=pattern):
        pick_device(name + number, "encoder_device")


def test_auto_says_what_it_means_and_why() -> None:
    _, devices, why = describe_devices()
    chosen = pick_device("auto")
    assert any(why.startswith(name) for kind in all_accelerators() if kind.type == chosen.type for name in kind.names)
    if chosen.type == "cpu":
        assert not devices
        assert all(f"{name}: " in why and MISSING[name] in why for name in ("ascend", "xpu"))


@pytest.mark.parametrize("name", ["tpu", "cpu:0", "xpu:", "xpu:-1", "npu:\N{SUPERSCRIPT TWO}", "CUDA", ""])
def test_other_names_are_refused_with_those_that_are_known(name: str) -> None:
    wanted = ", ".join(f"'{known}'" for known in ("auto", "cuda", "rocm", "ascend", "npu", "xpu", "mps", "cpu"))
    with pytest.raises(ConfigError, match=f"device must be one of {wanted}, .*, got {re.escape(repr(name))}"):
        pick_device(name, "device")


@pytest.mark.gpu
def test_a_number_beyond_the_last_device_is_refused() -> None:
    with pytest.raises(ConfigError, match="this machine has only"):
        pick_device("cuda:99")
