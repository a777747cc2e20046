"""Which formats of weights, of the KV cache and of a second copy of packed weights a device computes with."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from seesay.device.query import describe_kind, has_fp8, measure_memory
from seesay.errors import ConfigError

if TYPE_CHECKING:
    import torch

    from seesay.checkpoint import Checkpoint
    from seesay.config import EngineConfig
    from seesay.llm.memory.kv_layout import KVFormat

logger = logging.getLogger("seesay")

_LARGEST_COPY = 1 / 8
"""Largest share of a GPU's memory that, by default, packed weights take multiplied out, too."""


def pick_kv_format(config: EngineConfig, checkpoint: Checkpoint, device: torch.device) -> KVFormat:
    """Return the format of the KV cache. Raises `ConfigError` for one that the GPU cannot compute with; what only the
    checkpoint asks for is left out there."""
    chosen = config.kv_format
    if chosen is None and checkpoint.quantization is not None and checkpoint.quantization.kv_format is not None:
        if _takes_fp8(device):
            return checkpoint.quantization.kv_format
        logger.warning("%s cannot compute with FP8, which the checkpoint asks for in its KV cache: it is plain", device)
    if chosen == "fp8" and not _takes_fp8(device):
        raise ConfigError(
            f"kv_cache_dtype={config.kv_cache_dtype!r} needs a device that converts FP8 numbers, such as an NVIDIA GPU "
            f"of compute capability 8.9 or more; {describe_kind(device)} does not: take 'int8'"
        )
    return chosen or "plain"


def _takes_fp8(device: torch.device) -> bool:
    """Return whether a device converts FP8 numbers. The meta device stands for one that does: what is only planned
    needs no GPU."""
    return device.type == "meta" or has_fp8(device)


def check_weights(checkpoint: Checkpoint, device: torch.device) -> None:
    """Raise `ConfigError` for weights in numbers that the device does not know."""
    quantization = checkpoint.quantization
    if quantization is not None and quantization.format == "fp8" and not _takes_fp8(device):
        raise ConfigError(
            f"the weights are FP8 numbers, which {describe_kind(device)} does not convert: take a checkpoint that is "
            f"not quantized, or one of int8, AWQ or GPTQ"
        )


def pick_copy(config: EngineConfig, checkpoint: Checkpoint, device: torch.device, dtype: torch.dtype) -> bool:
    """Return whether packed weights are kept multiplied out, too. Raises `ConfigError` where none are packed."""
    quantization = checkpoint.quantization
    if quantization is None or not quantization.is_packed:
        if config.unpacked_copy:
            raise ConfigError(
                "unpacked_copy=True: the weights of this checkpoint are not packed; it is for AWQ, GPTQ and "
                "pack-quantized ones: leave it out"
            )
        return False
    if config.unpacked_copy is not None:
        return config.unpacked_copy
    if device.type in ("cpu", "meta"):
        return False
    return checkpoint.num_packed_numbers * dtype.itemsize <= _LARGEST_COPY * measure_memory(device).total_bytes
