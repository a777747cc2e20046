"""How a core is loaded: what 'auto' and None become, and what a rehearsal of a start does."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from seesay.config import EngineConfig
from seesay.device.ranks import Place, Stages, Unconnected
from seesay.engine.core.loading.loading import _is_ahead, _rehearse_ranks

CPU, GPU = torch.device("cpu"), torch.device("cuda")


@pytest.mark.parametrize(
    ("options", "device", "is_ahead"),
    [
        ({}, CPU, False), ({}, GPU, True), ({"pp": 2}, CPU, True), ({"tp": 2}, CPU, False),
        ({"async_scheduling": False}, GPU, False), ({"async_scheduling": True}, CPU, True),
        ({"async_scheduling": False, "pp": 2}, CPU, False),
    ],
)  # fmt: skip
def test_steps_are_launched_ahead_on_gpus_and_by_stages(
    options: dict[str, Any], device: torch.device, is_ahead: bool
) -> None:
    assert _is_ahead(EngineConfig(**options), device) == is_ahead


def test_a_rehearsal_of_ranks_is_of_the_first_of_them() -> None:
    assert _rehearse_ranks(EngineConfig()) is None
    kinds: list[tuple[EngineConfig, type]] = [(EngineConfig(tp=2), Unconnected), (EngineConfig(pp=2), Stages)]
    for config, kind in kinds:
        found = _rehearse_ranks(config)
        assert found is not None and isinstance(found.ranks, kind)
        assert getattr(found.ranks, "place", None) == Place(0, config.num_ranks)


REHEARSE = """
import json, sys
from pathlib import Path
from seesay.config import EngineConfig
from seesay.engine.core.loading.loading import rehearse
from seesay.engine.opened_model import open_model
from seesay.kernels.absent_gpu import Gpu, absent_gpu

found = []
for session_len, given in json.loads(sys.argv[2]):
    with absent_gpu(Gpu((9, 0), 227 << 10), None):
        config = EngineConfig(
            block_size=16, max_prefill_token_num=16, max_batch_size=2, session_len=session_len, num_gpu_blocks=given
        )
        runner, tower = rehearse(open_model(Path(sys.argv[1]), config), config)
    found.append([runner.num_blocks, runner.device.type, tower.device.type])
print(json.dumps(found))
"""


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton")
def test_a_rehearsal_has_blocks_for_the_longest_sequence(tiny_checkpoint: Callable[[str], Path]) -> None:
    """In a process of its own, which takes all tensors for those of a GPU."""
    cases = [[33, 0], [32, 0], [33, 7]]
    arguments = [str(tiny_checkpoint("qwen2_5_vl")), json.dumps(cases)]
    shown = subprocess.run(
        [sys.executable, "-c", REHEARSE, *arguments], capture_output=True, text=True, check=True, timeout=300
    ).stdout
    assert json.loads(shown.splitlines()[-1]) == [[number, "meta", "meta"] for number in (3, 2, 7)]
