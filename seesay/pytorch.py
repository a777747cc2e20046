"""The engine's configuration under the module name that LMDeploy has for it. There is one engine here."""

from __future__ import annotations

from seesay.config import EngineConfig

__all__ = ["EngineConfig"]
