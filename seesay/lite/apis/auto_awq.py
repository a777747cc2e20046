"""LMDeploy's import path of `auto_awq`."""

from __future__ import annotations

from seesay.lite.api import auto_awq

__all__ = ["auto_awq"]
