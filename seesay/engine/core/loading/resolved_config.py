"""Settles the options that depend on the checkpoint and the device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from seesay.device.query import pick_device
from seesay.engine.core.loading.formats import check_weights, pick_copy, pick_kv_format

if TYPE_CHECKING:
    import torch

    from seesay.checkpoint import Checkpoint
    from seesay.config import EngineConfig
    from seesay.llm.memory.kv_layout import KVFormat
    from seesay.vl.family import Backbone

_SESSION_LEN = 4096
"""Tokens of a text, by default, of a model whose configuration has no limit."""
_MAX_STEP_MS = 40
"""By default, the longest step in which streamed answers go on, on a GPU: about 1,500 tokens of prompts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedConfig:
    """The options that the engine really uses, after 'auto' and None were settled for this checkpoint and device."""

    device: torch.device
    dtype: torch.dtype
    session_len: int
    max_batch_size: int
    max_step_ms: int | None
    kv_format: KVFormat
    unpacked_copy: bool = False
    rope_scaling_factor: float = 0.0
    use_logn_attn: bool = False
    expert_parallel: bool = False


def resolve(
    config: EngineConfig, checkpoint: Checkpoint, backbone: Backbone, device: torch.device | None = None
) -> ResolvedConfig:
    """Settle 'auto' and None in `config`, for `device` or else the one that it names. Raises `ConfigError` for a device
    that is not there."""
    import torch

    text_config = backbone.text_config
    device = device or pick_device(config.device_type)
    is_gpu = device.type != "cpu"
    check_weights(checkpoint, device)
    dtype: torch.dtype = getattr(torch, _pick_dtype(config, checkpoint, text_config.dtype, is_gpu=is_gpu))
    num_positions = getattr(text_config, "max_position_embeddings", None)
    max_step_ms = config.max_step_ms
    return ResolvedConfig(
        device=device,
        dtype=dtype,
        unpacked_copy=pick_copy(config, checkpoint, device, dtype),
        session_len=config.session_len or num_positions or _SESSION_LEN,
        max_batch_size=config.max_batch_size or (512 if is_gpu else 32),
        max_step_ms=max_step_ms if max_step_ms != "auto" else _MAX_STEP_MS if is_gpu else None,
        kv_format=pick_kv_format(config, checkpoint, device),
        rope_scaling_factor=config.rope_scaling_factor,
        use_logn_attn=config.use_logn_attn,
        expert_parallel=config.expert_parallel,
    )


def _pick_dtype(config: EngineConfig, checkpoint: Checkpoint, text_dtype: object, *, is_gpu: bool) -> str:
    """Return the name of the type of activations: by default float32 on a CPU, and half precision elsewhere."""
    if config.dtype != "auto":
        return config.dtype
    if not is_gpu:
        return "float32"
    stored = checkpoint.config.get("dtype") or checkpoint.config.get("torch_dtype") or text_dtype
    return "bfloat16" if str(stored).removeprefix("torch.") == "bfloat16" else "float16"
