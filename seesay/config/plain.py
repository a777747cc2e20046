"""Configurations as plain data, for another process: mappings, lists, texts, numbers."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from numbers import Integral, Real
from typing import Any

from seesay.errors import ConfigError

_PLAIN: dict[type, Callable[[Any], object]] = {str: str, Integral: int, Real: float, os.PathLike: os.fspath}


def as_plain(name: str, value: object) -> Any:
    """Return the option `name` as plain data: a configuration, or any value that `check_types` accepts. Raises
    `ConfigError` for what is neither."""
    if isinstance(value, bool | None):
        return value
    for kind, convert in _PLAIN.items():
        if isinstance(value, kind):
            return convert(value)
    if is_dataclass(value):
        return {field.name: as_plain(field.name, getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): as_plain(f"{name}.{key}", item) for key, item in value.items()}
    if isinstance(value, Sequence):
        return [as_plain(f"{name}[{index}]", item) for index, item in enumerate(value)]
    raise ConfigError(f"{name}={value!r}: cannot be passed to another process")
