"""Give a decoder its LoRA adapters while it is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from seesay.errors import ConfigError

if TYPE_CHECKING:
    from seesay.config import EngineConfig
    from seesay.llm.running.runner import ModelRunner

_LEAST_RANK = 16


def load_adapters(runner: ModelRunner, config: EngineConfig) -> Mapping[str, int]:
    """Make slots for adapters, load those of the configuration, and return their ids by name. Raises
    `CheckpointError` naming what does not fit, and `ConfigError` for a decoder that takes none."""
    from seesay.checkpoint.adapter_folder import AdapterFolder
    from seesay.checkpoint.model_path import resolve_checkpoint
    from seesay.llm.models.composed_decoder import ComposedDecoder

    folders = {name: resolve_checkpoint(path) for name, path in (config.adapters or {}).items()}
    max_rank = config.max_adapter_rank
    num_slots = min(config.max_adapters or len(folders), runner.limits.max_batch_size)
    if not num_slots:
        return {}
    if not isinstance(runner.decoder, ComposedDecoder):
        raise ConfigError("adapters: this model runs through Transformers' modules, which take no adapters")
    max_rank = max_rank or max(map(AdapterFolder.find_rank, folders.values()), default=_LEAST_RANK)
    adapters = runner.decoder.make_adapters(num_slots=num_slots, max_rank=max_rank)
    found = {}
    for name, folder in folders.items():
        adapter = adapters.read(AdapterFolder.load(folder))
        adapters.add(adapter)
        found[name] = adapter.id
    runner.adapters, runner.limits = adapters, replace(runner.limits, num_adapter_slots=num_slots)
    return found
