"""The WebUI for a model, under the module name that LMDeploy has for it."""

from __future__ import annotations

from seesay.ui.app import run_local

__all__ = ["run_local"]
