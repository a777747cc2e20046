"""Give a decoder its LoRA adapters while it is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from seesay.errors import ConfigError

if TYPE_CHECKING:
    from seesay.llm.models.decoder import Decoder


def load_adapters(decoder: Decoder, folders: Mapping[str, str]) -> Mapping[str, int]:
    """Load adapters from folders, by name, and return their ids. Raises `CheckpointError` naming what does not fit, and
    `ConfigError` for a decoder that takes none."""
    from seesay.checkpoint.adapter_folder import AdapterFolder
    from seesay.checkpoint.model_path import resolve_checkpoint
    from seesay.llm.models.composed_decoder import ComposedDecoder

    if not folders:
        return {}
    if not isinstance(decoder, ComposedDecoder):
        raise ConfigError("adapters: this model runs through Transformers' modules, which take no adapters")
    return {name: decoder.add_adapter(AdapterFolder.load(resolve_checkpoint(path))) for name, path in folders.items()}
