"""A gated short convolution (LFM2) in the place of attention: it keeps the last inputs of a sequence, and nothing of
single tokens."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from seesay.checkpoint.parts import Weight, plain_weight
from seesay.device.linear.linear import Linear
from seesay.llm.memory.kv_layout import LayerCache
from seesay.llm.models.media_rows import SplitLinear
from seesay.llm.models.mixer_spec import ConvolutionSpec
from seesay.llm.models.mixers.attention import AttentionStep
from seesay.llm.models.mixers.delta_net import make_taps
from seesay.llm.models.spec import DecoderConfig
from seesay.llm.ops import states


class ShortConvolution:
    """See `Mixer`."""

    def __init__(self, config: DecoderConfig, index: int, spec: ConvolutionSpec) -> None:
        size, name = config.hidden_size, f"layers.{index}.conv.conv"
        self.window = spec
        self.qkv = SplitLinear("conv.in_proj", size, 3 * size, bias=spec.has_bias, media=None)
        self.out = SplitLinear("conv.out_proj", size, size, bias=spec.has_bias, media=None)
        self.linears: Mapping[str, Linear] = {**self.qkv.linears, **self.out.linears}
        self._taps = make_taps(f"{name}.weight", size, spec.num_taps)
        self._bias = plain_weight(f"{name}.bias", size) if spec.has_bias else None
        self.norms: tuple[Weight, ...] = (self._taps,) if self._bias is None else (self._taps, self._bias)

    def attend(self, qkv: torch.Tensor, cache: LayerCache, step: AttentionStep) -> torch.Tensor:
        """Return C · convolution(B · x) [T, hidden] of `self.qkv`'s output, which is B, C and x."""
        assert step.states is not None
        first, second, x = qkv.chunk(3, dim=-1)
        bias = None if self._bias is None else self._bias.data
        mixed = states.convolve(first * x, cache.states[0], self._taps.data[:, 0], bias, step.states)
        states.note_faults(mixed, step.faults)
        return mixed.mul_(second)
