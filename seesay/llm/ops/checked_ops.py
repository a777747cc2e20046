"""Triton's operations on GPUs for which they were not made: each is compared with torch's first, and left out where it
fails or differs."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple, TypeAlias, get_args

import numpy as np
import torch

from seesay.errors import describe
from seesay.llm.memory.kv_layout import KVFormat, KVLayout, LayerCache
from seesay.llm.ops.interface import Activation, Ops, RowLayout
from seesay.llm.ops.low_rank import SlotFactors, SlotOutputs, SlotRows, sort_by_slot
from seesay.llm.ops.torch_ops import TorchOps
from seesay.llm.ops.triton_ops import TritonOps
from seesay.llm.plans.window import Chunk, Window

logger = logging.getLogger("seesay")

_UNCHECKED = ("mix_experts", "quantize_norm", "quantize_activation")
"""Operations on experts and quantized rows, whose kernels have PTX."""
_TOLERANCE = 2e-2
"""Of bfloat16, whose numbers have eight bits: of the largest number of a result."""
_HEADS, _KV_HEADS, _HEAD_DIM, _BLOCK_SIZE = 4, 2, 64, 16
_HIDDEN, _TURNED_DIM = 512, 16
_KV_LENS, _NUM_NEW = np.array([20, 37, 50]), np.array([1, 1, 30])
_TABLE = np.arange(12).reshape(3, 4)
"""Tokens of three sequences, the new ones among them, and the blocks of these."""

Compute: TypeAlias = "Callable[[Ops, torch.Tensor], list[torch.Tensor]]"
"""Computes something by operations, on the device and in the type of a tensor."""


class _Check(NamedTuple):
    """A computation to compare Triton's operations with torch's by, and the methods and groups of them that it uses."""

    methods: tuple[str, ...]
    compute: Compute


def make_checked_ops(device: torch.device, dtype: torch.dtype = torch.bfloat16) -> Ops:
    """Return operations for `device`: Triton's where they compute what torch's do there, in `dtype`, else torch's."""
    ops: Any = TritonOps()
    plain = TorchOps()
    for name in _find_wrong(device, dtype):
        setattr(ops, name, getattr(plain, name))
    ops.needs_clean_blocks = True
    ops.takes_device_rows = False  # graphs are captured with kernels that only NVIDIA's GPUs have
    found: Ops = ops
    return found


@cache
def _find_wrong(device: torch.device, dtype: torch.dtype) -> frozenset[str]:
    """Return the methods that torch computes: those of `_UNCHECKED`, and those whose kernels fail or differ."""
    wrong = set(_UNCHECKED)
    for check in _CHECKS:
        if (
            reason := find_difference(check.compute, TritonOps(), torch.empty(0, dtype=dtype, device=device))
        ) is not None:
            wrong.update(check.methods)
            logger.warning("%s: torch computes %s: Triton's kernel %s", device, ", ".join(check.methods), reason)
    return frozenset(wrong)


def find_difference(compute: Compute, ops: Ops, like: torch.Tensor) -> str | None:
    """Return how `compute` differs with `ops` from torch's operations; None where it does not."""
    try:
        found, wanted = compute(ops, like), compute(TorchOps(), like)
    except Exception as error:  # whatever a compiler raises
        return f"fails: {describe(error)}"
    for one, other in zip(found, wanted, strict=True):
        scale = float(other.abs().max())
        difference = float((one.float() - other.float()).abs().max())
        if not difference <= _TOLERANCE * scale:
            return f"differs by {difference:.2g}, of numbers up to {scale:.2g}"
    return None


def _draw(*shape: int, like: torch.Tensor) -> torch.Tensor:
    drawn = torch.randn(shape, generator=torch.Generator().manual_seed(len(shape) + shape[0]))
    return drawn.to(like)


def _norm(ops: Ops, like: torch.Tensor) -> list[torch.Tensor]:
    """Of rows, and of the heads of rows."""
    shapes = ((5, _HIDDEN), (5, _HEADS, _HEAD_DIM))
    return [ops.rms_norm(_draw(*shape, like=like), _draw(shape[-1], like=like), 1e-6) for shape in shapes]


