"""Logits processors named by 'package.module:function'."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from seesay.errors import ConfigError, show

_KEYS = {"qualname": str, "args": list | tuple, "kwargs": Mapping}


def check_processor(given: Callable[[Any, Any], Any] | str | Mapping[str, Any]) -> None:
    """Raise `ConfigError` for the arguments of a named processor that are not of the form {'qualname': 'module:name',
    'args': […], 'kwargs': {…}} with values that JSON has."""
    if not isinstance(given, Mapping):
        return
    for key, value in given.items():
        if key not in _KEYS:
            raise ConfigError(f"logits_processors must have the keys {', '.join(_KEYS)} alone, got {show(key)}")
        if not isinstance(value, _KEYS[key]):
            raise ConfigError(f"logits_processors: {key} has the wrong type, got {show(value)}")
    if "qualname" not in given:
        raise ConfigError("logits_processors must have qualname, the name of a function")
    if not all(isinstance(name, str) for name in given.get("kwargs", {})):
        raise ConfigError("logits_processors: the names in kwargs must be strings")
    try:
        json.dumps([list(given.get("args", ())), dict(given.get("kwargs", {}))], allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(f"logits_processors: args and kwargs must be what JSON has: {error}") from error
