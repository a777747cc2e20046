"""The engine's configuration under LMDeploy's module name."""

from __future__ import annotations

from seesay.config import EngineConfig

__all__ = ["EngineConfig"]
