"""The parts of a simulated engine: a clock, a runner that computes hashes, a worker that encodes when it is told to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import torch

from seesay.encoders.store import EmbeddingStore, Lookup
from seesay.encoders.worker import EncodeTiming
from seesay.errors import ErrorCode, RequestError
from seesay.llm.plans.step_plan import StepPlan, TokenMasks
from seesay.llm.running.launched_step import StepResult
from seesay.llm.running.row_table import RowState, RowTable
from seesay.llm.running.splices import PlanSplices, Splices, find_splices
from seesay.llm.scheduling.pools.block_pool import BlockPool
from seesay.values import EngineStats, MediaItem

NUM_TOKENS = 11
EOS = 0
EMBEDDING_SIZE = 1


def token_of(value: int) -> int:
    return value % NUM_TOKENS


def extend(before: int, token_id: int, position: int, media: tuple[int, int] | None) -> int:
    """What the KV slot of a token contains behind one that contains `before`."""
    return hash((before, token_id, position, media or (-1, -1)))  # the hash of None differs between processes


def root_of(salt: bytes) -> int:
    return hash((7, int.from_bytes(salt, "little")))


def number_of(item_hash: bytes) -> int:
    return int.from_bytes(item_hash, "little")


class Clock:
    """Seconds that pass only when the simulation says so."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class SimulatedStep:
    """A launched step; its results are there at once, and are given by `collect`."""

    is_sampled = False

    def __init__(self, runner: SimulatedRunner, plan: StepPlan, tokens: dict[int, int]) -> None:
        self.runner, self.plan, self.tokens = runner, plan, tokens

    def collect(self) -> StepResult:
        rows = {row.seq_id: row for row in self.plan.rows}
        for seq_id, token_id in self.tokens.items():
            if seq_id in self.runner.known_ids:
                row = rows[seq_id]
                self.runner.rows[seq_id].record(row.start + row.num_tokens, (token_id,))
        return StepResult(token_ids={seq_id: (token_id,) for seq_id, token_id in self.tokens.items()})


class SimulatedRunner:
    """Follows plans as `ModelRunner` does. A KV slot holds a hash of all before it, read through block tables, so a
    block that is shared, loaded or reused wrongly is noted in `problems`. A token is that of the hash before it."""

    stream = None
    device = torch.device("cpu")
    dtype = torch.float32
    samples_late = False

    def __init__(self, pool: BlockPool, salts: Mapping[int, bytes], problems: list[str]) -> None:
        self.decoder = SimpleNamespace(traits=SimpleNamespace(embedding_size=EMBEDDING_SIZE, vocab_size=NUM_TOKENS))
        self.rows = RowTable()
        self.problems = problems
        self.plans: list[StepPlan] = []
        self.on_apply: Callable[[StepPlan], None] = lambda _plan: None
        self.breaks: set[int] = set()  # sequences with which every step fails
        self.is_lost = False
        self._size = pool.block_size
        self._salts = salts
        self._kv = [0] * (pool.num_blocks * pool.block_size)
        self._host = [[0] * pool.block_size for _ in range(pool.host.num_slots)]
        self._sampled: dict[int, tuple[int, int]] = {}  # by sequence: the place of its newest token, and the token

    @property
    def known_ids(self) -> set[int]:
        return {row.seq_id for row in self.rows}

    def apply(self, plan: StepPlan) -> None:
        self.rows.apply(plan)
        if plan.is_fresh:
            self._sampled.clear()
        for begun in plan.begun:
            self._sampled.pop(begun.seq_id, None)
        self.on_apply(plan)

    def copy_blocks(self, plan: StepPlan) -> None:
        size = self._size
        for block_id, slot in plan.saves:
            self._host[slot] = self._kv[block_id * size : (block_id + 1) * size]
        copied = [self._kv[source * size : (source + 1) * size] for source, _ in plan.copies]
        for (_, target), content in zip(plan.copies, copied, strict=True):
            self._kv[target * size : (target + 1) * size] = content
        for block_id, slot in plan.loads:
            self._kv[block_id * size : (block_id + 1) * size] = self._host[slot]

    def find_splices(self, plan: StepPlan, embeddings: Any) -> PlanSplices:
        return find_splices(plan, self.rows, embeddings, embedding_size=EMBEDDING_SIZE)

    def step(self, plan: StepPlan, embeddings: Any) -> Any:
        self.apply(plan)
        self.copy_blocks(plan)
        splices, errors = self.find_splices(plan, embeddings)
        plan = plan.without(errors)
        return plan, self.launch(plan, splices) if plan.rows else None, errors

    def launch(self, plan: StepPlan, splices: Mapping[int, Splices]) -> SimulatedStep:
        if self.is_lost:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        if any(row.seq_id in self.breaks for row in plan.rows):
            raise ValueError("a row that cannot be computed")
        tokens: dict[int, int] = {}
        for row in plan.rows:
            member, stop = self.rows[row.seq_id], row.start + row.num_tokens
            media = self._read_media(member, row.start, splices.get(row.seq_id))
            slots = [block_id * self._size + i for block_id in member.block_ids for i in range(self._size)]
            value = self._kv[slots[row.start - 1]] if row.start else root_of(self._salts[row.seq_id])
            if value != self._expect(member, row.start):
                self.problems.append(f"sequence {row.seq_id} reads wrong KV before token {row.start}")
            for index in range(row.start, stop):
                token_id = self._token(member, index)
                value = extend(value, token_id, index, media.get(index))
                self._kv[slots[index]] = value
            if row.samples:
                tokens[row.seq_id] = token_of(value)
        return SimulatedStep(self, plan, tokens)

    def sample(self, launched: SimulatedStep, masks: TokenMasks | None = None, processors: object = None) -> None:
        launched.is_sampled = True
        for row in launched.plan.rows:
            if row.samples:
                self._sampled[row.seq_id] = row.start + row.num_tokens, launched.tokens[row.seq_id]

    def collect(self, launched: SimulatedStep) -> StepResult:
        return launched.collect()

    def _token(self, member: RowState, index: int) -> int:
        if index < member.num_known:
            return int(member.token_ids[index])
        place, token_id = self._sampled[member.seq_id]
        if place != index:
            self.problems.append(f"sequence {member.seq_id} begins at a token that nobody knows: {index}")
        return token_id

    def _expect(self, member: RowState, stop: int) -> int:
        value, media = root_of(self._salts[member.seq_id]), places(member.items)
        for index in range(stop):
            value = extend(value, self._token(member, index), index, media.get(index))
        return value

    def _read_media(self, member: RowState, start: int, splices: Splices | None) -> dict[int, tuple[int, int]]:
        """The contents of embeddings by position; what is wrong with them is a problem."""
        expected, found = places(member.items), {}
        for offsets, piece in zip(splices.offsets, splices.pieces, strict=True) if splices else ():
            for offset, value in zip(offsets.tolist(), piece[:, 0].tolist(), strict=True):
                found[start + offset] = (int(value), expected[start + offset][1])
        return found

    # --- between requests ---------------------------------------------------------------------------------------------

    def check_device(self) -> None:
        if self.is_lost:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

    def drop_cache(self) -> None:
        self.rows = RowTable()
        self._sampled.clear()
        self._kv = [-1] * len(self._kv)

    def restore_cache(self) -> None:
        pass

    def restore_graphs(self) -> None:
        pass


