"""From a request to what the core computes: template, media, tokens, sampling options.

Runs in worker threads. Everything that is wrong with a request is found here and raised as `RequestError`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from seesay.config import MediaLimits, VisionConfig
from seesay.engine.commands import LoadedAdapter
from seesay.engine.failures import explain
from seesay.engine.front.answer_options import AnswerOptions, AnswerOptionsReader
from seesay.engine.front.embedding import check_vectors
from seesay.engine.front.live_answer import FrontTimes, LiveAnswer, OutputSink
from seesay.engine.front.prompt_builder import PromptBuilder
from seesay.engine.front.recording import Recorder
from seesay.engine.front.request_facts import modalities_of, wants_answer
from seesay.engine.front.request_limits import check_limits
from seesay.engine.front.shared_prompts import PreparedPrompt, SharedPrompts
from seesay.engine.front.text_frontend import TextFrontend
from seesay.engine.opened_model import OpenedModel
from seesay.engine.token_messages import TokenRequest
from seesay.errors import ErrorCode, RequestError
from seesay.grammars.thought import ThoughtTracker
from seesay.grammars.trials import GrammarTrials
from seesay.llm.plans.sampling_params import SamplingParams
from seesay.system.cancellation import Cancellation
from seesay.values import (
    EngineStats,
    GenerationRequest,
    MediaItem,
    MediaReport,
    Modality,
    MultimodalInput,
    ThoughtRule,
    Usage,
)
from seesay.values.media import Coordinates
from seesay.vl.media.media_batch import MediaBatch
from seesay.vl.media.media_frontend import MediaFrontend
from seesay.vl.media.media_items import PreparedMedia
from seesay.vl.prompts.prompt import extend, hash_item

PreparedRequest = tuple[TokenRequest, LiveAnswer]


class RequestPreparer:
    """Prepares the requests of one model. `prompts` builds their prompts, `answers` reads how they are to be answered.

    takes_media: whether the vision encoder is there. is_encoded(hash): is the embedding of the item with this hash
    there, or being made?
    """

    def __init__(
        self,
        model: OpenedModel,
        texts: TextFrontend,
        *,
        session_len: int,
        max_prefill_token_num: int,
        takes_media: bool,
        vision_config: VisionConfig,
        media_limits: MediaLimits,
        is_encoded: Callable[[bytes], bool],
        grammars: GrammarTrials | None = None,
        find_adapter: Callable[[str], LoadedAdapter | None] = lambda _: None,
    ) -> None:
        """`grammars`: without them requests have none. `find_adapter` returns the adapter that requests name."""
        digest = model.checkpoint.revision_digest
        self._texts = texts
        self._find_loaded = find_adapter
        self._coordinates, self._media_adapters = model.family.coordinates, model.family.media_adapters
        self._session_len, self._vocab_size = session_len, model.vocab_size
        self._vector_size = model.embedding_size("tokens")
        self._media = MediaFrontend(
            model.family, vision_config, media_limits, is_encoded=lambda key: is_encoded(hash_item(key, digest))
        )
        self.prompts = PromptBuilder(
            model,
            texts,
            self._media,
            session_len=session_len,
            max_prefill_token_num=max_prefill_token_num,
            takes_media=takes_media,
        )
        self.answers = AnswerOptionsReader(model, texts, grammars)
        self.recorder: Recorder | None = None

    def close(self) -> None:
        self._media.close()
        if self.recorder is not None:
            self.recorder.close()

    def reset_caches(self) -> None:
        """Forget the media that were prepared before."""
        self._media.forget()

    def stats(self) -> EngineStats:
        """Counts of the cache of preprocessed media."""
        return self._media.stats()

    def prepare(
        self,
        asked: Mapping[int, GenerationRequest],
        on_output: OutputSink,
        received_at: float,
        prompts: SharedPrompts,
        cancellation: Cancellation | None = None,
    ) -> dict[int, PreparedRequest | RequestError]:
        """Prepare requests, by their id, that share one prompt. Returns for each what the core needs to compute it and
        what makes text of its tokens, or what is wrong with it. `received_at` is a `time.perf_counter()` reading.
        `cancellation` ends it when the caller has left."""
        found: dict[int, PreparedRequest | RequestError] = {}
        options = self._read_options(asked, found, cancellation)
        if not options:
            return found
        first = asked[next(iter(options))]
        try:
            prompt = prompts.get(first, lambda: self._build(first, prompts.media, cancellation))
        except KeyboardInterrupt:
            raise  # of the caller, who is in the main thread
        except BaseException as error:
            return found | dict.fromkeys(options, explain(error))
        for request_id, chosen in options.items():
            request = asked[request_id]
            try:
                group_id = prompts.group_of(request_id, request)
                token_request, answer = self._make(request_id, request, chosen, prompt, on_output, received_at)
                if group_id is not None:
                    token_request = replace(token_request, group_id=group_id, keeps_blocks=prompts.keeps_blocks)
                found[request_id] = token_request, answer
            except KeyboardInterrupt:
                raise
            except BaseException as error:
                found[request_id] = explain(error)
        if self.recorder is not None:
            self.recorder.watch(asked, found, prompt.media)
        return found

    def _read_options(
        self,
        asked: Mapping[int, GenerationRequest],
        found: dict[int, PreparedRequest | RequestError],
        cancellation: Cancellation | None,
    ) -> dict[int, AnswerOptions]:
        """Return how requests are to be answered. Adds what is wrong with one to `found`."""
        options: dict[int, AnswerOptions] = {}
        for request_id, request in asked.items():
            try:
                check_limits(request, session_len=self._session_len, vocab_size=self._vocab_size)
                options[request_id] = self.answers.read(request, cancellation)
            except KeyboardInterrupt:
                raise
            except BaseException as error:
                found[request_id] = explain(error)
        return options

    def _build(
        self, request: GenerationRequest, batch: MediaBatch, cancellation: Cancellation | None
    ) -> PreparedPrompt:
        adapter = self._find_adapter(request)
        tower_key = "" if adapter is None else adapter.tower_key
        prompt, media = self.prompts.build(request, batch, cancellation, tower_key=tower_key)
        return PreparedPrompt(prompt, media, adapter)

    def _make(
        self,
        request_id: int,
        request: GenerationRequest,
        options: AnswerOptions,
        prepared: PreparedPrompt,
        on_output: OutputSink,
        received_at: float,
    ) -> PreparedRequest:
        prompt, media, adapter = prepared
        prompt = extend(prompt, request.continuation) if request.continuation else prompt
        thought = self._make_thought(request, prompt, options)
        params = _fit_length(options.params, request.max_length, len(prompt.token_ids))
        if request.pooling == "tokens":
            check_vectors(len(prompt.token_ids), self._vector_size)
        answer = LiveAnswer(
            request_id=request_id,
            prompt_usage=_count(prompt),
            params=params,
            detokenizer=options.detokenizer,
            on_output=on_output,
            streams=request.streams,
            keeps_stop=request.gen_config.include_stop_str_in_output,
            times=_measure_times(received_at, media),
            thought=None if thought is None else ThoughtTracker(thought, self._texts.tokenizer.spelling.spell),
            media=tuple(map(partial(_report, self._coordinates), media, prompt.items)),
            media_places=[item.place for item in media],
            load_features={i: item.load_features for i, item in enumerate(media) if item.load_features is not None},
        )
        token_request = TokenRequest(
            request_id=request_id,
            prompt=prompt,
            params=params,
            owner=request.owner,
            priority=int(request.priority),
            cache_salt=request.cache_salt.encode(),
            adapter_id=0 if adapter is None else adapter.id,
            is_streamed=request.streams,
            defers_tokens=answer.defers_tokens,
            grammar=options.grammar,
            thought=thought if options.grammar is not None or options.max_thinking_tokens is not None else None,
        )
        return token_request, answer

    def _make_thought(
        self, request: GenerationRequest, prompt: MultimodalInput, options: AnswerOptions
    ) -> ThoughtRule | None:
        """Return the rule of the thought of an answer; None for one that has none, or goes on."""
        if request.continuation or not wants_answer(request):
            return None
        return self._texts.thoughts.make_rule(request, prompt.token_ids, options.max_thinking_tokens)

    def _find_adapter(self, request: GenerationRequest) -> LoadedAdapter | None:
        """Return the adapter that a request names, or else that of its media. Raises `RequestError` for one that is
        not loaded."""
        if (name := request.adapter_name) is None:
            return self._find_own_adapter(request)
        if (adapter := self._find_loaded(name)) is None:
            raise RequestError(
                ErrorCode.INVALID_REQUEST,
                f"adapter_name={name!r} is not loaded: give it in EngineConfig.adapters, or call load_adapter()",
                "adapter_name",
            )
        return adapter

    def _find_own_adapter(self, request: GenerationRequest) -> LoadedAdapter | None:
        """Return the loaded adapter that the family has for media of this request."""
        if not self._media_adapters:
            return None
        names = (self._media_adapters.get(modality) for modality in sorted(modalities_of(request)))
        return next((found for name in names if name and (found := self._find_loaded(name)) is not None), None)


def _measure_times(received_at: float, media: Sequence[PreparedMedia]) -> FrontTimes:
    return FrontTimes(
        received_at=received_at,
        fetch_s=sum(item.fetch_s for item in media),
        decode_media_s=sum(item.decode_s for item in media),
        preprocess_s=sum(item.preprocess_s for item in media),
    )


def _fit_length(params: SamplingParams, max_length: int | None, num_tokens: int) -> SamplingParams:
    """Return `params` for an answer to a prompt of `num_tokens`, which with it has at most `max_length`."""
    if max_length is None:
        return params
    if num_tokens >= max_length:
        raise RequestError(
            ErrorCode.CONTEXT_TOO_LONG,
            f"max_length={max_length} leaves no token for the answer: the prompt alone has {num_tokens}; raise it",
            "max_length",
        )
    return replace(params, max_new_tokens=min(params.max_new_tokens, max_length - num_tokens))


def _count(prompt: MultimodalInput) -> Usage:
    counts = Counter(item.modality for item in prompt.items)
    return Usage(
        prompt_tokens=len(prompt.token_ids),
        media_tokens=sum(len(item.slots) for item in prompt.items),
        audio_tokens=sum(len(item.slots) for item in prompt.items if item.modality is Modality.AUDIO),
        num_images=counts[Modality.IMAGE],
        num_videos=counts[Modality.VIDEO],
        num_audios=counts[Modality.AUDIO],
    )


def _report(coordinates: Coordinates, media: PreparedMedia, item: MediaItem) -> MediaReport:
    """How the item was seen, before anything is known of caches."""
    resized_height, resized_width = item.features["resized"]
    return MediaReport(
        modality=item.modality,
        num_frames=media.size.num_frames,
        height=media.size.height,
        width=media.size.width,
        resized_height=resized_height,
        resized_width=resized_width,
        num_tiles=item.features["num_tiles"],
        num_patches=item.num_units,
        num_tokens=len(item.slots),
        is_cached=False,
        timestamps_s=media.timestamps_s,
        page=media.page,
        audio_s=media.size.audio_s,
        coordinates=coordinates,
    )
