"""The decoder's operations for the device: torch's, and attention of decode steps whose shapes never change."""

from __future__ import annotations

from typing import Any, ClassVar

import torch

from seesay.llm.memory.kv_layout import LayerCache
from seesay.llm.ops.interface import DecodeRows, RowLayout
from seesay.llm.ops.torch_attention import AttentionPlan, DecodeGroup
from seesay.llm.ops.torch_ops import TorchOps
from seesay.llm.plans.window import Window, find_first_seen


class MyOps(TorchOps):
    """Takes rows whose lengths only the device knows, too: each attends to all places that a sequence may have, and
    those behind its end are masked. So a graph computes steps of any lengths."""

    takes_device_rows: ClassVar[bool] = True

    def plan_attention(self, layout: RowLayout | DecodeRows, **options: Any) -> Any:
        return layout if isinstance(layout, DecodeRows) else super().plan_attention(layout, **options)

    def attend(
        self, query: torch.Tensor, cache: LayerCache, plan: Any, *, window: Window | None, **options: Any
    ) -> torch.Tensor:
        if isinstance(plan, DecodeRows):
            group = _make_group(plan, cache.layout.block_size, window, query.dtype)
            plan = AttentionPlan(groups=(group,), pieces=(), context=None)
        return super().attend(query, cache, plan, window=window, **options)


def _make_group(rows: DecodeRows, block_size: int, window: Window | None, dtype: torch.dtype) -> DecodeGroup:
    num_rows, num_blocks = rows.block_table.shape
    lengths = rows.kv_lens[:, None].long()
    places = torch.arange(num_blocks * block_size, device=lengths.device)
    hidden = places >= lengths
    if window is not None:
        hidden |= places < find_first_seen(window, lengths - 1)
    mask = torch.zeros(hidden.shape, dtype=dtype, device=lengths.device).masked_fill_(hidden, float("-inf"))
    return DecodeGroup(
        start=0,
        stop=num_rows,
        blocks=rows.block_table.long().flatten(),
        places=lengths[:, 0] - 1,
        masks={window: mask[:, None, None]},
    )
