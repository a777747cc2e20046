"""Inputs without requests: for the trials at start, which measure memory and time and use all kernels once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from seesay.device.transfers import upload
from seesay.llm.models.decoder import MediaAttention, ModelInput, RowSplit, SeenMedia
from seesay.llm.ops import RowLayout, SlotRows
from seesay.llm.ops.low_rank import sort_by_slot

if TYPE_CHECKING:
    from seesay.llm.plans.traits import DecoderTraits
    from seesay.llm.running.runner_limits import RunnerLimits
    from seesay.llm.running.step_input import StepPadding


def build_profile_inputs(
    limits: RunnerLimits, *, traits: DecoderTraits, device: torch.device
) -> Iterator[tuple[ModelInput, int]]:
    """Inputs that need the most memory, each with the number of rows whose logits are made: the last chunk of the
    longest prompt, a batch of short prompts, and a full batch of decode rows at the longest length. Elsewhere than on
    the CPU steps are filled up (`StepPadding`), which may take more than any prompt.

    All rows read and write block 0, so a cache of one block is enough. Tokens of prompts are those of media where these
    are computed otherwise. Where there are slots for adapters, all tokens have the adapter in slot 0.
    """
    max_tokens, max_rows, session_len = limits.max_step_tokens, limits.max_batch_size, limits.session_len
    chunk = min(max_tokens, session_len)
    many = max(1, min(max_rows, max_tokens))
    filled_up = [([max_tokens], [max_tokens])] if max_tokens > session_len and device.type != "cpu" else []
    for num_new, kv_lens in (
        *filled_up,
        ([chunk], [session_len]),
        ([max_tokens // many] * many, [max_tokens // many] * many),
        ([1] * max_rows, [session_len] * max_rows),
    ):
        inputs = make_blank_input(
            num_new,
            kv_lens,
            scratch_block=0,
            block_size=limits.block_size,
            device=device,
            has_runs=traits.has_runs,
        )
        if traits.media_rows is not None and max(num_new) > 1:
            inputs = replace(inputs, media_rows=_split_at(sum(num_new), len(inputs.input_ids), device))
        if limits.num_adapter_slots:
            inputs = replace(inputs, adapters=_adapt_all(sum(num_new), device))
        yield inputs, len(num_new)


def build_warm_up_inputs(
    padding: StepPadding,
    *,
    block_size: int,
    traits: DecoderTraits,
    device: torch.device,
    dtype: torch.dtype,
    has_adapters: bool = False,
) -> Iterator[tuple[ModelInput, torch.Tensor]]:
    """An input of every size, as prompt and, once, beside decode rows; every number of wanted tokens (int64); and one
    with an embedding, or of every size where rows of media are computed otherwise. has_adapters: one more of every
    size, whose tokens have the adapter in slot 0."""
    least = max(padding.row_sizes[-1], min(64, padding.token_sizes[-1]))
    num_new = [[size] for size in padding.token_sizes]
    num_wanted = [1] * len(num_new)
    num_new += [[1] * 8 + [max(1, least - 8)], *[[least]] * len(padding.row_sizes)]
    num_wanted += [1, *padding.row_sizes]
    for num_tokens, count in zip(num_new, num_wanted, strict=True):
        inputs = make_blank_input(
            num_tokens,
            num_tokens,
            scratch_block=padding.scratch_block,
            block_size=block_size,
            device=device,
            has_runs=traits.has_runs,
        )
        yield inputs, torch.arange(count, device=device)
        if has_adapters:
            adapted = replace(inputs, adapters=_adapt_all(sum(num_tokens), device))
            yield adapted, torch.arange(count, device=device)
        if traits.media_rows is not None:
            split = _split_at(max(1, sum(num_tokens) // 2), sum(num_tokens), device)
            yield replace(inputs, media_rows=split), torch.arange(count, device=device)
    first = torch.zeros(1, dtype=torch.int64, device=device)
    embedding = torch.zeros(1, traits.embedding_size, dtype=dtype, device=device)
    if traits.attends_media:
        seen = SeenMedia(0, 1, (embedding,))
        yield replace(inputs, media_attention=MediaAttention(first, (seen,))), first
    else:
        yield replace(inputs, splice_rows=first, splice_embeddings=embedding), first


def _adapt_all(num_tokens: int, device: torch.device) -> SlotRows:
    """Return rows that all have the adapter in slot 0."""
    found = sort_by_slot(np.zeros(num_tokens, dtype=np.int64))
    tokens, tiles = upload([found.tokens, found.tiles], device)
    return SlotRows(tokens=tokens, tiles=tiles, tile_rows=found.tile_rows, runs=found.runs)


def _split_at(num_media: int, num_tokens: int, device: torch.device) -> RowSplit:
    """Return a split whose first rows are those of media."""
    rows = torch.arange(num_tokens, device=device)
    return RowSplit(rows[:num_media], rows[num_media:])


def make_blank_input(
    num_new: list[int],
    kv_lens: list[int],
    *,
    scratch_block: int,
    block_size: int,
    device: torch.device,
    num_blocks: int = 0,
    has_runs: bool = False,
) -> ModelInput:
    """Return rows of so many new tokens in sequences of so many, all of which write into the scratch block. They read
    it, too, or with `num_blocks` the blocks before that number in turn. has_runs: the layout says that each token is
    outside of all runs."""
    zeros = torch.zeros(sum(num_new), dtype=torch.int64, device=device)
    shape = len(num_new), -(-max(kv_lens) // block_size)
    block_table = np.full(shape, scratch_block, dtype=np.int64)
    if num_blocks:
        block_table = np.arange(block_table.size, dtype=np.int64).reshape(shape) % num_blocks
    layout = RowLayout(
        cu_seqlens_q=np.concatenate(([0], np.cumsum(num_new))).astype(np.int64),
        kv_lens=np.array(kv_lens, dtype=np.int64),
        block_table=block_table,
        block_size=block_size,
        num_decode=sum(count == 1 for count in num_new),
    )
    if has_runs:
        own = [np.arange(length - count, length) for count, length in zip(num_new, kv_lens, strict=True)]
        layout = replace(layout, runs=np.stack((np.concatenate(own),) * 2))
    return ModelInput(
        input_ids=zeros,
        positions=zeros,
        slot_mapping=zeros + scratch_block * block_size,
        layout=layout,
        faults=zeros.float(),
        is_valid=zeros == 0,
        state_slots=torch.zeros(len(num_new), dtype=torch.int64, device=device),
    )
