"""How the linear layers of a checkpoint are quantized, as its `quantization_config` says, and which of them are not.

This is the one place that refuses formats which cannot be loaded.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, cast

import regex

from seesay.errors import CheckpointError, ConfigError

Format = Literal["fp8", "awq", "gptq"]
Strategy = Literal["tensor", "channel", "block", "group"]
SUPPORTED = "awq (gemm), gptq, fp8, and compressed-tensors of format float-quantized"
_MAX_NAMES, _MAX_NAME_LENGTH = 20_000, 1_000
_PATTERN_SECONDS = 0.1
_FRONTS = ("model.", "language_model.")


@dataclass(frozen=True, kw_only=True)
class Quantization:
    """The tensors that quantized linear layers have, and which layers these are.

    format: FP8 weights (e4m3), or integers packed as AWQ or GPTQ pack them.
    strategy: what a scale is for: a whole stored tensor, an output channel, a block of `block_size` (outputs, inputs),
        or `group_size` inputs of one output, None for all of its inputs.
    scale_name: FP8: the name of the tensor of scales behind the module's. has_input_scale: FP8: whether there is an
        `input_scale` for activations, too. bits: of a packed integer. zero_offset: GPTQ: stored zero points are less
        by this.
    excluded: modules that are not quantized: names of modules or of what contains them, or 're:' and a regular
        expression that a name begins with.
    is_stored: False where the checkpoint has plain weights, which are quantized while they are loaded.
    """

    format: Format = "fp8"
    strategy: Strategy
    scale_name: str = "weight_scale"
    block_size: tuple[int, int] = (128, 128)
    group_size: int | None = None
    bits: int = 8
    zero_offset: int = 0
    has_input_scale: bool = False
    excluded: tuple[str, ...] = ("lm_head",)
    is_stored: bool = True

    def covers(self, module: str) -> bool:
        """Return whether the module that the checkpoint names so is quantized. Raises `CheckpointError` for a pattern
        that takes too long."""
        return not any(self._excludes(name) for name in _spellings(module))

    def _excludes(self, name: str) -> bool:
        return name in self._named or any(self._matches(pattern, name) for pattern in self._patterns)

    @cached_property
    def _named(self) -> _Names:
        return _Names(entry for entry in self.excluded if not entry.startswith("re:"))

    @cached_property
    def _patterns(self) -> list[regex.Pattern[str]]:
        return [_compile(entry) for entry in self.excluded if entry.startswith("re:")]

    def _matches(self, pattern: regex.Pattern[str], name: str) -> bool:
        try:
            return pattern.match(name, timeout=_PATTERN_SECONDS) is not None
        except TimeoutError:
            raise CheckpointError(
                f"quantization_config: pattern {pattern.pattern!r} takes too long for module {name!r}"
            ) from None


class _Names:
    """Names of modules; a name is in it if its parts, between dots, contain those of a listed one."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = {tuple(name.split(".")) for name in names}
        self._lengths = {len(name) for name in self._names}

    def __contains__(self, name: str) -> bool:
        parts = name.split(".")
        return any(
            tuple(parts[start : start + length]) in self._names
            for length in self._lengths
            for start in range(len(parts) - length + 1)
        )


def _spellings(module: str) -> set[str]:
    """Return the names that a module has in older and newer versions of one model: lists of exclusions have those of
    the model in memory, tensors have those of the folder."""
    base = module
    while front := next((front for front in _FRONTS if base.startswith(front)), ""):
        base = base.removeprefix(front)
    return {module, base, f"model.{base}", f"model.language_model.{base}", f"language_model.model.{base}"}


def _compile(entry: str) -> regex.Pattern[str]:
    try:
        return regex.compile(entry.removeprefix("re:"))
    except regex.error as error:
        raise CheckpointError(f"quantization_config: {entry!r} is not a regular expression: {error}") from None


def read_quantization(file: Path, config: Mapping[str, Any], in_flight: str | None) -> Quantization | None:
    """Return how the model of config.json `file` is quantized, or is to be quantized while it is loaded (`in_flight`);
    None if it is neither. Raises `CheckpointError` that names what is not supported."""
    for part in (config, config.get("text_config"), config.get("llm_config")):
        settings = part.get("quantization_config") if isinstance(part, Mapping) else None
        if settings:
            if in_flight is not None:
                raise ConfigError(f"quantization={in_flight!r}: {file.parent} is quantized already: leave it out")
            return _Reader(file, settings).read()
    if in_flight is None:
        return None
    return Quantization(strategy="channel", is_stored=False)


