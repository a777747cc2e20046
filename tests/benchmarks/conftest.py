"""Running benchmarks as their users do, but in this process and with a small KV cache."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import h200
import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def run_benchmark(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., list[dict[str, Any]]]:
    """`run_benchmark(module, *arguments, model=…)`: the figures that a benchmark prints."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))))

    def run(module: ModuleType, *arguments: str, model: str = "seesay-demo") -> list[dict[str, Any]]:
        monkeypatch.setattr(module, "open_pipeline", partial(h200.open_pipeline, max_batch_size=32, session_len=4096))
        try:
            module.main([model, *arguments])
        except SystemExit as end:
            assert not end.code, capsys.readouterr()
        return [json.loads(line.removeprefix("RESULT ")) for line in capsys.readouterr().out.splitlines()]

    return run
