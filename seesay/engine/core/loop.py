"""The engine loop, the core in a thread of this process: plan a step, launch it, commit the one before, send tokens.
One thread owns scheduler and runner.

Everything reaches it through an inbox, so nothing here is locked. Whatever happens inside, each request that was
submitted ends in exactly one final `TokenOutput`.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from seesay.config import VisionConfig
from seesay.device.activity import Activity
from seesay.device.backends import has_kernels
from seesay.device.query import is_same_device, release_cached_memory
from seesay.device.tower_pacer import TowerPacer
from seesay.engine.commands import Command, DropStaged, ModelStatus, StageTensor
from seesay.engine.core.adapters import AdapterControl, AdapterStore
from seesay.engine.core.command_runner import CommandRunner
from seesay.engine.core.embedding_supply import EmbeddingSupply
from seesay.engine.core.encoder_reports import EncoderReports
from seesay.engine.core.grammars.grammar_rows import GrammarRows
from seesay.engine.core.inbox import Inbox
from seesay.engine.core.live_request import LiveRequest
from seesay.engine.core.live_requests import Awaited, LiveRequests
from seesay.engine.core.model_control import ModelControl
from seesay.engine.core.outbox import Outbox
from seesay.engine.core.processor_imports import ProcessorImports
from seesay.engine.core.request_ends import RequestEnds
from seesay.engine.core.request_intake import RequestIntake
from seesay.engine.core.step_counts import StepCounts
from seesay.engine.core.step_faults import EngineLostError
from seesay.engine.core.step_maker import StepMaker
from seesay.engine.core.waiting_commands import WaitingCommands
from seesay.engine.engine_core import CoreListener
from seesay.engine.failures import explain
from seesay.engine.token_messages import CoreFacts, Features, TokenRequest
from seesay.engine.watchdog import ENCODER, ENGINE, Fault, Watchdog
from seesay.errors import ErrorCode, RequestError, describe
from seesay.llm.scheduling.scheduler import Scheduler
from seesay.values import EngineStats, FinishReason

if TYPE_CHECKING:
    from seesay.encoders.encoder import Encoder
    from seesay.engine.core.grammars.jumps import JumpRule
    from seesay.engine.core.model_weights import ModelWeights
    from seesay.engine.core.speculation.speculation import Speculation
    from seesay.grammars.bad_words import CompiledBadWords
    from seesay.grammars.masks import CompiledGrammars
    from seesay.llm.running.runner import ModelRunner

logger = logging.getLogger("seesay")

CLOSE_S = 10.0
"""Longest wait for the threads to end."""
_MAX_CALLS = 128
"""Calls of the inbox between two steps."""


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
        self._pacer = TowerPacer(is_shared=encoder is None or is_same_device(encoder.device, runner.device))
        self._requests = LiveRequests()
        self._live = self._requests.by_id
        self._commands = WaitingCommands()
        self._ends = RequestEnds(scheduler, self._requests, self._drop)
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
        self._reports = EncoderReports(self._inbox, scheduler, self.embeddings, self._live, self._ends.fail_item)
        self.control: ModelControl | None = None
        if weights is not None:
            self.control = ModelControl(
                weights=weights,
                runner=runner,
                scheduler=scheduler,
                embeddings=self.embeddings,
                forget_answers=self._forget_answers,
            )
        self._grammars = GrammarRows(
            grammars,
            bad_words=bad_words,
            vocab_size=runner.decoder.traits.vocab_size,
            spell=spell,
            jumps=jumps,
            device=runner.device,
        )
        self.steps = StepMaker(
            runner,
            scheduler,
            embeddings=self.embeddings,
            requests=self._requests,
            ends=self._ends,
            masks=self._grammars.masks,
            reports=self._reports,
            counts=self._counts,
            pacer=self._pacer,
            speculation=speculation,
            is_ahead=is_ahead,
        )
        self._flight, self._suspects = self.steps.flight, self.steps.suspects
        self._intake = RequestIntake(
            self._inbox,
            self._outbox,
            imports=imports or ProcessorImports(None),
            scheduler=scheduler,
            embeddings=self.embeddings,
            adapters=self.adapters,
            commands=self._commands,
            grammars=self._grammars,
            requests=self._requests,
            ends=self._ends,
            find_refusal=self._find_refusal,
            begin=self._begin,
        )
        self._command_runner = CommandRunner(
            self._inbox,
            self._commands,
            scheduler=scheduler,
            embeddings=self.embeddings,
            adapters=self.adapters,
            requests=self._requests,
            ends=self._ends,
            forget_answers=self._forget_answers,
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
        self._intake.submit(requests)

    def finish(self, request_id: int, reason: FinishReason) -> None:
        """End a request whose text is complete; nothing happens when it has already ended."""
        self._inbox.put(lambda: self._ends.end(request_id, reason))

    def abort(self, request_ids: Iterable[int]) -> None:
        """Abort requests. Nothing happens to those that have already ended."""
        for request_id in request_ids:
            self._inbox.put(partial(self._ends.end, request_id, "abort"))

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
            self.control.staged.stage(command)
            return
        self._command_runner.run(
            command,
            is_own_thread=threading.current_thread() is self._thread,
            is_alive=lambda: self._thread.is_alive() and self.fault is None,
        )

    def stats(self) -> EngineStats:
        """Return the counts of everything that the loop owns."""
        held = EngineStats(num_waiting=sum(map(len, self._requests.held.values())))
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
        self.steps.close()
        del self._runner, self._flight  # with the weights and the KV cache
        self.control = None
        release_cached_memory(device)

    def _answer_until_closed(self) -> None:
        has_more = False
        while not self._is_closed:
            has_more = self._turn(waits=not has_more)
        closed = RequestError(ErrorCode.CLOSED, "the engine was closed before the answer was complete")
        try:
            self._inbox.drain(wait=False)
            self.steps.finish()
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
                has_more |= not self._is_asleep and self.steps.make()
            self.adapters.finish_unloading(self._requests.iterate())
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
            if isinstance(error, EngineLostError):
                raise error
            logger.error("the engine loop failed; its requests end", exc_info=error)
            self._send_outputs()
            self.steps.begin_anew()
            self._requests.clear()
            self._grammars.forget()
            self.embeddings.drop_all()
            self._outbox.fail_taken(
                RequestError(ErrorCode.INTERNAL, "the engine failed: see its log for the traceback")
            )
        except BaseException as last:
            logger.error("the engine is given up", exc_info=last)
            reason = str(last) if isinstance(last, EngineLostError) else describe(last)
            self._outbox.give_up(Fault(ENGINE, f"the engine computes nothing any more ({reason})"))
            self._is_closed = True

    # --- output ---------------------------------------------------------------------------------------------------

    def _drop(self, request_id: int) -> None:
        """Free what is kept of a request that has ended."""
        self.embeddings.drop(request_id)
        self._grammars.drop(request_id)
        self.steps.drop(request_id)

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

    def _end_all(self, error: RequestError) -> None:
        for request in list(self._requests.iterate()):
            self._ends.end(request.request_id, "error", error)
        self.embeddings.release(self._scheduler.take_released())

    # --- commands -------------------------------------------------------------------------------------------------

    def _find_refusal(self, request: LiveRequest) -> RequestError | None:
        refusal = None if self.control is None else self.control.find_refusal()
        if not request.is_checked:  # what was held since goes on, though its adapter is to leave
            refusal = refusal or self.adapters.find_refusal(request)
            request.is_checked = True
        return refusal

    def _release_held(self) -> bool:
        """Admit the requests whose adapters have come from their files. Returns whether there are any."""
        released = self.adapters.places.release_held(self._requests, partial(self._inbox.put, lambda: None))
        for request, failure in released:
            self._intake.go_on(request, failure)
        return bool(released)

    def _begin(self, request: LiveRequest) -> None:
        """Note a request that the scheduler has now. A bound method of `steps` would keep the weights after `close`."""
        self.steps.begin(request)

    def _forget_answers(self) -> None:
        if self.steps.speculation is not None:
            self.steps.speculation.forget()

    @property
    def _is_asleep(self) -> bool:
        return self.control is not None and bool(self.control.status.asleep)

    def _run_commands(self) -> bool:
        """Run the commands that wait, if no request is alive, and admit the requests that came behind them. Returns
        whether there are any."""
        if not self._commands or self._live:
            return False
        if not self._is_asleep:
            self.steps.finish()
            self._runner.apply(self._scheduler.plan_step())  # it learns which sequences have ended
            self.embeddings.release(self._scheduler.take_released())
        self._pacer.rest()
        self._commands.run(self.control)
        held = self._requests.take_held(Awaited.COMMANDS)
        for request in held:
            self._intake.admit(request)
        return bool(held)

    def _take_features(self, request_id: int, item_index: int, features: Features | RequestError) -> None:
        if request_id not in self._live:  # it ended meanwhile; another request was asked then
            return
        if isinstance(features, RequestError):
            self._ends.end(request_id, "error", features)
        else:
            self.embeddings.take_features(request_id, item_index, features)

    def _stop(self) -> None:
        self._is_closed = True
