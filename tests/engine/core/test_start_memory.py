"""A start that finds too little memory: its error, and that nothing of what it allocated is kept."""

from __future__ import annotations

import subprocess
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from seesay.config import EngineConfig, VisionConfig
from seesay.engine.core.loading.loading import load_core
from seesay.engine.core.loading.start_memory import told_of_memory
from seesay.engine.opened_model import open_model
from seesay.errors import CheckpointError, ConfigError
from seesay.llm.running.runner import ModelRunner

CPU = torch.device("cpu")
OPTIONS: dict[str, Any] = {"device_type": "cpu", "num_gpu_blocks": 12, "session_len": 100}


def test_a_start_without_memory_says_so_and_keeps_none(tiny_checkpoint: Callable[[str], Path]) -> None:
    """The weights are there when the cache finds no memory: they are freed although the error is kept."""
    kept: list[weakref.ref[torch.Tensor]] = []

    class Runner(ModelRunner):
        def allocate_cache(self, **options: Any) -> int:
            kept.extend(map(weakref.ref, self.decoder.weights.tensors()))
            assert kept and all(tensor() is not None for tensor in kept)
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 MiB.\nSee the documentation.")

    config = EngineConfig(**OPTIONS)
    model = open_model(tiny_checkpoint("llama"), config)
    with pytest.raises(ConfigError) as caught:
        load_core(model, config, VisionConfig(), make_runner=Runner)
    text = str(caught.value)
    assert "not enough memory on cpu to start (CUDA out of memory. Tried to allocate 2.00 MiB.): " in text
    assert "files" not in text and str(tiny_checkpoint("llama")) in text and "tp=2" in text
    assert kept and not any(tensor() is not None for tensor in kept)


def test_the_host_may_lack_memory_too(tiny_checkpoint: Callable[[str], Path]) -> None:
    """A process of little memory, in which torch finds none for the weights."""
    code = (
        "import resource, sys, torch\n"
        "from pathlib import Path\n"
        "from seesay.engine.core.loading.start_memory import told_of_memory\n"
        "size = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize()\n"
        "resource.setrlimit(resource.RLIMIT_AS, (size + (64 << 20), resource.RLIM_INFINITY))\n"
        "with told_of_memory(Path('model'), torch.device('cpu')):\n"
        "    torch.zeros(1 << 30)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 1 and "ConfigError: model: not enough memory on cpu to start (" in done.stderr


def test_other_errors_pass(tmp_path: Path) -> None:
    for error in (CheckpointError("no"), RuntimeError("a shape"), KeyError("lm_head")):
        with pytest.raises(type(error)) as caught, told_of_memory(tmp_path, CPU):
            raise error
        assert caught.value is error
    with (
        pytest.raises(ConfigError, match=r"not enough memory on cpu to start \(MemoryError\)"),
        told_of_memory(tmp_path, CPU),
    ):
        raise MemoryError
