"""LMDeploy's import path of `auto_gptq`."""

from __future__ import annotations

from seesay.lite.api import auto_gptq

__all__ = ["auto_gptq"]
