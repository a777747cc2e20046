"""A gated delta net whose states fade by a rate of each component of a key (Kimi delta attention, arXiv 2510.26692,
section 3), in the place of attention."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from seesay.checkpoint.parts import Axis, Part, Source, Weight, plain_weight
from seesay.device.linear.linear import Linear
from seesay.llm.memory.kv_layout import LayerCache
from seesay.llm.models.division import Division
from seesay.llm.models.media_rows import SplitLinear
from seesay.llm.models.mixer_spec import DeltaNetSpec
from seesay.llm.models.mixers.attention import AttentionStep
from seesay.llm.models.mixers.delta_net import pick_weight
from seesay.llm.models.spec import DecoderConfig
from seesay.llm.ops import states


class ChannelDeltaNet:
    """A rank's heads; see `Mixer`. Decays and gates are products of `spec.rank` components each, which are products of
    the layer's input."""

    def __init__(self, config: DecoderConfig, index: int, spec: DeltaNetSpec, division: Division) -> None:
        name = f"layers.{index}.self_attn"
        self._spec = self.window = spec.divide(division.place.size)
        heads, keys, values = map(division.evenly, (spec.num_value_heads, spec.key_size, spec.value_size))
        sizes = {"q": (spec.key_size, keys), "k": (spec.key_size, keys), "v": (spec.value_size, values)}
        sources = [Source(module=f"{part}_proj", num_outputs=size, picks=(own,)) for part, (size, own) in sizes.items()]
        sources += [Source(module=f"{part}_a_proj", num_outputs=spec.rank) for part in "fg"]
        sources.append(Source(module="b_proj", num_outputs=spec.num_value_heads, picks=(heads,)))
        self.qkv = SplitLinear("self_attn.in_proj", config.hidden_size, bias=False, sources=sources, media=None)
        self.out = SplitLinear(
            "self_attn.o_proj", spec.value_size, config.hidden_size, bias=False, inputs=values, media=None
        )
        self._decays, self._gates = (
            Linear(spec.rank, bias=False, sources=[Source(module=f"{part}_b_proj", num_outputs=size, picks=(own,))])
            for part, size, own in (("f", spec.key_size, keys), ("g", spec.value_size, values))
        )
        more = {"self_attn.f_b_proj": self._decays, "self_attn.g_b_proj": self._gates}
        self.linears: Mapping[str, Linear] = {**self.qkv.linears, **self.out.linears, **more}
        self._taps = Weight(
            parts=tuple(
                Part(
                    tensor=f"{name}.{part}_conv1d.weight",
                    axes=(Axis(dim=0, size=size, picks=(own,)), Axis(dim=1, size=1), Axis(dim=2, size=spec.num_taps)),
                )
                for part, (size, own) in sizes.items()
            )
        )
        count = spec.num_value_heads
        axes = (Axis(dim=0, size=1), Axis(dim=1, size=1), Axis(dim=2, size=count, picks=(heads,)), Axis(dim=3, size=1))
        self._log_rate = Weight(parts=(Part(tensor=f"{name}.A_log", axes=axes),), dtype=torch.float32)
        self._rate_bias = pick_weight(f"{name}.dt_bias", spec.key_size, (keys,), dtype=torch.float32)
        self._norm = plain_weight(f"{name}.o_norm.weight", spec.value_dim)
        self._eps = config.norm.eps
        self.norms: tuple[Weight, ...] = (self._taps, self._log_rate, self._rate_bias, self._norm)

    def attend(self, qkv: torch.Tensor, cache: LayerCache, step: AttentionStep) -> torch.Tensor:
        """Return the outputs of all heads [T, H · V] for `self.qkv`'s output [T, …]."""
        assert step.states is not None
        spec, count = self._spec, len(qkv)
        mixed, decays, gates, beta = torch.split(
            qkv, [spec.conv_size, spec.rank, spec.rank, spec.num_value_heads], dim=-1
        )
        inputs, matrices = cache.states
        mixed = states.convolve(mixed, inputs, self._taps.data[:, 0], None, step.states)
        query, key, value = torch.split(mixed, [spec.key_size, spec.key_size, spec.value_size], dim=-1)
        keys = (count, spec.num_key_heads, spec.key_dim)
        output = states.run_delta_rule(
            query.view(keys),
            key.view(keys),
            value.view(count, spec.num_value_heads, spec.value_dim),
            beta,
            self._decays(decays).view(keys),
            (self._log_rate.data.flatten(), self._rate_bias.data.view(keys[1:])),
            matrices,
            step.states,
            step.faults,
        )
        return states.gate_heads(output, self._gates(gates), self._norm.data, self._eps, is_sigmoid=True)
