"""The gated delta net of a layer (Yang et al. 2024, arXiv 2412.06464), in the place of attention: a short convolution,
and a matrix per head that each token changes. It keeps both of a sequence, and nothing of single tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import torch

from seesay.checkpoint.parts import Axis, Part, Source, Weight, plain_weight
from seesay.device.linear.linear import Linear
from seesay.llm.memory.kv_layout import LayerCache
from seesay.llm.models.division import Division
from seesay.llm.models.media_rows import SplitLinear
from seesay.llm.models.mixer_spec import DeltaNetSpec
from seesay.llm.models.mixers.attention import AttentionStep
from seesay.llm.models.spec import DecoderConfig
from seesay.llm.ops import states


class DeltaNet:
    """A rank's heads; see `Mixer`."""

    def __init__(self, config: DecoderConfig, index: int, spec: DeltaNetSpec, division: Division) -> None:
        name, count = f"layers.{index}.linear_attn", spec.num_value_heads
        self._spec = self.window = spec.divide(division.place.size)
        heads, keys, values = map(division.evenly, (count, spec.key_size, spec.value_size))
        mixed = shift((keys, keys, values), (0, spec.key_size, 2 * spec.key_size))
        sources = _make_grouped(spec, division) if spec.is_grouped else _make_sources(spec, mixed, values, heads)
        self.qkv = SplitLinear("linear_attn.in_proj", config.hidden_size, bias=False, sources=sources, media=None)
        self.out = SplitLinear(
            "linear_attn.out_proj", spec.value_size, config.hidden_size, bias=False, inputs=values, media=None
        )
        self.linears: Mapping[str, Linear] = {**self.qkv.linears, **self.out.linears}
        self._taps = make_taps(f"{name}.conv1d.weight", spec.conv_size, spec.num_taps, mixed)
        self._log_rate = pick_weight(f"{name}.A_log", count, (heads,), dtype=torch.float32)
        self._rate_bias = pick_weight(f"{name}.dt_bias", count, (heads,), dtype=torch.float32)
        self._norm = plain_weight(f"{name}.norm.weight", spec.value_dim)
        self._eps = config.norm.eps
        self.norms: tuple[Weight, ...] = (self._taps, self._log_rate, self._rate_bias, self._norm)

    def attend(self, qkv: torch.Tensor, cache: LayerCache, step: AttentionStep) -> torch.Tensor:
        """Return the outputs of all heads [T, H · V] for `self.qkv`'s output [T, …]."""
        assert step.states is not None
        spec, count = self._spec, len(qkv)
        sizes = [spec.conv_size, spec.value_size, spec.num_value_heads, spec.num_value_heads]
        mixed, gate, beta, rate = torch.split(qkv, sizes, dim=-1)
        inputs, matrices = cache.states
        mixed = states.convolve(mixed, inputs, self._taps.data[:, 0], None, step.states)
        query, key, value = torch.split(mixed, [spec.key_size, spec.key_size, spec.value_size], dim=-1)
        output = states.run_delta_rule(
            query.view(count, spec.num_key_heads, spec.key_dim),
            key.view(count, spec.num_key_heads, spec.key_dim),
            value.view(count, spec.num_value_heads, spec.value_dim),
            beta,
            rate,
            (self._log_rate.data, self._rate_bias.data),
            matrices,
            step.states,
            step.faults,
        )
        return states.gate_heads(output, gate, self._norm.data, self._eps)


def make_taps(tensor: str, size: int, num_taps: int, picks: tuple[range, ...]) -> Weight:
    """Return the weight [n, 1, num_taps] of a convolution of single components, of `size` these n."""
    axes = (Axis(dim=0, size=size, picks=picks), Axis(dim=1, size=1), Axis(dim=2, size=num_taps))
    return Weight(parts=(Part(tensor=tensor, axes=axes),))


def pick_weight(
    tensor: str, size: int, picks: tuple[range, ...], *others: int, dtype: torch.dtype | None = None
) -> Weight:
    """Return the weight [n, *others] that has these n rows of a tensor of `size`."""
    axes = (Axis(dim=0, size=size, picks=picks), *(Axis(dim=1 + n, size=other) for n, other in enumerate(others)))
    return Weight(parts=(Part(tensor=tensor, axes=axes),), dtype=dtype)


def shift(parts: Sequence[range], firsts: Sequence[int]) -> tuple[range, ...]:
    """Return each part, counted from where its first element is."""
    return tuple(range(first + part.start, first + part.stop) for part, first in zip(parts, firsts, strict=True))


def _make_sources(spec: DeltaNetSpec, mixed: tuple[range, ...], values: range, heads: range) -> list[Source]:
    """Return where a rank's queries, keys, values, gates, learning rates and decays are stored, in this order."""
    return [
        Source(module="in_proj_qkv", num_outputs=spec.conv_size, picks=mixed),
        Source(module="in_proj_z", num_outputs=spec.value_size, picks=(values,)),
        Source(module="in_proj_b", num_outputs=spec.num_value_heads, picks=(heads,)),
        Source(module="in_proj_a", num_outputs=spec.num_value_heads, picks=(heads,)),
    ]


def _make_grouped(spec: DeltaNetSpec, division: Division) -> list[Source]:
    """Return the same where what belongs to a key head is together."""
    keys, values = spec.key_size, spec.value_size
    own, groups = division.evenly(spec.num_key_heads), spec.num_key_heads
    own_values = values // groups
    own_heads = spec.num_value_heads // groups
    wide = partial(Source, module="in_proj_qkvz", num_outputs=2 * keys + 2 * values)
    narrow = partial(Source, module="in_proj_ba", num_outputs=2 * spec.num_value_heads)
    lengths = [spec.key_dim, spec.key_dim, own_values, own_values]
    parts = [
        wide(picks=_pick(own, sum(lengths), sum(lengths[:number]), length)) for number, length in enumerate(lengths)
    ]
    return parts + [narrow(picks=_pick(own, 2 * own_heads, first, own_heads)) for first in (0, own_heads)]


def _pick(groups: range, stride: int, first: int, length: int) -> tuple[range, ...]:
    return tuple(range(group * stride + first, group * stride + first + length) for group in groups)
