"""Finds the `quantization_config` of a model folder and hands it to the reader of its format."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from seesay.checkpoint.quantization.compressed_tensors import read_compressed_tensors
from seesay.checkpoint.quantization.fp8 import read_fp8
from seesay.checkpoint.quantization.packed import read_awq, read_gptq
from seesay.checkpoint.quantization.quantization import Quantization
from seesay.checkpoint.quantization.settings import Settings
from seesay.errors import ConfigError

_READERS: Mapping[str, Callable[[Settings], Quantization]] = {
    "awq": read_awq,
    "compressed-tensors": read_compressed_tensors,
    "fp8": read_fp8,
    "gptq": read_gptq,
}


def read_quantization(file: Path, config: Mapping[str, Any], in_flight: str | None) -> Quantization | None:
    """Return how the model of config.json `file` is quantized, or is to be quantized while it is loaded (`in_flight`);
    None if it is neither. Raises `CheckpointError` that names what is not supported."""
    for part in (config, config.get("text_config"), config.get("llm_config")):
        fields = part.get("quantization_config") if isinstance(part, Mapping) else None
        if fields:
            if in_flight is not None:
                raise ConfigError(f"quantization={in_flight!r}: {file.parent} is quantized already: leave it out")
            return _read(Settings(file, fields))
    if in_flight is None:
        return None
    return Quantization(strategy="channel", is_stored=False)


def _read(settings: Settings) -> Quantization:
    if settings.get("kv_cache_scheme"):
        raise settings.refused("kv_cache_scheme: a quantized KV cache is not supported")
    read = _READERS.get(settings.method) if isinstance(settings.method, str) else None
    if read is None:
        raise settings.refused("this format is not supported")
    return read(settings)
