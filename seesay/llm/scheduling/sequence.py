"""One prompt and its answer on the way through the language engine: the one mutable value. Changed by the scheduler
alone; others read it. Holds no tensors.
"""

from __future__ import annotations

import secrets
from enum import Enum, StrEnum
from typing import TYPE_CHECKING

import numpy as np

from seesay.llm.plans.media_sight import find_stops
from seesay.llm.plans.step_plan import MAX_DRAFTS
from seesay.llm.plans.token_buffer import TokenBuffer

if TYPE_CHECKING:
    from collections.abc import Hashable

    import numpy.typing as npt

    from seesay.llm.plans.block_key import BlockKey
    from seesay.llm.plans.sampling_params import SamplingParams
    from seesay.llm.plans.token_runs import TokenRuns
    from seesay.llm.scheduling.prefix import PromptKeys
    from seesay.llm.scheduling.state_slots import SnapshotPlaces
    from seesay.values import FinishReason, MediaItem, MultimodalInput


class SequenceStatus(StrEnum):
    WAITING = "waiting"
    RUNNING = "running"
    PREEMPTED = "preempted"
    FINISHED = "finished"


class EmbeddingState(Enum):
    """The state of the embedding of one media item of one sequence.

    ABSENT → REQUESTED (a job was planned) → READY → DONE (its positions are computed or come from the prefix cache).
    A preempted sequence's DONE items are ABSENT again.
    """

    ABSENT = 0
    REQUESTED = 1
    READY = 2
    DONE = 3


