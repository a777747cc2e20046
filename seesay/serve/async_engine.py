"""The engine under LMDeploy's module name."""

from __future__ import annotations

from seesay.engine.front.engine import AsyncEngine

__all__ = ["AsyncEngine"]
