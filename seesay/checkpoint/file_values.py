"""The values that the JSON files of a model folder may hold, checked by type and range where the files are read.

`numbers.py` has the sizes in config.json. Fields that are not listed are left to those who read them, and null means a
default.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from seesay.errors import CheckpointError, show

_MAX_DEPTH = 4
_OF_OTHERS = ("quantization_config", "transformers.js_config")
"""Parts with fields of the same names that mean something else."""
_DTYPES = frozenset(
    [
        "auto",
        "float",
        "float16",
        "float32",
        "float64",
        "half",
        "double",
        "bfloat16",
        "int8",
        "uint8",
        "fp8",
        "fp16",
        "fp32",
        "bf16",
        "float8_e4m3fn",
        "float8_e5m2",
        "float4_e2m1fn_x2",
    ]
)
_LAYER_TYPES = frozenset(
    [
        "full_attention",
        "sliding_attention",
        "chunked_attention",
        "window_attention",
        "linear_attention",
        "indexed_attention",
        "compressed_sparse_attention",
        "heavily_compressed_attention",
        "minimax_m3_sparse",
        "conv",
        "mamba",
        "mamba2",
        "recurrent",
        "attention",
        "moe",
        "mlp",
        "hybrid",
        "hybrid_sliding",
        "reference_sliding_attention",
        "sparse",
        "dense",
    ]
)


class _Rule(NamedTuple):
    """The values that a field allows, in words and as a check."""

    need: str
    is_valid: Callable[[Any], bool]


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _number(least: float, most: float) -> _Rule:
    return _Rule(f"a number from {least:g} to {most:g}", lambda value: _is_number(value) and least <= value <= most)


def _whole(least: int, most: int) -> _Rule:
    return _Rule(f"an integer from {least} to {most}", lambda value: type(value) is int and least <= value <= most)


def _wholes(least: int, most: int) -> _Rule:
    """An integer, or several of them in a list or by name."""
    [need, is_whole] = _whole(least, most)

    def are_whole(value: object) -> bool:
        values = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else [value]
        return all(item is None or is_whole(item) for item in values)

    return _Rule(f"{need}, or several", are_whole)


_FLAG = _Rule("true or false", lambda value: isinstance(value, bool))
_DTYPE = _Rule("the name of a dtype", lambda value: isinstance(value, str) and value.removeprefix("torch.") in _DTYPES)
_LAYERS = _Rule(
    f"a list of {', '.join(sorted(_LAYER_TYPES))}",
    lambda value: isinstance(value, list) and all(isinstance(kind, str) and kind in _LAYER_TYPES for kind in value),
)
_EXPERTS, _PIXELS, _SIDE = _wholes(0, 1 << 16), _whole(1, 1 << 40), _wholes(1, 1 << 20)

_CONFIG: Mapping[str, _Rule] = {
    **dict.fromkeys(("dtype", "torch_dtype"), _DTYPE),
    "layer_types": _LAYERS,
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), _EXPERTS),
    **dict.fromkeys(("num_experts_per_tok", "num_experts_per_token", "moe_k", "n_shared_experts"), _EXPERTS),
    **dict.fromkeys(("first_k_dense_replace", "moe_layer_freq", "decoder_sparse_step"), _EXPERTS),
    "moe_intermediate_size": _wholes(0, 1 << 20),
}
_GENERATION: Mapping[str, _Rule] = {
    "temperature": _number(0, 1e6),
    **dict.fromkeys(("top_p", "min_p", "typical_p"), _number(0, 1)),
    "top_k": _whole(-1, 1 << 31),
    "repetition_penalty": _number(1e-6, 1e6),
    **dict.fromkeys(("presence_penalty", "frequency_penalty"), _number(-1e6, 1e6)),
    "do_sample": _FLAG,
    **dict.fromkeys(("max_new_tokens", "max_length", "min_new_tokens", "min_length"), _whole(0, 1 << 62)),
}
_PROCESSOR: Mapping[str, _Rule] = {
    **dict.fromkeys(("min_pixels", "max_pixels"), _PIXELS),
    **dict.fromkeys(("do_resize", "do_rescale", "do_normalize", "do_convert_rgb", "do_center_crop", "do_pad"), _FLAG),
    **dict.fromkeys(("patch_size", "temporal_patch_size", "merge_size", "spatial_merge_size"), _SIDE),
    "size": _wholes(1, 1 << 40),
    "crop_size": _SIDE,
    "rescale_factor": _number(0, 1e6),
    **dict.fromkeys(("max_video_tokens", "min_patches", "max_patches"), _whole(0, 1 << 40)),
    **dict.fromkeys(("num_frames", "min_frames", "max_frames"), _whole(1, 1 << 30)),
    "fps": _number(0, 1e6),
}
_FILES: Mapping[str, Mapping[str, _Rule]] = {
    "config.json": _CONFIG,
    "generation_config.json": _GENERATION,
    **dict.fromkeys(
        ("processor_config.json", "preprocessor_config.json", "video_preprocessor_config.json"), _PROCESSOR
    ),
}


def check_file(file: Path, data: Mapping[str, object]) -> None:
    """Raise `CheckpointError` for the first field of a JSON file, or of a part of it, whose value it may not have."""
    rules = _FILES.get(file.name)
    if rules is not None:
        _check(file, data, rules, "", knows_layers="auto_map" not in data)


def _check(
    file: Path, data: Mapping[str, object], rules: Mapping[str, _Rule], at: str, *, knows_layers: bool, depth: int = 0
) -> None:
    for name, value in data.items():
        place = f"{at}{name}"
        rule = rules.get(name)
        if rule is None:
            if isinstance(value, Mapping) and depth < _MAX_DEPTH and name not in _OF_OTHERS:
                _check(file, value, rules, f"{place}.", knows_layers=knows_layers, depth=depth + 1)
        elif rule is _LAYERS and not knows_layers:  # code of the checkpoint may have others
            continue
        elif value is not None and not rule.is_valid(value):
            raise CheckpointError(f"{file}: {place} must be {rule.need}, got {show(value)}")
