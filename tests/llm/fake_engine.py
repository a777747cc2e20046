"""A runner and an encoder that check everything a scheduler asks for.

The runner keeps what each KV slot contains: a fingerprint of the whole prefix up to its token, with embeddings. It
reads the prefix through the row's block table, as attention would, and where there are states, the one of all tokens
before. So a block or a state shared or reused wrongly changes what is read, and so does one that was copied, saved to
the host or loaded from there at a wrong time; and it samples from the fingerprint, so that each answer must equal that
of the sequence computed alone.
"""

from __future__ import annotations

from collections.abc import Callable, Container

import numpy as np

from seesay.errors import ErrorCode, RequestError
from seesay.llm.memory.resume_points import ResumePoints
from seesay.llm.plans.step_plan import StepPlan
from seesay.llm.running.row_table import RowState, RowTable
from seesay.llm.scheduling.embedding_demand import EmbeddingRef
from seesay.llm.scheduling.plan_deltas import make_begun
from seesay.llm.scheduling.pools.block_pool import BlockPool
from seesay.llm.scheduling.scheduler import Scheduler
from seesay.llm.scheduling.scheduler_config import SchedulerConfig, find_max_step_tokens
from seesay.llm.scheduling.sequence import EmbeddingState, Sequence, SequenceStatus
from seesay.llm.scheduling.state_slots import StateSlots
from seesay.values import MediaItem, Modality, MultimodalInput

NUM_TOKENS = 5
EOS = 0


def make_item(start: int, number: int, gap: int) -> MediaItem:
    """A picture of 1 + `number` rows, with `gap` positions of text inside its span before the first one."""
    rows = 1 + number
    return MediaItem(
        modality=Modality.IMAGE,
        span=(start, start + gap + rows),
        slots=np.arange(start + gap, start + gap + rows),
        hash=number.to_bytes(32, "little"),
        features={},
        num_units=rows,
    )


def make_prompt(pieces: list[tuple[int, int]], seed: int) -> MultimodalInput:
    """A prompt of (text length, picture or -1) pieces. The same seed begins with the same text."""
    token_ids: list[int] = []
    items: list[MediaItem] = []
    for length, number in pieces:
        token_ids += [(seed + i) % NUM_TOKENS for i in range(len(token_ids), len(token_ids) + length)]
        if number >= 0:
            items.append(make_item(len(token_ids), number, gap=seed % 2))
            token_ids += [NUM_TOKENS] * (items[-1].span[1] - items[-1].span[0])
    positions = np.arange(len(token_ids))
    return MultimodalInput(
        token_ids=np.array(token_ids), positions=positions, next_position=len(token_ids), items=tuple(items)
    )


def fingerprint(row: RowState, index: int, before: int, token_id: int | None = None) -> int:
    """What the KV slot of token `index` contains, when the slot before contains `before`. `token_id` is a token that
    the host does not know yet."""
    embedded = [(s.item_index, s.row_start) for s in row.splices(index, index + 1)]
    media = tuple((row.items[i].hash, place) for i, place in embedded)
    token_id = int(row.token_ids[index]) if token_id is None else token_id
    return hash((before, token_id, int(row.positions(index, index + 1)[0]), media))


def root(seq: Sequence, stretch: float, is_prefix_lm: bool) -> int:
    """What all tokens of a sequence depend on: also the whole prompt where each of its tokens sees that."""
    if not is_prefix_lm:
        return hash((seq.cache_salt, seq.adapter_id, stretch))
    pictures = tuple((item.hash, *item.slots.tolist()) for item in seq.items)
    return hash(
        (seq.cache_salt, seq.adapter_id, stretch, tuple(seq.token_ids[: seq.num_run_tokens].tolist()), pictures)
    )


def fingerprints(seq: Sequence, row: RowState, stop: int, *, stretch: float, is_prefix_lm: bool) -> list[int]:
    """Of the first `stop` tokens, as tokens of a text of this stretch."""
    found = [root(seq, stretch, is_prefix_lm)]
    for index in range(stop):
        found.append(fingerprint(row, index, found[-1]))
    return found[1:]


