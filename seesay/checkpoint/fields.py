"""Read single fields of a config.json that authors of a model wrote."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from seesay.errors import CheckpointError


def read_count(config: Mapping[str, object], name: str, *, most: int | None = None) -> int:
    """Return a field that must be an integer from 1 to `most`, if `most` is not None. Raises `CheckpointError` naming
    one that is not."""
    value = config.get(name)
    if type(value) is not int or value < 1 or (most is not None and value > most):
        allowed = "a positive integer" if most is None else f"an integer from 1 to {most}"
        raise CheckpointError(f"{name} must be {allowed}, got {str(value)[:40]!r}")
    return value


def read_number(config: Mapping[str, object], name: str, default: float = 1.0) -> float:
    """Return a field that is a number above 0; `default` where there is none. Raises `CheckpointError` naming one that
    is not."""
    value = config.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= sys.float_info.max:
        raise CheckpointError(f"{name} must be a number above 0, got {str(value)[:40]!r}")
    return float(value)


def read_part(config: Mapping[str, object], name: str) -> Mapping[str, Any]:
    """Return a field that is an object. Raises `CheckpointError` naming one that is not."""
    value = config.get(name)
    if not isinstance(value, Mapping):
        raise CheckpointError(f"{name} must be an object, got {str(value)[:40]!r}")
    return value


def check_fields(config: Mapping[str, object], expected: Mapping[str, object], *, where: str = "") -> None:
    """Raise `CheckpointError` naming a field that is there and is not what is `expected`. where: what messages have
    before its name."""
    for name, value in expected.items():
        if (found := config.get(name)) not in (None, value):
            raise CheckpointError(f"{where}{name} must be {value!r}, got {str(found)[:40]!r}")
