"""A gated short convolution (LFM2) in the place of attention: it keeps the last inputs of a sequence, and nothing of
single tokens."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from seesay.checkpoint.parts import Source, Weight
from seesay.device.linear.linear import Linear
from seesay.llm.memory.kv_layout import LayerCache
from seesay.llm.models.division import Division
from seesay.llm.models.media_rows import SplitLinear
from seesay.llm.models.mixer_spec import ConvolutionSpec
from seesay.llm.models.mixers.attention import AttentionStep
from seesay.llm.models.mixers.delta_net import make_taps, pick_weight, shift
from seesay.llm.models.spec import DecoderConfig
from seesay.llm.ops import states


class ShortConvolution:
    """A rank's components; see `Mixer`."""

    def __init__(self, config: DecoderConfig, index: int, spec: ConvolutionSpec, division: Division) -> None:
        size, name = config.hidden_size, f"layers.{index}.conv.conv"
        own = division.evenly(spec.size)
        self.window = spec.divide(division.place.size)
        source = Source(module="in_proj", num_outputs=3 * size, picks=shift((own, own, own), (0, size, 2 * size)))
        self.qkv = SplitLinear("conv.in_proj", size, bias=spec.has_bias, sources=[source], media=None)
        self.out = SplitLinear(
            "conv.out_proj", size, size, bias=spec.has_bias, has_own_bias=division.is_first, inputs=own, media=None
        )
        self.linears: Mapping[str, Linear] = {**self.qkv.linears, **self.out.linears}
        self._taps = make_taps(f"{name}.weight", size, spec.num_taps, (own,))
        self._bias = pick_weight(f"{name}.bias", size, (own,)) if spec.has_bias else None
        self.norms: tuple[Weight, ...] = (self._taps,) if self._bias is None else (self._taps, self._bias)

    def attend(self, qkv: torch.Tensor, cache: LayerCache, step: AttentionStep) -> torch.Tensor:
        """Return C · convolution(B · x) [T, hidden] of `self.qkv`'s output, which is B, C and x."""
        assert step.states is not None
        first, second, x = qkv.chunk(3, dim=-1)
        bias = None if self._bias is None else self._bias.data
        mixed = states.convolve(first * x, cache.states[0], self._taps.data[:, 0], bias, step.states, activates=False)
        states.note_faults(mixed, step.faults)
        return mixed.mul_(second)
