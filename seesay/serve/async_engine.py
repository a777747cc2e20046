"""The engine under the module name that LMDeploy has for it."""

from __future__ import annotations

from seesay.engine.engine import AsyncEngine

__all__ = ["AsyncEngine"]
