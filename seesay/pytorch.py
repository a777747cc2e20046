"""The engine's configuration under LMDeploy's module name."""

from __future__ import annotations

from seesay.config import EngineConfig

__all__ = ["EngineConfig"]

__path__: list[str] = []
"""LMDeploy has modules below this one. None of them is here, and importing one says what to use instead."""
