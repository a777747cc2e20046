"""Compare a `ModuleDecoder` with its own model at start: two prompts in one step, in pieces, and each of them alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from seesay.errors import CheckpointError
from seesay.llm.memory.kv_cache import KVCache, make_layouts
from seesay.llm.models.decoder import Decoder, ModelInput
from seesay.llm.ops import RowLayout
from seesay.llm.plans.token_runs import TokenRuns

_BLOCK_SIZE = 64
_LENGTHS = (11, 6)
_STEPS = ((4, 3), (9, 5), (10, 6), (11, 6))
"""Known tokens of both texts after each step: prompts in two pieces, a token of each, and one of the first alone."""
_PIECES = (0.3, 0.6)
"""Parts of a prompt with media that are known after its first steps. Its last token is computed alone."""
_MAX_ERROR = {torch.float32: 1e-3}
_MAX_ROUGH_ERROR = 0.1
"""Largest difference of logits, relative to their size, in float32 and in types of 16 bits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedPrompt:
    """A prompt `ids` int64 [T] at `positions` int64 [T] or [axes, T], in which the tokens at `places` int64 [R] take
    `rows` [R, embedding_size] of pictures; and the hidden states [T, hidden] that the whole model makes of it."""

    ids: torch.Tensor
    positions: torch.Tensor
    places: torch.Tensor
    rows: torch.Tensor
    expected: torch.Tensor


class CheckedDecoder(Decoder, Protocol):
    """A decoder that can also compute with its modules' own attention."""

    @property
    def named_tokens(self) -> frozenset[int]:
        """The ids of tokens that the configuration names."""
        ...

    def compute_alone(self, ids: torch.Tensor) -> torch.Tensor:
        """Return float32 logits [T, vocab] of one text int64 [T]."""
        ...


def compute_texts(decoder: CheckedDecoder) -> list[CheckedPrompt]:
    """Return texts with their logits [T, vocab], in place of hidden states, as the model computes each of them alone.
    To be called while its modules are as they were."""
    ids = _draw_ids(decoder)
    none = torch.empty(0, dtype=torch.int64, device=decoder.device)
    num_axes = decoder.traits.num_position_axes
    axes = (num_axes,) if num_axes > 1 else ()
    return [
        CheckedPrompt(
            ids=ids[row, :length],
            positions=torch.arange(length, device=decoder.device).expand(*axes, -1),
            places=none,
            rows=torch.empty(0),
            expected=decoder.compute_alone(ids[row, :length]),
        )
        for row, length in enumerate(_LENGTHS)
    ]


def check_texts(decoder: CheckedDecoder, texts: Sequence[CheckedPrompt]) -> None:
    """Raise `CheckpointError` if a text of `compute_texts` in a packed step has other logits than alone: if the modules
    mix tokens of different texts, do not take positions, or keep something of what came before."""
    for prompt, hidden in zip(texts, _compute_packed(decoder, texts, _STEPS), strict=True):
        error = _compare(decoder.logits(hidden), prompt.expected)
        if error > _limit(decoder):
            raise CheckpointError(
                "its modules compute a text in blocks of keys and values otherwise than alone (logits differ by "
                f"{error:.2g} of their size): they look at other tokens beside attention, or at other positions"
            )


def _draw_ids(decoder: CheckedDecoder) -> torch.Tensor:
    """Return random ids of tokens of text, int64 [2, T]: the whole model takes those of media for places of rows."""
    is_text = torch.ones(decoder.traits.vocab_size, dtype=torch.bool)
    named = [token for token in decoder.named_tokens if 0 <= token < len(is_text)]
    is_text[torch.tensor(named, dtype=torch.int64)] = False
    known = is_text.nonzero()[:, 0]
    drawn = torch.randint(len(known), (2, max(_LENGTHS)), generator=torch.Generator().manual_seed(0))
    return known[drawn].to(decoder.device)


def check_media(decoder: CheckedDecoder, prompts: Sequence[CheckedPrompt]) -> None:
    """Raise `CheckpointError` if a prompt with media in a packed step has other hidden states than alone, as the whole
    model computes them: if tokens of a picture see later ones, have other positions, are added to further layers, or
    are told apart in another way."""
    ends = [len(prompt.ids) for prompt in prompts]
    runs = [_find_runs(decoder, prompt) for prompt in prompts]
    steps = [tuple(_without_cut(own, int(part * end)) for own, end in zip(runs, ends, strict=True)) for part in _PIECES]
    steps += [tuple(end - 1 for end in ends), tuple(ends)]
    for prompt, hidden in zip(prompts, _compute_packed(decoder, prompts, steps), strict=True):
        if (error := _compare(hidden, prompt.expected)) > _limit(decoder):
            raise CheckpointError(
                "its modules compute a prompt with pictures otherwise than one token after another (hidden states "
                f"differ by {error:.2g} of their size): tokens of a picture see later ones, have positions of their "
                "own, or are told apart in another way"
            )


