"""The configurations: frozen, and validated when they are built. A wrong value raises `ConfigError` and names the
option.

Names and most defaults are LMDeploy's, so that its users only change the import. An accepted option has an effect; an
unsupported one is refused by name.
"""

from __future__ import annotations

from seesay.config.beam_search import BeamSearchParams
from seesay.config.chat_template import ChatTemplateConfig
from seesay.config.engine import DTypeName, EngineConfig, TurbomindEngineConfig
from seesay.config.environment import Settings
from seesay.config.generation import GenerationConfig
from seesay.config.media_limits import MediaLimits
from seesay.config.speculative import SpeculativeConfig
from seesay.config.vision import Transparency, VisionConfig

__all__ = [
    "BeamSearchParams",
    "ChatTemplateConfig",
    "DTypeName",
    "EngineConfig",
    "GenerationConfig",
    "MediaLimits",
    "Settings",
    "SpeculativeConfig",
    "Transparency",
    "TurbomindEngineConfig",
    "VisionConfig",
]
