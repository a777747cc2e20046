"""CUDA graphs of decode steps."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from llm import backbones

from seesay.llm.running import decode_graphs
from seesay.llm.running.decode_graphs import DecodeGraphs, DecodeOutput
from seesay.llm.running.device_rows import begin_decode


def test_what_graphs_write_to_lives_as_long_as_they(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A device keeps addresses alone of what it has captured: freed memory becomes another tensor's."""
    runner = backbones.load_runner(backbones.make_backbone("qwen2", tmp_path))
    tables: list[weakref.ref[torch.Tensor]] = []

    def watch(rows: Any, slots: Any, table: torch.Tensor, **options: Any) -> Any:
        tables.append(weakref.ref(table))
        return begin_decode(rows, slots, table, **options)

    def record(run: Callable[[], DecodeOutput]) -> tuple[Callable[[], None], DecodeOutput]:
        size = run.args[0]  # type: ignore[attr-defined]
        with monkeypatch.context() as patch, pytest.raises(ZeroDivisionError):
            patch.setattr(runner.decoder, "forward", lambda *_: 1 // 0)
            run()
        empty = torch.zeros(size, 1)
        return lambda: None, DecodeOutput(states=empty, logits=empty, best=empty, token_ids=empty, faults=empty)

    monkeypatch.setattr(decode_graphs, "begin_decode", watch)
    graphs = DecodeGraphs(
        runner.decoder, runner.cache.layers, runner.device_rows, record=record, block_size=runner.block_size
    )
    gc.collect()
    assert tables and all(table() is not None for table in tables)
    del graphs
    gc.collect()
    assert all(table() is None for table in tables)