def places(items: Any) -> dict[int, tuple[int, int]]:
    """(number of the picture, row of its embedding) by position."""
    return {place: (number_of(item.hash), row) for item in items for row, place in enumerate(item.slots.tolist())}


class SimulatedWorker:
    """The encoder's worker, without a thread: `step` encodes what is due."""

    def __init__(
        self,
        store: EmbeddingStore,
        clock: Clock,
        delay_s: Callable[[], float],
        *,
        on_ready: Callable[[bytes, EncodeTiming], None],
        on_failed: Callable[[bytes, RequestError], None],
    ) -> None:
        self.store, self._clock, self._delay_s = store, clock, delay_s
        self._on_ready, self._on_failed = on_ready, on_failed
        self.queue: list[tuple[float, MediaItem]] = []

    def submit(self, item: MediaItem, _adapter: object = None) -> bool:
        found = self.store.begin(item.hash, can_encode=item.has_arrays)
        if found is Lookup.MISSING and item.has_arrays:
            self.queue.append((self._clock() + self._delay_s(), item))
        elif found is Lookup.READY:
            self._on_ready(item.hash, EncodeTiming())
        return found is not Lookup.MISSING or item.has_arrays

    def step(self, *, fails: bool) -> None:
        due = [entry for entry in self.queue if entry[0] <= self._clock()]
        self.queue = [entry for entry in self.queue if entry[0] > self._clock()]
        for _, item in due:
            if fails:
                self.store.fail(item.hash)
                self._on_failed(item.hash, RequestError(ErrorCode.INTERNAL, "the tower failed"))
            else:
                self.store.put(item.hash, torch.full((len(item.slots), 1), float(number_of(item.hash))))
                self._on_ready(item.hash, EncodeTiming())

    def drain(self) -> None:
        self.queue = [(0.0, item) for _, item in self.queue]
        self.step(fails=False)

    def close(self) -> None:
        self.queue.clear()

    def stats(self) -> EngineStats:
        return EngineStats()


class SimulatedWeights:
    """Weights that leave and come back."""

    folder = "folder"

    def offload(self) -> None:
        pass

    def restore(self) -> None:
        pass

    def drop(self) -> None:
        pass
