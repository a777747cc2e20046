"""Runs engines of tests that were written for the CPU on another device: `pytest --device npu tests/engine`."""

from __future__ import annotations

import os
from typing import Any

import pytest

from seesay import EngineConfig
from seesay.device.query import pick_device

AS_ON_THE_CPU: dict[str, tuple[Any, Any]] = {
    "dtype": ("auto", "float32"),
    "engine_process": (None, False),
    "max_step_ms": (EngineConfig.max_step_ms, None),
    "max_prefill_token_num": (EngineConfig.max_prefill_token_num, 512),  # a device tries its largest steps at start
    "max_batch_size": (EngineConfig.max_batch_size, 16),
    "num_gpu_blocks": (0, 800),
    "jump_ahead": (None, True),
}
"""Fields, the values that tests leave them at, and what they mean there or what makes a start short."""
_NO_FP8 = "examples/my_device does not convert FP8 numbers: docs/devices.md"
_NO_RANKS = "examples/my_device has no collectives: docs/devices.md"
_NOT_DETERMINISTIC = "the deterministic mode is refused by name on other devices: docs/deterministic.md"
ABOUT_THE_CPU: dict[str, str] = {
    "fp8": _NO_FP8,
    "test_a_process_falls_back_from_a_folder_that_was_quantized_meanwhile": _NO_FP8,
    "test_plain_weights_are_quantized_again": _NO_FP8,
    "test_quantized.py::test_the_text_part_of_every_family": _NO_FP8,
    "[modelopt, tensors]": _NO_FP8,
    "[compressed-tensors, channels": _NO_FP8,
    "test_a_tensor_that_makes_no_sense_is_named_as_it_was_given": _NO_FP8,
    "[two ranks]": _NO_RANKS,
    "test_two_ranks_are_refused": _NO_RANKS,
    "test_several_ranks": _NO_RANKS,
    "[ranks]": _NO_RANKS,
    "test_ranks.py": _NO_RANKS,
    "test_rank_weights.py": _NO_RANKS,
    "test_rank_failures.py": _NO_RANKS,
    "test_ray_ranks.py": _NO_RANKS,
    "test_ranks_take_wrong_tokens_back": _NO_RANKS,
    "test_no_bit_depends_on": _NOT_DETERMINISTIC,
    "test_layers_for_which_it_does_not_hold": _NOT_DETERMINISTIC,
    "test_the_process_gives_its_memory_back": "measures the memory of the host, which has the weights of a device too",
}
"""Parts of the names of tests, and what the device cannot do, or why they tell nothing about it."""


def use_device(name: str) -> None:
    """Let a configuration of the CPU mean the device, with numbers and processes as the CPU has them, so that tokens
    are the same ones."""
    os.environ.setdefault("MY_DEVICE_GIB", "4")  # some tests have several engines
    assert pick_device(name).type == name
    check = EngineConfig.__post_init__

    def change(self: EngineConfig) -> None:
        if self.device_type in ("auto", "cpu"):
            object.__setattr__(self, "device_type", name)
            for field, (default, value) in AS_ON_THE_CPU.items():
                if getattr(self, field) == default and not (field == "engine_process" and self.tp * self.pp > 1):
                    object.__setattr__(self, field, value)
        check(self)

    EngineConfig.__post_init__ = change  # type: ignore[method-assign]


def skip_those_about_the_cpu(items: list[pytest.Item]) -> None:
    for item in items:
        reason = next((why for part, why in ABOUT_THE_CPU.items() if part in item.nodeid), None)
        if reason is not None:
            item.add_marker(pytest.mark.skip(reason=reason))
