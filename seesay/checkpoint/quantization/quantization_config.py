"""One `quantization_config`, field by field; errors name the file, the format and the field."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from seesay.checkpoint.quantization.exclusions import compile_pattern
from seesay.errors import CheckpointError

SUPPORTED = (
    "awq (gemm), gptq, fp8, modelopt (FP8), mxfp4 (experts), smooth_quant, and compressed-tensors of format "
    "float-quantized, int-quantized, naive-quantized or pack-quantized"
)
_MAX_NAMES, _MAX_NAME_LENGTH, _MAX_GROUP = 20_000, 1_000, 1 << 20
_SHOWN_CHARS = 80


class Settings:
    """The fields of the `quantization_config` in `file`. Raises `CheckpointError` if it is not an object."""

    def __init__(self, file: Path, fields: object) -> None:
        self._file = file
        self.method = fields.get("quant_method") if isinstance(fields, Mapping) else fields
        if not isinstance(fields, Mapping):
            raise self.refused("it must be an object")
        self._fields: Mapping[str, Any] = fields

    @property
    def where(self) -> str:
        """The settings' place, for messages."""
        return f"{self._file}: quantization_config"

    def get(self, field: str, default: object = None) -> Any:
        return self._fields.get(field, default)

    def expect(self, field: str, value: object, *allowed: object) -> None:
        """Raise `CheckpointError` unless `value`, which `field` has, is one of `allowed`, and of the same type."""
        if not any(type(value) is type(other) and value == other for other in allowed):
            raise self.refused(f"{field} must be {' or '.join(map(repr, allowed))}, got {_show(value)}")

    def names(self, field: str, value: object) -> tuple[str, ...]:
        """Return `value` of `field`, a list of names of modules and patterns."""
        entries = list(value) if isinstance(value, list | tuple) else [None]
        names = [entry for entry in entries if isinstance(entry, str) and entry]
        if len(names) != len(entries):
            raise self.refused(f"{field} must be a list of names of modules")
        if len(names) > _MAX_NAMES:
            raise self.refused(f"{field} may have at most {_MAX_NAMES} names, got {len(names)}")
        if (longest := max(map(len, names), default=0)) > _MAX_NAME_LENGTH:
            raise self.refused(f"{field}: a name may have at most {_MAX_NAME_LENGTH} characters, got {longest}")
        for name in names:
            if name.startswith("re:"):
                compile_pattern(name, self.where)
        return tuple(names)

    def block(self, field: str, value: object) -> tuple[int, int]:
        """Return `value` of `field`, the size of a block."""
        sizes = value if isinstance(value, list | tuple) else []
        if len(sizes) != 2 or not all(type(n) is int and n > 0 for n in sizes):
            raise self.refused(f"{field} must be two positive integers, got {_show(value)}")
        return sizes[0], sizes[1]

    def group_size(self, field: str, value: object) -> int | None:
        """Return `value` of `field`, the number of inputs that share a scale; None for all."""
        if type(value) is not int or not (value == -1 or 8 <= value <= _MAX_GROUP):
            raise self.refused(f"{field} must be -1 or in [8, {_MAX_GROUP}], got {_show(value)}")
        return None if value == -1 else value

    def refused(self, reason: str) -> CheckpointError:
        return CheckpointError(
            f"{self.where} ({str(self.method)[:40]}): {reason}. "
            f"Supported are {SUPPORTED}; else use the model's unquantized checkpoint"
        )


def _show(value: object) -> str:
    """Return a value for a message."""
    shown = repr(value)
    return shown if len(shown) <= _SHOWN_CHARS else f"{shown[:_SHOWN_CHARS]}…"
