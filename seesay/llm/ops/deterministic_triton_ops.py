"""The operations in Triton for the deterministic mode. What works on single tokens is that of `TritonOps`: its programs
compute a token alike whatever tokens there are."""

from __future__ import annotations

from typing import ClassVar

import torch

from seesay.llm.memory.kv_layout import LayerCache
from seesay.llm.ops import fixed_triton_attention
from seesay.llm.ops.triton_attention import AttentionPlan
from seesay.llm.ops.triton_ops import TritonOps
from seesay.llm.plans.window import Window


class DeterministicTritonOps(TritonOps):
    """The operations of `TritonOps`, with the same bits for a token whatever tokens are computed beside it."""

    most_tokens_alone: ClassVar[int] = 0

    def attend(
        self,
        query: torch.Tensor,
        cache: LayerCache,
        plan: AttentionPlan,
        *,
        scale: float,
        window: Window | None,
        soft_cap: float | None,
        sinks: torch.Tensor | None = None,
        slopes: torch.Tensor | None = None,
    ) -> torch.Tensor:
        return fixed_triton_attention.attend(
            query, cache, plan, scale=scale, window=window, soft_cap=soft_cap, sinks=sinks, slopes=slopes
        )
