"""Steps of a decoder without a runner: a prompt with embeddings among its tokens, and then a token."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch

from seesay.llm.memory.kv_cache import KVCache, make_layouts
from seesay.llm.memory.state_cache import StateCache
from seesay.llm.models.composed_decoder import ComposedDecoder
from seesay.llm.models.decoder import ModelInput, RowSplit
from seesay.llm.ops import RowLayout

LENGTH = 11
MEDIA = (3, 4, 5, 8)
"""Places of embeddings."""
NEXT = (1, 2)
"""Tokens of the steps behind the prompt."""


class Steps(NamedTuple):
    """Logits [T, vocab] of the prompt and of the steps behind it, and what the prompt's last token has alone."""

    prompt: torch.Tensor
    behind: torch.Tensor
    last: torch.Tensor


def compute_steps(decoder: ComposedDecoder) -> Steps:
    traits = decoder.traits
    layouts = make_layouts(traits.kv_shapes, block_size=32, dtype=decoder.dtype)
    caches, shapes = [], traits.state_shapes
    for _ in range(2):
        states = StateCache(shapes, num_slots=1, dtype=decoder.dtype, device=decoder.device) if shapes else None
        caches.append(KVCache(layouts, num_blocks=1, device=decoder.device, states=states).layers)
    generator = torch.Generator().manual_seed(5)
    num_added = decoder.config.num_added_tokens
    ids = torch.randint(traits.vocab_size + num_added, (LENGTH + sum(NEXT),), generator=generator)
    ids[0] = traits.vocab_size + num_added - 1  # of the last rank, or one that was added
    embeddings = torch.randn(len(MEDIA), traits.embedding_size, generator=generator).to(decoder.dtype)
    prompt = _make_input(traits, ids[:LENGTH], 0, _with_media(traits, embeddings))
    with torch.inference_mode():
        logits = [decoder.logits(decoder.forward(prompt, caches[0]))]
        start = LENGTH
        for count in NEXT:
            step = _make_input(traits, ids[start : start + count], start)
            logits.append(decoder.logits(decoder.forward(step, caches[0])))
            start += count
        wanted = torch.tensor([LENGTH - 1])
        last = decoder.logits(decoder.forward(_make_input(traits, ids[:LENGTH], 0), caches[1], wanted))
        nothing = decoder.forward(_make_input(traits, ids[:LENGTH], 0), caches[1], wanted[:0])
        assert decoder.logits(nothing).shape == (0, traits.vocab_size)
    return Steps(logits[0], torch.cat(logits[1:]), last)


def _with_media(traits: Any, embeddings: torch.Tensor) -> dict[str, Any]:
    places = torch.tensor(MEDIA)
    found: dict[str, Any] = {"splice_rows": places, "splice_embeddings": embeddings}
    if traits.media_rows is not None:
        rest = torch.tensor([i for i in range(LENGTH) if i not in MEDIA])
        found["media_rows"] = RowSplit(places, rest)
    return found


def _make_input(traits: Any, ids: torch.Tensor, start: int, media: dict[str, Any] | None = None) -> ModelInput:
    places = torch.arange(start, start + len(ids))
    layout = RowLayout(
        cu_seqlens_q=np.array([0, len(ids)]),
        kv_lens=np.array([start + len(ids)]),
        block_table=np.array([[0]]),
        block_size=32,
        num_decode=0,
    )
    axes = traits.num_position_axes
    return ModelInput(
        input_ids=ids,
        positions=places if axes == 1 else torch.stack([places, places // 2, places % 3]),
        slot_mapping=places,
        layout=layout,
        faults=torch.zeros(len(ids)),
        state_slots=torch.zeros(1, dtype=torch.int64) if traits.has_states else None,
        **(media or {}),
    )
