"""Finds the `quantization_config` of a model folder and hands it to the reader of its format."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from seesay.checkpoint.files import read_object
from seesay.checkpoint.quantization import modelopt
from seesay.checkpoint.quantization.compressed_tensors import read_compressed_tensors
from seesay.checkpoint.quantization.fp8 import read_fp8
from seesay.checkpoint.quantization.modelopt import read_modelopt
from seesay.checkpoint.quantization.mxfp4 import read_mxfp4
from seesay.checkpoint.quantization.packed import read_awq, read_gptq
from seesay.checkpoint.quantization.quantization import InFlight, Quantization
from seesay.checkpoint.quantization.quantization_config import Settings
from seesay.checkpoint.quantization.smooth_quant import read_smooth_quant
from seesay.errors import ConfigError

_READERS: Mapping[str, Callable[[Settings], Quantization]] = {
    "awq": read_awq,
    "compressed-tensors": read_compressed_tensors,
    "fp8": read_fp8,
    "gptq": read_gptq,
    "modelopt": read_modelopt,
    "mxfp4": read_mxfp4,
    "smooth_quant": read_smooth_quant,
}


def read_quantization(file: Path, config: Mapping[str, object], in_flight: InFlight | None) -> Quantization | None:
    """Return how the model of config.json `file` is quantized, or is to be quantized while it is loaded (`in_flight`);
    None if it is neither. Raises `CheckpointError` that names what is not supported."""
    found, fields = _find(file, config)
    if fields is not None and fields != {}:
        if in_flight is not None:
            raise ConfigError(f"quantization={in_flight!r}: {file.parent} is quantized already: leave it out")
        return _read(Settings(found, fields))
    if in_flight is None:
        return None
    return Quantization(format=in_flight, strategy="channel", is_stored=False)


def _find(file: Path, config: Mapping[str, object]) -> tuple[Path, object]:
    """Return the settings, None for a plain model, and the file that has them."""
    for part in (config, config.get("text_config"), config.get("llm_config")):
        if isinstance(part, Mapping) and "quantization_config" in part:
            fields = part["quantization_config"]
            if fields or part is config:
                return file, fields
    beside = file.parent / modelopt.FILE
    fields = read_object(beside)
    return beside, None if fields is None else modelopt.settings_of_file(fields)


def _read(settings: Settings) -> Quantization:
    method = settings.method
    read = _READERS.get(method) if isinstance(method, str) else None
    if not isinstance(method, str) or read is None:
        raise settings.refused("this format is not supported")
    found = replace(read(settings), method=method, where=settings.where)
    return replace(found, kv_format="fp8", ignored=modelopt.KV_SCALES) if _asks_for_fp8_cache(settings) else found


def _asks_for_fp8_cache(settings: Settings) -> bool:
    """Return whether keys and values are to be cached in FP8. Each gets a scale of its own, which is finer than the
    checkpoint's."""
    scheme = settings.get("kv_cache_scheme")
    if not scheme:
        return settings.get("kv_cache_quant_algo") is not None
    if not isinstance(scheme, Mapping):
        raise settings.refused("kv_cache_scheme must be an object")
    for name, value in (("num_bits", 8), ("type", "float"), ("symmetric", True)):
        settings.expect(f"kv_cache_scheme.{name}", scheme.get(name, value if name == "symmetric" else None), value)
    return True
