"""Quantizes checkpoints: `seesay lite` and the functions behind it. They are imported on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from seesay.lite.api import auto_awq, auto_gptq, calibrate, extract_tasks, fp8, merge, smooth_quant

__all__ = ["auto_awq", "auto_gptq", "calibrate", "extract_tasks", "fp8", "merge", "smooth_quant"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from seesay.lite import api

    return getattr(api, name)
