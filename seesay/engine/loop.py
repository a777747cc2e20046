"""The engine loop, the core in a thread of this process: plan a step, launch it, commit the one before, send tokens.
One thread owns scheduler and runner.

Everything reaches it through an inbox, so nothing here is locked. Whatever happens inside, each request that was
submitted ends in exactly one final `TokenOutput`.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from seesay.config import VisionConfig
from seesay.device.activity import Activity
from seesay.device.backends import has_kernels
from seesay.device.query import release_cached_memory
from seesay.device.tower_pacer import TowerPacer
from seesay.encoders.store import Lookup
from seesay.encoders.worker import EncodeTiming
from seesay.engine.commands import Command, DropStaged, ModelStatus, ResetCaches, StageTensor
from seesay.engine.core import CoreListener
from seesay.engine.embedding_supply import EmbeddingSupply
from seesay.engine.failures import explain
from seesay.engine.live_request import LiveRequest
from seesay.engine.live_requests import LiveRequests
from seesay.engine.messages import CoreFacts, Features, TokenRequest
from seesay.engine.model_control import ModelControl
from seesay.engine.outbox import Outbox
from seesay.engine.step_counts import StepCounts
from seesay.engine.step_flight import StepFlight
from seesay.engine.waiting_commands import WaitingCommands
from seesay.engine.watchdog import ENCODER, ENGINE, Fault, Watchdog
from seesay.errors import ErrorCode, RequestError
from seesay.llm.scheduler import Scheduler, SequenceUpdate
from seesay.llm.step_plan import StepPlan
from seesay.values import EngineStats, FinishReason

if TYPE_CHECKING:
    from seesay.encoders.encoder import Encoder
    from seesay.engine.model_weights import ModelWeights
    from seesay.llm.launched_step import StepResult
    from seesay.llm.runner import ModelRunner
    from seesay.llm.step_input import Splices

logger = logging.getLogger("seesay")

CLOSE_S = 10.0
"""Longest wait for the threads to end."""


class EngineLoop:
    """An `EngineCore` in a thread: computes token requests until it is closed. Nothing runs before `start`."""

    def __init__(
        self,
        *,
        scheduler: Scheduler,
        runner: ModelRunner,
        encoder: Encoder | None,
        vision_config: VisionConfig,
        weights: ModelWeights | None = None,
        is_ahead: bool = False,
        hang_limit_s: float | None = None,
    ) -> None:
        """`is_ahead`: launch each step while the one before is still being computed. `hang_limit_s`: after so long a
        step or a call of the encoder counts as hung; None leaves that to the reader of `busy_s`. `weights`: those that
        may be replaced; without them it never sleeps either."""
        self._scheduler = scheduler
        self._runner = runner
        self._is_ahead = is_ahead
        self._pacer = TowerPacer()
        self._requests = LiveRequests()
        self._live = self._requests.by_id
        self._inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._encoded: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()  # messages of the encoder's worker
        self._is_closed = False
        self._activity = Activity()
        self._hang_limit_s = hang_limit_s
        self._watchdog: Watchdog | None = None
        self._outbox = Outbox()
        self._counts = StepCounts()
        self.embeddings = EmbeddingSupply(
            encoder,
            vision_config,
            self._live,
            embedding_size=runner.decoder.config.embedding_size,
            pacer=self._pacer,
        )
        self.control: ModelControl | None = None
        if weights is not None:
            self.control = ModelControl(weights=weights, runner=runner, scheduler=scheduler, embeddings=self.embeddings)
        self._commands = WaitingCommands()
        self._flight = StepFlight(
            runner,
            self._pacer,
            live=self._live,
            processors=self._requests.processors,
            commit=self._commit,
            fail=self._fail,
        )
        self.facts = CoreFacts(
            device=str(runner.device),
            dtype=str(runner.dtype).removeprefix("torch."),
            session_len=scheduler.config.session_len,
            max_batch_size=scheduler.config.max_batch_size,
            takes_media=encoder is not None,
            resizes_on_device=encoder is not None and has_kernels(runner.device),
        )
        self._thread = threading.Thread(target=self._run, name="seesay-engine", daemon=True)

    # --- called from other threads --------------------------------------------------------------------------------

    def start(self, listener: CoreListener) -> None:
        """Start the threads. `listener` is called from the loop's own."""
        self._outbox.listener = listener
        self.embeddings.start(
            on_ready=lambda key, timing: self._tell_encoded(partial(self._on_encoded, key, timing)),
            on_failed=lambda key, error: self._tell_encoded(partial(self._on_encode_failed, key, error)),
            on_launched=lambda key: self._tell_encoded(partial(self._on_encode_launched, key)),
            on_features_wanted=listener.on_features_wanted,
        )
        self._thread.start()
        if self._hang_limit_s is not None:
            self._watchdog = Watchdog(self.busy_s, self._hang_limit_s, self._give_up)

    def submit(self, requests: Sequence[TokenRequest]) -> None:
        """Answer requests. Their outputs come from the loop's thread."""
        if not self._outbox.open([request.request_id for request in requests]):
            return
        for request in requests:
            try:
                self._inbox.put(partial(self._admit, LiveRequest.make(request)))
            except Exception as error:  # the prompt's parts do not fit together
                self._inbox.put(partial(self._refuse, request.request_id, explain(error)))

    def finish(self, request_id: int, reason: FinishReason) -> None:
        """End a request whose text is complete; nothing happens when it is over already."""
        self._inbox.put(lambda: self._end(request_id, reason))

    def abort(self, request_ids: Iterable[int]) -> None:
        """Abort requests. Nothing happens to those that are over already."""
        for request_id in request_ids:
            self._inbox.put(partial(self._end, request_id, "abort"))

    def expect_media(self, request_ids: Iterable[int]) -> None:
        """Let the encoder wait a moment for the media of these requests."""
        self.embeddings.expect(request_ids)

    def forget_media(self, request_ids: Iterable[int]) -> None:
        """Expect no media of these requests any more."""
        self.embeddings.forget(request_ids)

    def is_encoded(self, item_hash: bytes) -> bool:
        """Whether this embedding is there, or being made."""
        return item_hash in self.embeddings.store

    def give_features(self, request_id: int, item_index: int, features: Features | RequestError) -> None:
        """Answer `CoreListener.on_features_wanted`."""
        self._inbox.put(lambda: self._take_features(request_id, item_index, features))

    def stop(self) -> None:
        """End all requests with an error, then the threads, and free the weights and caches. Waits for nothing."""
        self._inbox.put(self._stop)

    def close(self) -> None:
        """`stop`, and wait until all of that is done. What hangs is left behind."""
        self.stop()
        self._thread.join(CLOSE_S)
        if self._thread.is_alive():
            logger.error("the engine did not end within %g s: something in it hangs", CLOSE_S)
            self._outbox.give_up(Fault(ENGINE, "the engine was closed while something in it hangs"))

    @property
    def fault(self) -> Fault | None:
        """The part that hangs, if one does: the loop then computes nothing any more."""
        return self._outbox.fault

    def busy_s(self) -> dict[str, float]:
        """By part, the seconds since the step or call began that it is in; 0 where it is in none."""
        worker = self.embeddings.worker
        return {ENGINE: self._activity.busy_s, ENCODER: 0.0 if worker is None else worker.activity.busy_s}

    @property
    def status(self) -> ModelStatus:
        """The weights that it computes with now, and whether it sleeps."""
        return ModelStatus() if self.control is None else self.control.status

    def confirm_status(self) -> ModelStatus:
        """Return the status."""
        return self.status

    def run_command(self, command: Command) -> None:
        """Do it between steps, or, unless caches are reset, between requests. Waits for that, but not in the loop's own
        thread."""
        if isinstance(command, StageTensor | DropStaged) and self.control is not None:
            self.control.stage(command)
            return
        done: Future[None] = Future()
        self._inbox.put(partial(self._take_command, command, done))
        if threading.current_thread() is self._thread:
            return
        while self._thread.is_alive() and self.fault is None:
            if wait([done], timeout=0.5).done:
                break
        if not done.done():
            raise RequestError(ErrorCode.CLOSED, "the engine is closed")
        done.result()

    def stats(self) -> EngineStats:
        """Return the counts of everything that the loop owns."""
        held = EngineStats(num_waiting=len(self._commands.held))
        return EngineStats.merge(held, self._counts.stats(), self._scheduler.stats(), self.embeddings.stats())

    # --- the loop -------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        """Answer, then free what the loop owns."""
        self._answer_until_closed()
        if self._watchdog is not None:
            self._watchdog.stop()
        self.embeddings.close()
        device = self._runner.device
        del self._runner, self._flight, self.control  # with the weights and the KV cache
        self.control = None
        release_cached_memory(device)

    def _answer_until_closed(self) -> None:
        has_more = False
        while not self._is_closed:
            try:
                self._drain_inbox(wait=not has_more)
                self._send_outputs()
                with self._activity:
                    has_more = not self._is_asleep and self._step()
                has_more |= self._run_commands()
                self._send_outputs()
            except BaseException:  # no signal reaches this thread: a user's callback may raise anything
                logger.exception("the engine loop failed; its requests end")
                self._flight.forget()
                self._end_all(RequestError(ErrorCode.INTERNAL, "the engine failed: see its log for the traceback"))
                has_more = False
        self._drain_inbox(wait=False)
        self._flight.collect()
        closed = RequestError(ErrorCode.CLOSED, "the engine was closed before the answer was complete")
        self._end_all(closed)
        self._commands.fail(closed)
        self._send_outputs()

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
        self._runner.apply(plan)
        self.embeddings.start_encoding(plan.encode_jobs)
        has_more = bool(plan.rows) or not self._flight.is_empty
        if plan.saves or plan.loads:
            plan = self._copy_blocks(plan)
        plan, splices = self._end_impossible(plan)
        if plan.rows:
            self._note_launch(plan)
            self._flight.launch(plan, splices)
        if not plan.rows or not self._is_ahead:
            self._flight.collect()
        self.embeddings.release(self._scheduler.take_released())
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

    def _end_impossible(self, plan: StepPlan) -> tuple[StepPlan, Mapping[int, Splices]]:
        """End the sequences whose rows cannot be computed, before any row is. Returns the plan without these rows, and
        the embeddings that go into the others."""
        splices, errors = self._runner.find_splices(plan, self.embeddings.store)
        for seq_id, error in errors.items():
            self._fail(seq_id, error)
        if errors:
            plan = replace(plan, rows=tuple(row for row in plan.rows if row.seq_id not in errors))
        return plan, splices

    def _note_launch(self, plan: StepPlan) -> None:
        """Note when the first rows of sequences are launched: with the plan with which they begin."""
        now = time.perf_counter()
        for begun in plan.begun:
            request = self._live.get(begun.seq_id)  # none for one that was impossible
            if request is not None and request.computing_at is None:
                request.computing_at = now

    def _commit(self, plan: StepPlan, result: StepResult) -> None:
        self._take_encoded()  # of a tower call before this step: what it cost, or that it failed
        self._counts.add(plan)
        if result.seconds is not None:
            self._scheduler.observe_step(plan, result.seconds)
        for seq_id, error in result.errors.items():
            if seq_id in result.not_finite and seq_id in self._live:
                self._counts.add_not_finite()
                self._scheduler.forget_blocks(seq_id)
            self._fail(seq_id, error)
        for row in result.rows:
            request = self._live.get(row.seq_id)
            if request is None:  # it ended when the step before was committed
                continue
            request.add_row(row)
        logprobs = {row.seq_id: row.logprobs for row in result.rows}
        for update in self._scheduler.commit_step(plan, result.token_ids):
            request = self._live[update.seq.seq_id]
            if request.first_token_at is None:
                request.first_token_at = time.perf_counter()
            self._deliver(request, update, logprobs.get(request.request_id, ()))

    # --- output ---------------------------------------------------------------------------------------------------

    def _deliver(self, request: LiveRequest, update: SequenceUpdate, logprobs: Sequence[Mapping[int, float]]) -> None:
        """Take a sequence's new tokens, and hand them out unless they wait for the end."""
        if request.sequence.params.pooling is not None:
            # The token that ended the prompt's last row is dropped: the answer is the pooled state.
            self._finish(request, "error" if update.error else "stop", error=update.error)
            return
        self._requests.add_tokens(request, update, logprobs)
        if update.finish_reason is not None:
            self._finish(request, update.finish_reason, stop_token_id=update.stop_token_id, error=update.error)

    def _finish(
        self,
        request: LiveRequest,
        reason: FinishReason,
        *,
        stop_token_id: int | None = None,
        error: Exception | None = None,
        failed_item: int | None = None,
    ) -> None:
        """Make the final output of a request that the scheduler no longer has."""
        self._requests.end(request, reason, stop_token_id=stop_token_id, error=error, failed_item=failed_item)
        self.embeddings.drop(request.request_id)

    def _send_outputs(self) -> None:
        """Hand out what a step or the inbox gave, in one call."""
        outputs = self._requests.take_outputs()
        if not outputs:
            return
        try:
            self._outbox.send(outputs)
        except BaseException:
            logger.exception("the receiver of the engine's outputs failed; their requests are aborted")
            self.abort([output.request_id for output in outputs if output.finish_reason is None])

    def _give_up(self, fault: Fault) -> None:
        """End all requests from the watchdog's thread: the loop's own may hang. It ends if what hangs does."""
        self._outbox.give_up(fault)
        self.stop()

    def _end(self, request_id: int, reason: FinishReason, error: Exception | None = None) -> None:
        """End a live request from outside of a step; nothing happens when it is over."""
        request = self._live.get(request_id) or self._commands.held.pop(request_id, None)
        if request is not None:
            self._scheduler.finish(request_id, reason, error)
            self._finish(request, reason, error=error)

    def _fail(self, request_id: int, error: BaseException) -> None:
        self._end(request_id, "error", explain(error))

    def _end_all(self, error: RequestError) -> None:
        for request_id in [*self._live, *self._commands.held]:
            self._end(request_id, "error", error)
        self.embeddings.release(self._scheduler.take_released())

    # --- commands -------------------------------------------------------------------------------------------------

    def _admit(self, request: LiveRequest) -> None:
        if self._commands:
            self._commands.held[request.request_id] = request
            return
        if self.control is not None and (refusal := self.control.find_refusal()) is not None:
            self.embeddings.forget([request.request_id])
            self._finish(request, "error", error=refusal)
            return
        self.embeddings.note_arrival(request.request_id)
        self._requests.add(request)
        try:
            self._scheduler.add(request.sequence)
        except RequestError as error:
            self._finish(request, "error", error=error)

    @property
    def _is_asleep(self) -> bool:
        return self.control is not None and bool(self.control.status.asleep)

    def _take_command(self, command: Command, done: Future[None]) -> None:
        if isinstance(command, ResetCaches):
            self._scheduler.forget_prefixes()
            self.embeddings.store.clear()
            done.set_result(None)
            return
        self._commands.add(command, done)
        if getattr(command, "running", None) == "abort":
            for request_id in list(self._live):
                self._end(request_id, "abort")

    def _run_commands(self) -> bool:
        """Run the commands that wait, if no request is alive, and admit the requests that came behind them. Returns
        whether there are any."""
        if not self._commands or self._live:
            return False
        if not self._is_asleep:
            self._flight.collect()
            self._runner.apply(self._scheduler.plan_step())  # it learns which sequences have ended
            self.embeddings.release(self._scheduler.take_released())
        self._pacer.rest()
        held = self._commands.run(self._run_command)
        for request in held:
            self._admit(request)
        return bool(held)

    def _run_command(self, command: Command) -> None:
        if self.control is None:
            raise RequestError(ErrorCode.INVALID_REQUEST, "this engine was made without weights that can be replaced")
        assert not isinstance(command, ResetCaches | StageTensor | DropStaged)
        self.control.run(command)

    def _refuse(self, request_id: int, error: RequestError) -> None:
        """End a request that could not even be made live."""
        self.embeddings.note_arrival(request_id)
        self._requests.refuse(request_id, error)

    def _take_features(self, request_id: int, item_index: int, features: Features | RequestError) -> None:
        if request_id not in self._live:  # it ended meanwhile; another request was asked then
            return
        if isinstance(features, RequestError):
            self._end(request_id, "error", features)
        else:
            self.embeddings.take_features(request_id, item_index, features)

    # The worker's messages are read some time after they were sent. By then the requests that needed the item may have
    # ended, its embedding may be evicted, and other requests may wait for it to be encoded again. So a message only
    # says that something happened, and the store says what is true now. A request pins an item before it asks for it,
    # and only this thread asks. So an embedding that is in the store stays there, and while an item is being encoded
    # another message will follow. An embedding that is lent is in the store while it is being encoded: those who took
    # it know, and the others wait for that message.
    def _tell_encoded(self, message: Callable[[], None]) -> None:
        """Take a message of the worker, in its thread. It is read with the inbox or before the next commit: what it
        tells of a tower call is known before the results of a step that was computed behind it."""
        self._encoded.put(message)
        self._inbox.put(self._take_encoded)

    def _take_encoded(self) -> None:
        while not self._encoded.empty():
            self._encoded.get()()

    def _on_encode_launched(self, item_hash: bytes) -> None:
        if self.embeddings.note_launched(item_hash):
            self._scheduler.mark_ready(item_hash)

    def _on_encoded(self, item_hash: bytes, timing: EncodeTiming) -> None:
        if self.embeddings.note_encoded(item_hash, timing):
            self._scheduler.mark_ready(item_hash)

    def _on_encode_failed(self, item_hash: bytes, error: Exception) -> None:
        failure = explain(error)
        for request in list(self._live.values()):
            if lent := request.find_lent(item_hash):
                self._scheduler.forget_blocks(request.request_id)  # a step may have computed with it
                self._scheduler.finish(request.request_id, "error", failure)
                self._finish(request, "error", error=failure, failed_item=lent[0])
        found = self.embeddings.store.find(item_hash)
        if found is Lookup.READY:
            self._scheduler.mark_ready(item_hash)
        if found is not Lookup.MISSING:
            return
        for update in self._scheduler.mark_failed(item_hash, failure):
            failed_item = [item.hash for item in update.seq.items].index(item_hash)
            self._finish(self._live[update.seq.seq_id], "error", error=update.error, failed_item=failed_item)

    def _stop(self) -> None:
        self._is_closed = True
