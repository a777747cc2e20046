"""From a request to its prompt: template, media, tokens. What is too long is found before it costs much."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import numpy.typing as npt

from seesay.engine.front.prompt_lengths import PromptLengths
from seesay.engine.front.request_facts import has_media, is_conversation, texts_of, wants_answer
from seesay.engine.front.text_frontend import TextFrontend
from seesay.engine.opened_model import OpenedModel
from seesay.errors import ErrorCode, RequestError
from seesay.llm.scheduling.scheduler_config import check_prompt_length
from seesay.system.cancellation import Cancellation
from seesay.templates.requested import RequestedTemplates
from seesay.values import GenerationRequest, Message, MultimodalInput, RenderedPrompt
from seesay.vl.family import Wording
from seesay.vl.media.media_batch import MediaBatch
from seesay.vl.media.media_frontend import MediaFrontend
from seesay.vl.media.media_items import OpenRequest, PreparedMedia
from seesay.vl.media.spread_media import Split, spread_messages, spread_raw, text_without_media
from seesay.vl.prompts.prompt import TokenizedPrompt, build_input, find_ranges, render_raw, tokenize
from seesay.vl.prompts.truncation import cut_front
from seesay.vl.prompts.video_advice import describe_longest_video


class PromptBuilder:
    """Builds the prompts of one model, of at most `session_len` tokens, and `max_prefill_token_num` where each of them
    sees the whole prompt. takes_media: whether the vision encoder is there."""

    def __init__(
        self,
        model: OpenedModel,
        texts: TextFrontend,
        media: MediaFrontend,
        *,
        session_len: int,
        max_prefill_token_num: int,
        takes_media: bool,
    ) -> None:
        self._texts, self._media = texts, media
        self._family = model.family
        self._digest = model.checkpoint.revision_digest
        self._vocab_size = model.vocab_size
        self._lengths = PromptLengths(session_len, max_prefill_token_num if model.family.is_prefix_lm else None)
        self._takes_media = takes_media
        self._requested = RequestedTemplates()

    def tokenize(self, request: GenerationRequest) -> npt.NDArray[np.int64]:
        """Token ids int64 [T] of the prompt of `request`, with those that stand for its media."""
        return self.build(request)[0].token_ids

    def tokenize_text(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a raw text, which may be too long for a prompt, but not longer than `PromptLengths.counted`."""
        tokenizer = self._texts.tokenizer
        self._lengths.check_size((text,), self._lengths.counted)
        self._lengths.check_text(text, self._lengths.counted, tokenizer)
        return tokenizer.encode(text, add_special_tokens=add_special_tokens)

    def count_tokens(self, request: GenerationRequest) -> int:
        """Tokens of the prompt, media included. Decodes only videos that do not tell their size otherwise."""
        prompt, opened = self._open_prompt(request, self._lengths.counted)
        counts = [item.num_tokens for item in opened.items]
        if None in counts:
            return len(self._build_input(prompt, self._media.prepare(opened)).token_ids)
        tokens = self._tokenize(prompt, [item.wording for item in opened.items])
        return tokens.num_text_tokens + sum(count for count in counts if count is not None)

    def build(
        self,
        request: GenerationRequest,
        batch: MediaBatch | None = None,
        cancellation: Cancellation | None = None,
        *,
        tower_key: str = "",
    ) -> tuple[MultimodalInput, list[PreparedMedia]]:
        """Return the prompt of a request and its media, decoded and preprocessed. tower_key: stands for what its
        adapter changes in the tower. Raises `RequestError`, also when the caller has left."""
        if request.truncate_prompt_tokens is not None:
            return self._build_cut_prompt(request, batch, cancellation, tower_key)
        session_len = self._lengths.session_len
        prompt, opened = self._open_prompt(request, session_len, cancellation, tower_key)
        wordings = [item.wording for item in opened.items]
        tokens = self._tokenize(prompt, wordings)
        num_tokens = tokens.num_text_tokens + sum(item.num_tokens or 0 for item in opened.items)
        is_answered = wants_answer(request)
        try:
            check_prompt_length(num_tokens, session_len, wants_answer=is_answered)
        except RequestError as error:
            max_tokens = session_len - is_answered
            advice = describe_longest_video(
                self._family, opened.items, tokens, num_tokens=num_tokens, max_tokens=max_tokens
            )
            raise RequestError(error.code, error.message + advice, error.param) from None
        self._lengths.check_run(num_tokens)
        media = self._media.prepare(opened, batch)
        if [item.plan.wording for item in media] != wordings:  # decoding told more than the headers
            return self._build_input(prompt, media), media
        return self._build_input(tokens, media), media

    def _build_cut_prompt(
        self, request: GenerationRequest, batch: MediaBatch | None, cancellation: Cancellation | None, tower_key: str
    ) -> tuple[MultimodalInput, list[PreparedMedia]]:
        """Build the end of a prompt, with as many tokens as `truncate_prompt_tokens` says."""
        prompt, opened = self._open_prompt(request, self._lengths.counted, cancellation, tower_key)
        media = self._media.prepare(opened, batch)
        tokens = self._tokenize(prompt, [item.plan.wording for item in media])
        counts = [len(self._family.number(item.plan.expansion, index).token_ids) for index, item in enumerate(media)]
        tokens, num_dropped = cut_front(tokens, counts, self._lengths.find_room(request))
        media = media[num_dropped:]
        built = self._build_input(tokens, media)
        check_prompt_length(len(built.token_ids), self._lengths.session_len, wants_answer=wants_answer(request))
        self._lengths.check_run(len(built.token_ids))
        return built, media

    def _build_input(self, prompt: RenderedPrompt | TokenizedPrompt, media: Sequence[PreparedMedia]) -> MultimodalInput:
        tokens = self._tokenize(prompt, [item.plan.wording for item in media])
        return build_input(tokens, media, family=self._family, model_digest=self._digest)

    def _open_prompt(
        self,
        request: GenerationRequest,
        max_tokens: int,
        cancellation: Cancellation | None = None,
        tower_key: str = "",
    ) -> tuple[RenderedPrompt | TokenizedPrompt, OpenRequest]:
        """The prompt's text or ids, and the media with their headers read: enough to know the prompt's length. Raises
        `RequestError` for a text of many more than `max_tokens`."""
        if has_media(request) and not self._takes_media and self._family.modalities:
            raise RequestError(
                ErrorCode.INVALID_MEDIA, "the vision encoder is turned off (disable_vision_encoder)", "messages"
            )
        allowance = self._media.make_allowance(cancellation)
        split = partial(self._media.split, allowance=allowance)
        prompt = self._render_prompt(request, max_tokens, split)
        media = prompt.media if isinstance(prompt, RenderedPrompt) else request.media
        return prompt, self._media.open(media, allowance, salt=request.cache_salt, tower_key=tower_key)

    def _tokenize(
        self, prompt: RenderedPrompt | TokenizedPrompt, wordings: Sequence[Wording | None]
    ) -> TokenizedPrompt:
        """`wordings` are those of the prompt's media."""
        if isinstance(prompt, TokenizedPrompt):
            return prompt
        family = self._family
        return tokenize(
            prompt,
            self._texts.tokenizer,
            wordings,
            is_apart=family.tokenizes_apart,
            begins_empty=family.begins_empty,
        )

    def _render_conversation(self, request: GenerationRequest, max_tokens: int, split: Split) -> RenderedPrompt:
        messages = [message for message in request.prompt if isinstance(message, Message)]
        self._lengths.check_size(texts_of(messages), max_tokens)
        messages = spread_messages(messages, split)
        template = self._texts.chat_template
        if request.chat_template is not None:
            template = self._requested.get(request.chat_template, self._texts.tokenizer)
        variables = {**self._texts.thoughts.choose(request).options, **request.template_options}
        return template.render(messages, markers=self._family.markers, **variables)

    def _render_prompt(
        self, request: GenerationRequest, max_tokens: int, split: Split
    ) -> RenderedPrompt | TokenizedPrompt:
        rendered: RenderedPrompt
        is_open = is_conversation(request) and bool(request.template_options.get("continue_final"))
        if is_open and self._family.is_prefix_lm and wants_answer(request):
            raise RequestError(
                ErrorCode.INVALID_REQUEST,
                "the last message is the beginning of an answer, which this model cannot continue: each token of a "
                "prompt to it sees the whole prompt, and those of an answer only what is before them; leave it out",
                "messages",
            )
        if isinstance(request.prompt, str):
            self._lengths.check_size((request.prompt,), max_tokens)
            text, media = spread_raw(request.prompt, request.media, split)
            rendered = render_raw(text, media, self._family.markers, self._family.spellings)
        elif is_conversation(request):
            rendered = self._render_conversation(request, max_tokens, split)
        else:
            self._lengths.check_ids(len(request.prompt), max_tokens, wants_answer=wants_answer(request))
            ranges = find_ranges(request.media, len(request.prompt))
            return TokenizedPrompt(token_ids=_check_token_ids(request.prompt, self._vocab_size), ranges=ranges)
        if (num_items := len(rendered.media)) > max_tokens:  # each has a token at least: open none of them
            self._lengths.fail(f"{num_items} pictures and frames of videos (max_frames takes fewer of a video)")
        rendered = self._family.complete(rendered, is_open=is_open)
        self._lengths.check_text(text_without_media(rendered), max_tokens, self._texts.tokenizer)
        return rendered if request.add_special_tokens else replace(rendered, takes_prefix=False)


def _check_token_ids(token_ids: Iterable[object], vocab_size: int) -> npt.NDArray[np.int64]:
    ids: list[int] = []
    for index, token_id in enumerate(token_ids):
        if not isinstance(token_id, int) or not 0 <= token_id < vocab_size:
            raise RequestError(
                ErrorCode.INVALID_REQUEST,
                f"token id {token_id!r} at position {index} is not in the vocabulary (0 to {vocab_size - 1})",
                "input_ids",
            )
        ids.append(token_id)
    return np.asarray(ids, dtype=np.int64)
