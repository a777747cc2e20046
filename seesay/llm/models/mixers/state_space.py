"""A selective state space (Mamba, arXiv 2312.00752; Mamba-2, arXiv 2405.21060) in the place of attention: a short
convolution, and a matrix per group of heads that fades and to which each token adds. It keeps both of a sequence, and
nothing of single tokens."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F

from seesay.checkpoint.parts import Source, Weight, plain_weight
from seesay.device.linear.linear import Linear
from seesay.device.linear.norm import rms_norm
from seesay.llm.memory.kv_layout import LayerCache
from seesay.llm.models.division import Division
from seesay.llm.models.media_rows import SplitLinear
from seesay.llm.models.mixer_spec import StateSpaceSpec
from seesay.llm.models.mixers.attention import AttentionStep
from seesay.llm.models.mixers.delta_net import make_taps, pick_weight, shift
from seesay.llm.models.spec import DecoderConfig
from seesay.llm.ops import states


class StateSpace:
    """A rank's heads; see `Mixer`."""

    def __init__(self, config: DecoderConfig, index: int, spec: StateSpaceSpec, division: Division) -> None:
        name, size = f"layers.{index}.mamba", config.hidden_size
        self._spec = self.window = spec.divide(division.place.size)
        values, mixed, stored = _pick_outputs(spec, division)
        source = Source(module="in_proj", num_outputs=spec.in_size, picks=stored)
        self.qkv = SplitLinear("mamba.in_proj", size, bias=spec.has_bias, sources=[source], media=None)
        self.out = SplitLinear(
            "mamba.out_proj",
            spec.value_size,
            size,
            bias=spec.has_output_bias,
            has_own_bias=division.is_first,
            inputs=values,
            media=None,
        )
        self._taps = make_taps(f"{name}.conv1d.weight", spec.conv_size, spec.num_taps, mixed)
        self._bias = pick_weight(f"{name}.conv1d.bias", spec.conv_size, mixed) if spec.has_conv_bias else None
        make_own = _PerElement if spec.step_rank else _PerHead
        self._own = make_own(config, name, spec, division)
        self._norm = None if spec.norm == "none" else pick_weight(f"{name}.norm.weight", spec.value_size, (values,))
        self._eps, self._group_size = config.norm.eps, spec.value_size // spec.num_groups
        self._ranks = division.ranks if spec.num_groups == 1 else None
        found = (self._taps, self._bias, self._norm, *self._own.weights)
        self.norms: tuple[Weight, ...] = tuple(weight for weight in found if weight is not None)
        self.linears: Mapping[str, Linear] = {**self.qkv.linears, **self.out.linears, **self._own.linears}
        self._scales: torch.Tensor | None = None

    def attend(self, qkv: torch.Tensor, cache: LayerCache, step: AttentionStep) -> torch.Tensor:
        """Return the outputs of all heads [T, H · P] for `self.qkv`'s output [T, …]."""
        assert step.states is not None
        spec, count = self._spec, len(qkv)
        if spec.in_scales:
            qkv = qkv.mul_(self._find_scales(qkv))
        rest = spec.in_size - spec.value_size - spec.conv_size
        values_first = [spec.conv_size, spec.value_size] if spec.step_rank else [spec.value_size, spec.conv_size]
        first, second, rate = torch.split(qkv, [*values_first, rest], dim=-1)
        mixed, gate = (first, second) if spec.step_rank else (second, first)
        inputs, matrices = cache.states
        bias = None if self._bias is None else self._bias.data
        mixed = states.convolve(mixed, inputs, self._taps.data[:, 0], bias, step.states)
        value, key, query, rate = self._own.split(mixed, rate)
        output = states.run_state_space(
            query.view(count, spec.num_groups, spec.state_size),
            key.view(count, spec.num_groups, spec.state_size),
            value.view(count, spec.num_heads, spec.head_dim),
            rate,
            self._own.space,
            spec.step_limits,
            matrices,
            step.states,
            step.faults,
        )
        return self._gate(output.view(count, -1), gate).to(qkv.dtype)

    def _gate(self, output: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        """Return the outputs float32 [T, H · P] times what their gates give, and normed within each group."""
        opened = F.silu(gate.float())
        if self._spec.norm == "before":
            return self._normalize(output).mul_(opened)
        output = output.mul_(opened)
        return output if self._norm is None else self._normalize(output)

    def _normalize(self, output: torch.Tensor) -> torch.Tensor:
        assert self._norm is not None
        grouped = output.view(len(output), self._spec.num_groups, -1)
        squares = grouped.square().sum(dim=-1, keepdim=True)
        if self._ranks is not None and len(squares):
            squares = self._ranks.sum(squares.view(-1, 1)).view_as(squares)
        grouped = grouped * (squares / self._group_size + self._eps).rsqrt_()
        return grouped.view_as(output).mul_(self._norm.data.float())

    def _find_scales(self, x: torch.Tensor) -> torch.Tensor:
        """The factors of the first product's outputs, made once: a graph records their address."""
        if self._scales is None:
            spec = self._spec
            sizes = (spec.value_size, spec.value_size, spec.key_size, spec.key_size, spec.num_heads)
            parts = [torch.full((size,), scale) for size, scale in zip(sizes, spec.in_scales, strict=True)]
            self._scales = torch.cat(parts).to(x)
        return self._scales


def _pick_outputs(spec: StateSpaceSpec, division: Division) -> tuple[range, tuple[range, ...], tuple[range, ...]]:
    """Return a rank's values, and what it has of the convolution, and of the outputs of the first product."""
    values, size = division.evenly(spec.value_size), spec.value_size
    if spec.step_rank:
        return values, (values,), shift((values, values), (0, size))
    keys = range(spec.key_size) if spec.num_groups == 1 else division.evenly(spec.key_size)
    mixed = shift((values, keys, keys), (0, size, size + spec.key_size))
    rates = shift((division.evenly(spec.num_heads),), (size + spec.conv_size,))
    return values, mixed, (values, *shift(mixed, (size,) * 3), *rates)


class _PerHead:
    """Mamba-2: values, keys and queries come out of the convolution, and heads have one rate each."""

    linears: Mapping[str, Linear] = {}

    def __init__(self, config: DecoderConfig, name: str, spec: StateSpaceSpec, division: Division) -> None:
        del config
        own, heads = spec.divide(division.place.size), division.evenly(spec.num_heads)
        self._sizes = [own.value_size, own.key_size, own.key_size]
        self.weights = tuple(
            pick_weight(f"{name}.{part}", spec.num_heads, (heads,), dtype=torch.float32)
            for part in ("A_log", "dt_bias", "D")
        )

    @property
    def space(self) -> states.SpaceWeights:
        log_rate, bias, skip = (weight.data for weight in self.weights)
        return states.SpaceWeights(log_rate, bias, skip)

    def split(self, mixed: torch.Tensor, rate: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return value, key, query, and what time steps are made of, for what the convolution gives."""
        return *torch.split(mixed, self._sizes, dim=-1), rate


class _PerElement:
    """Mamba as Jamba has it: values come out of the convolution, and all else is a product of them, and normed."""

    def __init__(self, config: DecoderConfig, name: str, spec: StateSpaceSpec, division: Division) -> None:
        size, own = spec.value_size, ("dt_layernorm", "b_layernorm", "c_layernorm")
        values, self._ranks = division.evenly(size), division.ranks
        self._sizes, self._eps = [spec.step_rank, spec.state_size, spec.state_size], config.norm.eps
        self._keys = Linear(size, sum(self._sizes), bias=False, inputs=values)
        steps = Source(module="dt_proj", num_outputs=size, picks=(values,))
        self._steps = Linear(spec.step_rank, bias=False, sources=[steps])
        self.linears: Mapping[str, Linear] = {"mamba.x_proj": self._keys, "mamba.dt_proj": self._steps}
        self._log_rate = pick_weight(f"{name}.A_log", size, (values,), spec.state_size, dtype=torch.float32)
        self._bias, self._skip = (
            pick_weight(f"{name}.{part}", size, (values,), dtype=torch.float32) for part in ("dt_proj.bias", "D")
        )
        self._norms = tuple(plain_weight(f"{name}.{n}.weight", s) for n, s in zip(own, self._sizes, strict=True))
        self.weights = (self._log_rate, self._bias, self._skip, *self._norms)

    @property
    def space(self) -> states.SpaceWeights:
        return states.SpaceWeights(self._log_rate.data, self._bias.data, self._skip.data)

    def split(self, mixed: torch.Tensor, _rate: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """See `_PerHead`."""
        made = self._keys(mixed)
        if self._ranks is not None and len(made):
            made = self._ranks.sum(made)
        parts = torch.split(made, self._sizes, dim=-1)
        steps, key, query = (
            rms_norm(part.contiguous(), norm.data, self._eps) for part, norm in zip(parts, self._norms, strict=True)
        )
        return mixed, key, query, self._steps(steps)
