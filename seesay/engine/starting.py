"""Chooses how the core runs, in this process or in one of its own, and starts it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from seesay.config import EngineConfig, VisionConfig
from seesay.config.plain import as_plain
from seesay.engine.core import EngineCore
from seesay.engine.loading import load_core
from seesay.engine.opened_model import OpenedModel
from seesay.errors import ConfigError


def uses_process(config: EngineConfig) -> bool:
    """Whether the engine gets a process of its own. None means no, also on a GPU, until that is measured there."""
    return bool(config.engine_process)


def start_core(
    model: OpenedModel, folder: Path, config: EngineConfig, vision_config: VisionConfig, *, address: str | None = None
) -> EngineCore:
    """Load the weights of `model`, which is in `folder`, or use the engine process behind the door at `address`, which
    has loaded it with the same configuration. Raises `CheckpointError` or `ConfigError`."""
    if not uses_process(config) and address is None:
        return load_core(model, config, vision_config)
    try:
        from seesay.engine.process.core import ProcessCore
    except ImportError as error:
        raise ConfigError(f"engine_process=True: needs the packages msgspec and pyzmq ({error})") from error
    if address is not None:
        return ProcessCore.join(address, step_timeout_s=config.step_timeout_s)
    # The folder is what these lead to.
    local = replace(config, download_dir=None, revision=None)
    return ProcessCore.load(
        folder,
        as_plain("backend_config", local),
        as_plain("vision_config", vision_config),
        step_timeout_s=config.step_timeout_s,
    )
