"""The description of quantized weights that loading follows, whatever format a checkpoint has them in."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from seesay.checkpoint.quantization.exclusions import Exclusions

Format = Literal["fp8", "int8", "awq", "gptq", "pack-quantized", "mxfp4"]
InFlight = Literal["fp8", "int8"]
"""Formats that plain weights can be given while they are loaded."""
Strategy = Literal["tensor", "channel", "block", "group"]


@dataclass(frozen=True, kw_only=True)
class Quantization:
    """The tensors that quantized linear layers have, and which layers these are.

    method: the checkpoint's name of the format, its `quant_method`; empty where weights are quantized in flight.
    format: FP8 weights (e4m3), int8 weights, integers packed as AWQ, GPTQ or compressed-tensors pack them, or numbers
        of 4 bits (e2m1) with a power of two for each group (MXFP4).
    strategy: what a scale is for: a whole stored tensor, an output channel, a block of `block_size` (outputs, inputs),
        or `group_size` inputs of one output, None for all of its inputs.
    scale_name: FP8 and int8: the name of the tensor of scales behind the module's. scale_has_inputs: whether the scales
        of channels have an axis of length one for the inputs. has_input_scale: whether there is an `input_scale` for
        activations, too. bits: of a packed integer. zero_offset: GPTQ: stored zero points are less by this.
        is_symmetric: pack-quantized: whether there are no zero points; GPTQ: whether all are in the middle.
        has_order: pack-quantized and GPTQ: whether inputs were sorted; for GPTQ it is the tensors that decide.
    excluded: modules that are not quantized: see `Exclusions`. marker: the name of a tensor that quantized modules
        have and others do not; None where `excluded` alone decides.
    ignored: names of tensors, behind those of modules, that are not read: scales of a KV cache.
    kv_format: of the KV cache that the checkpoint asks for; None for a plain one.
    is_stored: False where the checkpoint has plain weights, which are quantized while they are loaded.
    has_plain_copy: whether packed weights are multiplied out once and for all, too; the checkpoint does not say it.
    where: the place of the settings, for messages.
    """

    method: str = ""
    format: Format = "fp8"
    strategy: Strategy
    scale_name: str = "weight_scale"
    scale_has_inputs: bool = True
    block_size: tuple[int, int] = (128, 128)
    group_size: int | None = None
    bits: int = 8
    zero_offset: int = 0
    is_symmetric: bool = True
    has_order: bool = False
    has_input_scale: bool = False
    excluded: tuple[str, ...] = ("lm_head",)
    marker: str | None = None
    ignored: tuple[str, ...] = ()
    kv_format: Literal["fp8"] | None = None
    is_stored: bool = True
    has_plain_copy: bool = field(default=False, compare=False)
    where: str = field(default="quantization_config", compare=False)

    @property
    def is_packed(self) -> bool:
        """Whether several numbers lie in one word."""
        return self.format in ("awq", "gptq", "pack-quantized")

    def covers(self, module: str) -> bool:
        """Return whether the module that the checkpoint names so is quantized. Raises `CheckpointError` for a pattern
        that takes too long."""
        return module not in self._exclusions

    @cached_property
    def _exclusions(self) -> Exclusions:
        return Exclusions(self.excluded, self.where)
