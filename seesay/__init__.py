"""seesay serves vision-language models: see images and video, say text.

    from seesay import load_image, pipeline

    with pipeline() as pipe:
        print(pipe(("describe this image", load_image("tiger.jpeg"))).text)

Public names are imported when they are first used, so that `import seesay` is fast.
"""

from __future__ import annotations

import importlib

from seesay.moved import advise, install_advice
from seesay.version import __version__

TYPE_CHECKING = False  # see `moved.py`
if TYPE_CHECKING:
    from typing import Any

    from seesay import errors, lite, low_level
    from seesay.config import (
        BeamSearchParams,
        ChatTemplateConfig,
        EngineConfig,
        GenerationConfig,
        MediaLimits,
        SpeculativeConfig,
        TurbomindEngineConfig,
        VisionConfig,
    )
    from seesay.config import EngineConfig as PytorchEngineConfig
    from seesay.engine.front.engine import AsyncEngine
    from seesay.engine.front.response import Response
    from seesay.offline.pipeline import Pipeline, pipeline
    from seesay.offline.session import Session
    from seesay.processors.media.load import DocumentPage, load_audio, load_document, load_image, load_video
    from seesay.serving.client import APIClient
    from seesay.serving.launch import client, serve
    from seesay.vl.constants import IMAGE_TOKEN

__all__ = [
    "APIClient",
    "AsyncEngine",
    "BeamSearchParams",
    "ChatTemplateConfig",
    "DocumentPage",
    "EngineConfig",
    "GenerationConfig",
    "IMAGE_TOKEN",
    "MediaLimits",
    "Pipeline",
    "PytorchEngineConfig",
    "Response",
    "Session",
    "SpeculativeConfig",
    "TurbomindEngineConfig",
    "VisionConfig",
    "__version__",
    "client",
    "errors",
    "lite",
    "load_audio",
    "load_document",
    "load_image",
    "load_video",
    "low_level",
    "pipeline",
    "serve",
]

# Public name → (module, name in it). None stands for the module itself.
_HOMES: dict[str, tuple[str, str | None]] = {
    "APIClient": ("seesay.serving.client", "APIClient"),
    "AsyncEngine": ("seesay.engine.front.engine", "AsyncEngine"),
    "BeamSearchParams": ("seesay.config", "BeamSearchParams"),
    "ChatTemplateConfig": ("seesay.config", "ChatTemplateConfig"),
    "DocumentPage": ("seesay.processors.media.load", "DocumentPage"),
    "EngineConfig": ("seesay.config", "EngineConfig"),
    "GenerationConfig": ("seesay.config", "GenerationConfig"),
    "IMAGE_TOKEN": ("seesay.vl.constants", "IMAGE_TOKEN"),
    "MediaLimits": ("seesay.config", "MediaLimits"),
    "Pipeline": ("seesay.offline.pipeline", "Pipeline"),
    "PytorchEngineConfig": ("seesay.config", "EngineConfig"),
    "Response": ("seesay.engine.front.response", "Response"),
    "Session": ("seesay.offline.session", "Session"),
    "SpeculativeConfig": ("seesay.config", "SpeculativeConfig"),
    "TurbomindEngineConfig": ("seesay.config", "TurbomindEngineConfig"),
    "VisionConfig": ("seesay.config", "VisionConfig"),
    "client": ("seesay.serving.launch", "client"),
    "errors": ("seesay.errors", None),
    "lite": ("seesay.lite", None),
    "load_audio": ("seesay.processors.media.load", "load_audio"),
    "load_document": ("seesay.processors.media.load", "load_document"),
    "load_image": ("seesay.processors.media.load", "load_image"),
    "load_video": ("seesay.processors.media.load", "load_video"),
    "low_level": ("seesay.low_level", None),
    "pipeline": ("seesay.offline.pipeline", "pipeline"),
    "serve": ("seesay.serving.launch", "serve"),
}


install_advice()
_advise = advise(__name__, {"Tokenizer": "use the `tokenizer` of a pipeline or of seesay.AsyncEngine"})


if not TYPE_CHECKING:  # type checkers know the names from above, and all others to be wrong

    def __getattr__(name: str) -> Any:
        if name not in _HOMES:
            return _advise(name)
        module_name, attribute = _HOMES[name]
        module = importlib.import_module(module_name)
        value = module if attribute is None else getattr(module, attribute)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
