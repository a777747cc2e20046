"""Compare a `ModuleDecoder` with its own model at start: two texts in one step, in pieces, and each of them alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from seesay.errors import CheckpointError
from seesay.llm.kv_cache import KVCache, make_layouts
from seesay.llm.models.decoder import ModelInput
from seesay.llm.ops import RowLayout

if TYPE_CHECKING:
    from seesay.llm.models.module_decoder import ModuleDecoder

_BLOCK_SIZE = 64
_LENGTHS = (11, 6)
_STEPS = ((4, 3), (9, 5), (10, 6), (11, 6))
"""Known tokens of both texts after each step: prompts in two pieces, a token of each, and one of the first alone."""
_MAX_ERROR = {torch.float32: 1e-3}
_MAX_ROUGH_ERROR = 0.1
"""Largest difference of logits, relative to their size, in float32 and in types of 16 bits."""


def check_decoder(decoder: ModuleDecoder) -> None:
    """Raise `CheckpointError` if a text in a packed step has other logits than alone, as the model computes them: if
    its modules mix tokens of different texts, do not take positions, or keep something of what came before."""
    ids = torch.randint(decoder.traits.vocab_size, (2, max(_LENGTHS)), generator=torch.Generator().manual_seed(0)).to(
        decoder.device
    )
    found = _compute_packed(decoder, ids)
    limit = _MAX_ERROR.get(decoder.dtype, _MAX_ROUGH_ERROR)
    for row, length in enumerate(_LENGTHS):
        expected = decoder.compute_alone(ids[row, :length])
        error = float((found[row] - expected).norm() / expected.norm().clamp(min=1e-9))
        if not error < limit:  # NaN, too
            raise CheckpointError(
                "its modules compute a text in blocks of keys and values otherwise than alone (logits differ by "
                f"{error:.2g} of their size): they look at other tokens beside attention, or at other positions"
            )


def _compute_packed(decoder: ModuleDecoder, ids: torch.Tensor) -> list[torch.Tensor]:
    """Return logits [length, vocab] of both texts, computed beside each other."""
    layouts = make_layouts(decoder.traits.kv_shapes, block_size=_BLOCK_SIZE, dtype=decoder.dtype)
    caches = KVCache(layouts, num_blocks=len(_LENGTHS), device=decoder.device).layers
    found: list[list[torch.Tensor]] = [[] for _ in _LENGTHS]
    known = [0] * len(_LENGTHS)
    for lengths in _STEPS:
        rows = [row for row, length in enumerate(lengths) if length > known[row]]
        rows.sort(key=lambda row: lengths[row] - known[row] > 1)  # decode rows come first
        counts = [lengths[row] - known[row] for row in rows]
        places = [(row, place) for row in rows for place in range(known[row], lengths[row])]

        def make(values: list[int]) -> torch.Tensor:
            return torch.tensor(values, device=decoder.device)

        inputs = ModelInput(
            input_ids=make([int(ids[row, place]) for row, place in places]),
            positions=make([place for _, place in places]),
            slot_mapping=make([row * _BLOCK_SIZE + place for row, place in places]),
            layout=RowLayout(
                cu_seqlens_q=np.cumsum([0, *counts]).astype(np.int64),
                kv_lens=np.array([lengths[row] for row in rows], dtype=np.int64),
                block_table=np.array([[row] for row in rows], dtype=np.int64),
                block_size=_BLOCK_SIZE,
                num_decode=counts.count(1),
            ),
            faults=torch.zeros(len(places), device=decoder.device),
        )
        logits = decoder.logits(decoder.forward(inputs, caches))
        for row, part in zip(rows, torch.split(logits, counts), strict=True):
            found[row].append(part)
        known = list(lengths)
    decoder.forget_blocks()
    return [torch.cat(parts).float() for parts in found]
