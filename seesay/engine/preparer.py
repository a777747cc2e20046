"""From a request to what the core computes: template, media, tokens, sampling options.

Runs in worker threads. Everything that is wrong with a request is found here and raised as `RequestError`.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple, NoReturn

import numpy as np
import numpy.typing as npt

from seesay.checkpoint import Checkpoint
from seesay.config import MediaLimits, VisionConfig
from seesay.engine.failures import explain
from seesay.engine.live_answer import LiveAnswer, OutputSink
from seesay.engine.messages import TokenRequest
from seesay.engine.opened_model import OpenedModel
from seesay.engine.shared_prompts import SharedPrompts
from seesay.errors import ErrorCode, RequestError
from seesay.llm.sampling_params import SamplingParams
from seesay.llm.scheduler import check_prompt_length
from seesay.processors.text.detokenize import IncrementalDetokenizer
from seesay.processors.text.tokenizer import Tokenizer
from seesay.templates import ChatTemplate
from seesay.values import (
    EngineStats,
    GenerationRequest,
    MediaItem,
    MediaPart,
    MediaReport,
    Message,
    Modality,
    MultimodalInput,
    RenderedPrompt,
    TextPart,
    Usage,
)
from seesay.vl.family import Wording
from seesay.vl.media import MediaFront, OpenRequest, PreparedMedia
from seesay.vl.media_batch import MediaBatch
from seesay.vl.prompt import TokenizedPrompt, build_input, hash_item, render_raw, tokenize
from seesay.vl.video_pictures import Split, spread_messages, spread_raw

_LEAST_CHARS, _CHARS_PER_TOKEN, _LEAST_PARTS = 1 << 20, 64, 4096
"""Most of a conversation before its template, which may leave out what earlier turns thought."""
_COUNTED_LENGTHS = 4
"""A prompt that is only counted may be so many times as long as one that is answered."""


PreparedRequest = tuple[TokenRequest, LiveAnswer]


class _Options(NamedTuple):
    """How one request for a prompt is to be answered."""

    params: SamplingParams
    detokenizer: IncrementalDetokenizer


class RequestPreparer:
    """Prepares the requests of one model. `tokenizer` and `chat_template` may be replaced between requests.

    takes_media: whether the vision encoder is there. is_encoded(hash): is the embedding of the item with this hash
    there, or being made?
    """

    def __init__(
        self,
        model: OpenedModel,
        *,
        chat_template: ChatTemplate,
        session_len: int,
        takes_media: bool,
        vision_config: VisionConfig,
        media_limits: MediaLimits,
        is_encoded: Callable[[bytes], bool],
    ) -> None:
        checkpoint, family = model.checkpoint, model.family
        self.tokenizer = model.tokenizer
        self.chat_template = chat_template
        self._checkpoint = checkpoint
        self._family = family
        self._vocab_size = model.vocab_size
        self._session_len = session_len
        self._takes_media = takes_media
        self._eos_token_ids = _find_eos(checkpoint, model.tokenizer, model.vocab_size)
        self._media = MediaFront(
            family,
            vision_config,
            media_limits,
            is_encoded=lambda key: is_encoded(hash_item(key, checkpoint.revision_digest)),
        )

    def close(self) -> None:
        self._media.close()

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
    ) -> dict[int, PreparedRequest | RequestError]:
        """Prepare requests, by their id, that share one prompt. Returns for each what the core needs to compute it and
        what makes text of its tokens, or what is wrong with it. `received_at` is a `time.perf_counter()` reading."""
        found: dict[int, PreparedRequest | RequestError] = {}
        options: dict[int, _Options] = {}
        for request_id, request in asked.items():
            try:
                options[request_id] = self._read_options(request)
            except BaseException as error:
                found[request_id] = explain(error)
        if not options:
            return found
        first = asked[next(iter(options))]
        try:
            prompt, media = prompts.get(first, lambda: self._build_prompt(first, prompts.media))
        except BaseException as error:
            return found | dict.fromkeys(options, explain(error))
        for request_id, chosen in options.items():
            request = asked[request_id]
            try:
                found[request_id] = self._make(request_id, request, chosen, prompt, media, on_output, received_at)
            except BaseException as error:
                found[request_id] = explain(error)
        return found

    def _read_options(self, request: GenerationRequest) -> _Options:
        config = request.gen_config
        template_words, template_ids = self._split_stop_words(
            self.chat_template.stop_words if _is_conversation(request) else ()
        )
        own_words, own_ids = self._split_stop_words(config.stop_words or ())
        params = self._make_params(request, stop_ids=own_ids, template_ids=template_ids)
        detokenizer = IncrementalDetokenizer(
            self.tokenizer,
            skip_special_tokens=config.skip_special_tokens,
            stop_words=[*template_words, *own_words],
            min_tokens=params.min_new_tokens,
            include_stop_str=config.include_stop_str_in_output,
            spaces_between_special_tokens=config.spaces_between_special_tokens,
        )
        return _Options(params, detokenizer)

    def _make(
        self,
        request_id: int,
        request: GenerationRequest,
        options: _Options,
        prompt: MultimodalInput,
        media: Sequence[PreparedMedia],
        on_output: OutputSink,
        received_at: float,
    ) -> PreparedRequest:
        answer = LiveAnswer(
            request_id=request_id,
            prompt_usage=_count(prompt),
            params=options.params,
            detokenizer=options.detokenizer,
            on_output=on_output,
            streams=request.streams,
            keeps_stop=request.gen_config.include_stop_str_in_output,
            received_at=received_at,
            media=tuple(map(_report, media, prompt.items)),
            media_places=[item.place for item in media],
            load_features={i: item.load_features for i, item in enumerate(media) if item.load_features is not None},
            fetch_s=sum(item.fetch_s for item in media),
            decode_media_s=sum(item.decode_s for item in media),
            preprocess_s=sum(item.preprocess_s for item in media),
        )
        token_request = TokenRequest(
            request_id=request_id,
            prompt=prompt,
            params=options.params,
            owner=request.owner,
            is_streamed=request.streams,
            defers_tokens=answer.defers_tokens,
        )
        return token_request, answer

    def _make_params(
        self, request: GenerationRequest, *, stop_ids: list[int], template_ids: list[int]
    ) -> SamplingParams:
        """`template_ids` are the special tokens that end a turn of the chat template: an EOS like the model's own."""
        config = request.gen_config
        if not _wants_answer(request):
            return SamplingParams(
                pooling=request.pooling,
                prompt_logprobs=request.prompt_logprobs,
                output_logits=config.output_logits,
                output_last_hidden_state=config.output_last_hidden_state,
                max_new_tokens=0,
            )
        for option in ("logit_bias", "stop_token_ids", "bad_token_ids"):
            self._check_vocabulary(option, getattr(config, option) or ())
        return SamplingParams.from_config(
            config,
            eos_token_ids=(*self._eos_token_ids, *template_ids),
            stop_token_ids=stop_ids,
            bad_token_ids=self._find_bad_ids(config.bad_words or ()),
            prompt_logprobs=request.prompt_logprobs,
            seed=secrets.randbits(63),
        )

    def _check_vocabulary(self, option: str, token_ids: Iterable[int]) -> None:
        for token_id in token_ids:
            if token_id >= self._vocab_size:
                raise RequestError(
                    ErrorCode.INVALID_REQUEST,
                    f"{option}: token id {token_id} is not in the vocabulary (0 to {self._vocab_size - 1})",
                    option,
                )

    def tokenize(self, request: GenerationRequest) -> npt.NDArray[np.int64]:
        """Token ids int64 [T] of the prompt of `request`, with those that stand for its media."""
        return self._build_prompt(request)[0].token_ids

    def tokenize_text(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a raw text, which may be too long for a prompt, but not by more than `_COUNTED_LENGTHS` says."""
        self._check_size((text,), _COUNTED_LENGTHS * self._session_len)
        self._check_num_tokens(text, _COUNTED_LENGTHS * self._session_len)
        return self.tokenizer.encode(text, add_special_tokens=add_special_tokens)

    def count_tokens(self, request: GenerationRequest) -> int:
        """Tokens of the prompt, media included. Decodes only videos that do not tell their size otherwise."""
        prompt, opened = self._open_prompt(request, _COUNTED_LENGTHS * self._session_len)
        counts = [item.num_tokens for item in opened.items]
        if None in counts:
            return len(self._build_input(prompt, self._media.prepare(opened)).token_ids)
        tokens = self._tokenize(prompt, [item.wording for item in opened.items])
        return tokens.num_text_tokens + sum(count for count in counts if count is not None)

    def _build_prompt(
        self, request: GenerationRequest, batch: MediaBatch | None = None
    ) -> tuple[MultimodalInput, list[PreparedMedia]]:
        prompt, opened = self._open_prompt(request, self._session_len)
        wordings = [item.wording for item in opened.items]
        tokens = self._tokenize(prompt, wordings)
        num_tokens = tokens.num_text_tokens + sum(item.num_tokens or 0 for item in opened.items)
        wants_answer = _wants_answer(request)
        try:
            check_prompt_length(num_tokens, self._session_len, wants_answer=wants_answer)
        except RequestError as error:
            advice = opened.describe_video(num_tokens, self._session_len - wants_answer)
            raise RequestError(error.code, error.message + advice, error.param) from None
        media = self._media.prepare(opened, batch)
        if [item.plan.wording for item in media] != wordings:  # decoding told more than the headers
            return self._build_input(prompt, media), media
        return self._build_input(tokens, media), media

    def _build_input(self, prompt: RenderedPrompt | TokenizedPrompt, media: Sequence[PreparedMedia]) -> MultimodalInput:
        tokens = self._tokenize(prompt, [item.plan.wording for item in media])
        return build_input(tokens, media, family=self._family, model_digest=self._checkpoint.revision_digest)

    def _open_prompt(
        self, request: GenerationRequest, max_tokens: int
    ) -> tuple[RenderedPrompt | TokenizedPrompt, OpenRequest]:
        """The prompt's text or ids, and the media with their headers read: all that tells the prompt's length. Raises
        `RequestError` for a text of many more than `max_tokens`."""
        if has_media(request) and not self._takes_media and self._family.modalities:
            raise RequestError(
                ErrorCode.INVALID_MEDIA, "the vision encoder is turned off (disable_vision_encoder)", "messages"
            )
        allowance = self._media.make_allowance()
        split = partial(self._media.split_videos, allowance=allowance)
        prompt = self._render_prompt(request, max_tokens, split)
        return prompt, self._media.open(prompt.media if isinstance(prompt, RenderedPrompt) else (), allowance)

    def _tokenize(
        self, prompt: RenderedPrompt | TokenizedPrompt, wordings: Sequence[Wording | None]
    ) -> TokenizedPrompt:
        """`wordings` are those of the prompt's media."""
        if isinstance(prompt, TokenizedPrompt):
            return prompt
        return tokenize(prompt, self.tokenizer, wordings, is_apart=self._family.tokenizes_apart)

    def _render_prompt(
        self, request: GenerationRequest, max_tokens: int, split: Split
    ) -> RenderedPrompt | TokenizedPrompt:
        rendered: RenderedPrompt
        if isinstance(request.prompt, str):
            self._check_size((request.prompt,), max_tokens)
            text, media = spread_raw(request.prompt, request.media, split)
            rendered = render_raw(text, media, self._family.markers, self._family.spellings)
        elif _is_conversation(request):
            messages = [message for message in request.prompt if isinstance(message, Message)]
            self._check_size(_texts_of(messages), max_tokens)
            messages = spread_messages(messages, split)
            rendered = self.chat_template.render(messages, markers=self._family.markers, **request.template_options)
        else:
            check_prompt_length(len(request.prompt), max_tokens, wants_answer=_wants_answer(request))
            return TokenizedPrompt(token_ids=self._check_token_ids(request.prompt))
        self._check_num_tokens(rendered.text, max_tokens)
        return rendered

    def _check_size(self, texts: Iterable[str], max_tokens: int) -> None:
        """Refuse what is too long for any template to shorten it to `max_tokens`, before one looks at it."""
        num_chars = num_parts = 0
        for text in texts:
            num_chars += len(text)
            num_parts += 1
        for count, most, what in (
            (num_chars, max(_LEAST_CHARS, _CHARS_PER_TOKEN * max_tokens), "characters"),
            (num_parts, max(_LEAST_PARTS, max_tokens), "messages and parts"),
        ):
            if count > most:
                self._fail_too_long(f"{count} {what}; at most {most} are taken")

    def _check_num_tokens(self, text: str, max_tokens: int) -> None:
        """Refuse a text that is certain to have more than `max_tokens` tokens, before all of it is tokenized."""
        if self.tokenizer.has_more_tokens(text, max_tokens):
            self._fail_too_long(f"{len(text)} characters, which are more than {max_tokens} tokens")

    def _fail_too_long(self, why: str) -> NoReturn:
        raise RequestError(
            ErrorCode.CONTEXT_TOO_LONG,
            f"the prompt has {why}; prompt and answer together may have {self._session_len} (session_len): shorten it",
            "messages",
        )

    def _check_token_ids(self, token_ids: Iterable[object]) -> npt.NDArray[np.int64]:
        ids: list[int] = []
        for index, token_id in enumerate(token_ids):
            if not isinstance(token_id, int) or not 0 <= token_id < self._vocab_size:
                raise RequestError(
                    ErrorCode.INVALID_REQUEST,
                    f"token id {token_id!r} at position {index} is not in the vocabulary (0 to {self._vocab_size - 1})",
                    "input_ids",
                )
            ids.append(token_id)
        return np.asarray(ids, dtype=np.int64)

    def _split_stop_words(self, words: Iterable[str]) -> tuple[list[str], list[int]]:
        """Stop words that are text, and the token ids of those that are special tokens."""
        ids = {word: self.tokenizer.token_id(word) for word in words}
        special = {word: i for word, i in ids.items() if i is not None and i in self.tokenizer.special_ids}
        return [word for word in ids if word not in special], list(special.values())

    def _find_bad_ids(self, words: Iterable[str]) -> list[int]:
        """The tokens that spell a bad word, alone or after a space. Raises `RequestError` for a word of several."""
        found: list[int] = []
        for word in words:
            spellings = [self.tokenizer.encode(text) for text in (word, " " + word)]
            single = [ids[0] for ids in spellings if len(ids) == 1]
            if not single:
                raise RequestError(
                    ErrorCode.INVALID_REQUEST,
                    f"bad_words: {word!r} is {len(spellings[0])} tokens for this model; only single ones can be banned",
                    "bad_words",
                )
            found += single
        return found


def _find_eos(checkpoint: Checkpoint, tokenizer: Tokenizer, vocab_size: int) -> tuple[int, ...]:
    """Return the tokens that end an answer: of generation_config.json, else of config.json or its text part, and of the
    tokenizer. Values that are not token ids are left out."""
    text = checkpoint.config.get("text_config", checkpoint.config.get("llm_config"))
    configs = (checkpoint.generation_config, checkpoint.config, text if isinstance(text, Mapping) else {})
    found = next((value for config in configs if (value := config.get("eos_token_id")) is not None), None)
    ids = (*(found if isinstance(found, list) else [found]), tokenizer.eos_token_id)
    return tuple(dict.fromkeys(i for i in ids if type(i) is int and 0 <= i < vocab_size))


def _count(prompt: MultimodalInput) -> Usage:
    num_images = sum(item.modality is Modality.IMAGE for item in prompt.items)
    return Usage(
        prompt_tokens=len(prompt.token_ids),
        media_tokens=sum(len(item.slots) for item in prompt.items),
        num_images=num_images,
        num_videos=len(prompt.items) - num_images,
    )


def _report(media: PreparedMedia, item: MediaItem) -> MediaReport:
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
    )


