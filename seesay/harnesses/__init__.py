"""Evaluation harnesses over a `pipeline`, without a server: docs/accuracy.md."""

from __future__ import annotations

from typing import Any


def describe_to_lmms_eval() -> Any:
    """Return how lmms-eval finds the model `seesay`. It asks at its start, by an entry point of this package."""
    from lmms_eval.models.registry_v2 import ModelManifest

    return ModelManifest(model_id="seesay", chat_class_path="seesay.harnesses.lmms_eval.SeesayLMM")
