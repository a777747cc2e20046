"""AsyncEngine: loads a model and answers requests. Wires the stages; each stage itself lives elsewhere.

A request is prepared in a thread (template, media, tokens), computed by the engine loop, and comes back as
`OutputDelta`s, of which the last one, and no other, has a finish reason.
"""

from __future__ import annotations

import atexit
import itertools
import logging
import os
import threading
import time
import weakref
from collections.abc import AsyncGenerator, Sequence
from concurrent.futures import Future
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

from seesay.checkpoint import Checkpoint, resolve_checkpoint
from seesay.config import (
    ChatTemplateConfig,
    EngineConfig,
    GenerationConfig,
    MediaLimits,
    TurbomindEngineConfig,
    VisionConfig,
)
from seesay.config.checks import check_instance
from seesay.device.host_memory import MemoryReturn, return_memory
from seesay.device.interpreter import quick_switches
from seesay.device.query import measure_peak, pick_device
from seesay.engine.asking import Batch
from seesay.engine.fair_threads import FairThreads
from seesay.engine.live_request import OutputSink
from seesay.engine.loop import EngineLoop, explain
from seesay.engine.preparer import RequestPreparer, has_media, has_media_at_hand
from seesay.engine.response import AnswerBuilder, Response
from seesay.errors import ErrorCode, RequestError
from seesay.llm.block_pool import BlockPool
from seesay.llm.scheduler import Scheduler, SchedulerConfig
from seesay.processors.text.tokenizer import Tokenizer
from seesay.templates import ChatTemplate, as_template, choose_template
from seesay.values import EngineStats, FinishReason, GenerationRequest, OutputDelta
from seesay.vl.media import MediaBatch
from seesay.vl.messages import parse_prompts
from seesay.vl.registry import find_family

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import torch

    from seesay.encoders.encoder import Encoder
    from seesay.llm.runner import ModelRunner
    from seesay.vl.family import Backbone, Family

logger = logging.getLogger("seesay")

_TEXT_REQUESTS, _MEDIA_REQUESTS = 4, 32
"""Requests without and with media that are prepared at the same time; decoding has threads of its own."""

_STREAMED_TOKENS = 368
"""Most tokens of prompts in a step in which streamed answers go on: about 8 ms of a 7B model on a large GPU."""
_ENCODING_TOKENS = 1024
"""Most tokens of prompts in a step while pictures are encoded: shorter ones let tower and decoder go hand in hand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedConfig:
    """What the engine really uses, after 'auto' and None were settled for this checkpoint and device."""

    device: torch.device
    dtype: torch.dtype
    session_len: int
    max_batch_size: int


def resolve(config: EngineConfig, checkpoint: Checkpoint, text_config: Any) -> ResolvedConfig:
    """Settle 'auto' and None in `config`. Raises `ConfigError` for a device that is not there."""
    import torch

    device = pick_device(config.device_type)
    if config.dtype != "auto":
        dtype = config.dtype
    elif device.type == "cpu":
        dtype = "float32"
    else:
        stored = checkpoint.config.get("dtype") or checkpoint.config.get("torch_dtype") or text_config.dtype
        dtype = "bfloat16" if str(stored).removeprefix("torch.") == "bfloat16" else "float16"
    num_positions = text_config.max_position_embeddings
    if config.session_len is not None and config.session_len > num_positions:
        logger.warning(
            "session_len=%d is more than the %d positions that the model was trained for: answers beyond them are "
            "seldom good",
            config.session_len,
            num_positions,
        )
    return ResolvedConfig(
        device=device,
        dtype=getattr(torch, dtype),
        session_len=config.session_len or num_positions,
        max_batch_size=config.max_batch_size or (512 if device.type == "cuda" else 32),
    )


_open_engines: weakref.WeakSet[AsyncEngine] = weakref.WeakSet()


@atexit.register
def _close_engines() -> None:
    """Threads that compute while the interpreter is taken down would crash it."""
    for engine in list(_open_engines):
        engine.close()


def _stop(process_id: int, loop: EngineLoop) -> None:
    """End the loop of an engine that nobody refers to any more. Garbage collection may call this in any thread, so it
    waits for nothing; the loop's thread frees what the engine held."""
    if process_id == os.getpid():
        loop.stop()