def check_row_table(table: RowTable, scheduler: Scheduler) -> None:
    """Assert that a runner which has applied all plans knows of running sequences what the scheduler does."""
    running = {seq.seq_id: seq for seq in scheduler.sequences.values() if seq.status is SequenceStatus.RUNNING}
    assert {row.seq_id for row in table} == set(running)
    assert len({row.slot for row in table}) == len(table)
    assert all(0 <= row.slot < scheduler.config.max_batch_size for row in table)
    for row in table:
        seq = running[row.seq_id]
        assert row.block_ids == seq.block_ids, seq
        assert np.array_equal(row.token_ids[: seq.num_tokens], seq.token_ids), seq
        aheads = (seq.num_foretold + 1,) if seq.num_foretold else (0, seq.num_drafts)  # drafts are taken when it runs
        assert row.num_known - seq.num_tokens in aheads, seq
        assert (row.num_prompt_tokens, row.next_position) == (seq.num_prompt_tokens, seq.next_position), seq
        assert np.array_equal(row.positions(0, seq.num_prompt_tokens), seq.prompt_positions), seq
        assert (row.stretch, row.seed, row.state_slot) == (seq.stretch, seq.seed, seq.state_slot), seq
        assert row.media_end == seq.media_end or scheduler.config.attends_media, seq
        assert row.adapter_slot == seq.adapter_slot and (row.adapter_slot >= 0) == (seq.adapter_id != 0), seq
        assert [item.hash for item in row.items] == [item.hash for item in seq.items], seq


def sample(value: int) -> int:
    return value % NUM_TOKENS


