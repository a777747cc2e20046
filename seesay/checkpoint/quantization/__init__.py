"""How the linear layers of a checkpoint are quantized, as its `quantization_config` says, and which of them are not.

A module for each family of formats reads its settings. `reading` is the one place that refuses formats which cannot be
loaded.
"""

from __future__ import annotations

from seesay.checkpoint.quantization.quantization import InFlight, Quantization
from seesay.checkpoint.quantization.reading import read_quantization

__all__ = ["InFlight", "Quantization", "read_quantization"]
