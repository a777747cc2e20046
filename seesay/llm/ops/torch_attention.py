"""Attention in plain torch: the oracle of every other implementation.

A row's blocks are gathered into one padded tensor for scaled_dot_product_attention: decode rows together, longer rows
one by one in pieces whose mask stays small.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F

from seesay.device.backends import has_causal_bias
from seesay.llm.memory.kv_layout import LayerCache
from seesay.llm.ops.decode_kv_copy import ContextStep
from seesay.llm.ops.interface import RowLayout
from seesay.llm.ops.kv_codec import read_blocks
from seesay.llm.ops.slopes import find_bias
from seesay.llm.plans.window import Window, find_first_seen, find_size

MAX_GATHER_TOKENS = 1 << 18
"""Most padded cache slots gathered at once for decode rows: more rows are taken in several groups."""
MAX_MASK_ELEMENTS = 1 << 24
"""Most elements of one attention mask: longer prefills are taken in several pieces."""
MAX_KEPT_MASK_ELEMENTS = 1 << 20
"""Most elements of a mask that is kept for the next layer; larger ones are made again, which costs them little."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeGroup:
    """Decode rows start … stop - 1, gathered from `blocks` [rows · M].

    `places` int64 [rows]: those of their tokens. `masks`, by window, are additive: [rows, 1, 1, M · block_size].
    """

    start: int
    stop: int
    blocks: torch.Tensor
    places: torch.Tensor
    masks: dict[Window | None, torch.Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Tokens start … stop - 1 of the packed query lie from place `first` on among the `kv_len` tokens in `blocks` [M]
    that they see. They are the last of these, unless `runs` int64 [2, stop - start] says which run each is in.

    `masks`, by window, keeps the small masks from layer to layer.
    """

    start: int
    stop: int
    first: int
    kv_len: int
    blocks: torch.Tensor
    runs: torch.Tensor | None = None
    masks: dict[Window | None, torch.Tensor] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionPlan:
    """Decode rows are in `context`, if there is one, else in `groups`."""

    groups: tuple[DecodeGroup, ...]
    pieces: tuple[Piece, ...]
    context: ContextStep | None = None


def end_of_group(layout: RowLayout, start: int) -> int:
    """The row after the last one that can be gathered together with row `start`."""
    longest = np.maximum.accumulate(layout.kv_lens[start : layout.num_decode])
    padded = -(-longest // layout.block_size) * layout.block_size * np.arange(1, len(longest) + 1)
    return start + max(1, int(np.searchsorted(padded, MAX_GATHER_TOKENS, side="right")))


def make_group(
    layout: RowLayout,
    start: int,
    stop: int,
    *,
    windows: frozenset[Window | None],
    device: torch.device,
    dtype: torch.dtype,
) -> DecodeGroup:
    """Return the group of decode rows start … stop - 1."""
    kv_lens = layout.kv_lens[start:stop, None]
    num_blocks = -(-int(kv_lens.max()) // layout.block_size)
    slots, masks = np.arange(num_blocks * layout.block_size)[None], {}
    for window in windows:
        visible = slots < kv_lens
        if window is not None:
            visible &= slots >= find_first_seen(window, kv_lens - 1)
        mask = np.where(visible, np.float32(0), np.float32(-np.inf))[:, None, None]
        masks[window] = torch.from_numpy(mask).to(device, dtype, non_blocking=True)
    blocks = np.ascontiguousarray(layout.block_table[start:stop, :num_blocks]).reshape(-1)
    return DecodeGroup(
        start=start,
        stop=stop,
        blocks=torch.from_numpy(blocks).to(device),
        places=torch.from_numpy(kv_lens[:, 0] - 1).to(device),
        masks=masks,
    )


def make_pieces(layout: RowLayout, row: int, *, device: torch.device) -> list[Piece]:
    """Return the pieces of a row that is no decode row."""
    start, stop = int(layout.cu_seqlens_q[row]), int(layout.cu_seqlens_q[row + 1])
    kv_len = int(layout.kv_lens[row])
    used = layout.block_table[row, : -(-kv_len // layout.block_size)]
    blocks = torch.from_numpy(np.ascontiguousarray(used)).to(device)
    step = max(1, MAX_MASK_ELEMENTS // kv_len)
    pieces = []
    for first in range(start, stop, step):
        last = min(first + step, stop)
        place, seen = kv_len - (stop - first), kv_len - (stop - last)
        runs = _find_runs(layout, first, last, place)
        if runs is not None:
            seen = max(seen, int(runs[1].max()) + 1)
        pieces.append(
            Piece(
                start=first,
                stop=last,
                first=place,
                kv_len=seen,
                blocks=blocks[: -(-seen // layout.block_size)],
                runs=None if runs is None else torch.from_numpy(runs).to(device),
            )
        )
    return pieces


def _find_runs(layout: RowLayout, start: int, stop: int, first: int) -> npt.NDArray[np.int64] | None:
    """Return the first and the last place of the runs of tokens `start` … `stop` - 1, the first of which is at place
    `first`; None if none of them is in a run."""
    if layout.runs is None:
        return None
    runs = layout.runs[:, start:stop]
    return runs if (runs != np.arange(first, first + stop - start)).any() else None


def attend_group(
    query: torch.Tensor,
    cache: LayerCache,
    group: DecodeGroup,
    *,
    scale: float,
    window: Window | None,
    soft_cap: float | None,
    sinks: torch.Tensor | None,
    slopes: torch.Tensor | None,
) -> torch.Tensor:
    """Decode rows. On a GPU the query heads of one key-value head stand in for query positions, because no kernel there
    takes both a mask and grouped heads; on the CPU one does, and is faster. For what `DecodeKVCopy` does not take."""
    num_rows, num_kv_heads, head_dim = group.stop - group.start, cache.layout.num_kv_heads, cache.layout.head_dim
    pairs = read_blocks(cache, group.blocks, query.dtype).view(num_rows, -1, 2, num_kv_heads, head_dim)
    key, value = pairs[:, :, 0].transpose(1, 2), pairs[:, :, 1].transpose(1, 2)
    rows, mask = query[group.start : group.stop], group.masks[window]
    if slopes is not None:
        places = torch.arange(key.shape[2], device=query.device)
        mask = mask.float() + find_bias(slopes, places, group.places[:, None, None], scale)[:, :, None]
    if soft_cap is None and sinks is None and query.is_cpu and mask.dtype == query.dtype:
        output = F.scaled_dot_product_attention(
            rows.unsqueeze(2), key, value, attn_mask=mask, scale=scale, enable_gqa=rows.shape[1] != num_kv_heads
        )
        return output.squeeze(2)
    grouped = rows.reshape(num_rows, num_kv_heads, -1, head_dim)
    own = None if sinks is None else sinks.view(1, num_kv_heads, -1, 1)
    if slopes is not None:
        mask = mask.view(num_rows, num_kv_heads, -1, mask.shape[-1])
    output = _attend(grouped, key, value, mask, scale=scale, soft_cap=soft_cap, sinks=own)
    return output.reshape(num_rows, -1, head_dim)


def attend_kept(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    bias: torch.Tensor,
    *,
    scale: float,
    soft_cap: float | None,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """Query [B, H, D] over keys and values [B · G, L, D] with bias [B · G, 1 or H / G, L]. For one token per row plain
    products are faster than `scaled_dot_product_attention`."""
    grouped = query.reshape(len(keys), -1, query.shape[2])
    if soft_cap is None:
        scores = torch.baddbmm(bias, grouped, keys.transpose(1, 2), alpha=scale)
    else:
        scores = torch.bmm(grouped, keys.transpose(1, 2)).mul_(scale / soft_cap).tanh_().mul_(soft_cap).add_(bias)
    if sinks is None:
        weights = torch.softmax(scores, dim=-1)
    else:
        own = sinks.view(-1, grouped.shape[1], 1).repeat(len(keys) * grouped.shape[1] // len(sinks), 1, 1)
        weights = _softmax_with(scores, own)
    return torch.bmm(weights, values).view(query.shape)


def attend_piece(
    query: torch.Tensor,
    cache: LayerCache,
    piece: Piece,
    *,
    scale: float,
    window: Window | None,
    soft_cap: float | None,
    sinks: torch.Tensor | None,
    slopes: torch.Tensor | None,
) -> torch.Tensor:
    """Return the output [tokens, H, D] of a piece of the packed query [T, H, D]."""
    num_kv_heads, head_dim = cache.layout.num_kv_heads, cache.layout.head_dim
    pairs = read_blocks(cache, piece.blocks, query.dtype).view(-1, 2, num_kv_heads, head_dim)[: piece.kv_len]
    key, value = pairs[:, 0].transpose(0, 1)[None], pairs[:, 1].transpose(0, 1)[None]
    part = query[piece.start : piece.stop].transpose(0, 1)[None]
    num_tokens, is_windowed = part.shape[2], window is not None and piece.kv_len > find_size(window)
    if soft_cap is None and sinks is None and slopes is None and not is_windowed and piece.runs is None:
        is_gqa = part.shape[1] != num_kv_heads
        if num_tokens == piece.kv_len:
            output = F.scaled_dot_product_attention(part, key, value, is_causal=True, scale=scale, enable_gqa=is_gqa)
            return output[0].transpose(0, 1)
        if has_causal_bias(query.device):
            # Imported here: it imports TorchDynamo and TorchInductor, which takes a second.
            from torch.nn.attention.bias import causal_lower_right

            bias = causal_lower_right(num_tokens, piece.kv_len)
            output = F.scaled_dot_product_attention(part, key, value, attn_mask=bias, scale=scale, enable_gqa=is_gqa)
            return output[0].transpose(0, 1)
    mask = _mask_of(piece, window if is_windowed else None, query)
    group = part.shape[1] // num_kv_heads
    key, value = key.repeat_interleave(group, dim=1), value.repeat_interleave(group, dim=1)
    own = None if sinks is None else sinks.view(1, -1, 1, 1)
    if slopes is None:
        return _attend(part, key, value, mask, scale=scale, soft_cap=soft_cap, sinks=own)[0].transpose(0, 1)
    keys = torch.arange(piece.kv_len, device=query.device)
    places = torch.arange(piece.first, piece.first + num_tokens, device=query.device)[None, :, None]
    outputs, count = [], max(1, MAX_MASK_ELEMENTS // mask.numel())
    for first in range(0, len(slopes), count):  # each head has a mask of its own
        heads = slice(first, first + count)
        masks = mask.float() + find_bias(slopes[heads, None], keys, places, scale)
        sink = None if own is None else own[:, heads]
        found = _attend(
            part[:, heads], key[:, heads], value[:, heads], masks, scale=scale, soft_cap=soft_cap, sinks=sink
        )
        outputs.append(found)
    return torch.cat(outputs, dim=1)[0].transpose(0, 1)


def _mask_of(piece: Piece, window: Window | None, query: torch.Tensor) -> torch.Tensor:
    """[num_tokens, kv_len] additive mask of a piece."""
    if window in piece.masks:
        return piece.masks[window]
    num_tokens = piece.stop - piece.start
    seen = torch.arange(piece.kv_len, device=query.device)[None]
    own = torch.arange(piece.first, piece.first + num_tokens, device=query.device)[:, None]
    first, last = (own[:, 0], own[:, 0]) if piece.runs is None else (piece.runs[0], piece.runs[1])
    hidden = seen > last[:, None]
    if window is not None:
        hidden |= (seen < find_first_seen(window, own)) & (seen < first[:, None])
    mask = torch.zeros(hidden.shape, dtype=query.dtype, device=query.device).masked_fill_(hidden, float("-inf"))
    if mask.numel() <= MAX_KEPT_MASK_ELEMENTS:
        piece.masks[window] = mask
    return mask


def _attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor,
    *,
    scale: float,
    soft_cap: float | None,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """Query, keys and values [·, ·, ·, D] under an additive mask; sinks broadcast to a column of the scores."""
    if soft_cap is None and sinks is None and mask.dtype == query.dtype:
        return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scale)
    scores = torch.matmul(query, key.transpose(-1, -2)).float().mul_(scale)
    if soft_cap is not None:
        scores = scores.div_(soft_cap).tanh_().mul_(soft_cap)
    scores = scores + mask
    weights = torch.softmax(scores, dim=-1) if sinks is None else _softmax_with(scores, sinks)
    return torch.matmul(weights.to(value.dtype), value)


def _softmax_with(scores: torch.Tensor, sinks: torch.Tensor) -> torch.Tensor:
    """Softmax over scores [·, ·, L] and one sink more, whose own weight is dropped."""
    column = sinks.to(scores.dtype).expand(*scores.shape[:-1], 1)
    return torch.softmax(torch.cat((scores, column), dim=-1), dim=-1)[..., :-1]
