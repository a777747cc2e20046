"""What 'auto' and None become for a checkpoint and a device."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from seesay.checkpoint import Checkpoint
from seesay.config import EngineConfig
from seesay.engine.core.loading.resolved_config import resolve

CPU, META = torch.device("cpu"), torch.device("meta")


@pytest.fixture
def checkpoint(tiny_checkpoint: Callable[[str], Path]) -> Checkpoint:
    return Checkpoint.load(tiny_checkpoint("llama"))


def resolve_for(device: torch.device, checkpoint: Any, *, text: dict[str, Any] | None = None, **options: Any) -> Any:
    text_config = SimpleNamespace(**{"dtype": "bfloat16", "max_position_embeddings": 640, **(text or {})})
    backbone: Any = SimpleNamespace(text_config=text_config)
    return resolve(EngineConfig(**options), checkpoint, backbone, device)


def test_a_cpu_and_other_devices_have_defaults_of_their_own(checkpoint: Checkpoint) -> None:
    here, there = (resolve_for(device, checkpoint) for device in (CPU, META))
    assert (here.device, here.dtype, here.max_batch_size, here.max_step_ms) == (CPU, torch.float32, 32, None)
    assert (there.device, there.max_batch_size, there.max_step_ms) == (META, 512, 40)
    assert there.dtype in (torch.bfloat16, torch.float16)
    assert here.session_len == there.session_len == 640


def test_what_is_given_stays(checkpoint: Checkpoint) -> None:
    given: dict[str, Any] = {"dtype": "float16", "session_len": 77, "max_batch_size": 3, "max_step_ms": 9}
    for device in (CPU, META):
        found = resolve_for(device, checkpoint, **given)
        assert {name: getattr(found, name) for name in given} == {**given, "dtype": torch.float16}
    assert resolve_for(META, checkpoint, max_step_ms=None).max_step_ms is None


@pytest.mark.parametrize(
    ("stored", "expected"),
    [
        ("bfloat16", torch.bfloat16),
        ("torch.bfloat16", torch.bfloat16),
        ("float32", torch.float16),
        ("float16", torch.float16),
    ],
)
def test_half_precision_is_that_of_the_checkpoint(stored: str, expected: torch.dtype, checkpoint: Any) -> None:
    for name in ("dtype", "torch_dtype"):
        for other in ("dtype", "torch_dtype"):
            checkpoint.config.pop(other, None)
        checkpoint.config[name] = stored
        assert resolve_for(META, checkpoint).dtype is expected
    checkpoint.config.pop("torch_dtype")
    assert resolve_for(META, checkpoint, text={"dtype": stored}).dtype is expected


def test_a_model_that_names_no_positions_has_a_context(checkpoint: Checkpoint) -> None:
    assert resolve_for(CPU, checkpoint, text={"max_position_embeddings": None}).session_len == 4096
