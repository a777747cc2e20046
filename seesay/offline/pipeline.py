"""`pipeline()` and `Pipeline`: take prompts in any form, return `Response`s. Calls block, except
`async_batch_infer`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import closing
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar, overload

from seesay.config import (
    BeamSearchParams,
    ChatTemplateConfig,
    EngineConfig,
    GenerationConfig,
    MediaLimits,
    Settings,
    SpeculativeConfig,
    TurbomindEngineConfig,
    VisionConfig,
)
from seesay.config.checks import check_instance
from seesay.config.engine import with_speculation
from seesay.engine.front.response import Response
from seesay.offline.beam_search import search_beams
from seesay.offline.call import AdapterNames, Call, GenConfigs
from seesay.offline.choices import check_streams
from seesay.offline.deprecated import with_pipeline_arguments
from seesay.offline.embedding import embed_prompts
from seesay.offline.engine_control import EngineControl
from seesay.offline.ordered_answers import Answers, collect_answers, collect_answers_async, stream_answers
from seesay.offline.perplexity import measure_losses
from seesay.offline.session import Session, check_sessions, stream_turns
from seesay.system.log import set_up_logging
from seesay.vl.prompts.live_conversation import MAX_FRAMES

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from seesay.engine.front.engine import AsyncEngine
    from seesay.values import Pooling

# The prompts that give one answer. A list of messages does too; a list of anything else is a batch. Lists are
# invariant, so the overloads use type variables. The batch comes first: `list[Any]` is one.
OnePrompt: TypeAlias = str | tuple[Any, ...] | Mapping[str, Any]
PromptT = TypeVar("PromptT", bound=str | tuple[Any, ...] | list[Any])
MessageT = TypeVar("MessageT", bound=Mapping[str, Any])
_DEFAULT_LOG_LEVEL = "WARNING"


def pipeline(
    model_path: str | os.PathLike[str] = "seesay-demo",
    backend_config: EngineConfig | TurbomindEngineConfig | None = None,
    chat_template_config: ChatTemplateConfig | str | os.PathLike[str] | None = None,
    log_level: str = _DEFAULT_LOG_LEVEL,
    max_log_len: int | None = None,
    speculative_config: SpeculativeConfig | Mapping[str, Any] | None = None,
    vision_config: VisionConfig | None = None,
    media_limits: MediaLimits | None = None,
    **kwargs: object,
) -> Pipeline:
    """Load a model and return a pipeline.

    model_path: a folder in the Hugging Face layout, a hub id, or 'seesay-demo', the built-in checkpoint.
    backend_config: options of the language engine (`EngineConfig`, also known as `PytorchEngineConfig`).
    chat_template_config: the chat template to use instead of the checkpoint's own: a configuration, the name of a
        built-in template, or a file (.jinja, .json) or model folder that holds a template.
    log_level: CRITICAL, ERROR, WARNING, INFO (logs prompts) or DEBUG; SEESAY_LOG_LEVEL sets the default.
    max_log_len: longest part of a prompt in the log, in characters.
    speculative_config: LMDeploy's name for `EngineConfig.speculative`.
    vision_config: options of the vision encoder. media_limits: limits on the size and the sources of media.

    Raises ConfigError for a wrong option, TypeError for an argument of a wrong type, and CheckpointError for a model
    that cannot be loaded.

        pipe = pipeline("Qwen/Qwen2.5-VL-7B-Instruct")
        print(pipe(("describe this image", load_image("tiger.jpeg"))).text)
    """
    return Pipeline(
        model_path,
        backend_config,
        chat_template_config,
        log_level,
        max_log_len,
        speculative_config,
        vision_config,
        media_limits,
        **kwargs,
    )


class Pipeline(EngineControl):
    """A loaded model that answers prompts. Thread-safe. Close it, or use it in a `with` statement.

    A prompt is a string, OpenAI messages (a list of dicts), `(text, image)`, `(text, [images])` or `(image, text)`;
    an image is anything that `load_image` accepts. A list of prompts is a batch; it may mix these forms.
    """

    def __init__(
        self,
        model_path: str | os.PathLike[str] = "seesay-demo",
        backend_config: EngineConfig | TurbomindEngineConfig | None = None,
        chat_template_config: ChatTemplateConfig | str | os.PathLike[str] | None = None,
        log_level: str = _DEFAULT_LOG_LEVEL,
        max_log_len: int | None = None,
        speculative_config: SpeculativeConfig | Mapping[str, Any] | None = None,
        vision_config: VisionConfig | None = None,
        media_limits: MediaLimits | None = None,
        **kwargs: object,
    ) -> None:
        """See `pipeline`."""
        backend_config, chat_template_config = with_pipeline_arguments(backend_config, chat_template_config, kwargs)
        if speculative_config is not None:
            backend_config = with_speculation(backend_config, speculative_config)
        level = Settings.from_env().log_level if log_level == _DEFAULT_LOG_LEVEL else log_level
        set_up_logging(level, max_log_len)
        from seesay.engine.front.engine import AsyncEngine

        self._engine = AsyncEngine(
            model_path,
            backend_config=backend_config,
            vision_config=vision_config,
            chat_template_config=chat_template_config,
            media_limits=media_limits,
        )

    @classmethod
    def from_engine(cls, engine: AsyncEngine) -> Pipeline:
        """Return a pipeline over a running engine. Closing the pipeline closes the engine."""
        pipe = cls.__new__(cls)
        pipe._engine = engine
        return pipe

    @property
    def engine(self) -> AsyncEngine:
        """The engine, for use from asyncio."""
        return self._engine

    @overload
    def infer(
        self,
        prompts: list[PromptT],
        gen_config: GenConfigs = None,
        do_preprocess: bool = True,
        adapter_name: AdapterNames = None,
        use_tqdm: bool = False,
        **kwargs: Any,
    ) -> list[Response]: ...

    @overload
    def infer(
        self,
        prompts: OnePrompt | list[MessageT],
        gen_config: GenConfigs = None,
        do_preprocess: bool = True,
        adapter_name: AdapterNames = None,
        use_tqdm: bool = False,
        **kwargs: Any,
    ) -> Response: ...

    @overload
    def infer(
        self,
        prompts: list[Any],
        gen_config: GenConfigs = None,
        do_preprocess: bool = True,
        adapter_name: AdapterNames = None,
        use_tqdm: bool = False,
        **kwargs: Any,
    ) -> list[Response]: ...

    def infer(
        self,
        prompts: object,
        gen_config: GenConfigs = None,
        do_preprocess: bool = True,
        adapter_name: AdapterNames = None,
        use_tqdm: bool = False,
        **kwargs: object,
    ) -> Response | list[Response]:
        """Answer one prompt with a `Response`, or a list of prompts with a list of them in the same order.

        gen_config: one for all prompts, or a list with one for each prompt.
        do_preprocess: apply the chat template; without it a prompt is raw text.
        adapter_name: the adapter of `EngineConfig.adapters` that changes the model; a list has one for each prompt, or
            None.
        use_tqdm: show a progress bar.
        kwargs: `chat_template_kwargs`, variables of the chat template by name (`enable_thinking`, …); `tools` and
            `documents`, lists of dicts for templates that take them; `enable_thinking`, whether a model thinks that may
            do so or not, and `reasoning_effort`, how much (docs/reasoning.md). Answers are texts, with thoughts and
            tool calls in them.

        A prompt that cannot be answered gets a response with finish_reason 'error', whose text explains the error. With
        `n` above 1 in gen_config, `Response.choices` has all answers to a prompt.
        """
        requests, is_list = Call.parse(prompts, gen_config, do_preprocess, adapter_name, kwargs, "infer")
        responses = collect_answers(self._engine, requests, use_tqdm=use_tqdm)
        return responses if is_list else responses[0]

    __call__ = infer
    batch_infer = infer

    @overload
    async def async_batch_infer(
        self,
        prompts: list[PromptT],
        gen_config: GenConfigs = None,
        do_preprocess: bool = True,
        adapter_name: AdapterNames = None,
        use_tqdm: bool = False,
        **kwargs: Any,
    ) -> list[Response]: ...

    @overload
    async def async_batch_infer(
        self,
        prompts: OnePrompt | list[MessageT],
        gen_config: GenConfigs = None,
        do_preprocess: bool = True,
        adapter_name: AdapterNames = None,
        use_tqdm: bool = False,
        **kwargs: Any,
    ) -> Response: ...

    @overload
    async def async_batch_infer(
        self,
        prompts: list[Any],
        gen_config: GenConfigs = None,
        do_preprocess: bool = True,
        adapter_name: AdapterNames = None,
        use_tqdm: bool = False,
        **kwargs: Any,
    ) -> list[Response]: ...

    async def async_batch_infer(
        self,
        prompts: object,
        gen_config: GenConfigs = None,
        do_preprocess: bool = True,
        adapter_name: AdapterNames = None,
        use_tqdm: bool = False,
        **kwargs: object,
    ) -> Response | list[Response]:
        """`infer` for asyncio: other tasks run while it waits. Cancelling the task aborts the requests."""
        requests, is_list = Call.parse(prompts, gen_config, do_preprocess, adapter_name, kwargs, "async_batch_infer")
        responses = await collect_answers_async(self._engine, requests, use_tqdm=use_tqdm)
        return responses if is_list else responses[0]

    def stream_infer(
        self,
        prompts: Any,
        sessions: Session | Sequence[Session] | None = None,
        gen_config: GenConfigs = None,
        do_preprocess: bool = True,
        adapter_name: AdapterNames = None,
        stream_response: bool = True,
        **kwargs: Any,
    ) -> Answers:
        """Yield answers piece by piece. Each `Response` has new text; its `index` is the number of the prompt, and with
        `n` above 1 its `choice_index` is the number of the answer to it.

        sessions: one for each prompt; the prompt continues its session.
        stream_response: False yields only complete answers, each when it is ready.

        Leaving the loop early aborts the requests that are still running.
        """
        requests, is_list = Call.parse(prompts, gen_config, do_preprocess, adapter_name, kwargs, "stream_infer")
        if stream_response:
            check_streams(requests)
        if sessions is None:
            return stream_answers(self._engine, requests, pieces=stream_response)
        chosen = check_sessions(sessions, len(requests))
        return stream_turns(self._engine, requests, chosen, prompts if is_list else [prompts], pieces=stream_response)

    def beam_search(
        self,
        prompts: Any,
        params: BeamSearchParams,
        *,
        do_preprocess: bool = True,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> Response | list[Response]:
        """Answer one prompt, or each of a list, with the texts that a beam search finds likeliest.

        A `Response` is the best answer, `choices` has `params.beam_width` of them, the best first, each with its
        `score`. The search is that of Transformers' `generate(num_beams=…, do_sample=False)`. Each token of each text
        is computed once; texts share the KV of what they have in common.
        """
        check_instance("params", params, BeamSearchParams)
        arguments = {} if chat_template_kwargs is None else {"chat_template_kwargs": chat_template_kwargs}
        requests, is_list = Call.parse(prompts, None, do_preprocess, None, arguments, "beam_search")
        responses = search_beams(self._engine, requests, params)
        return responses if is_list else responses[0]

    def session(self, *, max_frames: int = MAX_FRAMES) -> Session:
        """Start a new conversation. max_frames: most frames of a live video in its prompt (`Session.push`)."""
        return Session(self._engine, max_frames)

    @overload
    def chat(
        self,
        prompt: Any,
        session: Session | None = None,
        gen_config: GenerationConfig | None = None,
        stream_response: Literal[False] = False,
        adapter_name: AdapterNames = None,
        **kwargs: Any,
    ) -> Session: ...

    @overload
    def chat(
        self,
        prompt: Any,
        session: Session | None = None,
        gen_config: GenerationConfig | None = None,
        *,
        stream_response: Literal[True],
        adapter_name: AdapterNames = None,
        **kwargs: Any,
    ) -> Answers: ...

    def chat(
        self,
        prompt: object,
        session: Session | None = None,
        gen_config: GenerationConfig | None = None,
        stream_response: bool = False,
        adapter_name: AdapterNames = None,
        **kwargs: object,
    ) -> Session | Answers:
        """Answer one more turn of a conversation. A session of None starts a new one.

        Returns the session, with the answer in `session.response`. With `stream_response`, returns an iterator over the
        pieces of the answer; the session includes the turn when the iterator is exhausted.
        """
        check_instance("session", session, Session)
        session = self.session() if session is None else session
        requests, _ = Call.parse([prompt], gen_config, True, adapter_name, kwargs, "chat")
        stream = stream_turns(self._engine, requests, [session], [prompt], pieces=stream_response)
        if stream_response:
            session.generator = stream
            return stream
        with closing(stream):
            for _ in stream:
                pass
        return session

    def stop_session(self, session: Session) -> None:
        """Stop the running answer of a session. Called from another thread than the one that reads the answer."""
        session.stop()

    def end_session(self, session: Session) -> None:
        """Stop the running answer of a session and delete its turns. It cannot be used again."""
        session.close()

    def get_ppl(self, input_ids: object, do_preprocess: bool = True, **kwargs: object) -> list[float]:
        """Return the mean cross entropy of each token sequence or prompt under the model, in nats (the logarithm of
        perplexity).

        input_ids: a list of token ids, or a list of such lists. Arrays, tensors and the output of Transformers'
            tokenizers are accepted too (padding is left out). Sequences may differ in length; each needs at least two
            tokens. Or prompts in any form that `infer` takes, with pictures and videos, whose positions do not count.
        do_preprocess: apply the chat template to prompts, without the beginning of an answer; otherwise a prompt is raw
            text. kwargs: see `infer`.

        Raises ValueError for anything else, and RequestError for what the model cannot process.
        """
        return measure_losses(self._engine, input_ids, do_preprocess=do_preprocess, arguments=kwargs)

    @overload
    def embed(
        self,
        prompts: object,
        *,
        pooling: Literal["mean", "last"],
        dimensions: int | None = None,
        normalize: bool | None = None,
        instruction: str | None = None,
        do_preprocess: bool | None = None,
        **kwargs: object,
    ) -> npt.NDArray[np.float32]: ...

    @overload
    def embed(
        self,
        prompts: object,
        *,
        pooling: Pooling | None = None,
        dimensions: int | None = None,
        normalize: bool | None = None,
        instruction: str | None = None,
        do_preprocess: bool | None = None,
        **kwargs: object,
    ) -> Any: ...

    def embed(
        self,
        prompts: object,
        *,
        pooling: Pooling | None = None,
        dimensions: int | None = None,
        normalize: bool | None = None,
        instruction: str | None = None,
        do_preprocess: bool | None = None,
        **kwargs: object,
    ) -> Any:
        """Return the embedding of a prompt, float32 [hidden], or of each of a list of prompts, float32 [n, hidden].

        pooling: the 'mean' of the last hidden states of all positions, pictures included, the 'last' one of them, or
            'tokens': float32 [tokens, size], a vector for each position, and a list of these for several prompts.
            By default as the model was trained, or the mean.
        dimensions: return so many of the first dimensions only. normalize: scale to length 1; by default, if
            `dimensions` are given, with 'tokens', and where the model's folder says so.
        instruction: what the embedding is for, in the words of a task, for models with a prompt of their own.
        do_preprocess: apply the chat template, as pictures and conversations need it. Without it, a prompt is raw text.
            By default the model's own prompt for embeddings (GME, Qwen3-VL-Embedding), or none.
        kwargs: as in `infer`, for prompts with a chat template.

        Raises RequestError for the first prompt that cannot be embedded.
        """
        return embed_prompts(
            self._engine,
            prompts,
            pooling=pooling,
            dimensions=dimensions,
            normalize=normalize,
            instruction=instruction,
            do_preprocess=do_preprocess,
            arguments=kwargs,
        )

    def close(self) -> None:
        """Abort running requests and free the model. Closing twice is allowed."""
        self._engine.close()

    def __repr__(self) -> str:
        return f"Pipeline({self._engine!r})"

    def __enter__(self) -> Pipeline:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
