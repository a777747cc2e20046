"""AsyncEngine, the front of the engine: loads a model and answers requests. Wires the stages; each lives elsewhere.

A request is prepared in a thread (template, media, tokens), computed by the core, and comes back as tokens, of which
`OutputDelta`s are made. The last delta, and no other, has a finish reason.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import os
import secrets
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from seesay.checkpoint import resolve_checkpoint
from seesay.checkpoint.tensor_source import GivenTensor, iterate_given
from seesay.config import (
    ChatTemplateConfig,
    EngineConfig,
    GenerationConfig,
    MediaLimits,
    TurbomindEngineConfig,
    VisionConfig,
)
from seesay.config.checks import check_instance
from seesay.device.host_memory import bound_allocators, return_memory
from seesay.engine.commands import (
    PARTS,
    Command,
    DropStaged,
    LoadAdapter,
    LoadedAdapter,
    ModelStatus,
    ResetCaches,
    Running,
    Sleep,
    StageTensor,
    UnloadAdapter,
    UpdateWeights,
    WakeUp,
    find_adapter,
)
from seesay.engine.engine_core import EngineCore
from seesay.engine.front.delivery import Delivery
from seesay.engine.front.ending import close_engines, end_in_time, forget
from seesay.engine.front.live_answer import OutputSink
from seesay.engine.front.media_room import MediaRoom
from seesay.engine.front.preparation import Preparation
from seesay.engine.front.preparer import RequestPreparer
from seesay.engine.front.recording import check_path, make_recorder
from seesay.engine.front.request_batch import AsyncRequestBatch
from seesay.engine.front.response import AnswerBuilder, Response
from seesay.engine.front.shared_prompts import SharedPrompts
from seesay.engine.front.starting import CoreParts, CoreStart, import_for_media
from seesay.engine.front.text_frontend import TextFrontend
from seesay.engine.opened_model import open_model
from seesay.engine.watchdog import Fault
from seesay.errors import ErrorCode, RequestError, SeesayError
from seesay.grammars.trials import GrammarTrials
from seesay.processors.text.tokenizer import Tokenizer
from seesay.system.cancellation import Cancellation
from seesay.system.python import python_command
from seesay.templates import ChatTemplate, as_template, choose_template
from seesay.templates.parsers.choose import AnswerFormat
from seesay.values import EngineStats, GenerationRequest
from seesay.vl.embedding_prompts import find_embedding_prompt
from seesay.vl.prompts.conversation_parts import parse_prompts
from seesay.vl.reranking import find_reranker

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from seesay.config.grammar import Grammar
    from seesay.grammars.verdicts import SharedVerdicts


atexit.register(close_engines)  # before the processes of templates and grammars end, whose modules are imported above


def _open_verdicts(engine_address: str | None) -> SharedVerdicts | None:
    if engine_address is None:
        return None
    from seesay.grammars.verdicts import SharedVerdicts, find_shared_folder

    return SharedVerdicts(find_shared_folder(engine_address))


def _find_adapter(core: EngineCore, name: str) -> LoadedAdapter | None:
    """Return the adapter of a name that requests may name now. Not a method of the engine: its parts refer to the core
    alone, so that the last reference from outside frees it."""
    return find_adapter(core.status.adapters, name)


class AsyncEngine:
    """One loaded model. All methods may be called from any thread.

    `close` frees the weights, the caches and the threads, and so does the end of the last reference to the engine.

    `tokenizer` and `chat_template` may be changed or replaced; the next request uses what is there then. answer_format:
    how the model marks its thoughts and writes calls of functions.
    Loading raises `CheckpointError` or `ConfigError`.
    """

    def __init__(
        self,
        model_path: str | os.PathLike[str] = "seesay-demo",
        *,
        backend_config: EngineConfig | TurbomindEngineConfig | None = None,
        vision_config: VisionConfig | None = None,
        chat_template_config: ChatTemplateConfig | str | os.PathLike[str] | None = None,
        media_limits: MediaLimits | None = None,
        engine_address: str | None = None,
        read_status: Callable[[], ModelStatus | None] | None = None,
        tool_call_parser: str | None = None,
        reasoning_parser: str | None = None,
        while_loading: Callable[[], object] | None = None,
        core_parts: CoreParts | None = None,
    ) -> None:
        """`engine_address`: use the engine process behind this listener (`engine/process/listener.py`) instead of
        loading the model. It has loaded the same with the same configuration, and goes on when this engine is closed.
        `read_status` asks its owner what sleeps: see `ProcessCore.join`. `tool_call_parser`, `reasoning_parser`: names
        of the formats of calls and thoughts; None finds them by the chat template. `while_loading` is called while the
        engine process loads the model. `core_parts`: parts of the core that the caller makes otherwise."""
        bound_allocators()
        check_instance("backend_config", backend_config, EngineConfig, TurbomindEngineConfig)
        check_instance("vision_config", vision_config, VisionConfig)
        check_instance("chat_template_config", chat_template_config, ChatTemplateConfig, str, os.PathLike)
        check_instance("media_limits", media_limits, MediaLimits)
        config = backend_config or EngineConfig()
        self.config = config.to_engine_config() if isinstance(config, TurbomindEngineConfig) else config
        vision_config = vision_config or VisionConfig()
        self.media_limits = media_limits or MediaLimits()
        if self.config.record is not None:
            check_path(self.config.record)
        folder = resolve_checkpoint(
            model_path,
            revision=self.config.revision,
            download_dir=self.config.download_dir,
            with_code=self.config.trust_remote_code,
        )
        self.model_path = os.fspath(model_path)
        starting = CoreStart(
            folder,
            self.config,
            vision_config,
            address=engine_address,
            read_status=read_status,
            parts=core_parts or CoreParts(),
        )
        try:
            model = open_model(folder, self.config)
            chat_template = choose_template(self.model_path, model.tokenizer, chat_template_config, folder=folder)
            self.texts = TextFrontend(
                model.tokenizer, chat_template, tool_call_parser=tool_call_parser, reasoning_parser=reasoning_parser
            )
            if while_loading is not None:
                while_loading()
            import_for_media(model.family, self.config.device_type)
            core: EngineCore = starting.finish(model)
        except BaseException:
            starting.cancel()
            raise
        self.checkpoint = model.checkpoint
        self.family = model.family
        self.vocab_size = model.vocab_size
        self.reranker = find_reranker(model.checkpoint, model.tokenizer, str(self.model_path))
        self.embedding_prompt = find_embedding_prompt(model.checkpoint)
        self.embedding_size, self.pooling = model.embedding_size, model.pooling
        self.normalizes_embeddings = model.normalizes
        self.core = core
        self.family.resizes_on_device = core.facts.resizes_on_device
        self._grammars = GrammarTrials(
            model.grammar_tokens, python_command("seesay.grammars.trial_child"), shared=_open_verdicts(engine_address)
        )
        self._preparer = RequestPreparer(
            model,
            self.texts,
            session_len=core.facts.session_len,
            max_prefill_token_num=self.config.max_prefill_token_num,
            takes_media=core.facts.takes_media,
            find_adapter=partial(_find_adapter, core),
            vision_config=vision_config,
            media_limits=self.media_limits,
            grammars=self._grammars,
            is_encoded=core.is_encoded,
        )
        self.weights_digest = model.checkpoint.revision_digest
        self._preparer.recorder = make_recorder(
            self.config, self.model_path, self.weights_digest, self._preparer.answers.eos_token_ids
        )
        self._media_room = MediaRoom()
        self._delivery = Delivery(core, self._media_room)
        self._preparation = Preparation(core, self._preparer, self._delivery, self._media_room)
        self._ids = itertools.count(1)
        self._sessions: dict[int, AsyncRequestBatch] = {}
        self._process_id = os.getpid()
        core.start(self._delivery)
        end_in_time(self, core)

    @property
    def tokenizer(self) -> Tokenizer:
        return self.texts.tokenizer

    @tokenizer.setter
    def tokenizer(self, tokenizer: Tokenizer) -> None:
        self.texts.tokenizer = Tokenizer.wrap(tokenizer)

    @property
    def chat_template(self) -> ChatTemplate:
        return self.texts.chat_template

    @chat_template.setter
    def chat_template(self, chat_template: ChatTemplate) -> None:
        self.texts.chat_template = as_template(chat_template, self.tokenizer)

    @property
    def answer_format(self) -> AnswerFormat:
        return self.texts.answer_format

    @property
    def session_len(self) -> int:
        """Most tokens of a prompt and its answer together."""
        return self.core.facts.session_len

    @property
    def adapter_names(self) -> tuple[str, ...]:
        """The adapters that requests may name."""
        return tuple(adapter.name for adapter in self.core.status.adapters)

    @property
    def fault(self) -> Fault | None:
        """Why the engine answers nothing now, and which part of it is at fault; None while all is well."""
        return self.core.fault

    def __repr__(self) -> str:
        facts = self.core.facts
        where = f"device={facts.device!r}, dtype={facts.dtype!r}, session_len={facts.session_len}"
        closed = ", closed" if self._preparation.open.is_closed else ""
        return f"AsyncEngine({str(self.model_path)!r}, family={self.family.name!r}, {where}{closed})"

    def stats(self) -> EngineStats:
        """Return counts of what the engine does now and has done, for a metrics page. May be called often."""
        counts = EngineStats(num_preparing=len(self._preparation.open.waiting))
        return EngineStats.merge(counts, self._preparer.stats(), self.core.stats())

    # --- requests ---------------------------------------------------------------------------------------------------

    def submit_batch(
        self, requests: Sequence[GenerationRequest], on_output: OutputSink, prompts: SharedPrompts | None = None
    ) -> list[int]:
        """Answer several requests, whose media are then encoded together; returns their ids at once. Those for the same
        prompt, the same object, are prepared once; so are those of an earlier call with the same `prompts`.

        `RequestBatch` and `AsyncRequestBatch` call this, and are easier to use. `on_output` gets every request's
        `OutputDelta`s, from threads of the engine: it must be quick. Whatever is wrong with a request comes as its one
        final delta, with `finish_reason` 'error'. Raises `RequestError` only when the engine is closed, `RuntimeError`
        when the system starts no thread; then none of the requests is answered.
        """
        received_at = time.perf_counter()
        ids = [next(self._ids) for _ in requests]
        self._check_process()
        prompts = prompts or SharedPrompts(requests if len(requests) > 1 else ())
        self._preparation.begin(ids, requests, on_output, received_at, prompts)
        return ids

    def try_grammar(self, request: GenerationRequest, cancellation: Cancellation) -> Future[Grammar | None]:
        """Compile the grammar of a request within limits, in its owner's turn, before the request is submitted. The
        future has its program, None without one, and raises `RequestError` for one that is refused. `cancellation` ends
        the trial, not the future, unless others wait. The call raises `RequestError` when the engine is closed."""
        self._check_process()
        return self._preparation.try_grammar(request, cancellation)

    def tokenize(self, request: GenerationRequest) -> Future[npt.NDArray[np.int64]]:
        """Token ids int64 [T] of the prompt that `request` stands for, media included; nothing is computed with them.

        The future raises `RequestError` for a prompt that cannot be made; the call does when the engine is closed.
        """
        self._check_process()
        return self._preparation.tokenize(request)

    def tokenize_text(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a raw text, in which special tokens count as such. Raises `RequestError` for one that is many
        times too long for a prompt."""
        return self._preparer.prompts.tokenize_text(text, add_special_tokens=add_special_tokens)

    def check_thinking(self, request: GenerationRequest) -> None:
        """Raise `RequestError` where the model cannot think as a request wants, before it is submitted."""
        self.texts.thoughts.choose(request)

    def count_tokens(self, request: GenerationRequest) -> int:
        """Tokens of the request's prompt, media included: what `usage.prompt_tokens` will be. Fetches media and reads
        their headers, so call it from a thread that may wait. Raises `RequestError`."""
        return self._preparer.prompts.count_tokens(request)

    def find_ending_ids(self, request: GenerationRequest) -> tuple[int, ...]:
        """The tokens that end an answer to `request`: the model's EOS, and special tokens of the chat template."""
        return self._preparer.answers.find_ending_ids(request)

    def reset_caches(self) -> None:
        """Forget preprocessed media, embeddings and the content of KV blocks. Requests that are being answered go on;
        what they use is forgotten when they end. Freed memory is returned to the system. Raises `RequestError` when the
        engine is closed."""
        self.run_command(ResetCaches())
        self._preparer.reset_caches()
        return_memory()

    # --- weights and sleep ------------------------------------------------------------------------------------------

    @property
    def status(self) -> ModelStatus:
        """The weights that answer now, and whether the engine sleeps."""
        return self.core.status

    def update_weights(
        self,
        source: str | os.PathLike[str] | Mapping[str, Any] | Iterable[tuple[str, Any]],
        *,
        partial: bool = False,
        running: Running = "finish",
    ) -> None:
        """Replace the weights: see `Pipeline.update_weights`."""
        if isinstance(source, str | os.PathLike):
            folder = os.path.realpath(source)
            self.run_command(UpdateWeights(folder=folder, is_partial=partial, running=running))
            return
        update_id = secrets.token_hex(8)
        update = UpdateWeights(update_id=update_id, is_partial=partial, running=running)
        self.stage_tensors(iterate_given(source), update_id)
        self.run_command(update)

    def stage_tensors(self, tensors: Iterable[GivenTensor], update_id: str) -> None:
        """Hand tensors over for the update of this id, which a command then makes, one after another. On an error all
        of the update's are dropped."""
        try:
            for tensor in tensors:
                self.run_command(StageTensor(update_id=update_id, tensor=tensor))
        except BaseException:
            with contextlib.suppress(SeesayError):  # there may be no engine any more
                self.run_command(DropStaged(update_id=update_id))
            raise

    def sleep(self, level: int = 1, *, running: Running = "finish") -> None:
        """Free memory: see `Pipeline.sleep`."""
        self.run_command(Sleep(level=level, running=running))

    def wake_up(self, tags: Iterable[str] | None = None) -> None:
        """Bring back what sleeps: see `Pipeline.wake_up`."""
        if isinstance(tags, str):
            tags = (tags,)
        self.run_command(WakeUp(tags=PARTS if tags is None else tuple(tags)))

    def load_adapter(self, name: str, source: str | os.PathLike[str]) -> None:
        """Let requests name an adapter: see `Pipeline.load_adapter`."""
        self.run_command(LoadAdapter(name=name, folder=os.path.realpath(resolve_checkpoint(source))))

    def unload_adapter(self, name: str, *, running: Running = "finish") -> None:
        """Forget an adapter: see `Pipeline.unload_adapter`."""
        self.run_command(UnloadAdapter(name=name, running=running))

    def run_command(self, command: Command) -> None:
        """Do what an operator asks for, and wait until it is done. Raises `RequestError`, also when the engine is
        closed, and `CheckpointError`."""
        self._check_process()
        self._preparation.open.check()
        self.core.run_command(command)

    def _check_process(self) -> None:
        if self._process_id != os.getpid():
            raise RequestError(
                ErrorCode.CLOSED,
                f"this engine belongs to process {self._process_id}, and its threads do not survive a fork: make one "
                "in each process, and start processes with the 'spawn' method",
            )

    def has_admitted(self, request_id: int) -> bool:
        """Whether a request that has not ended is prepared: nothing is wrong with it, and it waits for its turn or is
        computed."""
        return self._delivery.has(request_id)

    def abort(self, request_id: int) -> None:
        """End a request; its final delta has `finish_reason` 'abort'. Nothing happens when it has already ended."""
        if not self._preparation.abort(request_id):
            self.core.abort([request_id])

    async def generate(
        self,
        messages: Any,
        session_id: int | None = None,
        gen_config: GenerationConfig | None = None,
        *,
        stream_response: bool = True,
        do_preprocess: bool = True,
    ) -> AsyncGenerator[Response, None]:
        """Answer one prompt, of any form that `pipeline` takes. Yields the pieces of the answer, or with
        `stream_response=False` one `Response` that holds all of it. Leaving the iteration early aborts the request.

        `session_id` comes back in the responses, and is what `stop_session` takes.
        """
        requests, is_list = parse_prompts(messages, gen_config, do_preprocess=do_preprocess)
        if is_list:
            raise TypeError("generate answers one prompt; give several to Pipeline.async_batch_infer")
        batch = AsyncRequestBatch(self, requests, streams=stream_response)
        answer = AnswerBuilder(0, session_id)
        if session_id is not None:
            self._sessions[session_id] = batch
        try:
            async with aclosing(batch.deltas()) as deltas:
                async for _, delta in deltas:
                    piece = answer.add(delta)
                    if stream_response:
                        yield piece
            if not stream_response:
                yield answer.complete()
        finally:
            if session_id is not None and self._sessions.get(session_id) is batch:
                del self._sessions[session_id]

    def stop_session(self, session_id: int) -> None:
        """Abort what `generate` does under this `session_id`, if it does anything."""
        if (batch := self._sessions.get(session_id)) is not None:
            batch.abort()

    def close(self) -> None:
        """End what is running with an error; free the weights, the caches and the threads."""
        if self._process_id != os.getpid():
            return  # a forked child has none of the threads
        if not self._preparation.open.try_close():
            return
        forget(self)
        self._media_room.close()
        self._grammars.close()
        self._preparation.end_threads()
        self.core.close()
        self._delivery.close()
        self._preparer.close()
        return_memory()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
