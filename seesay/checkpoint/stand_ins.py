"""Configurations whose classes lie beside their weights, as code that is not run: read as one of Transformers' own that
means the same."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from seesay.errors import CheckpointError


def _read_internlm2(config: Mapping[str, Any]) -> dict[str, Any]:
    """InternLM2 is Llama with other tensor names (arXiv 2403.17297, section 2.2)."""
    return {"attention_bias": bool(config.get("bias", True))}


def _read_internlm3(config: Mapping[str, Any]) -> dict[str, Any]:
    has_bias = bool(config.get("bias", False))
    if bool(config.get("qkv_bias", False)) != has_bias:
        raise CheckpointError(f"bias={has_bias} with another qkv_bias is not supported")
    return {"attention_bias": has_bias, "mlp_bias": has_bias}


_READERS: Mapping[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
    "internlm2": _read_internlm2,
    "internlm3": _read_internlm3,
}
_FOREIGN = ("attn_implementation", "auto_map", "bias", "qkv_bias")


def read_as_known(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a configuration of which Transformers has the class; `config` itself unless it is known here."""
    kind = config.get("model_type")
    reader = _READERS.get(kind) if isinstance(kind, str) else None
    if reader is None:
        return config
    own = {name: value for name, value in config.items() if name not in _FOREIGN}
    return {**own, "model_type": "llama", **reader(config)}