class AsyncEngine:
    """One loaded model. All methods may be called from any thread.

    `close` frees the weights, the caches and the threads, and so does the end of the last reference to the engine.

    `tokenizer` and `chat_template` may be changed or replaced; the next request uses what is there then.
    Loading raises `CheckpointError` or `ConfigError`.
    """

    def __init__(
        self,
        model_path: str | os.PathLike[str] = "seesay-demo",
        *,
        backend_config: EngineConfig | TurbomindEngineConfig | None = None,
        vision_config: VisionConfig | None = None,
        chat_template_config: ChatTemplateConfig | str | None = None,
        media_limits: MediaLimits | None = None,
    ) -> None:
        check_instance("backend_config", backend_config, EngineConfig, TurbomindEngineConfig)
        check_instance("vision_config", vision_config, VisionConfig)
        check_instance("chat_template_config", chat_template_config, ChatTemplateConfig, str)
        check_instance("media_limits", media_limits, MediaLimits)
        config = backend_config or EngineConfig()
        self.config = config.to_engine_config() if isinstance(config, TurbomindEngineConfig) else config
        vision_config = vision_config or VisionConfig()
        self.media_limits = media_limits or MediaLimits()
        folder = resolve_checkpoint(model_path, revision=self.config.revision, download_dir=self.config.download_dir)
        self.model_path = os.fspath(model_path)
        self.checkpoint = Checkpoint.load(folder, self.config.hf_overrides)
        family_type = find_family(self.checkpoint.architecture)
        tokenizer = Tokenizer.load(folder, trust_remote_code=self.config.trust_remote_code)
        chat_template = choose_template(self.model_path, tokenizer, chat_template_config, folder=folder)
        with self.checkpoint.blamed():
            self.family: Family = family_type(self.checkpoint, tokenizer)
            backbone = self.family.backbone()
            self.vocab_size: int = backbone.text_config.vocab_size
            self.resolved = resolve(self.config, self.checkpoint, backbone.text_config)
            encoder = self._build_encoder()
            runner, scheduler = self._build_runner(backbone, encoder)
        is_ahead = self.config.async_scheduling
        self.loop = loop = EngineLoop(
            scheduler=scheduler,
            runner=runner,
            encoder=encoder,
            vision_config=vision_config,
            is_ahead=self.resolved.device.type == "cuda" if is_ahead is None else is_ahead,
        )
        self._preparer = RequestPreparer(
            checkpoint=self.checkpoint,
            family=self.family,
            tokenizer=tokenizer,
            chat_template=chat_template,
            vocab_size=self.vocab_size,
            session_len=self.resolved.session_len,
            takes_media=encoder is not None,
            vision_config=vision_config,
            media_limits=self.media_limits,
            is_encoded=lambda item_hash: item_hash in loop.store,
        )
        # Requests with media wait in threads of their own, so that those without never wait for a slow picture.
        self._threads = FairThreads(_TEXT_REQUESTS, name="seesay-prepare")
        self._media_threads = FairThreads(_MEDIA_REQUESTS, name="seesay-prepare-media")
        self._memory_return = MemoryReturn()
        self._ids = itertools.count(1)
        self._preparing: dict[int, bool] = {}  # request id → was it aborted meanwhile?
        self._lock = threading.Lock()
        self._sessions: dict[int, Batch] = {}
        self._is_closed = False
        self._process_id = os.getpid()
        weakref.finalize(self, _stop, self._process_id, loop).atexit = False
        _open_engines.add(self)

    @property
    def tokenizer(self) -> Tokenizer:
        return self._preparer.tokenizer

    @tokenizer.setter
    def tokenizer(self, tokenizer: Tokenizer) -> None:
        self._preparer.tokenizer = Tokenizer.wrap(tokenizer)

    @property
    def chat_template(self) -> ChatTemplate:
        return self._preparer.chat_template

    @chat_template.setter
    def chat_template(self, chat_template: ChatTemplate) -> None:
        self._preparer.chat_template = as_template(chat_template, self.tokenizer)

    @property
    def session_len(self) -> int:
        """Most tokens of a prompt and its answer together."""
        return self.resolved.session_len

    def __repr__(self) -> str:
        resolved = self.resolved
        dtype = str(resolved.dtype).removeprefix("torch.")
        where = f"device='{resolved.device}', dtype='{dtype}', session_len={resolved.session_len}"
        closed = ", closed" if self._is_closed else ""
        return f"AsyncEngine({str(self.model_path)!r}, family={self.family.name!r}, {where}{closed})"

    def stats(self) -> EngineStats:
        """What the engine does now and has done: what a metrics page shows. May be called at any time, often."""
        features = self._preparer.feature_stats()
        return replace(
            self.loop.engine_stats(),
            num_preparing=len(self._preparing),
            num_features=features.num_entries,
            feature_bytes=features.used_bytes,
            total_feature_hits=features.total_hits,
            total_feature_misses=features.total_misses,
        )

    # --- loading ----------------------------------------------------------------------------------------------------

    def _build_encoder(self) -> Encoder | None:
        if not self.family.modalities or self.config.disable_vision_encoder:
            return None
        self.family.resizes_on_device = self.resolved.device.type == "cuda"
        encoder = self.family.build_encoder(self.resolved.device, self.resolved.dtype)
        if self.config.eager_mode:
            encoder.disable_graphs()
        return encoder

    def _build_runner(self, backbone: Backbone, encoder: Encoder | None) -> tuple[ModelRunner, Scheduler]:
        """Load the decoder, and size the KV cache after the largest prefill and the largest encode were tried."""
        from seesay.llm.runner import ModelRunner

        resolved, config = self.resolved, self.config
        runner = ModelRunner.load(
            self.checkpoint,
            backbone.text_config,
            decoder_name=backbone.decoder_name,
            tied_embeddings=backbone.tie_word_embeddings,
            device=resolved.device,
            dtype=resolved.dtype,
            block_size=config.block_size,
            session_len=resolved.session_len,
        )
        is_gpu = resolved.device.type == "cuda"
        records_graphs = is_gpu and not config.eager_mode
        reserved = runner.profile(
            max_tokens=config.max_prefill_token_num,
            max_batch_size=resolved.max_batch_size,
            session_len=resolved.session_len,
            records_graphs=records_graphs,
        )
        largest = self.family.largest_input() if encoder is not None and resolved.device.type != "cpu" else None
        if encoder is not None and largest is not None:
            reserved += measure_peak(resolved.device, lambda: encoder.encode([largest]))
        num_blocks = runner.allocate_cache(
            num_blocks=config.num_gpu_blocks,
            share=config.cache_max_entry_count,
            max_batch_size=resolved.max_batch_size,
            session_len=resolved.session_len,
            reserved_bytes=reserved,
            num_host_slots=config.num_cpu_blocks,
        )
        pool = BlockPool(
            num_blocks,
            config.block_size,
            enable_prefix_caching=config.enable_prefix_caching,
            num_host_slots=config.num_cpu_blocks,
        )
        where = f"{num_blocks} blocks of {config.block_size} tokens on {resolved.device}"
        logger.info("KV cache: %s, %d more in host memory", where, config.num_cpu_blocks)
        if num_blocks * config.block_size < resolved.session_len:
            self.resolved = resolved = replace(resolved, session_len=num_blocks * config.block_size)
            logger.warning("the KV cache holds %d tokens: session_len is lowered to that", resolved.session_len)
        if is_gpu:
            runner.warm_up(max_tokens=config.max_prefill_token_num, max_batch_size=resolved.max_batch_size)
        if records_graphs:
            runner.record_graphs(max_batch_size=resolved.max_batch_size, session_len=resolved.session_len)
        scheduler_config = SchedulerConfig(
            max_batch_size=resolved.max_batch_size,
            max_prefill_token_num=config.max_prefill_token_num,
            max_streamed_tokens=_STREAMED_TOKENS if is_gpu else None,
            max_encoding_tokens=_ENCODING_TOKENS if is_gpu else None,
            session_len=resolved.session_len,
            short_limit=runner.decoder.config.rotary.short_limit,
        )
        return runner, Scheduler(scheduler_config, pool)

    # --- requests ---------------------------------------------------------------------------------------------------

    def submit(self, request: GenerationRequest, on_output: OutputSink) -> int:
        """Answer one request; returns its id at once. See `submit_batch`."""
        return self.submit_batch([request], on_output)[0]

    def submit_batch(self, requests: Sequence[GenerationRequest], on_output: OutputSink) -> list[int]:
        """Answer several requests, whose media are then encoded together; returns their ids at once.

        `on_output` gets every request's `OutputDelta`s, from threads of the engine: it must be quick. Whatever is wrong
        with a request comes as its one final delta, with `finish_reason` 'error'. Raises `RequestError` only when the
        engine is closed, `RuntimeError` when the system starts no thread; then none of the requests is answered.
        """
        received_at = time.perf_counter()
        ids = [next(self._ids) for _ in requests]
        self._check_process()
        batch = MediaBatch()
        try:
            with self._lock:
                if self._is_closed:
                    raise RequestError(ErrorCode.CLOSED, "the engine is closed")
                self._preparing.update(dict.fromkeys(ids, False))
                self.loop.expect_media(
                    [request_id for request_id, request in zip(ids, requests) if has_media_at_hand(request)]
                )
                for request_id, request in zip(ids, requests):
                    threads = self._media_threads if has_media(request) else self._threads
                    prepare = self._prepare_and_submit
                    threads.submit(request.owner, prepare, request_id, request, on_output, received_at, batch)
        except BaseException:  # no thread could be started, or Ctrl-C
            self._withdraw(ids)
            raise
        return ids

    def _withdraw(self, ids: Sequence[int]) -> None:
        """Forget requests whose ids nobody got. Those that are being prepared end silently, others are aborted."""
        with self._lock:
            for request_id in ids:
                self._preparing.pop(request_id, None)
        self.loop.forget_media(ids)
        for request_id in ids:
            self.loop.abort(request_id)

    def tokenize(self, request: GenerationRequest) -> Future[npt.NDArray[np.int64]]:
        """Token ids int64 [T] of the prompt that `request` stands for, media included; nothing is computed with them.

        The future raises `RequestError` for a prompt that cannot be made; the call does when the engine is closed.
        """
        self._check_process()
        with self._lock:
            if self._is_closed:
                raise RequestError(ErrorCode.CLOSED, "the engine is closed")
            return self._threads.submit(request.owner, self._preparer.tokenize, request)

    def tokenize_text(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a raw text, in which special tokens count as such. Raises `RequestError` for one that is many
        times too long for a prompt."""
        return self._preparer.tokenize_text(text, add_special_tokens=add_special_tokens)

    def count_tokens(self, request: GenerationRequest) -> int:
        """Tokens of the request's prompt, media included: what `usage.prompt_tokens` will be. Fetches media and reads
        their headers, so call it from a thread that may wait. Raises `RequestError`."""
        return self._preparer.count_tokens(request)

    def reset_caches(self) -> None:
        """Forget preprocessed media, embeddings and the content of KV blocks. Requests that are being answered go on;
        what they use is forgotten when they end. Raises `RequestError` when the engine is closed."""
        self._check_process()
        with self._lock:
            if self._is_closed:
                raise RequestError(ErrorCode.CLOSED, "the engine is closed")
        self._preparer.reset_caches()
        self.loop.reset_caches()

    def _check_process(self) -> None:
        if self._process_id != os.getpid():
            raise RequestError(
                ErrorCode.CLOSED,
                f"this engine belongs to process {self._process_id}, and its threads do not survive a fork: make one "
                "in each process, and start processes with the 'spawn' method",
            )

    def abort(self, request_id: int) -> None:
        """End a request; its final delta has `finish_reason` 'abort'. Nothing happens when it is over already."""
        with self._lock:
            if request_id in self._preparing:
                self._preparing[request_id] = True
                return
        self.loop.abort(request_id)

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
        batch = Batch(self, requests, streams=stream_response)
        answer = AnswerBuilder(0, session_id)
        if session_id is not None:
            self._sessions[session_id] = batch
        try:
            async with aclosing(batch.deltas_async()) as deltas:
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

    # --- preparing, in a thread -------------------------------------------------------------------------------------

    def _prepare_and_submit(
        self, request_id: int, request: GenerationRequest, on_output: OutputSink, received_at: float, batch: MediaBatch
    ) -> None:
        """Turn a request into a sequence and hand it to the loop. A request that cannot be, ends here."""
        self.loop.yield_to_launches()
        try:
            with quick_switches:
                live = self._preparer.prepare(request_id, request, on_output, received_at, batch)
            error: Exception | None = None
        except BaseException as failure:
            live, error = None, explain(failure)
        with self._lock:
            is_aborted = self._preparing.pop(request_id, None)
            if is_aborted is None:  # withdrawn: nobody knows of it
                return
            if self._is_closed or is_aborted:
                live = None
                error = RequestError(ErrorCode.CLOSED, "the engine was closed before the request was computed")
            if live is not None:
                self.loop.submit(live)
        if live is None:
            self.loop.forget_media([request_id])
            reason: FinishReason = "abort" if is_aborted else "error"
            on_output(OutputDelta(request_id=request_id, finish_reason=reason, error=None if is_aborted else error))
        if has_media(request):
            self._memory_return.return_if_due()

    def close(self) -> None:
        """End what is running with an error; free the weights, the caches and the threads."""
        if self._process_id != os.getpid():
            return  # a forked child has none of the threads
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
        _open_engines.discard(self)
        self._threads.close()
        self._media_threads.close()
        self._preparer.close()
        self.loop.close()
        return_memory()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
