"""The configurations under LMDeploy's module name. They are defined in `seesay.config`."""

from __future__ import annotations

from seesay.config import EngineConfig as PytorchEngineConfig
from seesay.config import GenerationConfig, TurbomindEngineConfig, VisionConfig
from seesay.engine.response import Response

__all__ = ["GenerationConfig", "PytorchEngineConfig", "Response", "TurbomindEngineConfig", "VisionConfig"]