def _add_and_norm(ops: Ops, like: torch.Tensor) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    for other in (None, _draw(5, _HIDDEN, like=like)):
        x, residual = _draw(5, _HIDDEN, like=like), _draw(5, _HIDDEN, like=like)
        found += [ops.rms_norm(x, _draw(_HIDDEN, like=like), 1e-6, residual=residual, other=other), residual]
    return found


def _activate(ops: Ops, like: torch.Tensor) -> list[torch.Tensor]:
    x = _draw(5, 2 * _HIDDEN, like=like)
    return [ops.act_and_mul(x, activation) for activation in get_args(Activation)]


def _splice(ops: Ops, like: torch.Tensor) -> list[torch.Tensor]:
    hidden, rows = _draw(6, _HIDDEN, like=like), torch.tensor([1, 4], device=like.device)
    ops.splice(hidden, rows, _draw(2, _HIDDEN, like=like))
    return [hidden]


def _add_low_rank(ops: Ops, like: torch.Tensor) -> list[torch.Tensor]:
    """Rows of two slots and of none, with two sources of which a slot has one, and the gate of one by the other."""
    bounds, rank, ranks = (0, _HIDDEN // 2, _HIDDEN), 16, np.array([[16, 8], [0, 3]], dtype=np.int32)
    factors = SlotFactors(
        a=_draw(2, 2 * rank, 256, like=like) / 16,
        b=_draw(2, rank, _HIDDEN, like=like) / 4,
        ranks=torch.from_numpy(ranks).to(like.device),
        host_ranks=ranks,
        bounds=bounds,
        outputs=SlotOutputs.make(bounds, like.device),
    )
    found = sort_by_slot(np.array([1, -1, 0, 0, 1, 1, 0]))
    rows = SlotRows(
        tokens=torch.from_numpy(found.tokens).to(like.device),
        tiles=torch.from_numpy(found.tiles).to(like.device),
        tile_rows=found.tile_rows,
        runs=found.runs,
    )
    x, y = _draw(7, 256, like=like), _draw(7, _HIDDEN, like=like)
    gated = [ops.low_rank.add_and_gate(y.clone(), x, rows, factors, activation) for activation in get_args(Activation)]
    ops.low_rank.add(y, x, rows, factors)
    return [y, *gated]


@dataclass(frozen=True)
class _Attention:
    """Attention of two decode rows and a chunk of a prompt, over a cache that holds numbers, or zeros where it is
    quantized. has_more: queries and keys take norms, of which half the components are rotated, scores have a cap, and
    heads have sinks. has_slopes: heads have slopes. has_runs: the last tokens are a run."""

    format: KVFormat = "plain"
    window: Window | None = None
    has_more: bool = False
    has_slopes: bool = False
    has_runs: bool = False

    def __call__(self, ops: Ops, like: torch.Tensor) -> list[torch.Tensor]:
        layout = KVLayout(
            format=self.format, dtype=like.dtype, block_size=_BLOCK_SIZE, num_kv_heads=_KV_HEADS, head_dim=_HEAD_DIM
        )
        cache = LayerCache.zeros(layout, _TABLE.size, like.device)
        if self.format == "plain":
            cache.data.copy_(_draw(*cache.data.shape, like=like))
        qkv = _draw(int(_NUM_NEW.sum()), _HEADS + 2 * _KV_HEADS, _HEAD_DIM, like=like)
        faults = torch.zeros(len(qkv), device=like.device)
        weights = (1 + _draw(_HEAD_DIM, like=like) / 8, 1 + _draw(_HEAD_DIM, like=like) / 4, 1e-6)
        cos, sin, slots = _turn(_HEAD_DIM // 2 if self.has_more else _HEAD_DIM, like)
        ops.rotate_and_write(qkv, cos, sin, cache, slots, weights if self.has_more else None, faults)
        query = qkv[:, :_HEADS].contiguous()
        output = ops.attend(
            query,
            cache,
            _plan(ops, like, self.window, has_runs=self.has_runs),
            scale=_HEAD_DIM**-0.5,
            window=self.window,
            soft_cap=2.0 if self.has_more else None,
            sinks=_draw(_HEADS, like=like) if self.has_more else None,
            slopes=_draw(_HEADS, like=like).float() / 8 if self.has_slopes else None,
        )
        return [qkv[:, : _HEADS + _KV_HEADS], *([cache.data] if self.format == "plain" else []), faults, output]


def _turn(rotated: int, like: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return cosines and sines of the new tokens' places, and the slots of these."""
    places = [np.arange(length - new, length) for length, new in zip(_KV_LENS, _NUM_NEW, strict=True)]
    blocks = [row[place // _BLOCK_SIZE] for row, place in zip(_TABLE, places, strict=True)]
    slots = np.concatenate(blocks) * _BLOCK_SIZE + np.concatenate(places) % _BLOCK_SIZE
    exponents = np.arange(rotated // 2) / rotated * 2
    angles = torch.from_numpy(np.concatenate(places)[:, None] / 10000**exponents)
    cos, sin = angles.cos().repeat(1, 2)[:, None], torch.cat((-angles.sin(), angles.sin()), dim=1)[:, None]
    return cos.to(like), sin.to(like), torch.from_numpy(slots).to(like.device)


def _plan(ops: Ops, like: torch.Tensor, window: Window | None = None, *, has_runs: bool = False) -> Any:
    runs = np.concatenate([np.arange(length - new, length) for length, new in zip(_KV_LENS, _NUM_NEW, strict=True)])
    both = np.stack((runs, runs))
    both[0, -8:], both[1, -8:] = runs[-8], runs[-1]
    rows = RowLayout(
        cu_seqlens_q=np.cumsum([0, *_NUM_NEW]),
        kv_lens=_KV_LENS,
        block_table=_TABLE,
        block_size=_BLOCK_SIZE,
        num_decode=2,
        runs=both if has_runs else None,
    )
    return ops.plan_attention(rows, windows=frozenset([window]), device=like.device, dtype=like.dtype)


@dataclass(frozen=True)
class _LatentAttention:
    """Attention as there, to latent rows."""

    format: KVFormat = "plain"

    def __call__(self, ops: Ops, like: torch.Tensor) -> list[torch.Tensor]:
        layout = KVLayout(
            format=self.format, dtype=like.dtype, block_size=_BLOCK_SIZE, num_kv_heads=1,
            head_dim=_TURNED_DIM + _HEAD_DIM, turned_dim=_TURNED_DIM,
        )  # fmt: skip
        cache = LayerCache.zeros(layout, _TABLE.size, like.device)
        if self.format == "plain":
            cache.data.copy_(_draw(*cache.data.shape, like=like))
        query = _draw(int(_NUM_NEW.sum()), _HEADS, layout.head_dim, like=like)
        cos, sin, slots = _turn(_TURNED_DIM, like)
        norm, faults = (1 + _draw(_HEAD_DIM, like=like) / 8, 1e-6), torch.zeros(len(query), device=like.device)
        rows = _draw(len(query), layout.head_dim, like=like)
        ops.write_latent(rows, cos, sin, norm, cache, slots, faults)
        output = ops.attend_latent(query, cache, _plan(ops, like), scale=layout.head_dim**-0.5)
        return [rows, *([cache.data] if self.format == "plain" else []), faults, output]


_ATTENTION = ("rotate_and_write", "plan_attention", "attend", "write_latent", "attend_latent", "forget_blocks")
"""All that take a plan are of one implementation, whose plan it is."""
_CHECKS = (
    _Check(("rms_norm",), _norm),
    _Check(("rms_norm",), _add_and_norm),
    _Check(("act_and_mul",), _activate),
    _Check(("splice",), _splice),
    _Check(("low_rank",), _add_low_rank),
    _Check(_ATTENTION, _Attention()),
    _Check(_ATTENTION, _Attention(window=24)),
    _Check(_ATTENTION, _Attention(window=Chunk(24), has_more=True)),
    _Check(_ATTENTION, _Attention(has_slopes=True, has_runs=True)),
    _Check(_ATTENTION, _Attention(format="int8")),
    _Check(_ATTENTION, _Attention(format="int4")),
    _Check(_ATTENTION, _LatentAttention()),
    _Check(_ATTENTION, _LatentAttention(format="int8")),
)