def _find_runs(decoder: CheckedDecoder, prompt: CheckedPrompt) -> TokenRuns:
    """Return the runs of tokens that see each other."""
    return TokenRuns.of_media([prompt.places.cpu().numpy()] if decoder.traits.media_run else [])


def _without_cut(runs: TokenRuns, stop: int) -> int:
    """Return `stop`, or the end of the run inside of which it lies."""
    [[first], [last]] = runs.find(stop, stop + 1)
    return int(last) + 1 if first < stop else stop


def _limit(decoder: CheckedDecoder) -> float:
    return _MAX_ERROR.get(decoder.dtype, _MAX_ROUGH_ERROR)


def _compare(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Return the size of the difference, relative to that of `expected`. Raise `CheckpointError` if it is no number."""
    error = float((found.float() - expected.float()).norm() / expected.float().norm().clamp(min=1e-9))
    if not math.isfinite(error):
        raise CheckpointError(
            f"its modules make numbers that are not finite in a trial, in {found.dtype}: look for damaged weights in "
            "the checkpoint"
        )
    return error


def _compute_packed(
    decoder: CheckedDecoder, prompts: Sequence[CheckedPrompt], steps: Sequence[Sequence[int]]
) -> list[torch.Tensor]:
    """Return hidden states [T, hidden] of all prompts, computed beside each other. `steps`: the known tokens of each
    prompt after every step."""
    layouts = make_layouts(decoder.traits.kv_shapes, block_size=_BLOCK_SIZE, dtype=decoder.dtype)
    blocks_each = max(-(-len(prompt.ids) // _BLOCK_SIZE) for prompt in prompts)
    caches = KVCache(layouts, num_blocks=len(prompts) * blocks_each, device=decoder.device).layers
    blocks = np.arange(len(prompts) * blocks_each).reshape(len(prompts), blocks_each)
    found: list[list[torch.Tensor]] = [[] for _ in prompts]
    known = [0] * len(prompts)
    for lengths in steps:
        pieces = [
            _Piece(prompt, row, first, end)
            for row, (prompt, first, end) in enumerate(zip(prompts, known, lengths))
            if end > first
        ]
        pieces.sort(key=lambda piece: len(piece) > 1)  # decode rows come first
        hidden = decoder.forward(_make_input(decoder, pieces, blocks), caches)
        for piece, part in zip(pieces, torch.split(hidden, [len(piece) for piece in pieces]), strict=True):
            found[piece.row].append(part)
        known = list(lengths)
    decoder.forget_blocks()
    return [torch.cat(parts) for parts in found]


@dataclass(frozen=True)
class _Piece:
    """Tokens [first, end) of a prompt, which has row `row` of the block table."""

    prompt: CheckedPrompt
    row: int
    first: int
    end: int

    def __len__(self) -> int:
        return self.end - self.first

    @property
    def has_embedding(self) -> torch.Tensor:
        """Which of the prompt's embedding rows are in the piece."""
        places = self.prompt.places
        return (places >= self.first) & (places < self.end)


def _make_layout(
    decoder: CheckedDecoder, pieces: Sequence[_Piece], starts: npt.NDArray[np.int64], blocks: npt.NDArray[np.int64]
) -> RowLayout:
    runs = [_find_runs(decoder, piece.prompt).find(piece.first, piece.end) for piece in pieces]
    return RowLayout(
        cu_seqlens_q=starts.astype(np.int64),
        kv_lens=np.array([piece.end for piece in pieces], dtype=np.int64),
        block_table=blocks[[piece.row for piece in pieces]].astype(np.int64),
        block_size=_BLOCK_SIZE,
        num_decode=sum(len(piece) == 1 for piece in pieces),
        runs=np.concatenate(runs, axis=1) if decoder.traits.has_runs else None,
    )


def _make_input(decoder: CheckedDecoder, pieces: Sequence[_Piece], blocks: npt.NDArray[np.int64]) -> ModelInput:
    """Return the input of a step that computes `pieces`. `blocks` [rows, blocks each]: the block table."""
    starts = np.cumsum([0, *map(len, pieces)])
    splice_rows = torch.cat(
        [piece.prompt.places[piece.has_embedding] - piece.first + int(at) for piece, at in zip(pieces, starts)]
    )
    has_embeddings = len(splice_rows) > 0
    embeddings = torch.cat([piece.prompt.rows[piece.has_embedding] for piece in pieces]) if has_embeddings else None
    slots = [piece.row * blocks.shape[1] * _BLOCK_SIZE + np.arange(piece.first, piece.end) for piece in pieces]
    return ModelInput(
        input_ids=torch.cat([piece.prompt.ids[piece.first : piece.end] for piece in pieces]),
        positions=torch.cat([piece.prompt.positions[..., piece.first : piece.end] for piece in pieces], dim=-1),
        slot_mapping=torch.from_numpy(np.concatenate(slots)).to(decoder.device),
        layout=_make_layout(decoder, pieces, starts, blocks),
        faults=torch.zeros(int(starts[-1]), device=decoder.device),
        splice_rows=splice_rows if has_embeddings else None,
        splice_embeddings=embeddings,
    )
