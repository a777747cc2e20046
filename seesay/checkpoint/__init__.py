"""Find a model folder in the Hugging Face layout, read its JSON files, and read its tensors one by one.

These modules know file formats, not models. Nothing in a folder is trusted: sizes, offsets and paths are validated
before use, and pickles are never opened. Importing them does not import torch.
"""

from __future__ import annotations

from seesay.checkpoint.checkpoint import Checkpoint
from seesay.checkpoint.files import check_tokenizer_files, read_bytes, read_text
from seesay.checkpoint.layouts.config_conversion import ORIGINALS, ConfigReader, ConvertedConfig, read_as_known
from seesay.checkpoint.model_path import DEMO_MODEL, resolve_checkpoint, resolve_config
from seesay.checkpoint.tensors import NoWeightsError, StoredTensor, TensorSlices, find_stored_names, is_buffer

__all__ = [
    "DEMO_MODEL",
    "ORIGINALS",
    "Checkpoint",
    "ConfigReader",
    "NoWeightsError",
    "ConvertedConfig",
    "StoredTensor",
    "TensorSlices",
    "check_tokenizer_files",
    "find_stored_names",
    "is_buffer",
    "read_as_known",
    "read_bytes",
    "read_text",
    "resolve_checkpoint",
    "resolve_config",
]