def _wants_answer(request: GenerationRequest) -> bool:
    return request.wants_answer and request.pooling is None


def _is_conversation(request: GenerationRequest) -> bool:
    return isinstance(request.prompt, tuple) and not (request.prompt and isinstance(request.prompt[0], int))


def _texts_of(messages: Iterable[Message]) -> Iterator[str]:
    """The texts of a conversation: a message has at least one, its role."""
    for message in messages:
        yield message.role
        yield from (part.text for part in message.parts if isinstance(part, TextPart))


def has_media(request: GenerationRequest) -> bool:
    """Whether a request refers to pictures or videos."""
    return any(True for _ in _media_parts(request))


def has_media_at_hand(request: GenerationRequest) -> bool:
    """Whether it does, and none must be fetched: an encoder may wait a moment for those, not for somebody's server."""
    parts = list(_media_parts(request))
    return bool(parts) and not any(_is_web_url(part.source) for part in parts)


def _media_parts(request: GenerationRequest) -> Iterator[MediaPart]:
    yield from request.media
    if not isinstance(request.prompt, str) and _is_conversation(request):
        for message in request.prompt:
            if isinstance(message, Message):
                yield from (part for part in message.parts if isinstance(part, MediaPart))


def _is_web_url(source: object) -> bool:
    return isinstance(source, str) and source[:8].lower().startswith(("http://", "https://"))