class FakeEngine:
    """A scheduler with a runner and an encoder that check everything they are asked to do. Every third row that samples
    jumps over up to `jump` tokens, which are those that it would sample. Up to `draft` tokens are proposed, of which
    some are wrong."""

    def __init__(
        self,
        config: SchedulerConfig,
        pool: BlockPool,
        *,
        is_ahead: bool = False,
        jump: int = 0,
        draft: int = 0,
        resume_points: ResumePoints | None = None,
        states: StateSlots | None = None,
    ) -> None:
        self.is_ahead = is_ahead
        self.jump = jump
        self.draft = draft
        self.in_flight: tuple[StepPlan, dict[int, tuple[int, ...]]] | None = None
        self.scheduler = Scheduler(config, pool, resume_points=resume_points, states=states)
        self.states = [-1] * (states.pool.num_blocks + states.pool.host.num_slots if states else 0)  # host: from behind
        self.pool = pool
        self.rows = RowTable()
        self.kv = [0] * (pool.num_blocks * pool.block_size)
        self.host = [[0] * pool.block_size for _ in range(pool.host.num_slots)]
        self.adapters: dict[int, int] = {}  # by slot
        self.pins: dict[bytes, set[tuple[int, int]]] = {}
        self.encoding: list[bytes] = []
        self.embeddings: set[bytes] = set()
        self.alive: dict[int, Sequence] = {}
        self.num_steps = 0
        self.plans: list[StepPlan] = []

    def add(self, seq: Sequence) -> None:
        try:
            self.scheduler.add(seq)
        except RequestError as error:
            assert error.code in (ErrorCode.CONTEXT_TOO_LONG, ErrorCode.OUT_OF_MEMORY)
            return
        self.alive[seq.seq_id] = seq

    def end(self, seq_id: int) -> None:
        assert self.scheduler.abort(seq_id)
        assert not self.scheduler.abort(seq_id)
        del self.alive[seq_id]
        self.collect()

    def encode(self, index: int, *, fails: bool) -> None:
        item_hash = self.encoding.pop(index % len(self.encoding))
        if not fails:
            if item_hash in self.pins:
                self.embeddings.add(item_hash)
            self.scheduler.mark_ready(item_hash)
            return
        for update in self.scheduler.mark_failed(item_hash, RequestError(ErrorCode.INVALID_MEDIA, "bad")):
            assert update.finish_reason == "error" and update.error is not None
            del self.alive[update.seq.seq_id]
        self.collect()

    def plan(self, only: Container[int] | None = None) -> StepPlan:
        plan = self.scheduler.plan_step(only, self.propose())
        assert only is None or all(row.seq_id in only for row in plan.rows)
        self.num_steps += 1
        self.plans.append(plan)
        self.rows.apply(plan)
        self.adapters.update(plan.adapter_loads)
        check_row_table(self.rows, self.scheduler)
        for row in self.rows:
            if row.adapter_slot >= 0:
                assert self.adapters[row.adapter_slot] == self.scheduler.sequences[row.seq_id].adapter_id, row.seq_id
        for job in plan.encode_jobs:
            item = self.alive[job.seq_id].items[job.item_index]
            assert item.hash == job.hash
            holders = self.pins.setdefault(item.hash, set())
            assert (job.seq_id, job.item_index) not in holders, "asked for twice"
            holders.add((job.seq_id, job.item_index))
            if item.hash in self.embeddings:
                self.scheduler.mark_ready(item.hash)
            elif item.hash not in self.encoding:
                self.encoding.append(item.hash)
        is_stuck = not (plan.rows or plan.encode_jobs or self.encoding or self.in_flight or only is not None)
        assert not is_stuck or not self.alive, "stuck"
        return plan

    def step(
        self, between: Callable[[StepPlan], None] = lambda plan: None, *, only: Container[int] | None = None
    ) -> None:
        plan = self.plan(only)
        config = self.scheduler.config
        assert plan.num_tokens <= find_max_step_tokens(
            config.max_prefill_token_num,
            session_len=config.session_len,
            media_run=config.media_run,
            is_prefix_lm=config.is_prefix_lm,
        )
        launched = plan, self.run(plan)
        between(plan)
        if not self.is_ahead:
            self.announce_forced_tokens(*launched)
            self.commit(*launched)
            return
        if self.in_flight:
            self.commit(*self.in_flight)
        self.in_flight = launched if plan.rows else None
        self.announce_forced_tokens(*launched)

    def lose(self, *, with_the_one_before: bool, spoils: bool) -> StepPlan:
        """Make a plan that is never committed, nor maybe the one in flight. `spoils`: nobody knows what it has left in
        the blocks and slots that it was to write to."""
        plan = self.plan()
        if self.in_flight and not with_the_one_before:
            self.commit(*self.in_flight)
            self.in_flight = None
        lost = [plan] if self.in_flight is None else [self.in_flight[0], plan]
        if spoils:
            for each in lost:
                self._spoil(each)
        self.in_flight = None
        self.scheduler.abandon(lost)
        self.collect()
        return plan

    def _spoil(self, plan: StepPlan) -> None:
        size = self.pool.block_size
        for _, slot in plan.saves:
            self.host[slot] = [-1] * size
        for block_id in [copy.block_id for copy in plan.loads] + [copy.target for copy in plan.copies]:
            self.kv[block_id * size : (block_id + 1) * size] = [-1] * size
        members = {row.seq_id: row for row in self.rows}
        for _, target in plan.state_copies:
            self.states[target] = -1
        for row in plan.rows:
            if row.seq_id in members:
                if self.states:
                    self.states[members[row.seq_id].state_slot] = -1
                for index in range(row.start, row.start + row.num_tokens):
                    self.kv[members[row.seq_id].block_ids[index // size] * size + index % size] = -1

    def propose(self) -> dict[int, tuple[int, ...]]:
        """Tokens that may follow those of running sequences, and may not."""
        found: dict[int, tuple[int, ...]] = {}
        for known in self.rows if self.draft else ():
            seq = self.alive.get(known.seq_id)
            if seq is None or known.num_known != seq.num_tokens or not seq.wants_answer:
                continue
            row = RowState(make_begun(seq))
            kinds = (row.stretch, self.scheduler.config.is_prefix_lm)
            value = fingerprints(seq, row, seq.num_tokens, stretch=kinds[0], is_prefix_lm=kinds[1])[-1]
            drafts = list[int]()
            for index in range(seq.num_tokens, seq.num_tokens + self.draft):
                right = sample(value)
                drafts.append(right if (index + row.seq_id + self.num_steps) % 4 else (right + 1) % NUM_TOKENS)
                value = fingerprint(row, index, value, drafts[-1])
            found[row.seq_id] = tuple(drafts)
        return found

    def announce_forced_tokens(self, plan: StepPlan, sampled: dict[int, tuple[int, ...]]) -> None:
        """Let some rows bring more tokens than one. All plans before are committed."""
        for row in plan.rows:
            if row.seq_id not in self.alive or not row.samples or row.drafts:
                continue
            seq, member, stop = self.alive[row.seq_id], self.rows[row.seq_id], row.start + row.num_tokens
            most = min(1 + self.jump, seq.params.max_new_tokens - seq.num_generated, 40 - stop)
            if most < 2 or (stop + row.seq_id) % 3:
                continue
            kinds = {self.stretch(seq, index) for index in range(stop, stop + most)}
            is_prefix_lm = self.scheduler.config.is_prefix_lm
            values = {
                kind: fingerprints(seq, member, stop, stretch=kind, is_prefix_lm=is_prefix_lm)[-1] for kind in kinds
            }
            token_ids: list[int] = []
            for index in range(stop, stop + most):
                token_ids.append(sample(values[self.stretch(seq, index)]))
                values = {kind: fingerprint(member, index, values[kind], token_ids[-1]) for kind in kinds}
            assert sampled[row.seq_id] == (token_ids[0],)
            sampled[row.seq_id] = tuple(token_ids)
            member.record(stop, sampled[row.seq_id])
            self.scheduler.announce_forced_tokens(row.seq_id, most)

    def commit(self, plan: StepPlan, sampled: dict[int, tuple[int, ...]]) -> None:
        members = {row.seq_id: row for row in self.rows}
        for row in plan.rows:
            if row.samples and row.seq_id in members:
                members[row.seq_id].record(row.start + row.num_known, sampled[row.seq_id])
        for update in self.scheduler.commit_step(plan, sampled):
            assert bool(update.token_ids) == update.seq.wants_answer
            if update.finish_reason:
                self.check_answer(self.alive.pop(update.seq.seq_id))
        self.collect()

    def run(self, plan: StepPlan) -> dict[int, tuple[int, ...]]:
        """Copy what is to be saved and loaded, and compute the rows in order, each from what its block table says."""
        size = self.pool.block_size
        for block_id, slot in plan.saves:
            self.host[slot] = self.kv[block_id * size : (block_id + 1) * size]
        copied = [self.kv[source * size : (source + 1) * size] for source, _ in plan.copies]
        for (_, target), content in zip(plan.copies, copied, strict=True):
            self.kv[target * size : (target + 1) * size] = content
        for block_id, slot in plan.loads:
            self.kv[block_id * size : (block_id + 1) * size] = self.host[slot]
        for source, target in plan.state_copies:
            self.states[target] = self.states[source]
        sampled: dict[int, tuple[int, ...]] = {}
        is_prefix_lm = self.scheduler.config.is_prefix_lm
        for row in plan.rows:
            seq, member = self.alive[row.seq_id], self.rows[row.seq_id]
            slots = [b * size + offset for b in member.block_ids for offset in range(size)]
            stop = row.start + row.num_tokens
            num_needed = self.pool.blocks_for(stop)  # it may hold some of drafts that were wrong
            most = self.pool.blocks_for(stop + self.draft) if self.draft else num_needed
            assert num_needed <= len(member.block_ids) <= most, "not the blocks it needs"
            if is_prefix_lm:
                assert stop >= seq.num_run_tokens, "a prompt was cut"
                assert member.runs.bounds.tolist() == [[0], [seq.num_run_tokens]]
            elif self.scheduler.config.media_run:  # the places of an item are neighbours
                assert not any(item.slots[0] < stop <= item.slots[-1] for item in member.items), "a picture was cut"
            assert member.stretch == self.stretch(seq, self.num_expected(member)), "keys of another kind"
            known = fingerprints(seq, member, row.start, stretch=member.stretch, is_prefix_lm=is_prefix_lm)
            assert [self.kv[slots[i]] for i in range(row.start)] == known, "wrong KV was read"
            for splice in member.splices(row.start, row.start + row.num_tokens):
                item = member.items[splice.item_index]
                assert seq.item_states[splice.item_index] is EmbeddingState.READY
                assert item.hash in self.embeddings and (seq.seq_id, splice.item_index) in self.pins[item.hash]
            if self.scheduler.config.attends_media:
                for sight in member.sights(row.start, stop):
                    for index in sight.item_indexes:
                        assert seq.item_states[index] is EmbeddingState.READY
                        assert member.items[index].hash in self.embeddings
                        assert (seq.seq_id, index) in self.pins[member.items[index].hash]
            is_last = row.start + row.num_known == self.num_expected(member)
            assert row.samples == (is_last and seq.wants_answer)
            assert not (seq.waits_for_tokens and row.start >= member.num_known), "planned ahead of its token"
            if row.drafts:
                assert row.samples and row.start + row.num_known == seq.num_tokens == member.num_known
                assert row.num_known == 1 or seq.snapshots is not None, "only a state is computed again"
                member.record(seq.num_tokens, row.drafts)
            value = self.kv[slots[row.start - 1]] if row.start else root(seq, member.stretch, is_prefix_lm)
            token_ids = list[int]()
            for index in range(row.start, stop):
                value = self.kv[slots[index]] = fingerprint(member, index, value, self.pending(member, index))
                draft_index = index - row.start - row.num_known
                is_right = draft_index < 0 or (
                    len(token_ids) == draft_index + 1 and row.drafts[draft_index] == token_ids[-1]
                )
                if row.samples and index >= row.start + row.num_known - 1 and is_right:
                    token_ids.append(sample(value))
            if self.states:
                assert not row.start or self.states[member.state_slot] == known[-1], "another state"
                self.states[member.state_slot] = value
            if row.samples:
                sampled[row.seq_id] = tuple(token_ids)
        return sampled

    def pending(self, row: RowState, index: int) -> int | None:
        """The token that the step in flight sampled, if `index` is its place."""
        if index < row.num_known:
            return None
        assert self.in_flight and index == row.num_known
        return self.in_flight[1][row.seq_id][0]

    def stretch(self, seq: Sequence, num_tokens: int) -> float:
        """Of a sequence that has so many tokens."""
        scaling = self.scheduler.config.length_scaling
        if scaling is None:
            return 0.0
        return scaling.find_stretch(seq.num_run_tokens if scaling.is_by_prompt else num_tokens)

    def num_expected(self, row: RowState) -> int:
        """The tokens behind which the next one is sampled. Those of a jump are known already."""
        return row.num_known + (self.in_flight is not None and len(self.in_flight[1].get(row.seq_id, ())) == 1)

    def collect(self) -> None:
        """Let go of embeddings that are not needed, and check everything."""
        for ref in self.scheduler.take_released():
            assert isinstance(ref, EmbeddingRef)
            self.pins[ref.hash].remove((ref.seq_id, ref.item_index))
            if not self.pins[ref.hash]:
                del self.pins[ref.hash]
                self.embeddings.discard(ref.hash)
        self.scheduler.check_integrity()
        assert set(self.scheduler.sequences) == set(self.alive)

    def check_answer(self, seq: Sequence) -> None:
        """The answer is that of the sequence alone, each token that of the whole text before it."""
        row = RowState(make_begun(seq))
        chains = {
            kind: fingerprints(seq, row, seq.num_tokens, stretch=kind, is_prefix_lm=self.scheduler.config.is_prefix_lm)
            for kind in {self.stretch(seq, index) for index in range(seq.num_prompt_tokens, seq.num_tokens)}
        }
        for index in range(seq.num_prompt_tokens, seq.num_tokens):
            value = chains[self.stretch(seq, index)][index - 1]
            assert int(seq.token_ids[index]) == sample(value), "the answer differs from that of the sequence alone"
        last = int(seq.token_ids[-1])
        if not seq.wants_answer:
            assert (seq.finish_reason, seq.num_generated) == ("length", 0)
        elif seq.finish_reason == "stop":
            assert last == EOS
        elif seq.finish_reason == "error":
            assert isinstance(seq.error, RequestError) and seq.error.code is ErrorCode.OUT_OF_MEMORY
        else:
            assert seq.num_generated == seq.params.max_new_tokens or seq.num_tokens == 40

    def drain(self) -> None:
        """Everything ends, in a bounded number of steps, and everything comes back."""
        for _ in range(5000):
            if not self.scheduler.has_work:
                break
            self.step()
            if self.encoding:
                self.encode(0, fails=False)
        assert not self.scheduler.has_work and not self.alive
        stats = self.scheduler.stats()
        assert (stats.num_running, stats.num_waiting, stats.num_used_kv_blocks) == (0, 0, 0)
        assert stats.num_wanted_embedding_rows == 0
        assert not self.pins
