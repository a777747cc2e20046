"""From a request to how it is answered: sampling options, stop and bad words, the program of its grammar."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import NamedTuple

from seesay.checkpoint import Checkpoint
from seesay.config import GenerationConfig
from seesay.config.grammar import Grammar
from seesay.engine.front.choices import check_single
from seesay.engine.front.request_facts import is_conversation, wants_answer
from seesay.engine.front.text_frontend import TextFrontend
from seesay.engine.opened_model import OpenedModel
from seesay.errors import ErrorCode, RequestError
from seesay.grammars.trials import GrammarTrials
from seesay.llm.plans.sampling_params import SamplingParams
from seesay.processors.text.detokenize import IncrementalDetokenizer
from seesay.processors.text.spelling import spells_text
from seesay.processors.text.tokenizer import Tokenizer
from seesay.system.cancellation import Cancellation
from seesay.values import GenerationRequest


class AnswerOptions(NamedTuple):
    """The options for the answer to one request."""

    params: SamplingParams
    detokenizer: IncrementalDetokenizer
    grammar: Grammar | None
    max_thinking_tokens: int | None


class AnswerOptionsReader:
    """Reads the options of requests to one model. eos_token_ids: the model's own."""

    def __init__(self, model: OpenedModel, texts: TextFrontend, grammars: GrammarTrials | None) -> None:
        """`grammars`: without them requests have none."""
        self._texts, self._grammars = texts, grammars
        self._vocab_size = model.vocab_size
        self._is_prefix_lm = model.backbone.is_prefix_lm
        self._writes_text = model.family.writes_text
        self.eos_token_ids = _find_eos(model.checkpoint, model.tokenizer, model.vocab_size)

    def find_ending_ids(self, request: GenerationRequest) -> tuple[int, ...]:
        """The tokens that end an answer to `request`, unless it ignores them. Raises `RequestError`."""
        return self.read(request).params.ending_token_ids

    def read(self, request: GenerationRequest, cancellation: Cancellation | None = None) -> AnswerOptions:
        """Return the answer options of a request. `cancellation` says when its caller has left. Raises
        `RequestError`."""
        config = request.gen_config
        check_single(config)
        if not self._writes_text and request.pooling is None:
            raise RequestError(
                ErrorCode.INVALID_REQUEST,
                "this model writes no text: it embeds questions and pages (pipe.embed, /v1/embeddings, /v1/rerank)",
                "messages",
            )
        if self._is_prefix_lm and config.prompt_logprobs is not None and not request.pooling:
            raise RequestError(
                ErrorCode.INVALID_REQUEST,
                "prompt_logprobs: the tokens of a prompt have no log-probabilities for this model, as each of them "
                "sees the whole prompt, itself and what follows it; ask for logprobs of the answer",
                "prompt_logprobs",
            )
        template_words, template_ids = self._split_stop_words(
            self._texts.chat_template.stop_words if is_conversation(request) else ()
        )
        own_words, own_ids = self._split_stop_words(config.stop_words or ())
        params = self._make_params(request, stop_ids=own_ids, template_ids=template_ids)
        detokenizer = IncrementalDetokenizer(
            self._texts.tokenizer,
            skip_special_tokens=config.skip_special_tokens,
            kept_tokens=request.kept_tokens,
            stop_words=[*template_words, *own_words],
            min_tokens=params.min_new_tokens,
            include_stop_str=config.include_stop_str_in_output,
            spaces_between_special_tokens=config.spaces_between_special_tokens,
        )
        max_thinking_tokens = self._texts.thoughts.choose(request).max_tokens
        program = self._find_program(request, params, cancellation)
        return AnswerOptions(params, detokenizer, program, max_thinking_tokens)

    def _find_program(
        self, request: GenerationRequest, params: SamplingParams, cancellation: Cancellation | None
    ) -> Grammar | None:
        """Return the program of the request's grammar, if it has one."""
        grammar = _grammar_of(request)
        if grammar is None:
            return None
        if not params.ending_token_ids:
            raise RequestError(
                ErrorCode.INVALID_REQUEST,
                "response_format needs a token that ends the answer, and this model has none: give stop_token_ids",
                "response_format",
            )
        if self._grammars is None:
            raise RequestError(ErrorCode.INVALID_REQUEST, "response_format is not supported here", "response_format")
        return self._grammars.check(grammar, cancellation)

    def try_grammar(self, request: GenerationRequest, cancellation: Cancellation) -> Grammar | None:
        """Compile the grammar of a request within limits, and return its program, if it has one. `cancellation` says
        when its caller has left. Raises `RequestError` then, and for a grammar that is refused."""
        grammar = _grammar_of(request)
        return None if grammar is None or self._grammars is None else self._grammars.check(grammar, cancellation)

    def join_trial(self, request: GenerationRequest, cancellation: Cancellation) -> Future[Grammar] | None:
        """Return what the program of a request's grammar is or will be set in, if it has been tried or is being, unless
        `cancellation` says before that the caller has left."""
        grammar = request.gen_config.grammar
        return None if grammar is None or self._grammars is None else self._grammars.join(grammar, cancellation)

    def is_tried(self, request: GenerationRequest) -> bool:
        """Whether a request has no grammar that is still to be tried."""
        grammar = _grammar_of(request)
        return grammar is None or self._grammars is None or self._grammars.is_known(grammar)

    def _make_params(
        self, request: GenerationRequest, *, stop_ids: list[int], template_ids: list[int]
    ) -> SamplingParams:
        """`template_ids` are the special tokens that end a turn of the chat template: an EOS like the model's own."""
        config = request.gen_config
        if not wants_answer(request):
            return SamplingParams(
                pooling=request.pooling,
                prompt_logprobs=None if request.pooling else config.prompt_logprobs,
                output_logits=config.output_logits,
                output_last_hidden_state=config.output_last_hidden_state,
                max_new_tokens=0,
            )
        named = ("logit_bias", "stop_token_ids", "bad_token_ids", "allowed_token_ids", "whitelist_token_ids")
        for option in named:
            self._check_vocabulary(option, getattr(config, option) or ())
        bad_words, bad_ids = self._split_bad_words(config)
        return SamplingParams.from_config(
            config,
            eos_token_ids=(*self.eos_token_ids, *template_ids),
            stop_token_ids=stop_ids,
            bad_token_ids=bad_ids,
            bad_words=bad_words,
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

    def _split_stop_words(self, words: Iterable[str]) -> tuple[list[str], list[int]]:
        """Stop words that are text, and the token ids of those that are special tokens."""
        ids = {word: self._texts.tokenizer.token_id(word) for word in words}
        special = {word: i for word, i in ids.items() if i is not None and i in self._texts.tokenizer.special_ids}
        return [word for word in ids if word not in special], list(special.values())

    def _split_bad_words(self, config: GenerationConfig) -> tuple[list[str], list[int]]:
        """Bad words that are text, and the ids of the special tokens that would show one. Raises `RequestError` where
        the texts of tokens do not add up to the text of an answer."""
        words, ids = self._split_stop_words(config.bad_words or ())
        if words and not spells_text(self._texts.tokenizer):
            raise RequestError(
                ErrorCode.INVALID_REQUEST,
                "bad_words need a tokenizer of bytes or of SentencePiece's kind, and this model has another one: use "
                "bad_token_ids",
                "bad_words",
            )
        if words and not config.skip_special_tokens:
            ids += _find_special_with(words, self._texts.tokenizer)
        return words, ids


def _grammar_of(request: GenerationRequest) -> Grammar | None:
    """Return the grammar that the answer to a request is to follow."""
    return request.gen_config.grammar if wants_answer(request) else None


def _find_special_with(words: Sequence[str], tokenizer: Tokenizer) -> list[int]:
    """Return the special tokens whose text has any of `words` in it."""
    texts = {token_id: tokenizer.token_text(token_id) or "" for token_id in tokenizer.special_ids}
    return [token_id for token_id, text in texts.items() if any(word in text for word in words)]


def _find_eos(checkpoint: Checkpoint, tokenizer: Tokenizer, vocab_size: int) -> tuple[int, ...]:
    """Return the tokens that end an answer: of generation_config.json, else of config.json or its text part, and of the
    tokenizer. Values that are not token ids are left out."""
    text = checkpoint.config.get("text_config", checkpoint.config.get("llm_config"))
    configs = (checkpoint.generation_config, checkpoint.config, text if isinstance(text, Mapping) else {})
    found = next((value for config in configs if (value := config.get("eos_token_id")) is not None), None)
    ids = (*(found if isinstance(found, list) else [found]), tokenizer.eos_token_id)
    return tuple(dict.fromkeys(i for i in ids if type(i) is int and 0 <= i < vocab_size))
