"""One step of the language engine as a value: what the scheduler decided, for every runner that follows it.

A plan holds deltas: what changed since the plan before it. It holds no tensors and no live objects, so the same plan
can be sent to every rank; a runner that applies all plans in their order knows all it needs (`RowTable`).
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from seesay.llm.plans.sampling_params import SamplingParams
from seesay.values import Modality

MAX_DRAFTS = 63
"""Most proposed tokens of a row."""
UNPROPOSED = -1
"""A draft that the runner proposes itself, in rounds (`ProposalRounds`)."""


class Row(NamedTuple):
    """`num_tokens` positions of one sequence, from `start`, to be computed in a step.

    `samples` is true when the last known token is one of these positions, so that its logits give the next one,
    unless the sequence wants no answer.
    drafts: proposed tokens, which follow the last known one and are the last of the `num_tokens`. The row samples at
    each of them, too. One is accepted if it is the token sampled before it, and all before it are accepted. All are
    `UNPROPOSED`, or none: then the row gives at most `num_tokens` tokens.
    """

    seq_id: int
    start: int
    num_tokens: int
    samples: bool
    drafts: tuple[int, ...] = ()

    @property
    def num_known(self) -> int:
        """Positions of known tokens."""
        return self.num_tokens - len(self.drafts)


class DraftCounts(NamedTuple):
    """Tokens that were proposed for a row, and those of them that were accepted."""

    num_drafted: int
    num_accepted: int


class EncodeJob(NamedTuple):
    """Ask an encoder for one media item of a sequence; `hash` is the item's."""

    seq_id: int
    item_index: int
    hash: bytes


class BlockCopy(NamedTuple):
    """A copy between a KV block of the device and a slot of the host's cache."""

    block_id: int
    slot: int


class CopiedBlock(NamedTuple):
    """A copy of a KV block, or of a state, into another one. Of states, `-1 - s` is slot s of the host."""

    source: int
    target: int


class AdapterLoad(NamedTuple):
    """A copy of an adapter into a slot of the device, for the sequences that begin with it."""

    slot: int
    adapter_id: int


class AddedBlocks(NamedTuple):
    """KV blocks that continue the block table of a sequence."""

    seq_id: int
    block_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MediaSpan:
    """The positions that take the embedding rows of one media item: a `MediaItem` without its features."""

    modality: Modality
    span: tuple[int, int]
    slots: npt.NDArray[np.int64]
    hash: bytes


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BegunSequence:
    """A sequence that is computed from now on; one that was preempted begins again.

    token_ids: int64 [T], all known tokens: `num_prompt_tokens` of the prompt, then generated ones. positions,
    next_position: see `MultimodalInput`. params: without logits processors, which are not data (`ModelRunner.sample`
    takes them), without bad words, which masks forbid, and without the seed. seed: of its draws, 64 bits. stretch,
    state_slot: see `Sequence`. adapter_slot: that of its adapter; -1 without one. runs: int64 [2, R], the bounds of
    its `TokenRuns`; None without any.
    """

    seq_id: int
    token_ids: npt.NDArray[np.int64]
    num_prompt_tokens: int
    positions: npt.NDArray[np.int64]
    next_position: int
    params: SamplingParams
    seed: int
    items: tuple[MediaSpan, ...] = ()
    stretch: float = 0.0
    adapter_slot: int = -1
    state_slot: int = -1
    runs: npt.NDArray[np.int64] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPlan:
    """The scheduler's decision for one step.

    To follow a plan: forget all sequences if it is fresh, and those of `ended_ids` (finished, aborted, preempted), take
    those of `begun`, copy the adapters of `adapter_loads` into their slots, append `added_blocks` to the block tables,
    copy the blocks of `saves` to the host, then those of `copies`, then those of `loads` from the host, copy states by
    `state_copies`, one after another, and compute the rows. The tokens that rows sample are not in later plans: whoever
    computes the rows knows them.
    is_fresh: plans before it are lost; it names all sequences that are being computed.
    preempted_ids: those of `ended_ids` that wait to begin again. is_streamed: whether answers go on in this step that
    somebody reads while they are made.
    """

    is_fresh: bool = False
    rows: tuple[Row, ...] = ()
    ended_ids: tuple[int, ...] = ()
    begun: tuple[BegunSequence, ...] = ()
    adapter_loads: tuple[AdapterLoad, ...] = ()
    added_blocks: tuple[AddedBlocks, ...] = ()
    saves: tuple[BlockCopy, ...] = ()
    loads: tuple[BlockCopy, ...] = ()
    copies: tuple[CopiedBlock, ...] = ()
    state_copies: tuple[CopiedBlock, ...] = ()
    encode_jobs: tuple[EncodeJob, ...] = ()
    preempted_ids: tuple[int, ...] = ()
    is_streamed: bool = False

    @property
    def num_tokens(self) -> int:
        return sum(row.num_tokens for row in self.rows)

    @property
    def has_unproposed(self) -> bool:
        """Whether a row has drafts that are not proposed yet."""
        return any(row.drafts[:1] == (UNPROPOSED,) for row in self.rows)

    def without_drafts(self) -> StepPlan:
        """Return the plan with the known tokens of its rows alone."""
        rows = tuple(row._replace(num_tokens=row.num_known, drafts=()) for row in self.rows)
        return replace(self, rows=rows)

    def without(self, seq_ids: Container[int]) -> StepPlan:
        """Return the plan without the rows of some sequences."""
        rows = tuple(row for row in self.rows if row.seq_id not in seq_ids)
        return self if len(rows) == len(self.rows) else replace(self, rows=rows)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TokenMasks:
    """The tokens that may come next in some rows of a step.

    seq_ids: the sequences of these rows. One whose row has drafts may be there several times: for its next token, and
    for those behind its first, second, … draft.
    bits: int32 [len(seq_ids), ceil(vocab / 32) or more]; bit i % 32 of word i // 32 is 1 where token i is allowed, as
    in llguidance. Tokens that the row's options ban at this place are not. Its memory may be pinned, and is used again
    when the tokens of the step behind this one are known.
    jumps: by the id of a sequence, the one token that its mask allows, and the tokens that come behind that whatever
    the model computes: the next row of the sequence begins with all of them.
    """

    seq_ids: tuple[int, ...]
    bits: npt.NDArray[np.int32]
    jumps: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
