"""Recognizes the folder of a published embedder of texts and pictures, whose prompts and pictures differ from those of
the model that it was made from."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal

from seesay.checkpoint.checkpoint import Checkpoint

Embedder = Literal["gme", "qwen3_vl"]

_CODE_FILES = ("gme_inference.py", "modeling_gme_qwen2vl.py")
_NAMES: Mapping[Embedder, str] = {
    "gme": r"(^|[/_-])gme-qwen2-?vl",
    "qwen3_vl": r"qwen3-?vl-embedding",
}
_MODEL_TYPES: Mapping[str, Embedder] = {"qwen2_vl": "gme", "qwen3_vl": "qwen3_vl"}
SENTENCE_FILE = "config_sentence_transformers.json"


def find_embedder(checkpoint: Checkpoint) -> Embedder | None:
    """Return the kind of embedder; None for a folder that holds none of them.

    GME-Qwen2-VL names its own class in `auto_map` or `architectures`, or has its script beside the weights. For
    sentence-transformers, Qwen3-VL-Embedding has its default instruction as the default prompt. Either may also be
    known by the name of its folder, or by that of its repository in the cache of the hub.
    """
    kind = _MODEL_TYPES.get(str(checkpoint.config.get("model_type")))
    if kind is None:
        return None
    if kind == "gme" and _has_gme_code(checkpoint):
        return kind
    if kind == "qwen3_vl" and read_prompts(checkpoint).get("default"):
        return kind
    folders = "/".join(checkpoint.path.absolute().parts[-3:]).lower()
    return kind if re.search(_NAMES[kind], folders) else None


def _has_gme_code(checkpoint: Checkpoint) -> bool:
    named = [checkpoint.config.get("architectures"), checkpoint.config.get("auto_map")]
    return "gmeqwen2vl" in str(named).lower() or any((checkpoint.path / name).is_file() for name in _CODE_FILES)


def read_prompts(checkpoint: Checkpoint) -> Mapping[str, str]:
    """Return the prompts that a folder of sentence-transformers names; under `default` the one that it takes where a
    caller names none. Raises `CheckpointError` for a file that is not valid JSON."""
    config: Mapping[str, Any] = checkpoint.read_json(SENTENCE_FILE) or {}
    given = config.get("prompts")
    prompts = {str(k): v for k, v in given.items() if isinstance(v, str)} if isinstance(given, Mapping) else {}
    chosen = prompts.get(str(config.get("default_prompt_name")), "")
    return {**prompts, "default": chosen}
