"""A clock around the real scheduler: what requests would wait for on a GPU whose step times are known.

Steps are planned as the engine's loop does it, one ahead of the one that is computed, and calls of the tower are put
between two steps as `seesay.device.tower_pacer` does it. No tensors, no threads, no torch; the same input gives the
same figures.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import numpy as np
from step_model import RecordedTimes, StepShape

from seesay.llm.plans.sampling_params import SamplingParams
from seesay.llm.plans.step_plan import EncodeJob, StepPlan
from seesay.llm.running.step_sizes import fill_up, row_sizes, token_sizes
from seesay.llm.scheduling.pools.block_pool import BlockPool
from seesay.llm.scheduling.scheduler import Scheduler
from seesay.llm.scheduling.scheduler_config import SchedulerConfig
from seesay.llm.scheduling.sequence import Sequence as TokenSequence
from seesay.llm.scheduling.step_policy import StepPolicy
from seesay.values import MediaItem, Modality, MultimodalInput

UNLIMITED = 1 << 30
MEDIA_START = 15
"""Tokens of a prompt before its picture."""


class Request(NamedTuple):
    """A prompt of `num_prompt_tokens`, of which `num_media_tokens` hold the embedding of a picture of `num_patches`
    patches. It is sent `at_s` seconds after the start, or later when its client is busy."""

    tag: str
    num_prompt_tokens: int
    num_output_tokens: int
    num_media_tokens: int = 0
    num_patches: int = 0
    at_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """Sends `requests` in their order, at most `at_a_time` unanswered ones."""

    requests: Sequence[Request]
    at_a_time: int = UNLIMITED


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """The time that Python takes, in milliseconds.

    launch_ms, graph_launch_ms: to plan and launch a step with prompt tokens, or one that is a CUDA graph. row_ms: to
    commit one row of a step. prepare_ms, prepare_picture_ms: to turn a request into a sequence, and more for one with a
    picture. token_ms: to send one piece of a streamed answer. decode_picture_ms: to decode a picture, without the GIL.
    shares_gil: whether all of that runs in one process, where launches and the rest get the GIL by turns.
    """

    launch_ms: float = 0.0
    graph_launch_ms: float = 0.0
    row_ms: float = 0.0
    prepare_ms: float = 0.0
    prepare_picture_ms: float = 0.0
    token_ms: float = 0.0
    decode_picture_ms: float = 0.0
    shares_gil: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A GPU and its host.

    slowdown: how much longer everything on the GPU takes than was recorded, as under a power limit.
    max_encode_patches: most patches of several pictures in one call of the tower. max_batch_size,
    max_prefill_token_num, num_blocks, block_size: as in `EngineConfig`.
    """

    times: RecordedTimes
    host: Host = field(default_factory=Host)
    slowdown: float = 1.0
    max_encode_patches: int = 8192
    max_batch_size: int = 512
    max_prefill_token_num: int = 8192
    num_blocks: int = 24_000
    block_size: int = 64


@dataclass(slots=True, kw_only=True)
class Answer:
    """When a request was sent, and when each token of its answer reached the client."""

    request: Request
    sent_at_s: float
    tokens_at_s: list[float] = field(default_factory=list)


class _Step(NamedTuple):
    plan: StepPlan
    seconds: float
    ended_at_s: float


