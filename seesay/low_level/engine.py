"""`Engine`: several models by name in one process. A call that the present state does not allow raises `StateError`.

A thin layer: a model is an `AsyncEngine` while it runs, a request is one of its requests.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, Self

from seesay.config import GenerationConfig
from seesay.errors import ConfigError, ErrorCode, RequestError, StateError
from seesay.low_level.model import Model, ModelState
from seesay.low_level.request_config import GenerationConfigBuilder, RequestConfig
from seesay.low_level.result_queue import GenerateRequestStatus, ResultQueue
from seesay.low_level.runtime_config import RuntimeConfig, RuntimeConfigBuilder
from seesay.offline.token_rows import read_token_rows
from seesay.values import GenerationRequest
from seesay.vl.prompts.conversation_parts import parse_prompts

if TYPE_CHECKING:
    from seesay.engine.front.engine import AsyncEngine
    from seesay.processors.text.tokenizer import Tokenizer

RequestOptions = RequestConfig | GenerationConfigBuilder | GenerationConfig | None


class RequestHandle:
    """A started request, for `sync_request`, `stop_request` and `release_request` of the engine that started it."""

    __slots__ = ("_queue", "model_name", "request_id")

    def __init__(self, model_name: str, request_id: int, queue: ResultQueue) -> None:
        self.model_name = model_name
        self.request_id = request_id
        self._queue = queue

    def __repr__(self) -> str:
        return f"RequestHandle(model_name={self.model_name!r}, request_id={self.request_id})"


class StartedRequest(NamedTuple):
    """A request that was started: its handle, and the queue of its results."""

    handle: RequestHandle
    queue: ResultQueue


class Engine:
    """Models by name. All methods may be called from any thread. Close it, or use it in a `with` statement."""

    def __init__(self) -> None:
        self._models: dict[str, Model] = {}
        self._lock = threading.Lock()

    # --- models -----------------------------------------------------------------------------------------------------

    def install_model(self, config: RuntimeConfig | RuntimeConfigBuilder) -> None:
        """Make a model known under its name. Nothing is loaded yet."""
        if isinstance(config, RuntimeConfigBuilder):
            config = config.build()
        if not isinstance(config, RuntimeConfig):
            raise TypeError(f"config must be a RuntimeConfig or its builder, got {type(config).__name__}")
        with self._lock:
            if config.model_name in self._models:
                raise StateError(
                    f"model {config.model_name!r} is installed already: take another name, or call release_model first"
                )
            self._models[config.model_name] = Model(config)

    def start_model(self, model_name: str, *, warm_up: bool = True) -> None:
        """Load a model, and return when it takes requests.

        The warm-up computes the longest prompt and the largest batch once, so that a model that cannot is found now.
        Raises `CheckpointError` or `ConfigError` for a model that cannot be loaded, which is then as before.
        """
        self._find(model_name).start(warm_up=warm_up)

    def stop_model(self, model_name: str) -> None:
        """End the requests of a model, and free its weights, caches and threads. Requests that are running end as
        interrupted; their queues remain readable. The model can be started again."""
        self._find(model_name).stop()

    def release_model(self, model_name: str) -> None:
        """Forget a model that is not running. Its name is free again."""
        with self._lock:
            self._get(model_name).release()
            del self._models[model_name]

    def model_states(self) -> dict[str, ModelState]:
        """Return the state of each installed model, by name."""
        with self._lock:
            return {name: model.state for name, model in self._models.items()}

    def async_engine(self, model_name: str) -> AsyncEngine:
        """Return the engine of a running model: its tokenizer, its counts, its use from asyncio. Do not close it."""
        return self._find(model_name).engine

    def generation_config_builder(self, model_name: str) -> GenerationConfigBuilder:
        """Return a builder that starts with the generation_config.json of a running model."""
        return GenerationConfigBuilder(self._find(model_name).engine.checkpoint.generation_config)

    # --- requests ---------------------------------------------------------------------------------------------------

    def start_request_text(
        self, model_name: str, prompt: object, config: RequestOptions = None, *, do_preprocess: bool | None = None
    ) -> StartedRequest:
        """Start a request, and return its handle and the queue of its results.

        prompt: a text, which is tokenized as it is; or OpenAI messages, (text, picture) or (text, [pictures]), which go
            through the chat template.
        do_preprocess: True lets a text go through the chat template, too; False takes (text, picture) as a raw text,
            in which `IMAGE_TOKEN` marks the places of pictures.

        Raises `RequestError` for a prompt that is not one of these. What else is wrong with a request is raised by the
        queue, when it is found.
        """
        options = _read_options(config)
        is_template = not isinstance(prompt, str) if do_preprocess is None else do_preprocess
        requests, is_list = parse_prompts(prompt, options.generation, do_preprocess=is_template)
        if is_list:
            raise _several_prompts()
        [request] = requests
        if isinstance(request, RequestError):
            raise request
        return self._start(model_name, request, options)

    def start_request_ids(self, model_name: str, input_ids: object, config: RequestOptions = None) -> StartedRequest:
        """Start a request for token ids: a list, an array or a tensor of them, or one that holds one row."""
        options = _read_options(config)
        try:
            rows = read_token_rows(input_ids)
        except ValueError as error:
            raise RequestError(ErrorCode.INVALID_REQUEST, str(error), "input_ids") from None
        if len(rows) != 1 or not rows[0]:
            raise _several_prompts() if len(rows) > 1 else _no_ids()
        request = GenerationRequest(prompt=rows[0], gen_config=options.generation)
        return self._start(model_name, request, options)

    def sync_request(
        self, model_name: str, handle: RequestHandle, timeout_s: float | None = None
    ) -> GenerateRequestStatus:
        """Wait until a request has ended, or `timeout_s` has passed, and return its status."""
        return self._queue_of(model_name, handle).wait_until_over(timeout_s)

    def stop_request(self, model_name: str, handle: RequestHandle) -> None:
        """Stop a request at any stage. It ends as interrupted soon after, if it was not over; what it has generated
        remains in its queue."""
        self._queue_of(model_name, handle).stop()

    def release_request(self, model_name: str, handle: RequestHandle) -> None:
        """Free the results of a request that has ended or was stopped. Its queue cannot be read any more."""
        self._queue_of(model_name, handle).release()

    # --- the end ----------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Stop all running models, and forget all."""
        for name, state in self.model_states().items():
            if state is ModelState.RUNNING:
                self.stop_model(name)
        for name in self.model_states():
            self.release_model(name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        states = ", ".join(f"{name!r}: {state}" for name, state in self.model_states().items())
        return f"Engine({states})"

    # --- inside -----------------------------------------------------------------------------------------------------

    def _find(self, model_name: str) -> Model:
        with self._lock:
            return self._get(model_name)

    def _get(self, model_name: str) -> Model:
        if model_name not in self._models:
            known = ", ".join(map(repr, self._models)) or "none"
            raise StateError(f"model {model_name!r} is not installed (installed: {known}): call install_model first")
        return self._models[model_name]

    def _start(self, model_name: str, request: GenerationRequest, options: RequestConfig) -> StartedRequest:
        model = self._find(model_name)
        config = _with_stop_words(request.gen_config, options, model.engine)
        request = replace(request, gen_config=config, max_length=options.max_length)
        queue = ResultQueue(f"a request of model {model_name!r}", num_logprobs=config.logprobs or 0)
        request_id = model.submit(request, queue)
        return StartedRequest(RequestHandle(model_name, request_id, queue), queue)

    def _queue_of(self, model_name: str, handle: RequestHandle) -> ResultQueue:
        if not isinstance(handle, RequestHandle):
            raise TypeError(f"handle must be a RequestHandle, got {type(handle).__name__}")
        if handle.model_name != model_name:
            raise StateError(
                f"request {handle.request_id} is of model {handle.model_name!r}, not of {model_name!r}: give that name"
            )
        return handle._queue


def _read_options(config: RequestOptions) -> RequestConfig:
    if config is None:
        return GenerationConfigBuilder().build()
    if isinstance(config, GenerationConfigBuilder):
        return config.build()
    if isinstance(config, GenerationConfig):
        return RequestConfig(generation=config)
    if isinstance(config, RequestConfig):
        return config
    raise TypeError(
        "config must be a GenerationConfigBuilder, what it builds, or a GenerationConfig, "
        f"got {'a mapping: GenerationConfigBuilder(mapping)' if isinstance(config, Mapping) else type(config).__name__}"
    )


def _with_stop_words(config: GenerationConfig, options: RequestConfig, engine: AsyncEngine) -> GenerationConfig:
    """Return `config` with the words that `stop_words_ids` spell: one token ends the answer by its id, several where
    their text appears."""
    token_ids = [word[0] for word in options.stop_words_ids if len(word) == 1]
    texts = [_spell(word, engine.tokenizer) for word in options.stop_words_ids if len(word) > 1]
    return replace(
        config,
        stop_token_ids=[*(config.stop_token_ids or ()), *token_ids] or None,
        stop_words=[*(config.stop_words or ()), *texts] or None,
    )


def _spell(word: Sequence[int], tokenizer: Tokenizer) -> str:
    text = tokenizer.decode(word, skip_special_tokens=False)
    if not text or "\ufffd" in text or not tokenizer.special_ids.isdisjoint(word):
        raise ConfigError(
            f"stop_words_ids: {list(word)!r} spells {text!r}; a word of several tokens must be plain text: give "
            "special tokens one by one"
        )
    return text


def _several_prompts() -> RequestError:
    return RequestError(ErrorCode.INVALID_REQUEST, "a request has one prompt: start one for each", "prompt")


def _no_ids() -> RequestError:
    return RequestError(ErrorCode.INVALID_REQUEST, "input_ids must have at least one token id", "input_ids")
