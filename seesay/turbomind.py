"""The configuration of LMDeploy's other engine, under its module name. The one engine here accepts it too."""

from __future__ import annotations

from typing import TYPE_CHECKING

from seesay.config import TurbomindEngineConfig as EngineConfig
from seesay.moved import advise

__all__ = ["EngineConfig"]

if not TYPE_CHECKING:
    __getattr__ = advise(__name__, {"TurboMind": "use seesay.pipeline(...), or seesay.AsyncEngine(...) from asyncio"})
