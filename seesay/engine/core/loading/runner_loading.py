"""Loads a decoder with its weights, and makes the runner that computes its steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from seesay.llm.running.runner_limits import RunnerLimits

if TYPE_CHECKING:
    from seesay.device.ranks import Ranks, Stages
    from seesay.engine.core.loading.resolved_config import ResolvedConfig
    from seesay.engine.core.rank_parts import MakeRunner
    from seesay.engine.opened_model import OpenedModel
    from seesay.llm.models.decoder import Decoder
    from seesay.llm.running.runner import ModelRunner


def load_runner(
    model: OpenedModel,
    resolved: ResolvedConfig,
    *,
    max_step_tokens: int,
    block_size: int,
    make_runner: MakeRunner | None = None,
    ranks: Ranks | Stages | None = None,
) -> ModelRunner:
    """Return the decoder with its weights, or this rank's slice of it, and no KV cache yet."""
    from seesay.llm.running.runner import ModelRunner

    checkpoint = model.checkpoint
    if resolved.unpacked_copy and checkpoint.quantization is not None:
        checkpoint = replace(checkpoint, quantization=replace(checkpoint.quantization, has_plain_copy=True))
    load: Callable[..., Decoder] = model.backbone.load_decoder
    if ranks is not None or resolved.expert_parallel:  # which a decoder from outside may not know
        load = partial(load, ranks=ranks, expert_parallel=resolved.expert_parallel)
    decoder = load(
        checkpoint,
        session_len=resolved.session_len,
        rope_scaling_factor=resolved.rope_scaling_factor,
        use_logn_attn=resolved.use_logn_attn,
        device=resolved.device,
        dtype=resolved.dtype,
    )
    limits = RunnerLimits(
        max_batch_size=resolved.max_batch_size,
        max_step_tokens=max_step_tokens,
        session_len=resolved.session_len,
        block_size=block_size,
        kv_format=resolved.kv_format,
    )
    return (make_runner or ModelRunner)(decoder, limits)
