"""The configurations under LMDeploy's module name. They are defined in `seesay.config`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from seesay.config import EngineConfig as PytorchEngineConfig
from seesay.config import GenerationConfig, SpeculativeConfig, TurbomindEngineConfig, VisionConfig
from seesay.engine.front.response import Response
from seesay.moved import advise

__all__ = [
    "GenerationConfig",
    "PytorchEngineConfig",
    "Response",
    "SpeculativeConfig",
    "TurbomindEngineConfig",
    "VisionConfig",
]

if not TYPE_CHECKING:
    __getattr__ = advise(__name__, {"EngineGenerationConfig": "use GenerationConfig"})
