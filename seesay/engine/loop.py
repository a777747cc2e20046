"""The engine's loop: plan a step, launch it, commit the one before, hand out what is new. One thread owns scheduler and
runner.

Everything reaches it through an inbox, so nothing here is locked. Whatever happens inside, each request that was
accepted ends in exactly one final `OutputDelta`.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from typing import TYPE_CHECKING

from seesay.config import VisionConfig
from seesay.device.interpreter import quick_switches
from seesay.device.query import is_out_of_memory, release_cached_memory
from seesay.device.tower_pacer import TowerPacer
from seesay.encoders.store import EmbeddingStore, Lookup
from seesay.encoders.worker import EncoderWorker, EncodeTiming
from seesay.engine.live_request import LiveRequest
from seesay.errors import ErrorCode, MissingExtraError, RequestError, describe
from seesay.llm.scheduler import Scheduler, SchedulerStats, SequenceUpdate
from seesay.values import (
    EncodeJob,
    EngineStats,
    FinishReason,
    OutputDelta,
    StepPlan,
)

if TYPE_CHECKING:
    from seesay.encoders.encoder import Encoder
    from seesay.llm.runner import LaunchedStep, ModelRunner, StepResult

logger = logging.getLogger("seesay")


class EngineLoop:
    """Answers submitted requests until it is closed. `submit`, `abort`, `expect_media`, `forget_media`,
    `yield_to_launches`, `reset_caches`, `stop` and `close` are thread-safe."""

    def __init__(
        self,
        *,
        scheduler: Scheduler,
        runner: ModelRunner,
        encoder: Encoder | None,
        vision_config: VisionConfig,
        is_ahead: bool = False,
    ) -> None:
        """`is_ahead`: launch each step while the one before is still being computed."""
        self._scheduler = scheduler
        self._runner = runner
        self._is_ahead = is_ahead
        self._in_flight: tuple[StepPlan, LaunchedStep] | None = None
        self._pacer = TowerPacer()
        self._live: dict[int, LiveRequest] = {}
        self._inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._is_closed = False
        self._expected_media: set[int] = set()  # ids of requests whose media are to be encoded soon
        self._arrived_media: list[int] = []  # those of them that were admitted
        self._step_sizes: dict[int, int] = {}  # rows of a step → number of steps
        self._total_step_tokens = 0
        self._total_not_finite = 0
        self._stats_lock = threading.Lock()
        self._expected_lock = threading.Lock()
        self.store = EmbeddingStore(vision_config.embedding_cache_bytes)
        self.worker: EncoderWorker | None = None
        if encoder is not None:
            self.worker = EncoderWorker(
                encoder,
                self.store,
                vision_config,
                embedding_size=runner.decoder.config.hidden_size,
                on_ready=lambda key, timing: self._inbox.put(lambda: self._on_encoded(key, timing)),
                on_failed=lambda key, error: self._inbox.put(lambda: self._on_encode_failed(key, error)),
                is_more_coming=lambda: bool(self._expected_media),
                pacer=self._pacer,
            )
        self._thread = threading.Thread(target=self._run, name="seesay-engine", daemon=True)
        self._thread.start()

    # --- called from other threads --------------------------------------------------------------------------------

    def expect_media(self, request_ids: Iterable[int]) -> None:
        """Say that these requests are being prepared and have media, so that the encoder may wait a moment to batch
        them. Whoever does not submit one must forget it."""
        with self._expected_lock:
            self._expected_media.update(request_ids)

    def forget_media(self, request_ids: Iterable[int]) -> None:
        """Expect no media of these requests any more."""
        with self._expected_lock:
            self._expected_media.difference_update(request_ids)

    def yield_to_launches(self) -> None:
        """Wait while work is launched for a GPU, but not long: for threads that are going to run much Python."""
        self._pacer.launching.yield_to_launches()

    def submit(self, request: LiveRequest) -> None:
        """Answer a request. Its output comes from the loop's thread."""
        self._inbox.put(lambda: self._admit(request))

    def abort(self, request_id: int) -> None:
        """End a request that nobody waits for; nothing happens when it is over already."""
        self._inbox.put(lambda: self._end(request_id, "abort"))

    def stop(self) -> None:
        """End all requests with an error, then the threads, and free the weights and caches. Waits for nothing."""
        self._inbox.put(self._stop)

    def close(self) -> None:
        """`stop`, and wait until all of that is done."""
        self.stop()
        self._thread.join()

    def reset_caches(self) -> None:
        """Forget all embeddings and the content of all KV blocks. Live requests keep what they use until they end."""
        is_done = threading.Event()

        def reset() -> None:
            self._scheduler.forget_prefixes()
            self.store.clear()
            is_done.set()

        self._inbox.put(reset)
        while threading.current_thread() is not self._thread and self._thread.is_alive() and not is_done.wait(0.5):
            pass

    def stats(self) -> SchedulerStats:
        """Counts of the scheduler, as of its last step."""
        return self._scheduler.stats()

    def engine_stats(self) -> EngineStats:
        """Counts of everything that the loop owns."""
        scheduler, store, worker = self._scheduler.stats(), self.store.stats(), self.worker
        with self._stats_lock:
            step_sizes, total_step_tokens = tuple(sorted(self._step_sizes.items())), self._total_step_tokens
        return EngineStats(
            num_waiting=scheduler.num_waiting,
            num_running=scheduler.num_running,
            num_encode_queued=0 if worker is None else worker.num_queued,
            num_kv_blocks=scheduler.num_blocks,
            num_used_kv_blocks=scheduler.num_used_blocks,
            num_cached_kv_blocks=scheduler.num_cached_blocks,
            num_host_kv_blocks=scheduler.num_host_slots,
            num_used_host_kv_blocks=scheduler.num_used_host_slots,
            total_host_kv_loads=scheduler.total_host_loads,
            total_prefix_queried_tokens=scheduler.total_prefix_queried_tokens,
            total_prefix_hit_tokens=scheduler.total_prefix_hit_tokens,
            total_preemptions=scheduler.total_preemptions,
            total_step_tokens=total_step_tokens,
            step_sizes=step_sizes,
            encode_sizes=() if worker is None else worker.call_sizes(),
            total_encoder_calls=0 if worker is None else worker.num_calls,
            total_encoder_items=0 if worker is None else worker.num_items,
            total_encoder_restarts=0 if worker is None else worker.num_restarts,
            total_not_finite=self._total_not_finite + (0 if worker is None else worker.num_not_finite),
            num_embeddings=store.num_entries,
            embedding_bytes=store.pinned_bytes + store.unpinned_bytes,
            total_embedding_hits=store.total_hits,
            total_embedding_misses=store.total_misses,
        )

    # --- the loop -------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        with quick_switches if self._runner.stream is not None else nullcontext():
            self._answer_until_closed()
        if self.worker is not None:
            self.worker.close()
        self.store.clear()
        device = self._runner.device
        del self._runner  # with the weights and the KV cache
        release_cached_memory(device)

    def _answer_until_closed(self) -> None:
        has_more = False
        while not self._is_closed:
            try:
                self._drain_inbox(wait=not has_more)
                has_more = self._step()
            except BaseException:  # no signal reaches this thread: a user's callback may raise anything
                logger.exception("the engine loop failed; its requests end")
                self._in_flight = None
                self._end_all(RequestError(ErrorCode.INTERNAL, "the engine failed: see its log for the traceback"))
                has_more = False
        self._drain_inbox(wait=False)
        self._collect_in_flight()
        self._end_all(RequestError(ErrorCode.CLOSED, "the engine was closed before the answer was complete"))

    def _drain_inbox(self, *, wait: bool) -> None:
        try:
            command = self._inbox.get() if wait else self._inbox.get_nowait()
            while True:
                command()
                command = self._inbox.get_nowait()
        except queue.Empty:
            return

    def _step(self) -> bool:
        """Plan and launch a step, and commit the one in flight. Returns whether another may follow at once."""
        plan = self._scheduler.plan_step()
        self._start_encoding(plan.encode_jobs)
        has_more = bool(plan.rows) or self._in_flight is not None
        if plan.saves or plan.loads:
            plan = self._copy_blocks(plan)
        if plan.rows:
            self._launch(plan)
        if not plan.rows or not self._is_ahead:
            self._collect_in_flight()
        for ref in self._scheduler.take_released():
            self.store.unpin(ref.hash, (ref.seq_id, ref.item_index))
        if not has_more:
            self._pacer.rest()
        return has_more

    def _copy_blocks(self, plan: StepPlan) -> StepPlan:
        """Make the plan's copies between device and host. Returns what is left of the plan when that fails."""
        try:
            self._runner.copy_blocks(plan)
        except BaseException:
            logger.exception("KV blocks could not be copied from or to the host: their contents are computed again")
            return self._scheduler.undo_copies(plan)
        return plan

    def _launch(self, plan: StepPlan) -> None:
        """Launch a plan, which then is in flight, and commit the one that was. A plan that cannot be launched is
        computed row by row."""
        now = time.perf_counter()
        for row in plan.rows:
            request = self._live[row.seq_id]
            if request.computing_at is None:
                request.computing_at = now
        try:
            with self._pacer.step(self._runner.stream, is_paced=plan.is_streamed):
                launched = self._runner.launch(plan, self._scheduler.sequences, self.store)
        except BaseException as error:
            failure = error
        else:
            before, self._in_flight = self._in_flight, (plan, launched)
            if before is not None:
                self._collect(*before)
            return
        self._collect_in_flight()
        self._recover(plan, failure)

    def _collect_in_flight(self) -> None:
        if self._in_flight is not None:
            before, self._in_flight = self._in_flight, None
            self._collect(*before)

    def _collect(self, plan: StepPlan, launched: LaunchedStep) -> None:
        """Wait for a step and commit it."""
        try:
            result = launched.collect()
        except BaseException as error:
            failure = error
        else:
            self._commit(plan, result)
            return
        # The step in flight began with tokens and blocks of the failed one: its results mean nothing.
        behind, self._in_flight = self._in_flight, None
        self._recover(plan, failure)
        if behind is not None:
            self._compute_row_by_row(behind[0])

    def _recover(self, plan: StepPlan, error: BaseException) -> None:
        """Go on after a plan failed. One row's fault must not end the others: each is computed alone, and only those
        that fail again end."""
        if is_out_of_memory(error):
            error.__traceback__ = None
            release_cached_memory(self._runner.device)
        if len(plan.rows) == 1:
            self._fail(plan.rows[0].seq_id, error)
        else:
            self._compute_row_by_row(plan)

    def _compute_row_by_row(self, plan: StepPlan) -> None:
        """Compute and commit each row of a plan alone, with nothing in flight."""
        for row in plan.rows:
            if row.seq_id not in self._live:  # it ended meanwhile
                continue
            alone = StepPlan(rows=(row,))
            try:
                launched = self._runner.launch(alone, self._scheduler.sequences, self.store)
            except BaseException as error:
                self._recover(alone, error)
            else:
                self._collect(alone, launched)

    def _commit(self, plan: StepPlan, result: StepResult) -> None:
        with self._stats_lock:
            self._step_sizes[len(plan.rows)] = self._step_sizes.get(len(plan.rows), 0) + 1
            self._total_step_tokens += plan.num_tokens
        for seq_id, error in result.errors.items():
            if seq_id in result.not_finite and seq_id in self._live:
                self._total_not_finite += 1
                self._scheduler.forget_blocks(seq_id)
            self._fail(seq_id, error)
        for row in result.rows:
            request = self._live.get(row.seq_id)
            if request is None:  # it ended when the step before was committed
                continue
            request.prompt_logprobs.add(row.start + 1, row.prompt_logprobs)
            if row.logits is not None:
                request.logits.add(row.logits.start, row.logits.values)
            if row.hidden_states is not None:
                request.hidden_states.add(row.hidden_states.start, row.hidden_states.values)
            if row.hidden_sum is not None:
                request.add_hidden_sum(row.start, row.hidden_sum)
        logprobs = {row.seq_id: row.logprobs for row in result.rows if row.logprobs is not None}
        for update in self._scheduler.commit_step(plan, result.token_ids):
            request = self._live[update.seq.seq_id]
            if request.first_token_at is None:
                request.first_token_at = time.perf_counter()
            if request.defers_text and update.finish_reason is None:
                request.deferred_ids += update.token_ids
            else:
                self._deliver(request, update, logprobs.get(request.request_id))

    # --- output ---------------------------------------------------------------------------------------------------

    def _deliver(self, request: LiveRequest, update: SequenceUpdate, logprobs: Mapping[int, float] | None) -> None:
        """Turn a sequence's new tokens into output, and end it at a stop word."""
        if request.sequence.params.pooling is not None:
            # The token that ended the prompt's last row is nobody's: the answer is the pooled state.
            self._finish(request, "error" if update.error else "stop", error=update.error)
            return
        token_ids = update.token_ids
        reason = update.finish_reason
        stop: str | int | None = update.stop_token_id
        keeps_stop = request.include_stop and update.stop_token_id in update.seq.params.stop_token_ids
        if update.stop_token_id is not None and not keeps_stop:
            token_ids = token_ids[:-1]
        token_ids = (*request.take_deferred(), *token_ids)
        text = request.detokenizer.push(token_ids).text
        if reason is not None:
            text += request.detokenizer.flush()
        if request.detokenizer.stop is not None and update.error is None:
            reason, stop = "stop", request.detokenizer.stop
            self._scheduler.finish(update.seq.seq_id, "stop")
        request.add_output(text, token_ids, logprobs if token_ids else None)
        if reason is not None:
            self._finish(request, reason, stop_reason=stop, error=update.error)
        elif request.streams:
            self._emit(request, request.take_delta())

    def _finish(
        self,
        request: LiveRequest,
        reason: FinishReason,
        *,
        stop_reason: str | int | None = None,
        error: Exception | None = None,
    ) -> None:
        """Emit the final delta of a request that the scheduler no longer has."""
        del self._live[request.request_id]
        self._emit(request, request.take_final(reason, stop_reason=stop_reason, error=error))

    def _emit(self, request: LiveRequest, delta: OutputDelta) -> None:
        try:
            request.on_output(delta)
        except BaseException:
            logger.exception("the receiver of request %d failed; the request is aborted", request.request_id)
            self.abort(request.request_id)

    def _end(self, request_id: int, reason: FinishReason, error: Exception | None = None) -> None:
        """End a live request from outside of a step; nothing happens when it is over."""
        request = self._live.get(request_id)
        if request is None:
            return
        self._scheduler.finish(request_id, reason, error)
        token_ids = request.take_deferred()
        text = request.detokenizer.push(token_ids).text + request.detokenizer.flush()
        request.add_output(text, token_ids)
        self._finish(request, reason, error=error)

    def _fail(self, request_id: int, error: BaseException) -> None:
        self._end(request_id, "error", explain(error))

    def _end_all(self, error: RequestError) -> None:
        for request_id in list(self._live):
            self._end(request_id, "error", error)
        for ref in self._scheduler.take_released():
            self.store.unpin(ref.hash, (ref.seq_id, ref.item_index))

    # --- commands -------------------------------------------------------------------------------------------------

    def _admit(self, request: LiveRequest) -> None:
        self._arrived_media.append(request.request_id)
        self._live[request.request_id] = request
        try:
            self._scheduler.add(request.sequence)
        except RequestError as error:
            self._finish(request, "error", error=error)

    def _start_encoding(self, jobs: Iterable[EncodeJob]) -> None:
        for job in jobs:
            assert self.worker is not None, "a model without a tower was given media"
            item = self._scheduler.sequences[job.seq_id].items[job.item_index]
            self.store.pin(item.hash, (job.seq_id, job.item_index))
            self.worker.submit(item)
        if self._arrived_media:
            self.forget_media(self._arrived_media)
            self._arrived_media.clear()

    # The worker's messages are read some time after they were sent. Those for whom an item was encoded may be gone, its
    # embedding evicted, and others wait for the same item to be encoded again. So a message says only that something
    # happened: the store says what is true now. Who waits has pinned the item before asking for it, and only this
    # thread asks, so that what is there stays, and while an item is being encoded another message is still to come.
    def _on_encoded(self, item_hash: bytes, timing: EncodeTiming) -> None:
        if self.store.find(item_hash) is Lookup.READY:
            for request in self._live.values():
                request.add_encoding(item_hash, timing)
            self._scheduler.mark_ready(item_hash)

    def _on_encode_failed(self, item_hash: bytes, error: Exception) -> None:
        found = self.store.find(item_hash)
        if found is Lookup.READY:
            self._scheduler.mark_ready(item_hash)
        if found is not Lookup.MISSING:
            return
        for update in self._scheduler.mark_failed(item_hash, explain(error)):
            self._finish(self._live[update.seq.seq_id], "error", error=update.error)

    def _stop(self) -> None:
        self._is_closed = True


def explain(error: BaseException) -> RequestError:
    """`error` as one that may be shown to a user. Our own bugs are logged with their traceback."""
    if isinstance(error, RequestError):
        return error
    if isinstance(error, MissingExtraError):
        return RequestError(ErrorCode.INVALID_REQUEST, str(error))
    if is_out_of_memory(error):
        return RequestError(
            ErrorCode.OUT_OF_MEMORY, "the device ran out of memory on this request: shorten it, or use smaller pictures"
        )
    logger.error("a request failed unexpectedly", exc_info=error)
    return RequestError(ErrorCode.INTERNAL, f"this request failed inside the engine: {describe(error)}")
