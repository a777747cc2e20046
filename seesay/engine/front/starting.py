"""Chooses how the core runs, in this process or in one of its own, and starts it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from seesay.config import EngineConfig, SpeculativeConfig, VisionConfig
from seesay.config.plain import as_plain
from seesay.config.speculative import make_speculative
from seesay.device.query import is_accelerator
from seesay.engine.commands import ModelStatus
from seesay.engine.engine_core import EngineCore
from seesay.engine.opened_model import OpenedModel
from seesay.engine.process.precompile import Precompile
from seesay.errors import ConfigError
from seesay.vl.plugins import make_absolute

if TYPE_CHECKING:
    from seesay.engine.core.rank_parts import MakeRunner, OpenRemote
    from seesay.engine.process.origin import MakeOrigin
    from seesay.engine.process.remote_core import ProcessCore
    from seesay.vl.family import Family


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreParts:
    """Parts of a core that a caller makes otherwise: its runner, in this process; or what starts its process and starts
    it again. None: `ModelRunner`, `OwnProcess`."""

    make_runner: MakeRunner | None = None
    make_origin: MakeOrigin | None = None


def uses_process(config: EngineConfig) -> bool:
    """Whether the engine gets a process of its own. None means yes on a GPU, and for several ranks."""
    if config.num_ranks > 1:
        return True
    if config.engine_process is not None:
        return config.engine_process
    return is_accelerator(config.device_type)


def import_for_media(family: Family, device_type: str) -> None:
    """Import what resizes pictures, where this process does that, before it answers anybody: importing torch holds the
    GIL for most of a second, in which no stream would go on if the first picture brought it. A GPU resizes them in the
    engine's process."""
    if family.modalities and not is_accelerator(device_type):
        import_module("torch.nn.functional")


def _make_absolute(folders: Mapping[str, str]) -> dict[str, str]:
    """Return folders as other working directories find them; ids of the hub stay."""
    return {name: str(Path(path).absolute()) if Path(path).is_dir() else path for name, path in folders.items()}


def _place_draft(config: SpeculativeConfig | None) -> SpeculativeConfig | None:
    """Return options of which the model is found from other working directories."""
    if config is None or not config.model:
        return config
    return replace(config, model=_make_absolute({"": config.model})[""])


def _find_remote(config: VisionConfig) -> OpenRemote | None:
    """Return what makes an encoder in a process of its own, if it is to have one."""
    if not config.own_process:
        return None
    from seesay.engine.process.tower.remote_encoder import open_remote_encoder

    return open_remote_encoder


class CoreStart:
    """A core that is being started. A process loads the model while the caller opens its tokenizer; then call
    `finish`."""

    def __init__(
        self,
        folder: Path,
        config: EngineConfig,
        vision_config: VisionConfig,
        *,
        address: str | None = None,
        read_status: Callable[[], ModelStatus | None] | None = None,
        parts: CoreParts,
    ) -> None:
        """Start the core of the model in `folder`, or use the engine process behind the listener at `address`, which
        has loaded it with the same configuration. Raises `ConfigError` without the packages for a process."""
        self._config = config
        self._parts = parts
        self._vision_config = vision_config
        self._process: ProcessCore | None = None
        self._precompile: Precompile | None = None
        if not uses_process(config) and address is None:
            self._precompile = Precompile(folder, config)
            return
        try:
            from seesay.engine.process.remote_core import ProcessCore
        except ImportError as error:
            raise ConfigError(f"engine_process=True: needs the packages msgspec and pyzmq ({error})") from error
        if address is not None:
            self._process = ProcessCore.join(address, read_status=read_status, step_timeout_s=config.step_timeout_s)
            return
        # The folder is what these lead to; the process is started again where this one may be in another folder.
        local = replace(
            config,
            download_dir=None,
            revision=None,
            plugins=make_absolute(config.plugins),
            adapters=_make_absolute(config.adapters or {}),
            speculative=_place_draft(make_speculative(config.speculative)),
        )
        self._process = ProcessCore.load(
            folder,
            as_plain("backend_config", local),
            as_plain("vision_config", vision_config),
            step_timeout_s=config.step_timeout_s,
            make_origin=parts.make_origin,
        )

    def finish(self, model: OpenedModel) -> EngineCore:
        """Return the core, with the weights of `model` loaded. Raises `CheckpointError` or `ConfigError`."""
        if self._process is not None:
            return self._process.wait_until_loaded()
        assert self._precompile is not None
        from seesay.engine.core.loading.loading import load_core

        core = load_core(
            model,
            self._config,
            self._vision_config,
            wait_for_kernels=self._precompile.wait,
            make_runner=self._parts.make_runner,
            open_remote=_find_remote(self._vision_config),
        )
        self._precompile.finish()
        return core

    def cancel(self) -> None:
        """End what was started, if it was not finished."""
        if self._process is not None:
            self._process.close()
        if self._precompile is not None:
            self._precompile.close()
