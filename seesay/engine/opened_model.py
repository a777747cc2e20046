"""A model folder as the front needs it: its configuration, tokenizer and family. No weights, no device memory."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from seesay.checkpoint import Checkpoint
from seesay.processors.text.tokenizer import Tokenizer
from seesay.vl.registry import find_family

if TYPE_CHECKING:
    from seesay.config import EngineConfig
    from seesay.vl.family import Backbone, Family


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedModel:
    """The parts of a model that both halves of an engine use before its weights are loaded."""

    checkpoint: Checkpoint
    tokenizer: Tokenizer
    family: Family
    backbone: Backbone

    @property
    def vocab_size(self) -> int:
        """Number of token ids; those of a tokenizer may be fewer."""
        size: int = self.backbone.text_config.vocab_size
        return size


def open_model(folder: Path, config: EngineConfig) -> OpenedModel:
    """Read the model in `folder`, but for its weights. Raises `CheckpointError` for one that cannot be served."""
    checkpoint = Checkpoint.load(folder, config.hf_overrides, quantization=config.quantization)
    checkpoint.expect_format(config.model_format)
    family_type = find_family(checkpoint.architecture, checkpoint.tower_type)
    tokenizer = Tokenizer.load(folder, trust_remote_code=config.trust_remote_code)
    with checkpoint.blamed():
        family = family_type(checkpoint, tokenizer)
        return OpenedModel(checkpoint=checkpoint, tokenizer=tokenizer, family=family, backbone=family.backbone())