class Sequence:
    """A tokenized prompt, the tokens generated so far, and how far both are computed.

    num_tokens: known tokens, prompt and generated. num_computed: leading tokens whose KV is in `block_ids`;
    num_scheduled: these plus the ones in plans that are not committed yet. The last known token is never computed:
    num_computed < num_tokens while the sequence is alive; one that wants no answer ends when it is. num_pending: tokens
    that the commits of those plans bring. num_foretold: of these, the ones behind a token that the next commit brings,
    which are known to runners (`TokenMasks.jumps`).
    num_drafts: proposed tokens in the plan in flight, whose commit sets num_scheduled back to num_computed.
    num_drafted, num_accepted: proposed tokens that were computed, and those of them that became tokens of the answer.
    num_cached_tokens: prompt tokens that came from the prefix cache when it was first admitted.
    ready_until: positions before it have all embeddings they need.
    arrival: number in the order of arrival; smaller is older. added_at_s: when it was queued, by the scheduler's clock.
    priority: of one owner's waiting sequences, those with the lowest are first. place: its place among those that wait;
    smaller is earlier. It is `arrival` for priority 0.
    owner: whose it is; owners take turns.
    cache_salt: sequences of different salts share no KV block.
    adapter_id: of the weights that change those of the model for it; 0: none. Sequences of different ones share no KV
    block. adapter_slot: where these are on the device, while it is running; -1 where it has none.
    state_slot: where what layers keep of it as a whole is, while it runs; -1: nowhere. snapshots: behind which tokens
    that is kept for others; None where layers keep no such thing. spare_slot: where it is as it was before the proposed
    tokens of its last row, until these are found to be right, or its next row begins there again; else -1.
    last_snapshot: the key of the last block behind which
    that was done in its answer, and not for long. num_lost: up to here it was computed in steps that failed, and with
    them its state was lost.
    stretch: of its rotary embedding (see `LengthScaling`); it shares no KV block with sequences of another stretch.
    shares_blocks: whether others may find its blocks: not when the prefix cache was emptied while it ran.
    is_streamed: whether the client reads the answer while it is generated, so that its tokens should come evenly.
    waits_for_tokens: whether the host must know each token before the next one can be chosen (logits processors do):
    no row of it is planned ahead of a commit that brings one.
    group_id: of the group with which it shares the KV of its first tokens (`SequenceGroups`); None: of no group.
    keeps_blocks: whether those of its prompt are kept when it ends, for members of its group that are still to come.
    item_stops: for each media item the first position from which on no token needs its embedding.
    prompt_positions: rotary positions of the prompt, int64 [T] or [3, T]. seed: of its draws, 64 bits.
    runs: of tokens that see each other; None without any. num_run_tokens: of the prompt, without the beginning of an
    answer that goes on. prompt_hash: of these, where the keys of each depend on all of them; else empty.
    is_prepared: whether what `Scheduler.prepare` computes is there. block_keys: of its first full blocks, as far as
    they are known. prompt_keys: those of its prompt, which equal prompts share.
    """

    __slots__ = (
        "_tokens",
        "adapter_id",
        "adapter_slot",
        "added_at_s",
        "arrival",
        "block_ids",
        "block_keys",
        "cache_salt",
        "error",
        "finish_reason",
        "group_id",
        "is_prepared",
        "is_streamed",
        "item_states",
        "item_stops",
        "items",
        "keeps_blocks",
        "last_snapshot",
        "media_end",
        "next_position",
        "num_accepted",
        "num_cached_tokens",
        "num_computed",
        "num_drafted",
        "num_drafts",
        "num_foretold",
        "num_lost",
        "num_pending",
        "num_preemptions",
        "num_prompt_tokens",
        "num_registered_blocks",
        "num_run_tokens",
        "num_scheduled",
        "num_tokens",
        "owner",
        "params",
        "place",
        "priority",
        "prompt_hash",
        "prompt_keys",
        "prompt_positions",
        "ready_until",
        "runs",
        "seed",
        "seq_id",
        "shares_blocks",
        "snapshots",
        "spare_slot",
        "state_slot",
        "status",
        "stretch",
        "waits_for_tokens",
        "was_admitted",
    )

    def __init__(
        self,
        seq_id: int,
        prompt: MultimodalInput,
        params: SamplingParams,
        *,
        owner: Hashable = None,
        priority: int = 0,
        cache_salt: bytes = b"",
        adapter_id: int = 0,
        is_streamed: bool = False,
        waits_for_tokens: bool = False,
        group_id: int | None = None,
        keeps_blocks: bool = False,
    ) -> None:
        num_prompt = len(prompt.token_ids)
        _check_prompt(prompt)
        self.seq_id = seq_id
        self.params = params
        self.seed = _choose_seed(params)
        self.is_streamed = is_streamed
        self.waits_for_tokens = waits_for_tokens or bool(params.logits_processors)
        self.stretch = 0.0
        self.group_id = group_id
        self.keeps_blocks = keeps_blocks
        self.items: tuple[MediaItem, ...] = prompt.items
        self.owner = owner
        self.priority = priority
        self.cache_salt = cache_salt
        self.adapter_id = adapter_id
        self.adapter_slot = -1
        self.num_prompt_tokens = num_prompt
        self.num_tokens = num_prompt
        self._tokens = TokenBuffer(prompt.token_ids, num_spare=min(params.max_new_tokens, 512))
        self.prompt_positions = prompt.positions
        self.next_position = prompt.next_position
        self.item_stops = tuple(int(item.slots[-1]) + 1 if len(item.slots) else 0 for item in self.items)
        self.media_end = max(self.item_stops, default=0)
        self.item_states = [EmbeddingState.ABSENT if len(item.slots) else EmbeddingState.DONE for item in self.items]
        self.num_run_tokens = num_prompt - prompt.num_answer_tokens
        self.runs: TokenRuns | None = None
        self.prompt_hash = b""
        self.update_ready_until(0)
        self.status = SequenceStatus.WAITING
        self.arrival = self.place = -1
        self.added_at_s = 0.0
        self.num_computed = 0
        self.num_scheduled = 0
        self.num_pending = 0
        self.num_foretold = 0
        self.num_drafts = self.num_drafted = self.num_accepted = 0
        self.block_ids: tuple[int, ...] = ()
        self.state_slot = self.spare_slot = -1
        self.snapshots: SnapshotPlaces | None = None
        self.last_snapshot: BlockKey | None = None
        self.num_lost = 0
        self.block_keys: list[BlockKey] = []
        self.num_registered_blocks = 0
        self.shares_blocks = True
        self.num_cached_tokens = 0
        self.num_preemptions = 0
        self.was_admitted = False
        self.is_prepared = False
        self.prompt_keys: PromptKeys | None = None
        self.finish_reason: FinishReason | None = None
        self.error: Exception | None = None

    def attend_media(self) -> None:
        """Let tokens attend to media: those behind an item need it, too."""
        self.item_stops = find_stops([int(item.slots[0]) for item in self.items])
        self.media_end = max(self.item_stops)
        self.update_ready_until(0)

    def drop_arrays(self, item_index: int) -> None:
        """Hold the arrays of a media item no longer: its encoder has them."""
        items = self.items
        self.items = (*items[:item_index], items[item_index].without_arrays(), *items[item_index + 1 :])

    @property
    def token_ids(self) -> npt.NDArray[np.int64]:
        """All known tokens, int64 [num_tokens]. A view: do not write to it."""
        return self._tokens.ids

    @property
    def generated_ids(self) -> npt.NDArray[np.int64]:
        """The generated tokens, int64 [num_generated]. A view: do not write to it."""
        return self._tokens.ids[self.num_prompt_tokens :]

    @property
    def wants_answer(self) -> bool:
        """Whether to generate tokens; else the prompt is computed for its outputs alone."""
        return self.params.max_new_tokens > 0

    @property
    def num_generated(self) -> int:
        return self.num_tokens - self.num_prompt_tokens

    @property
    def num_expected(self) -> int:
        """Tokens that are known, or will be when the plans in flight are committed and none of them ends it."""
        return self.num_tokens + self.num_pending

    @property
    def num_positions(self) -> int:
        """The largest rotary position of the known tokens plus 1: their number, where positions count tokens."""
        return self.next_position + self.num_generated

    @property
    def asked_position(self) -> int:
        """The largest rotary position of the prompt plus 1, without the beginning of an answer that goes on: the same
        for all beams of a search."""
        return self.next_position - (self.num_prompt_tokens - self.num_run_tokens)

    @property
    def is_in_flight(self) -> bool:
        """Whether a planned row of it is not committed yet."""
        return self.num_scheduled > self.num_computed

    def append(self, token_id: int) -> None:
        """Add a generated token."""
        self._tokens.append(token_id)
        self.num_tokens += 1

    def roll_back(self) -> None:
        """Forget the rows that are planned and not committed."""
        self.num_scheduled = self.num_computed
        self.num_pending = self.num_foretold = self.num_drafts = 0
        self.update_ready_until(self.num_scheduled)

    def fit_chunk(self, start: int, num_tokens: int) -> int:
        """Return how many tokens from `start` on a step may have instead of `num_tokens` (see `TokenRuns.fit`,
        `SnapshotPlaces.fit`)."""
        if self.snapshots is not None:
            num_tokens = self.snapshots.fit(start, num_tokens, self.num_tokens)
        return num_tokens if self.runs is None else self.runs.fit(start, num_tokens)

    def update_ready_until(self, start: int) -> None:
        """Set `ready_until` to the first position from `start` that waits for an embedding, or to no limit."""
        self.ready_until = NO_LIMIT
        if start >= self.media_end:
            return
        for item, state, item_stop in zip(self.items, self.item_states, self.item_stops, strict=True):
            if state in (EmbeddingState.READY, EmbeddingState.DONE) or item_stop <= start:
                continue
            index = int(np.searchsorted(item.slots, start))
            self.ready_until = int(item.slots[index]) if index < len(item.slots) else start
            return

    def can_start(self, start: int, max_chunk: int) -> bool:
        """Whether a first row of up to `max_chunk` tokens from `start`, for which `ready_until` was set, is not cut
        short by a missing embedding."""
        return self.ready_until >= min(self.num_tokens, start + max_chunk)

    def check_integrity(self, *, block_size: int, session_len: int) -> None:
        """Assert the invariants of a live sequence."""
        self._check_counts(session_len)
        self._check_blocks(block_size)
        for state, item_stop in zip(self.item_states, self.item_stops, strict=True):
            assert state is EmbeddingState.DONE or item_stop > self.num_computed, self

    def _check_counts(self, session_len: int) -> None:
        assert 0 <= self.num_computed <= self.num_scheduled <= self.num_expected + self.num_drafts <= session_len, self
        assert self.num_expected <= session_len and self.num_drafts <= MAX_DRAFTS, self
        assert self.num_computed < self.num_tokens, self
        assert self.num_pending >= 0 and (self.is_in_flight or not self.num_pending), self
        assert 0 <= self.num_foretold <= max(0, self.num_pending - 1), self
        assert self.num_prompt_tokens <= self.num_tokens == len(self.token_ids), self

    def _check_blocks(self, block_size: int) -> None:
        assert len(self.block_ids) * block_size >= self.num_scheduled, self
        assert (len(self.block_ids) - 1) * block_size < max(self.num_scheduled, 1) + MAX_DRAFTS, self
        assert self.num_registered_blocks * block_size <= self.num_computed, self
        if self.status is not SequenceStatus.RUNNING:
            assert not self.block_ids and self.num_scheduled == 0, self

    def __repr__(self) -> str:
        return (
            f"Sequence({self.seq_id}, {self.status}, tokens={self.num_prompt_tokens}+{self.num_generated}, "
            f"computed={self.num_computed}, scheduled={self.num_scheduled}, blocks={list(self.block_ids)}, "
            f"items={[state.name for state in self.item_states]})"
        )


NO_LIMIT = 1 << 62


def _choose_seed(params: SamplingParams) -> int:
    """The request's seed; else a random one where chance decides."""
    if params.seed is not None:
        return params.seed & 0xFFFFFFFFFFFFFFFF
    return secrets.randbits(64) if params.is_drawn else 0


def _check_prompt(prompt: MultimodalInput) -> None:
    """Assert that the parts of a prompt fit together. Who builds prompts reports what is the user's fault."""
    num_prompt = len(prompt.token_ids)
    assert num_prompt > prompt.num_answer_tokens >= 0, "a prompt has at least one token"
    assert prompt.positions.shape[-1] == num_prompt, (prompt.positions.shape, num_prompt)
    end = 0
    for item in prompt.items:
        start, stop = item.span
        assert end <= start < stop <= num_prompt, f"media span {item.span} in a prompt of {num_prompt} tokens"
        if len(item.slots):
            assert start <= item.slots[0] and item.slots[-1] < stop, f"slots outside of the span {item.span}"
            assert bool((np.diff(item.slots) > 0).all()), "slots must ascend"
        end = stop
