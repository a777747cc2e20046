"""LMDeploy's import path of `smooth_quant`."""

from __future__ import annotations

from seesay.lite.api import smooth_quant

__all__ = ["smooth_quant"]