class Simulation:
    """Answers the requests of `clients`. `is_streamed`: whether their answers are read while they are made.

    steps: (seconds, prompt tokens, decode rows) of every step. encode_s: seconds that the tower took in all.
    """

    def __init__(
        self,
        machine: Machine,
        clients: Sequence[Client],
        policy: StepPolicy,
        *,
        is_streamed: bool = True,
    ) -> None:
        self._machine = machine
        self._is_streamed = is_streamed
        config = SchedulerConfig(
            max_batch_size=machine.max_batch_size,
            max_prefill_token_num=machine.max_prefill_token_num,
            session_len=machine.num_blocks * machine.block_size,
        )
        pool = BlockPool(machine.num_blocks, machine.block_size, enable_prefix_caching=False)
        self._scheduler = Scheduler(config, pool, policy=policy, clock=lambda: self._now_s)
        self._token_sizes = token_sizes(machine.max_prefill_token_num)
        self._row_sizes = row_sizes(machine.max_batch_size)
        self._now_s = 0.0
        self._gpu_free_at_s = 0.0
        self._front_free_at_s = 0.0
        self._inbox: list[tuple[float, int, Callable[[], None]]] = []
        self._num_events = 0
        self._event_at_s = 0.0
        self._answers: dict[int, Answer] = {}
        self._to_send = [deque(client.requests) for client in clients]
        self._num_unanswered = [0] * len(clients)
        self._at_a_time = [client.at_a_time for client in clients]
        self._senders: dict[int, int] = {}
        self._to_encode: deque[tuple[bytes, int]] = deque()
        self._call_ends_s: deque[float] = deque()  # calls of the tower that are not over
        self._was_step_launched = True  # since the call before
        self._has_steps = False
        self.steps: list[tuple[float, int, int]] = []
        self.encode_s = 0.0

    def run(self) -> list[Answer]:
        """The answers, in the order in which the requests were sent."""
        for client in range(len(self._to_send)):
            self._send(client, 0.0)
        in_flight: _Step | None = None
        while True:
            self._drain_inbox()
            plan = self._scheduler.plan_step()
            self._start_encoding(plan.encode_jobs)
            before, in_flight = in_flight, self._launch(plan) if plan.rows else None
            if before is not None:
                self._now_s = max(self._now_s, before.ended_at_s)
                self._scheduler.observe_step(before.plan, before.seconds)
                self._commit(before.plan)
            self._scheduler.take_released()
            if plan.rows or before is not None:
                continue
            self._has_steps = False
            self._call_tower()
            if not self._inbox:
                assert not self._scheduler.has_work, "the simulation is stuck"
                return [self._answers[key] for key in sorted(self._answers)]
            self._now_s = max(self._now_s, self._inbox[0][0])

    # --- clients and frontend -----------------------------------------------------------------------------------------

    def _send(self, client: int, now_s: float) -> None:
        """Let a client send what it may."""
        waiting = self._to_send[client]
        while waiting and self._num_unanswered[client] < self._at_a_time[client]:
            request = waiting.popleft()
            self._num_unanswered[client] += 1
            self._at(max(now_s, request.at_s), partial(self._receive, client, request))

    def _receive(self, client: int, request: Request) -> None:
        """Prepare a request, and queue its sequence."""
        host = self._machine.host
        seq_id = len(self._answers)
        received_at_s = self._event_at_s
        self._answers[seq_id] = Answer(request=request, sent_at_s=received_at_s)
        self._senders[seq_id] = client
        has_picture = request.num_media_tokens > 0
        work_ms = host.prepare_ms + has_picture * host.prepare_picture_ms
        self._front_free_at_s = max(self._front_free_at_s, received_at_s) + work_ms / 1e3
        ready_at_s = self._front_free_at_s + has_picture * host.decode_picture_ms / 1e3
        self._at(ready_at_s, lambda: self._scheduler.add(self._make_sequence(seq_id, request)))

    def _make_sequence(self, seq_id: int, request: Request) -> TokenSequence:
        items: tuple[MediaItem, ...] = ()
        if request.num_media_tokens:
            slots = np.arange(MEDIA_START, MEDIA_START + request.num_media_tokens)
            item = MediaItem(
                modality=Modality.IMAGE,
                span=(MEDIA_START, MEDIA_START + request.num_media_tokens),
                slots=slots,
                hash=seq_id.to_bytes(32, "little"),
                features={},
                num_units=request.num_patches,
            )
            items = (item,)
        positions = np.arange(request.num_prompt_tokens)
        prompt = MultimodalInput(
            token_ids=positions, positions=positions, next_position=request.num_prompt_tokens, items=items
        )
        params = SamplingParams(max_new_tokens=request.num_output_tokens, ignore_eos=True)
        return TokenSequence(seq_id, prompt, params, is_streamed=self._is_streamed)

    def _at(self, at_s: float, event: Callable[[], None]) -> None:
        self._num_events += 1
        heapq.heappush(self._inbox, (at_s, self._num_events, event))

    def _drain_inbox(self) -> None:
        while self._inbox and self._inbox[0][0] <= self._now_s:
            self._event_at_s, _, event = heapq.heappop(self._inbox)
            event()

    def _work(self, ms: float) -> None:
        """The engine's thread runs Python for so long, longer when it shares the GIL with a busy frontend."""
        shared_s = 0.0
        if self._machine.host.shares_gil:
            shared_s = min(ms / 1e3, max(0.0, self._front_free_at_s - self._now_s))
            self._front_free_at_s += shared_s
        self._now_s += ms / 1e3 + shared_s

    # --- steps --------------------------------------------------------------------------------------------------------

    def _launch(self, plan: StepPlan) -> _Step:
        shape = self._find_shape(plan)
        host = self._machine.host
        self._work(host.launch_ms if shape.num_prompt_tokens else host.graph_launch_ms)
        seconds = self._machine.times.step_ms(shape) * self._machine.slowdown / 1e3
        self._gpu_free_at_s = max(self._gpu_free_at_s, self._now_s) + seconds
        step = _Step(plan, seconds, self._gpu_free_at_s)
        self._has_steps = True
        self._was_step_launched = True
        num_decode_rows = sum(row.num_tokens == 1 for row in plan.rows)
        self.steps.append((seconds, plan.num_tokens - num_decode_rows, num_decode_rows))
        self._call_tower()
        return step

    def _find_shape(self, plan: StepPlan) -> StepShape:
        """The computed tokens, including padding."""
        contexts = [row.start + 1 for row in plan.rows if row.num_tokens == 1]
        prompts = [row for row in plan.rows if row.num_tokens > 1]
        mean_context = sum(contexts) / max(1, len(contexts))
        if not prompts:
            return StepShape(fill_up(len(contexts), self._row_sizes), mean_context)
        num_tokens = sum(row.num_tokens for row in prompts)
        attention = sum(row.num_tokens * (row.start + row.num_tokens / 2) for row in prompts)
        num_padded = fill_up(len(contexts) + num_tokens, self._token_sizes) - len(contexts)
        return StepShape(len(contexts), mean_context, num_padded, attention / num_padded)

    def _commit(self, plan: StepPlan) -> None:
        host = self._machine.host
        self._work(host.row_ms * len(plan.rows))
        sampled = {row.seq_id: (0,) for row in plan.rows if row.samples}
        for update in self._scheduler.commit_step(plan, sampled):
            seq_id = update.seq.seq_id
            send_ms = host.token_ms if self._is_streamed else 0.0
            self._front_free_at_s = max(self._front_free_at_s, self._now_s) + send_ms / 1e3
            self._answers[seq_id].tokens_at_s.append(self._front_free_at_s)
            if update.finish_reason is not None:
                assert update.error is None, update
                client = self._senders.pop(seq_id)
                self._num_unanswered[client] -= 1
                self._send(client, self._front_free_at_s)

    # --- the tower ----------------------------------------------------------------------------------------------------

    def _start_encoding(self, jobs: Sequence[EncodeJob]) -> None:
        for job in jobs:
            item = self._scheduler.sequences[job.seq_id].items[job.item_index]
            self._to_encode.append((item.hash, item.num_units))
        self._call_tower()

    def _call_tower(self) -> None:
        """Call the tower if it is its turn: while steps follow each other, one call between two of them; else one call
        is computed and one queued behind it."""
        while self._to_encode:
            while self._call_ends_s and self._call_ends_s[0] <= self._now_s:
                self._call_ends_s.popleft()
            if len(self._call_ends_s) > 1 or (self._has_steps and not self._was_step_launched):
                return
            self._encode(self._take_batch())

    def _take_batch(self) -> list[tuple[bytes, int]]:
        batch = [self._to_encode.popleft()]
        num_patches = batch[0][1]
        while self._to_encode and num_patches + self._to_encode[0][1] <= self._machine.max_encode_patches:
            batch.append(self._to_encode.popleft())
            num_patches += batch[-1][1]
        return batch

    def _encode(self, batch: Sequence[tuple[bytes, int]]) -> None:
        num_patches = sum(count for _, count in batch)
        seconds = self._machine.times.encode_ms(num_patches) * self._machine.slowdown / 1e3
        self.encode_s += seconds
        self._gpu_free_at_s = max(self._gpu_free_at_s, self._now_s) + seconds
        self._call_ends_s.append(self._gpu_free_at_s)
        self._was_step_launched = False
        for item_hash, _ in batch:
            self._at(self._gpu_free_at_s, partial(self._finish_encoding, item_hash))

    def _finish_encoding(self, item_hash: bytes) -> None:
        self._scheduler.mark_ready(item_hash)
        self._call_tower()