class _Reader:
    """Reads one `quantization_config`; errors name the file and the field."""

    def __init__(self, file: Path, settings: Any) -> None:
        self._file = file
        self._method = settings.get("quant_method") if isinstance(settings, Mapping) else settings
        if not isinstance(settings, Mapping):
            raise self._refused("it must be an object")
        self._settings = settings

    def read(self) -> Quantization:
        if self._settings.get("kv_cache_scheme"):
            raise self._refused("kv_cache_scheme: a quantized KV cache is not supported")
        if self._method == "compressed-tensors":
            return self._read_compressed_tensors()
        if self._method == "fp8":
            return self._read_fp8()
        if self._method == "awq":
            return self._read_awq()
        if self._method == "gptq":
            return self._read_gptq()
        raise self._refused("this format is not supported")

    def _read_fp8(self) -> Quantization:
        """As Transformers and vLLM write it: scales of blocks (`weight_scale_inv`) or of tensors (`weight_scale`)."""
        self._expect("fmt", self._settings.get("fmt", "e4m3"), "e4m3", "float8_e4m3fn")
        scheme = self._settings.get("activation_scheme", "dynamic")
        self._expect("activation_scheme", scheme, "dynamic", "static")
        skipped = self._settings.get("modules_to_not_convert") or self._settings.get("ignored_layers") or ()
        excluded = (*self._names("modules_to_not_convert", skipped), "lm_head")
        block = self._settings.get("weight_block_size")
        if block is None:
            return Quantization(strategy="tensor", has_input_scale=scheme == "static", excluded=excluded)
        self._expect("activation_scheme", scheme, "dynamic")
        return Quantization(
            strategy="block",
            scale_name="weight_scale_inv",
            block_size=self._block("weight_block_size", block),
            excluded=excluded,
        )

    def _read_awq(self) -> Quantization:
        """As AutoAWQ writes it: `qweight`, `qzeros`, `scales`."""
        self._expect("bits", self._settings.get("bits"), 4)
        self._expect("version", str(self._settings.get("version", "gemm")).lower(), "gemm")
        self._expect("zero_point", self._settings.get("zero_point", True), True)
        skipped = self._settings.get("modules_to_not_convert") or ()
        return Quantization(
            format="awq",
            strategy="group",
            bits=4,
            group_size=self._group_size(),
            excluded=(*self._names("modules_to_not_convert", skipped), "lm_head"),
        )

    def _read_gptq(self) -> Quantization:
        """As AutoGPTQ and GPTQModel write it: `qweight`, `qzeros`, `scales`, `g_idx`."""
        bits = self._settings.get("bits")
        self._expect("bits", bits, 4, 8)
        self._expect("dynamic", self._settings.get("dynamic") or None, None)
        kind = self._settings.get("checkpoint_format") or "gptq"
        self._expect("checkpoint_format", kind, "gptq", "gptq_v2")
        skipped = self._settings.get("modules_to_not_convert") or ()
        return Quantization(
            format="gptq",
            strategy="group",
            bits=cast(int, bits),
            group_size=self._group_size(),
            zero_offset=1 if kind == "gptq" else 0,
            excluded=(*self._names("modules_to_not_convert", skipped), "lm_head"),
        )

    def _group_size(self) -> int | None:
        """Return the number of inputs that share a scale; None for all."""
        size = self._settings.get("group_size", 128)
        if type(size) is not int or not (size == -1 or 8 <= size <= 1 << 20):
            raise self._refused(f"group_size must be -1 or at least 8, got {str(size)[:80]!r}")
        return None if size == -1 else size

    def _read_compressed_tensors(self) -> Quantization:
        self._expect("format", self._settings.get("format"), "float-quantized")
        groups = self._settings.get("config_groups")
        if not isinstance(groups, Mapping) or len(groups) != 1:
            raise self._refused("config_groups: there must be one group of layers")
        [group] = groups.values()
        weights = group.get("weights") if isinstance(group, Mapping) else None
        if not isinstance(weights, Mapping):
            raise self._refused("config_groups: its group has no weights")
        self._expect("targets", group.get("targets"), ["Linear"])
        for name, value in (("num_bits", 8), ("type", "float"), ("symmetric", True)):
            self._expect(f"weights.{name}", weights.get(name, value), value)
        strategy = weights.get("strategy")
        self._expect("weights.strategy", strategy, "tensor", "channel", "block")
        inputs = group.get("input_activations")
        is_static = isinstance(inputs, Mapping) and inputs.get("dynamic") is False
        block = self._block("weights.block_structure", weights.get("block_structure") or [128, 128])
        return Quantization(
            strategy=cast(Strategy, strategy),
            block_size=block,
            has_input_scale=is_static,
            excluded=self._names("ignore", self._settings.get("ignore") or ()),
        )

    def _names(self, field: str, value: object) -> tuple[str, ...]:
        entries = list(value) if isinstance(value, list | tuple) else [None]
        names = [entry for entry in entries if isinstance(entry, str) and 0 < len(entry) <= _MAX_NAME_LENGTH]
        if len(names) != len(entries) or len(names) > _MAX_NAMES:
            raise self._refused(f"{field} must be a list of names of modules")
        for name in names:
            if name.startswith("re:"):
                _compile(name)
        return tuple(names)

    def _block(self, field: str, value: object) -> tuple[int, int]:
        sizes = value if isinstance(value, list | tuple) else []
        if len(sizes) != 2 or not all(type(n) is int and n > 0 for n in sizes):
            raise self._refused(f"{field} must be two positive integers, got {str(value)[:80]!r}")
        return sizes[0], sizes[1]

    def _expect(self, field: str, value: object, *allowed: object) -> None:
        if value not in allowed:
            raise self._refused(f"{field} must be {' or '.join(map(repr, allowed))}, got {str(value)[:80]!r}")

    def _refused(self, reason: str) -> CheckpointError:
        return CheckpointError(
            f"{self._file}: quantization_config ({str(self._method)[:40]}): {reason}. "
            f"Supported are {SUPPORTED}; else use the model's unquantized checkpoint"
        )
