"""The configuration of a model with Transformers' defaults, as plain values that can be kept without Transformers."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from transformers import PretrainedConfig

_MISSING = object()


class ModelConfig:
    """A configuration, or a part of one such as `vision_config`: its values are attributes. It never changes.

    Values are JSON: a tuple has become a list, a dtype its name.
    """

    __slots__ = ("_make_original", "_parts", "_values")

    def __init__(self, plain: Mapping[str, Any], make_original: Callable[[], PretrainedConfig]) -> None:
        """`plain` is what `as_plain` returned for the object that `make_original` returns. Raises KeyError, TypeError
        or AttributeError for anything else."""
        self._make_original = make_original
        self._values: dict[str, Any] = dict(plain["values"])
        self._parts = {name: ModelConfig(part, partial(self._make_part, name)) for name, part in plain["parts"].items()}

    @classmethod
    def of(cls, config: PretrainedConfig) -> Self:
        """Return the values of a configuration of Transformers."""
        return cls(as_plain(config), lambda: config)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        if name in self._parts:
            return self._parts[name]
        try:
            return self._values[name]
        except KeyError:
            raise AttributeError(f"the configuration has no {name!r}") from None

    def to_transformers(self) -> PretrainedConfig:
        """Return Transformers' own object. Imports Transformers."""
        return self._make_original()

    def _make_part(self, name: str) -> PretrainedConfig:
        part: PretrainedConfig = getattr(self._make_original(), name)
        return part


def list_options(config: PretrainedConfig) -> dict[str, Any]:
    """Return the options by which one model differs from another, as JSON: those of the configuration and of its parts,
    without the ones that models of every kind have."""
    from transformers import PretrainedConfig

    def drop_general(options: Mapping[str, object]) -> dict[str, Any]:
        return {
            name: drop_general(value) if isinstance(value, Mapping) else value
            for name, value in options.items()
            if name not in general
        }

    general = PretrainedConfig().to_dict().keys()
    options: dict[str, object] = json.loads(json.dumps(config.to_dict(), default=str))
    return drop_general(options)


def as_plain(config: PretrainedConfig) -> dict[str, Any]:
    """Return the values of a configuration and of its parts, as JSON."""
    from transformers import PretrainedConfig

    values: dict[str, object] = {}
    parts: dict[str, object] = {}
    for name in ("model_type", *vars(config), *config.attribute_map):
        if name.startswith("_"):
            continue
        value = _read(config, name)
        if isinstance(value, PretrainedConfig):
            parts[name] = as_plain(value)
        elif value is not _MISSING:
            values[name] = json.loads(json.dumps(value, default=str))
    return {"values": values, "parts": parts}


def _read(config: PretrainedConfig, name: str) -> object:
    """Return an attribute, or `_MISSING`: for an alias of one that this object lacks, and for one that differs from
    layer to layer, which raises an exception of Transformers' own."""
    try:
        return getattr(config, name)
    except Exception:
        return _MISSING
