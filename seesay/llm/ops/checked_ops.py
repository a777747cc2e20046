"""Triton's operations on GPUs for which they were not made: each is compared with torch's first, and left out where it
fails or differs."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache, partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch

from seesay.errors import describe
from seesay.llm.memory.kv_layout import KVFormat, KVLayout, LayerCache
from seesay.llm.ops.interface import Ops, RowLayout
from seesay.llm.ops.low_rank import SlotFactors, SlotRows, make_spans, sort_by_slot
from seesay.llm.ops.torch_ops import TorchOps
from seesay.llm.ops.triton_ops import TritonOps

logger = logging.getLogger("seesay")

_TOLERANCE = 2e-2
"""Of bfloat16, whose numbers have eight bits: of the largest number of a result."""
_HEADS, _KV_HEADS, _HEAD_DIM, _BLOCK_SIZE = 4, 2, 64, 16
_HIDDEN = 512


Compute: TypeAlias = "Callable[[Ops, torch.Tensor], list[torch.Tensor]]"
"""Computes something by operations, on the device and in the type of a tensor."""


class _Check(NamedTuple):
    """A computation to compare Triton's operations with torch's by, and the methods that it uses."""

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
    """Return the methods whose kernels fail or differ. Experts and quantized rows have kernels with PTX: torch
    computes them."""
    wrong = {"mix_experts", "quantize_norm", "quantize_activation"}
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
    return [ops.rms_norm(_draw(5, _HIDDEN, like=like), _draw(_HIDDEN, like=like), 1e-6)]


def _add_and_norm(ops: Ops, like: torch.Tensor) -> list[torch.Tensor]:
    residual = _draw(5, _HIDDEN, like=like)
    return [ops.rms_norm(_draw(5, _HIDDEN, like=like), _draw(_HIDDEN, like=like), 1e-6, residual=residual), residual]


def _activate(ops: Ops, like: torch.Tensor) -> list[torch.Tensor]:
    x = _draw(5, 2 * _HIDDEN, like=like)
    return [ops.act_and_mul(x, "silu"), ops.act_and_mul(x, "gelu_tanh")]


def _splice(ops: Ops, like: torch.Tensor) -> list[torch.Tensor]:
    hidden, rows = _draw(6, _HIDDEN, like=like), torch.tensor([1, 4], device=like.device)
    ops.splice(hidden, rows, _draw(2, _HIDDEN, like=like))
    return [hidden]


def _add_low_rank(ops: Ops, like: torch.Tensor) -> list[torch.Tensor]:
    """Rows of two slots and of none, with two sources of which a slot has one."""
    bounds, rank, ranks = (0, 200, _HIDDEN), 16, np.array([[16, 8], [0, 3]], dtype=np.int32)
    factors = SlotFactors(
        a=_draw(2, 2 * rank, 256, like=like),
        b=_draw(2, rank, _HIDDEN, like=like),
        ranks=torch.from_numpy(ranks).to(like.device),
        host_ranks=ranks,
        bounds=bounds,
        spans=torch.from_numpy(make_spans(bounds)).to(like.device),
    )
    found = sort_by_slot(np.array([1, -1, 0, 0, 1, 1, 0]))
    rows = SlotRows(
        tokens=torch.from_numpy(found.tokens).to(like.device),
        tiles=torch.from_numpy(found.tiles).to(like.device),
        tile_rows=found.tile_rows,
        runs=found.runs,
    )
    y = _draw(7, _HIDDEN, like=like)
    ops.add_low_rank(y, _draw(7, 256, like=like), rows, factors)
    return [y]


def _attend(ops: Ops, like: torch.Tensor, format: KVFormat = "plain", window: int | None = None) -> list[torch.Tensor]:
    """Two decode rows and a chunk of a prompt, over a cache that holds numbers, or zeros where it is quantized."""
    layout = KVLayout(
        format=format, dtype=like.dtype, block_size=_BLOCK_SIZE, num_kv_heads=_KV_HEADS, head_dim=_HEAD_DIM
    )
    num_blocks, kv_lens, num_new = 12, np.array([20, 37, 50]), np.array([1, 1, 30])
    data = torch.zeros((num_blocks, *layout.block_shape), dtype=layout.element_type, device=like.device)
    if format == "plain":
        data.copy_(_draw(*data.shape, like=like))
    cache = LayerCache(layout=layout, data=data)
    table = np.arange(num_blocks).reshape(3, 4)
    places = [np.arange(length - new, length) for length, new in zip(kv_lens, num_new, strict=True)]
    blocks = [row[place // _BLOCK_SIZE] for row, place in zip(table, places, strict=True)]
    slots = np.concatenate(blocks) * _BLOCK_SIZE + np.concatenate(places) % _BLOCK_SIZE
    angles = torch.from_numpy(np.concatenate(places)[:, None] / 10000 ** (np.arange(_HEAD_DIM // 2) / _HEAD_DIM * 2))
    cos, sin = angles.cos().repeat(1, 2)[:, None], torch.cat((-angles.sin(), angles.sin()), dim=1)[:, None]
    qkv = _draw(int(num_new.sum()), _HEADS + 2 * _KV_HEADS, _HEAD_DIM, like=like)
    cos, sin = (each.to(like) for each in (cos, sin))
    ops.rotate_and_write(qkv, cos, sin, cache, torch.from_numpy(slots).to(like.device))
    rows = RowLayout(
        cu_seqlens_q=np.cumsum([0, *num_new]), kv_lens=kv_lens, block_table=table, block_size=_BLOCK_SIZE, num_decode=2
    )
    plan = ops.plan_attention(rows, windows=frozenset([window]), device=like.device, dtype=like.dtype)
    query = qkv[:, :_HEADS].contiguous()
    output = ops.attend(query, cache, plan, scale=_HEAD_DIM**-0.5, window=window, soft_cap=None)
    return [qkv[:, : _HEADS + _KV_HEADS], *([cache.data] if format == "plain" else []), output]


_ATTENTION = ("rotate_and_write", "plan_attention", "attend", "forget_blocks")
_CHECKS = (
    _Check(("rms_norm",), _norm),
    _Check(("rms_norm",), _add_and_norm),
    _Check(("act_and_mul",), _activate),
    _Check(("splice",), _splice),
    _Check(("add_low_rank",), _add_low_rank),
    _Check(_ATTENTION, _attend),
    _Check(_ATTENTION, partial(_attend, window=24)),
    _Check(_ATTENTION, partial(_attend, format="int8")),
    _Check(_ATTENTION, partial(_attend, format="int4")),
)
