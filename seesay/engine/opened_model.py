"""A model folder as the frontend needs it: its configuration, tokenizer and family. No weights, no device memory."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from seesay.checkpoint import Checkpoint, NoWeightsError
from seesay.checkpoint.embedders import find_embedder
from seesay.checkpoint.pooling import read_pooling, scales_embeddings
from seesay.grammars.token_table import load_token_table
from seesay.processors.text.tokenizer import Tokenizer
from seesay.vl.modules.module_family import ModuleDecoderFamily, find_backbone
from seesay.vl.registry import Registry, find_model, open_registry

if TYPE_CHECKING:
    from seesay.config import EngineConfig
    from seesay.values import Pooling
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

    @property
    def hidden_size(self) -> int:
        """Size of the decoder's hidden states, and so of embeddings."""
        size: int = self.backbone.text_config.hidden_size
        return size

    @property
    def pooling(self) -> Pooling:
        """What an embedding is, where a request does not say: as the folder says, or the family."""
        found = read_pooling(self.checkpoint)
        if found is None and find_embedder(self.checkpoint) is not None:
            return "last"
        return found or self.family.pooling

    @property
    def normalizes(self) -> bool:
        """Whether embeddings have length 1, where a request does not say: as the folder says."""
        return find_embedder(self.checkpoint) is not None or scales_embeddings(self.checkpoint)

    def embedding_size(self, pooling: Pooling) -> int:
        """Size of an embedding, or of each of its vectors."""
        return (self.backbone.projection_size if pooling == "tokens" else 0) or self.hidden_size

    def grammar_tokens(self) -> list[bytes]:
        """Return the bytes of each token, for grammars (`load_token_table`)."""
        tokenizer, size = self.tokenizer, self.vocab_size
        return load_token_table(tokenizer.digest, size, lambda: tokenizer.spelling.spell_all(size))

    def text_tokens(self) -> list[bytes]:
        """Return the bytes that each token adds to a text without special tokens."""
        special_ids = self.tokenizer.special_ids
        return [b"" if token_id in special_ids else token for token_id, token in enumerate(self.grammar_tokens())]


def read_config(folder: Path, config: EngineConfig) -> Checkpoint:
    """Return the model's configuration, without tensors. Raises `CheckpointError` for a model that does not run, as far
    as its config.json says so alone, and `ConfigError` for a plugin that cannot be used."""
    registry = open_registry(config.plugins, config.custom_module_map)
    options = _load_options(config, registry)
    return _check_config(Checkpoint.load_config(folder, config.hf_overrides, **options), registry)


def _load_options(config: EngineConfig, registry: Registry) -> dict[str, Any]:
    return {
        "quantization": config.quantization,
        "readers": registry.readers,
        "runs_code": config.trust_remote_code,
    }


def _check_config(checkpoint: Checkpoint, registry: Registry) -> Checkpoint:
    family_type, checkpoint = find_model(checkpoint, registry)
    if issubclass(family_type, ModuleDecoderFamily) and checkpoint.code is None:
        family_type.build_modules(checkpoint)
    return checkpoint


def open_model(folder: Path, config: EngineConfig) -> OpenedModel:
    """Read the model in `folder`, but for its weights. Raises `CheckpointError` for one that cannot be served, and
    `ConfigError` for a plugin that cannot be used."""
    registry = open_registry(config.plugins, config.custom_module_map)
    options = _load_options(config, registry)
    try:
        checkpoint = Checkpoint.load(folder, config.hf_overrides, **options)
    except NoWeightsError:  # report an unsupported model before its weights are downloaded
        _check_config(Checkpoint.load_config(folder, config.hf_overrides, **options), registry)
        raise
    checkpoint.expect_format(config.model_format)
    family_type, checkpoint = find_model(checkpoint, registry)
    tokenizer = Tokenizer.load(folder, trust_remote_code=config.trust_remote_code)
    with checkpoint.blamed():
        family = family_type(checkpoint, tokenizer)
        return OpenedModel(checkpoint=checkpoint, tokenizer=tokenizer, family=family, backbone=find_backbone(family))
