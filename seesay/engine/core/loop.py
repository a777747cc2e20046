"""The engine loop, the core in a thread of this process: plan a step, launch it, commit the one before, send tokens.
One thread owns scheduler and runner.

Everything reaches it through an inbox, so nothing here is locked. Whatever happens inside, each request that was
submitted ends in exactly one final `TokenOutput`.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

from seesay.config import VisionConfig
from seesay.device.activity import Activity
from seesay.device.backends import has_kernels
from seesay.device.query import is_out_of_memory, is_same_device, release_cached_memory
from seesay.device.tower_pacer import TowerPacer
from seesay.engine.commands import (
    Command,
    DropStaged,
    LoadAdapter,
    ModelStatus,
    ResetCaches,
    StageTensor,
    UnloadAdapter,
)
from seesay.engine.core.adapters import AdapterControl, AdapterStore, ReadAdapter
from seesay.engine.core.embedding_supply import EmbeddingSupply
from seesay.engine.core.encoder_reports import EncoderReports
from seesay.engine.core.grammars.grammar_rows import GrammarRows
from seesay.engine.core.inbox import Inbox
from seesay.engine.core.live_request import LiveRequest
from seesay.engine.core.live_requests import LiveRequests
from seesay.engine.core.model_control import ModelControl
from seesay.engine.core.outbox import Outbox
from seesay.engine.core.processor_imports import ProcessorImports
from seesay.engine.core.step_counts import StepCounts
from seesay.engine.core.step_pipeline import StepFailedError, StepPipeline
from seesay.engine.core.suspects import Suspects
from seesay.engine.core.waiting_commands import WaitingCommands
from seesay.engine.engine_core import CoreListener
from seesay.engine.failures import explain
from seesay.engine.token_messages import CoreFacts, Features, TokenRequest
from seesay.engine.watchdog import ENCODER, ENGINE, Fault, Watchdog
from seesay.errors import ErrorCode, RequestError, describe
from seesay.llm.plans.step_plan import StepPlan
from seesay.llm.scheduling.scheduler import Scheduler
from seesay.llm.scheduling.step_commit import SequenceUpdate
from seesay.values import EngineStats, FinishReason

if TYPE_CHECKING:
    from seesay.encoders.encoder import Encoder
    from seesay.engine.core.grammars.jumps import JumpRule
    from seesay.engine.core.model_weights import ModelWeights
    from seesay.engine.core.speculation.speculation import Speculation
    from seesay.grammars.bad_words import CompiledBadWords
    from seesay.grammars.masks import CompiledGrammars
    from seesay.llm.running.launched_step import StepResult
    from seesay.llm.running.runner import ModelRunner

logger = logging.getLogger("seesay")

CLOSE_S = 10.0
"""Longest wait for the threads to end."""
_MAX_CALLS = 128
"""Calls of the inbox between two steps."""
_MAX_FAILED_STEPS = 64
"""Steps that may fail one after another without a commit or the end of a request: the rows of a step are halved
until one row fails alone, so that more mean that nothing can be computed."""
_MAX_RESTARTS = 3
"""Times that the loop begins anew without a commit in between."""


class _EngineLostError(Exception):
    """The engine can compute nothing any more."""


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
        grammars: CompiledGrammars | None = None,
        bad_words: CompiledBadWords | None = None,
        imports: ProcessorImports | None = None,
        spell: Callable[[int], bytes] | None = None,
        is_ahead: bool = False,
        jumps: JumpRule | None = None,
        hang_limit_s: float | None = None,
        adapters: AdapterControl | None = None,
        speculation: Speculation | None = None,
    ) -> None:
        """`is_ahead`: launch each step while the one before is still being computed. `jumps`: see `GrammarRows`.
        `hang_limit_s`: after so long a step or a call of the encoder is treated as hung; None leaves that to the reader
        of `busy_s`. `weights`: those that may be replaced; without them it never sleeps either. `grammars`,
        `bad_words`, `imports`: without them requests have no grammars, bad words or named logits processors. `spell`
        returns the bytes of a token; without it they have no thoughts. `adapters`: those that the runner has; none by
        default. `speculation`: without it, tokens are sampled one by one."""
        self._scheduler = scheduler
        self._runner = runner
        self._is_ahead = is_ahead
        self._imports = imports or ProcessorImports(None)
        self._pacer = TowerPacer(is_shared=encoder is None or is_same_device(encoder.device, runner.device))
        self._requests = LiveRequests()
        self._live = self._requests.by_id
        self._inbox = Inbox()
        self._is_closed = False
        self._activity = Activity()
        self._hang_limit_s = hang_limit_s
        self._watchdog: Watchdog | None = None
        self._outbox = Outbox()
        self._counts = StepCounts()
        self.adapters = adapters or AdapterControl(AdapterStore(runner), scheduler)
        self.embeddings = EmbeddingSupply(
            encoder,
            vision_config,
            self._live,
            embedding_size=runner.decoder.traits.embedding_size,
            pacer=self._pacer,
            target=runner.device,
            find_adapter=self.adapters.find_tower,
        )
        self._reports = EncoderReports(self._inbox, scheduler, self.embeddings, self._live, self._fail_item)
        self.control: ModelControl | None = None
        if weights is not None:
            self.control = ModelControl(weights=weights, runner=runner, scheduler=scheduler, embeddings=self.embeddings)
        self._commands = WaitingCommands()
        self._grammars = GrammarRows(
            grammars,
            bad_words=bad_words,
            vocab_size=runner.decoder.traits.vocab_size,
            spell=spell,
            jumps=jumps,
            device=runner.device,
            resume=lambda request_id, failure: self._inbox.put(partial(self._resume, request_id, failure)),
        )
        self._speculation = speculation
        self._suspects = Suspects()
        self._num_failed_steps = self._num_restarts = 0  # since the last commit
        self._flight = StepPipeline(
            runner,
            self._pacer,
            processors=self._requests.processors,
            grammars=self._grammars,
            commit=self._commit,
            announce_forced_tokens=scheduler.announce_forced_tokens,
            fail=self._fail_row,
        )
        self.facts = CoreFacts(
            device=str(runner.device),
            dtype=str(runner.dtype).removeprefix("torch."),
            session_len=scheduler.config.session_len,
            max_batch_size=scheduler.config.max_batch_size,
            takes_media=encoder is not None,
            resizes_on_device=encoder is not None and has_kernels(encoder.device),
        )
        self._thread = threading.Thread(target=self._run, name="seesay-engine", daemon=True)

    # --- called from other threads --------------------------------------------------------------------------------

    def start(self, listener: CoreListener) -> None:
        """Start the threads. `listener` is called from the loop's own."""
        self._outbox.listener = listener
        self.embeddings.start(
            on_ready=self._reports.on_ready,
            on_failed=self._reports.on_failed,
            on_launched=self._reports.on_launched,
            on_features_wanted=listener.on_features_wanted,
            on_encoding=listener.on_encoding,
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
                processors = self._imports.find(request.params.logits_processors)
                live = LiveRequest.make(request, processors)
                self._scheduler.prepare(live.sequence)
                self._inbox.put(partial(self._admit, live))
            except Exception as error:  # the prompt's parts do not fit together, or a processor is not there
                self._inbox.put(partial(self._refuse, request.request_id, explain(error)))

    def finish(self, request_id: int, reason: FinishReason) -> None:
        """End a request whose text is complete; nothing happens when it has already ended."""
        self._inbox.put(lambda: self._end(request_id, reason))

    def abort(self, request_ids: Iterable[int]) -> None:
        """Abort requests. Nothing happens to those that have already ended."""
        for request_id in request_ids:
            self._inbox.put(partial(self._end, request_id, "abort"))

    def end_group(self, group_id: int) -> None:
        """No more requests of this group come."""
        self._inbox.put(lambda: self._scheduler.end_group(group_id))

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
        status = ModelStatus() if self.control is None else self.control.status
        return replace(status, adapters=self.adapters.loaded)

    def confirm_status(self) -> ModelStatus:
        """Return the status."""
        return self.status

    def run_command(self, command: Command) -> None:
        """Do it between steps, or, where it changes weights or memory, between requests. Waits for that, but not in the
        loop's own thread."""
        if isinstance(command, StageTensor | DropStaged) and self.control is not None:
            self.control.stage(command)
            return
        done: Future[None] = Future()
        if isinstance(command, LoadAdapter | UnloadAdapter):
            adapter = self.adapters.read(command) if isinstance(command, LoadAdapter) else None
            self._inbox.put(partial(self._change_adapters, command, adapter, done))
        else:
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
        held = EngineStats(num_waiting=sum(map(len, self._held)))
        return EngineStats.merge(held, self._counts.stats(), self._scheduler.stats(), self.embeddings.stats())

    # --- the loop -------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        """Answer, then free what the loop owns."""
        self._answer_until_closed()
        if self._watchdog is not None:
            self._watchdog.stop()
        self.embeddings.close()
        self._grammars.close()
        self.adapters.close()
        device = self._runner.device
        del self._runner, self._flight  # with the weights and the KV cache
        self.control = self._speculation = None
        release_cached_memory(device)

    def _answer_until_closed(self) -> None:
        has_more = False
        while not self._is_closed:
            has_more = self._turn(waits=not has_more)
        closed = RequestError(ErrorCode.CLOSED, "the engine was closed before the answer was complete")
        try:
            self._inbox.drain(wait=False)
            self._finish_steps()
            self._end_all(closed)
            self._send_outputs()
        except BaseException:
            logger.exception("the engine loop failed while it was closed")
        self._outbox.fail_all(closed)
        self._commands.fail(closed)

    def _turn(self, *, waits: bool) -> bool:
        """Take the inbox, make a step, run commands, and send what they gave. Returns whether another turn may follow
        at once; else the next one `waits` for the inbox."""
        try:
            has_more = self._inbox.drain(wait=waits, limit=_MAX_CALLS)
            self._send_outputs()
            with self._activity:
                has_more |= not self._is_asleep and self._step()
            self.adapters.finish_unloading(self._iterate_held())
            has_more |= self._release_held()
            has_more |= self._run_commands()
            self._send_outputs()
        except BaseException as error:  # no signal reaches this thread: a user's callback may raise anything
            self._begin_anew(error)
            return True  # the runner learns that all is over
        return has_more

    def _begin_anew(self, error: BaseException) -> None:
        """Something other than a step failed: end all requests, and go on with empty tables and caches. Where that
        fails too, or happens again and again, the engine is given up."""
        try:
            if isinstance(error, _EngineLostError):
                raise error
            logger.error("the engine loop failed; its requests end", exc_info=error)
            self._num_restarts += 1
            if self._num_restarts > _MAX_RESTARTS:
                raise _EngineLostError("the engine loop fails again and again")
            self._send_outputs()
            self._flight.forget()
            self._suspects.clear()
            self._scheduler.reset()
            self._requests.clear()
            if self._speculation is not None:
                self._speculation.clear()
            self._grammars.forget()
            for held in self._held:
                held.clear()
            self.embeddings.drop_all()
            self._outbox.fail_taken(
                RequestError(ErrorCode.INTERNAL, "the engine failed: see its log for the traceback")
            )
        except BaseException as last:
            logger.error("the engine is given up", exc_info=last)
            reason = str(last) if isinstance(last, _EngineLostError) else describe(last)
            self._outbox.give_up(Fault(ENGINE, f"the engine computes nothing any more ({reason})"))
            self._is_closed = True

    def _step(self) -> bool:
        """Plan and launch a step, and commit the one in flight. Returns whether another may follow at once."""
        drafts = self._propose()
        suspects = self._suspects.group
        plan = self._scheduler.plan_step(suspects, drafts)
        self.embeddings.start_encoding(plan.encode_jobs)
        has_more = bool(plan.rows) or not self._flight.is_empty or suspects is not None
        try:
            if plan.rows:
                self._requests.note_launch(plan)
            is_launched = self._flight.launch(plan, self.embeddings.store)
            if not is_launched or not self._is_ahead or suspects is not None or drafts:
                self._flight.collect()
        except StepFailedError as failure:
            self._recover(failure)
        else:
            self._pass_group(plan, suspects)
        self.embeddings.release(self._scheduler.take_released())
        if not has_more:
            self._pacer.rest()
        return has_more

    def _propose(self) -> Mapping[int, tuple[int, ...]]:
        """Return the tokens that sequences propose for the next step. Then the step in flight is committed: they follow
        its tokens."""
        if self._speculation is None or self._suspects.group is not None:
            return {}
        num_rows = self._scheduler.num_running
        if not self._speculation.is_wanted(num_rows):
            return {}
        self._finish_steps()
        return self._speculation.propose(num_rows) if self._suspects.group is None else {}

    def _pass_group(self, plan: StepPlan, suspects: frozenset[int] | None) -> None:
        """The step of the group went well: others follow, unless it is only on its way to where it failed before."""
        if not (plan.rows and self._scheduler.is_behind(suspects or ())):
            self._suspects.pass_group()

    def _recover(self, failure: StepFailedError) -> None:
        """Go on after a step that failed. All that is in flight is planned again, in halves of the failed step's rows:
        so one row's fault does not end the others, and only the row that fails alone ends."""
        error = failure.error
        logger.warning("%s; its rows are computed again", failure)
        self._flight.forget()
        self._num_failed_steps += 1
        if is_out_of_memory(error):
            error.__traceback__ = None
            release_cached_memory(self._runner.device)
        try:
            self._runner.check_device()
        except BaseException as lost:
            raise _EngineLostError(f"{self._runner.device} failed: {describe(lost)}") from error
        if self._num_failed_steps > _MAX_FAILED_STEPS:
            raise _EngineLostError("one step after another fails") from error
        plan = failure.plan
        self._scheduler.abandon(failure.lost)
        seq_ids = [row.seq_id for row in plan.rows]
        if len(seq_ids) == 1 and not (plan.saves or plan.loads or plan.copies):
            self._suspects.pass_group()
            self._num_failed_steps = 0
            self._fail_row(seq_ids[0], error)
        else:
            self._suspects.split(seq_ids)

    def _finish_steps(self) -> None:
        """Wait for the step in flight."""
        try:
            self._flight.collect()
        except StepFailedError as failure:
            self._recover(failure)

    def _commit(self, plan: StepPlan, result: StepResult) -> None:
        self._num_failed_steps = self._num_restarts = 0
        self._reports.take()  # of a tower call before this step: what it cost, or that it failed
        self._counts.add(plan)
        if result.seconds is not None:
            self._scheduler.observe_step(plan, result.seconds)
        for seq_id, error in result.errors.items():
            if seq_id in result.not_finite and seq_id in self._live:
                self._counts.add_not_finite()
                self._scheduler.forget_blocks(seq_id)
            self._fail(seq_id, error)
        self._requests.add_rows(result.rows)
        logprobs = {row.seq_id: row.logprobs for row in result.rows}
        for update in self._scheduler.commit_step(plan, result.token_ids):
            request = self._live[update.seq.seq_id]
            request.note_token()
            if self._speculation is not None:
                self._speculation.follow(request.request_id, update.token_ids)
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
        self._grammars.drop(request.request_id)
        if self._speculation is not None:
            self._speculation.drop(request.request_id)

    def _send_outputs(self) -> None:
        """Hand out what a step or the inbox gave, in one call."""
        outputs = self._requests.take_outputs()
        if not outputs:
            return
        try:
            self._outbox.send(outputs)
        except BaseException as error:
            logger.exception("the receiver of the engine's outputs failed; their requests are aborted")
            self.abort([output.request_id for output in outputs if output.finish_reason is None])
            ended = [output.request_id for output in outputs if output.finish_reason is not None]
            self._outbox.fail(ended, explain(error))  # those that were not even handed over

    def _give_up(self, fault: Fault) -> None:
        """End all requests from the watchdog's thread: the loop's own may hang. It ends if what hangs does."""
        self._outbox.give_up(fault)
        self.stop()

    def _end(self, request_id: int, reason: FinishReason, error: Exception | None = None) -> None:
        """End a live request from outside of a step; nothing happens when it has ended."""
        request = self._live.get(request_id)
        for held in self._held:
            request = request or held.pop(request_id, None)
        if request is not None:
            self._scheduler.finish(request_id, reason, error)
            self._finish(request, reason, error=error)

    def _fail_row(self, request_id: int, error: BaseException) -> None:
        """End a request whose row cannot be computed, or let the tower's report do that."""
        request = self._live.get(request_id)
        if request is None or not self._reports.try_blame(request, error):
            self._fail(request_id, error)

    def _fail(self, request_id: int, error: BaseException) -> None:
        self._end(request_id, "error", explain(error))

    def _fail_item(self, request: LiveRequest, error: BaseException, failed_item: int | None) -> None:
        self._finish(request, "error", error=explain(error), failed_item=failed_item)

    def _end_all(self, error: RequestError) -> None:
        for request in list(self._iterate_held()):
            self._end(request.request_id, "error", error)
        self.embeddings.release(self._scheduler.take_released())

    def _iterate_held(self) -> Iterator[LiveRequest]:
        """Yield all requests that have not ended."""
        return chain(self._live.values(), *(held.values() for held in self._held))

    @property
    def _held(self) -> tuple[dict[int, LiveRequest], ...]:
        """The requests that wait before the scheduler takes them, by what they wait for."""
        return self._commands.held, self._grammars.held, self.adapters.places.memory.held

    # --- commands -------------------------------------------------------------------------------------------------

    def _admit(self, request: LiveRequest) -> None:
        self._outbox.take(request.request_id)
        if self._commands:
            self._commands.held[request.request_id] = request
            return
        refusal = None if self.control is None else self.control.find_refusal()
        if not request.is_checked:  # what was held since goes on, though its adapter is to leave
            refusal = refusal or self.adapters.find_refusal(request)
            request.is_checked = True
        if refusal is not None:
            self.embeddings.forget([request.request_id])
            self._finish(request, "error", error=refusal)
            return
        self.embeddings.note_arrival(request.request_id)
        try:
            if not self.adapters.places.memory.take(request) or not self._grammars.take(request):
                return
            self._requests.add(request)
            self._scheduler.add(request.sequence)
            if self._speculation is not None:
                self._speculation.begin(request.sequence)
        except Exception as error:
            self._scheduler.finish(request.request_id, "error", error)  # where it was taken, and failed then
            self._finish(request, "error", error=error)

    def _resume(self, request_id: int, failure: BaseException | None) -> None:
        """Admit a request that waited for its grammar, or end it if that could not be compiled, unless it has ended."""
        request = self._grammars.held.pop(request_id, None)
        if request is not None:
            self._go_on(request, failure)

    def _go_on(self, request: LiveRequest, failure: BaseException | None) -> None:
        if failure is None:
            self._admit(request)
        else:
            self._finish(request, "error", error=explain(failure))

    def _release_held(self) -> bool:
        """Admit the requests whose adapters have come from their files. Returns whether there are any."""
        held = self.adapters.places.memory.held
        others = (request for request in self._iterate_held() if request.request_id not in held)
        released = self.adapters.places.release_held(others, partial(self._inbox.put, lambda: None))
        for request, failure in released:
            self._go_on(request, failure)
        return bool(released)

    @property
    def _is_asleep(self) -> bool:
        return self.control is not None and bool(self.control.status.asleep)

    def _take_command(self, command: Command, done: Future[None]) -> None:
        try:
            if isinstance(command, ResetCaches):
                self._scheduler.forget_prefixes()
                self.embeddings.store.clear()
                done.set_result(None)
                return
            self._commands.add(command, done)
            if getattr(command, "running", None) == "abort":
                for request_id in list(self._live):
                    self._end(request_id, "abort")
        except BaseException as error:
            try:
                self._commands.drop(done)
            finally:
                done.set_exception(error)
            raise

    def _change_adapters(
        self, command: LoadAdapter | UnloadAdapter, adapter: ReadAdapter | None, done: Future[None]
    ) -> None:
        leaving = self.adapters.take(command, adapter, done)
        if leaving is not None:
            for request in list(self._iterate_held()):
                if request.sequence.adapter_id == leaving:
                    self._end(request.request_id, "abort")

    def _run_commands(self) -> bool:
        """Run the commands that wait, if no request is alive, and admit the requests that came behind them. Returns
        whether there are any."""
        if not self._commands or self._live:
            return False
        if not self._is_asleep:
            self._finish_steps()
            self._runner.apply(self._scheduler.plan_step())  # it learns which sequences have ended
            self.embeddings.release(self._scheduler.take_released())
        self._pacer.rest()
        held = self._commands.run(self.control)
        for request in held:
            self._admit(request)
        return bool(held)

    def _refuse(self, request_id: int, error: RequestError) -> None:
        """End a request that could not even be made live."""
        self._outbox.take(request_id)
        self.embeddings.note_arrival(request_id)
        self._requests.refuse(request_id, error)

    def _take_features(self, request_id: int, item_index: int, features: Features | RequestError) -> None:
        if request_id not in self._live:  # it ended meanwhile; another request was asked then
            return
        if isinstance(features, RequestError):
            self._end(request_id, "error", features)
        else:
            self.embeddings.take_features(request_id, item_index, features)

    def _stop(self) -> None:
        self._is_closed = True
