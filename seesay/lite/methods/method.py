"""The interface of quantization methods, and what `quantization_config` says of their formats."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from seesay.checkpoint import Checkpoint
from seesay.checkpoint.quantization import read_quantization
from seesay.device.linear.layer_loading import pick_method
from seesay.device.linear.linear_method import LinearMethod
from seesay.lite.calibration.batches import Batch
from seesay.lite.methods.plain_layer import PlainLayer
from seesay.lite.methods.statistics import InputStatistics
from seesay.llm.memory.kv_cache import KVCache

_IN_LAYER = re.compile(r"\blayers\.\d+\.(.+)$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibrated:
    """Hold what a method knows when it quantizes a decoder layer: the inputs of its linear layers, and batches to run
    it with."""

    statistics: Mapping[str, InputStatistics]
    batches: Sequence[Batch]
    cache: KVCache


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainMatrix:
    """The weight of one linear layer, or of one expert in it: float32 data [out, in], the type in which the checkpoint
    has it, and statistics of its inputs; None where they are not needed or there were none."""

    name: str
    data: Tensor
    stored_type: torch.dtype
    inputs: InputStatistics | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantized:
    """One linear layer: its tensors by the names of its format's layouts, and the matrix [out, in] that they stand for,
    float32."""

    tensors: Mapping[str, Tensor]
    matrix: Tensor


class Method(Protocol):
    """A way to quantize, with its options settled.

    needs_inputs: whether it has to be calibrated.
    """

    name: str
    needs_inputs: bool

    def gram_size(self, num_inputs: int) -> int | None:
        """Return the size of the groups of inputs whose Gram matrices it needs; None for none."""
        ...

    def config(self, excluded: Sequence[str]) -> dict[str, Any]:
        """Return the `quantization_config` of its checkpoints. excluded: names of modules that stay plain."""
        ...

    def check_sizes(self, what: str, num_outputs: int, num_inputs: int) -> None:
        """Raise `ConfigError` that names the option for sizes of a linear layer that its format cannot have."""
        ...

    def prepare(self, layer: PlainLayer, calibrated: Calibrated) -> tuple[Calibrated, dict[str, Any]]:
        """Change a decoder layer into one that computes the same and loses less by rounding. Returns the statistics of
        the changed layer, and notes for the report."""
        ...

    def quantize(self, plain: PlainMatrix) -> Quantized:
        """Return a linear layer quantized."""
        ...


def split_excluded(excluded: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the names of modules outside of numbered layers, and what those inside are called in each layer."""
    matches = {name: _IN_LAYER.search(name) for name in excluded}
    inside = dict.fromkeys(match[1] for match in matches.values() if match is not None)
    return [name for name, match in matches.items() if match is None], list(inside)


def make_loader(method: Method, source: Checkpoint, dtype: torch.dtype) -> LinearMethod:
    """Return the method by which the engine loads layers of `source` as `method` writes them."""
    quantization = read_quantization(Path("config.json"), {"quantization_config": method.config(())}, None)
    return pick_method(dataclasses.replace(source, quantization=quantization), dtype)


def nothing_prepared(calibrated: Calibrated) -> tuple[Calibrated, dict[str, Any]]:
    """Return the outcome of `Method.prepare` where nothing changes."""
    return calibrated, {}


def relative_error(quantized: Quantized, plain: PlainMatrix) -> float:
    """Return the size of the difference of two matrices relative to that of the plain one."""
    return float((quantized.matrix - plain.data).norm() / plain.data.norm().clamp(min=1e-30))
