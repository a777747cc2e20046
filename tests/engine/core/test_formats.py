"""Which numbers a device computes with: those of the KV cache, of the weights, and of a second copy of packed ones."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from noted_device import TOTAL_BYTES, noted_device

from seesay.config import EngineConfig
from seesay.engine.core.loading.formats import check_weights, pick_copy, pick_kv_format
from seesay.errors import ConfigError

CPU, META = torch.device("cpu"), torch.device("meta")


@pytest.fixture(scope="module")
def device(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """One that converts no FP8 numbers."""
    with noted_device(Path(tmp_path_factory.mktemp("device"))) as (device, _):
        yield device


def make_checkpoint(num_packed_numbers: int = 0, **quantization: Any) -> Any:
    found = SimpleNamespace(**{"kv_format": None, "format": "awq", "is_packed": False, **quantization})
    return SimpleNamespace(quantization=found if quantization else None, num_packed_numbers=num_packed_numbers)


@pytest.mark.parametrize(
    ("options", "asked", "expected"),
    [
        ({}, None, "plain"),
        ({"kv_cache_dtype": "int8"}, None, "int8"),
        ({"kv_cache_dtype": "fp8"}, None, "fp8"),
        ({}, "fp8", "fp8"),
        ({"kv_cache_dtype": "int8"}, "fp8", "int8"),
    ],
)
def test_the_cache_has_the_format_that_was_chosen_or_that_of_the_checkpoint(
    options: dict[str, Any], asked: str | None, expected: str
) -> None:
    for checkpoint in (make_checkpoint(kv_format=asked), *([] if asked else [make_checkpoint()])):
        for device in (CPU, META):
            assert pick_kv_format(EngineConfig(**options), checkpoint, device) == expected


def test_without_fp8_a_cache_is_plain_and_none_can_be_chosen(device: Any, caplog: pytest.LogCaptureFixture) -> None:
    assert pick_kv_format(EngineConfig(), make_checkpoint(), device) == "plain" and not caplog.records
    assert pick_kv_format(EngineConfig(kv_cache_dtype="int8"), make_checkpoint(), device) == "int8"
    with caplog.at_level(logging.WARNING, logger="seesay"):
        assert pick_kv_format(EngineConfig(), make_checkpoint(kv_format="fp8"), device) == "plain"
    assert "cannot compute with FP8, which the checkpoint asks for" in caplog.text
    with pytest.raises(ConfigError, match=r"kv_cache_dtype='fp8' needs a device.*noted device.*does not: take 'int8'"):
        pick_kv_format(EngineConfig(kv_cache_dtype="fp8"), make_checkpoint(kv_format="fp8"), device)


def test_weights_in_fp8_need_a_device_that_converts_them(device: Any) -> None:
    for each in (CPU, META):
        check_weights(make_checkpoint(format="fp8"), each)
    for checkpoint in (make_checkpoint(), make_checkpoint(format="int8")):
        check_weights(checkpoint, device)
    with pytest.raises(ConfigError, match="the weights are FP8 numbers, which noted device"):
        check_weights(make_checkpoint(format="fp8"), device)


@pytest.mark.parametrize("checkpoint", [make_checkpoint(), make_checkpoint(is_packed=False)])
def test_weights_that_are_not_packed_have_no_copy(checkpoint: Any) -> None:
    for unpacked in (None, False):
        assert not pick_copy(EngineConfig(unpacked_copy=unpacked), checkpoint, META, torch.float16)
    with pytest.raises(ConfigError, match="unpacked_copy=True: the weights of this checkpoint are not packed"):
        pick_copy(EngineConfig(unpacked_copy=True), checkpoint, META, torch.float16)


def test_by_default_a_copy_takes_an_eighth_of_a_gpu_at_most(device: Any) -> None:
    """On a CPU there is none."""

    def pick(num_bytes: int, device: Any, unpacked: bool | None = None, dtype: torch.dtype = torch.float16) -> bool:
        checkpoint = make_checkpoint(num_bytes // dtype.itemsize, is_packed=True)
        return pick_copy(EngineConfig(unpacked_copy=unpacked), checkpoint, device, dtype)

    most = TOTAL_BYTES // 8
    assert pick(most, device) and not pick(most + 2, device)
    assert pick(most, device, dtype=torch.float32) and not pick(most + 4, device, dtype=torch.float32)
    for each in (CPU, META):
        assert not pick(most, each) and pick(most + 2, each, unpacked=True)
    assert not pick(most, device, unpacked=False) and pick(most + 2, device, unpacked=True)
