"""A model of an `Engine`: its state, and the `AsyncEngine` that computes it while it runs."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from contextlib import closing
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING

from seesay.config import GenerationConfig
from seesay.engine.front.request_batch import RequestBatch
from seesay.errors import StateError
from seesay.low_level.result_queue import ResultQueue
from seesay.low_level.runtime_config import RuntimeConfig
from seesay.values import GenerationRequest, OutputDelta

if TYPE_CHECKING:
    from seesay.engine.front.engine import AsyncEngine

logger = logging.getLogger("seesay")

_MOST_SECONDS_TO_STOP = 60.0
"""Requests that have not ended by then, because a picture is still being fetched, end with an error."""


class ModelState(StrEnum):
    """INITIAL: installed; nothing is loaded. STARTING, STOPPING: on the way. RUNNING: it takes requests. STOPPED: its
    weights, caches and threads are freed; it can be started again. RELEASED: it is not known any more."""

    INITIAL = "initial"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    STOPPED = "stopped"
    RELEASED = "released"


_AT_REST = (ModelState.INITIAL, ModelState.STOPPED)


class Model:
    """An installed model. All methods may be called from any thread."""

    def __init__(self, config: RuntimeConfig) -> None:
        self.config = config
        self.state = ModelState.INITIAL
        self._engine: AsyncEngine | None = None
        self._lock = threading.Lock()
        self._running: dict[ResultQueue, None] = {}

    @property
    def name(self) -> str:
        return self.config.model_name

    @property
    def engine(self) -> AsyncEngine:
        """The engine of a running model. Raises `StateError` in any other state."""
        engine = self._engine
        if engine is None or self.state is not ModelState.RUNNING:
            advice = "wait until it runs" if self.state is ModelState.STARTING else "call start_model first"
            raise StateError(f"model {self.name!r} is {self.state}: {advice}")
        return engine

    def start(self, *, warm_up: bool) -> None:
        """Load the model, and compute its largest steps once."""
        with self._lock:
            if self.state not in _AT_REST:
                raise StateError(f"model {self.name!r} is {self.state}: it can be started when it is stopped")
            before, self.state = self.state, ModelState.STARTING
        engine = None
        try:
            engine = self._load()
            if warm_up:
                _warm_up(engine)
        except BaseException:
            if engine is not None:
                engine.close()
            self.state = before
            raise
        self._engine = engine
        self.state = ModelState.RUNNING

    def submit(self, request: GenerationRequest, queue: ResultQueue) -> int:
        """Start a request, whose outputs go to `queue`, and return its id."""
        with self._lock:
            engine = self.engine
            self._running[queue] = None
            try:
                [request_id] = engine.submit_batch([request], partial(self._deliver, queue))
            except BaseException:
                self._running.pop(queue, None)
                raise
            queue.begin(partial(engine.abort, request_id))
            return request_id

    def stop(self) -> None:
        """End all requests, and free what the model takes."""
        with self._lock:
            if self.state is not ModelState.RUNNING:
                raise StateError(f"model {self.name!r} is {self.state}: only a running model can be stopped")
            self.state = ModelState.STOPPING
        engine, self._engine = self._engine, None
        assert engine is not None
        try:
            queues = list(self._running)
            for queue in queues:
                queue.abort()
            end_s = time.monotonic() + _MOST_SECONDS_TO_STOP
            for queue in queues:
                queue.wait_until_over(max(0.0, end_s - time.monotonic()))
        finally:
            engine.close()
            self.state = ModelState.STOPPED

    def release(self) -> None:
        """Never start again. Raises `StateError` unless the model is stopped, or was not started."""
        with self._lock:
            if self.state not in _AT_REST:
                raise StateError(f"model {self.name!r} is {self.state}: call stop_model before release_model")
            self.state = ModelState.RELEASED

    def _load(self) -> AsyncEngine:
        from seesay.engine.front.engine import AsyncEngine

        config = self.config
        return AsyncEngine(
            config.model_path,
            backend_config=config.engine_config,
            vision_config=config.vision_config,
            chat_template_config=config.chat_template_config,
            media_limits=config.media_limits,
        )

    def _deliver(self, queue: ResultQueue, delta: OutputDelta) -> None:
        queue.put(delta)
        if delta.finish_reason is not None:
            self._running.pop(queue, None)


def _warm_up(engine: AsyncEngine) -> None:
    """Answer the longest prompt, and then as many requests at once as a step takes: what cannot be computed fails here,
    and what is loaded or allocated at first use is there. The caches are empty afterwards."""
    started_s = time.perf_counter()
    [token_id, *_] = engine.tokenize_text("a", add_special_tokens=False)
    config = GenerationConfig(max_new_tokens=2, ignore_eos=True)
    longest = (token_id,) * max(1, engine.session_len - 1)
    rows = [(token_id,)] * engine.core.facts.max_batch_size  # one prompt, so that all are handed over together
    for prompts in ([longest], rows):
        _answer(engine, [GenerationRequest(prompt=prompt, gen_config=config) for prompt in prompts])
    engine.reset_caches()
    num_tokens, num_rows = len(longest), len(rows)
    seconds = time.perf_counter() - started_s
    logger.info("warmed up with a prompt of %d tokens and %d requests at once: %.1f s", num_tokens, num_rows, seconds)


def _answer(engine: AsyncEngine, requests: Sequence[GenerationRequest]) -> None:
    with closing(RequestBatch(engine, requests, streams=False).deltas()) as deltas:
        for _, delta in deltas:
            if delta.error is not None:
                raise delta.error
