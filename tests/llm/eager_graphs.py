"""The path of CUDA graphs on the CPU: what would be captured is computed again at each replay, from the same tensors
and into the same tensors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any

import numpy as np
import torch
from llm.backbones import composed

from seesay.llm.ops import DecodeRows, RowLayout
from seesay.llm.running.decode_graphs import DecodeGraphs, DecodeOutput
from seesay.llm.running.runner import ModelRunner
from seesay.llm.running.step_input import StepRows


def record_eager(run: Callable[[], DecodeOutput]) -> tuple[Callable[[], None], DecodeOutput]:
    """Compute again what a graph would replay."""
    output = run()

    def replay() -> None:
        fresh = run()
        for each in fields(output):
            getattr(output, each.name).copy_(getattr(fresh, each.name))

    return replay, output


class CountedGraphs(DecodeGraphs):
    """Keeps the number of rows of each step."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.sizes: list[int] = []

    def run(self, step: StepRows) -> DecodeOutput:
        self.sizes.append(len(step.rows))
        return super().run(step)


def record_eagerly(runner: ModelRunner) -> list[int]:
    """Let decode steps of a runner on the CPU take the path of graphs. Returns a list of the sizes of such steps, which
    grows with them."""
    block_size = runner.block_size
    ops = composed(runner)._ops
    plan_attention = ops.plan_attention

    def plan(layout: RowLayout | DecodeRows, **options: Any) -> Any:
        if isinstance(layout, DecodeRows):
            lens, table = (each.cpu().numpy().astype(np.int64) for each in (layout.kv_lens, layout.block_table))
            used = -(-lens // block_size)
            width = int(used.max())
            places = np.minimum(np.arange(width)[None], used[:, None] - 1)
            layout = RowLayout(
                cu_seqlens_q=np.arange(len(lens) + 1),
                kv_lens=lens,
                block_table=np.take_along_axis(table, places, axis=1),
                block_size=block_size,
                num_decode=len(lens),
            )
        return plan_attention(layout, **options)

    ops.plan_attention = plan  # type: ignore[method-assign]
    assert runner._cache is not None
    with torch.inference_mode():
        runner._graphs = CountedGraphs(
            runner.decoder,
            runner._cache.layers,
            runner.device_rows,
            record=record_eager,
            block_size=block_size,
            num_adapter_slots=runner.limits.num_adapter_slots,
            make_states=None if runner.kept_states is None else runner.kept_states.make,
        )
    return runner._graphs.sizes
