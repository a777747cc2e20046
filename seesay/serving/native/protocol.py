"""Requests and answers of `/v1/chat/interactive`, `/generate`, `/tokenize` and `/detokenize` as pydantic models.

Names are LMDeploy's where it has the route, else vLLM's. Every field has an effect or is refused with a 400 that names
it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Self

from pydantic import BaseModel, Field, SkipValidation, model_validator

from seesay.serving.errors import bad_request, requires
from seesay.serving.openai.message_parts import ChatMessages
from seesay.serving.openai.protocol import RESERVED_TEMPLATE_NAMES, SamplingFields
from seesay.serving.requests.fields import Texts, TokenIds, exactly_one, needs
from seesay.serving.requests.request_model import Refused, RequestModel
from seesay.serving.requests.shared_fields import REFUSED, REFUSED_BEAMS, refuse_two_values

_ONE = ((1,), "not supported: this route gives one answer")
_NOT_HERE = ((), "not a field of this route")
_CANCELS = {"required": ["cancel"], "properties": {"cancel": {"const": True}}}
_FORGETS = {
    "required": ["prompt", "session_id"],
    "properties": {"prompt": {"const": ""}, "session_id": {"minimum": 0}, "interactive_mode": {"const": False}},
}
_HAS_PICTURES = {
    "required": ["image_url"],
    "properties": {"image_url": {"not": {"type": "null"}, "minLength": 1, "minItems": 1}},
}
# What a request without an answer may leave empty.
_EMPTY_PROMPT = {
    "if": {"properties": {"prompt": {"const": ""}}},
    "then": {"anyOf": [_CANCELS, _FORGETS, _HAS_PICTURES]},
}
_EMPTY_ANSWER = {
    "if": {"required": ["request_output_len"], "properties": {"request_output_len": {"const": 0}}},
    "then": {"anyOf": [_CANCELS, _FORGETS]},
}


# --- /v1/chat/interactive --------------------------------------------------------------------------------------------


class InteractiveRequest(SamplingFields):
    """`POST /v1/chat/interactive`. A session belongs to the API key that started it.

    With `interactive_mode` the server stores the conversation of a `session_id`. Without it the server deletes the
    stored conversation and answers the prompt alone. `cancel` stops the session's running answer.
    """

    refused: ClassVar[Refused] = {
        **REFUSED,
        **REFUSED_BEAMS,
        "n": _ONE,
        "stream_options": _NOT_HERE,
        "return_token_ids": _NOT_HERE,
        "request_id": _NOT_HERE,
        "rid": _NOT_HERE,
    }

    rules: ClassVar[tuple[dict[str, Any], ...]] = (*SamplingFields.rules, _EMPTY_PROMPT, _EMPTY_ANSWER)
    sources: ClassVar[Mapping[str, tuple[str, ...]]] = {"max_new_tokens": ("request_output_len",)}

    prompt: SkipValidation[str | ChatMessages] = Field(description="the user's text, or OpenAI messages")
    image_url: str | Texts | None = Field(None, description="pictures for a prompt that is a string")
    session_id: int = Field(-1, ge=-1, lt=1 << 63, description="-1: no session")
    interactive_mode: bool = False
    request_output_len: int | None = Field(None, ge=0, description="longest answer in tokens; default: as many as fit")
    cancel: bool = False

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        if self.cancel and self.session_id < 0:
            raise bad_request("cancel requires the session_id of the answer to stop, got -1", "session_id")
        if self.interactive_mode and self.session_id < 0:
            raise bad_request("interactive_mode requires a session_id of at least 0, got -1", "session_id")
        if self.image_url is not None and not isinstance(self.prompt, str):
            raise bad_request("image_url requires a prompt that is a string; put pictures into messages", "image_url")
        return self


class InteractiveAnswer(BaseModel):
    """An answer, or a piece of a streamed answer.

    tokens: number of tokens generated so far. input_tokens: number that this turn adds to the prompt, null until the
    last piece. history_tokens: number in earlier turns, including generated tokens without a text. cached_tokens:
    number of the prompt that came from the prefix cache, null until the last piece.
    """

    text: str
    tokens: int
    input_tokens: int | None
    history_tokens: int
    cached_tokens: int | None = None
    finish_reason: Literal["stop", "length", "cancel"] | None


# --- /generate -------------------------------------------------------------------------------------------------------


class GenerateRequest(SamplingFields):
    """`POST /generate`: a raw text or token ids. No chat template is applied."""

    refused: ClassVar[Refused] = {
        **REFUSED,
        **REFUSED_BEAMS,
        "n": _ONE,
        "stream_options": _NOT_HERE,
        "return_token_ids": ((True,), "always on"),
        "session_id": ((-1,), "not supported, except -1"),
        "sampling_params": (({},), "not supported: put its fields beside the prompt"),
    }

    rules: ClassVar[tuple[dict[str, Any], ...]] = (
        exactly_one("prompt", "input_ids"),
        needs("top_logprobs_num", "return_logprob"),
        needs("logprob_start_len", "return_logprob", {"minimum": 0}),
    )
    sources: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "logprobs": ("top_logprobs_num",),
        "prompt_logprobs": ("top_logprobs_num",),
    }

    prompt: str | None = Field(
        None, min_length=1, description="may hold special tokens; <IMAGE_TOKEN> is the place of a picture"
    )
    input_ids: TokenIds | None = Field(None, json_schema_extra={"minItems": 1})
    image_data: str | Texts | None = Field(None, description="URLs of the pictures, in order")
    image_positions: TokenIds | None = Field(
        None, description="with input_ids: the index there of the token that each picture takes the place of, ascending"
    )
    max_tokens: int | None = Field(None, ge=1, description="default 128")
    max_new_tokens: int | None = Field(None, ge=1, description="the same as max_tokens")
    return_logprob: bool = False
    top_logprobs_num: int | None = Field(None, ge=0, le=20, description="alternatives per token; needs return_logprob")
    logprob_start_len: int | None = Field(
        None, ge=-1, description="first position of the prompt to score; default -1, none; needs return_logprob"
    )

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        refuse_two_values(self, [("max_tokens", "max_new_tokens")])
        for name in ("top_logprobs_num", "logprob_start_len"):
            if not self.return_logprob and getattr(self, name) not in (None, -1):
                raise requires(name, "return_logprob", self.return_logprob)
        if (self.prompt is None) == (self.input_ids is None):
            raise bad_request("give exactly one of prompt and input_ids", "prompt")
        if self.input_ids is not None and not self.input_ids:
            raise bad_request("input_ids must not be empty", "input_ids")
        return self

    @model_validator(mode="after")
    def _check_pictures(self) -> Self:
        num_pictures = 1 if isinstance(self.image_data, str) else len(self.image_data or ())
        if (0 if self.input_ids is None else num_pictures) != len(self.image_positions or ()):
            raise bad_request(
                "image_positions must have an index in input_ids for each picture of image_data", "image_positions"
            )
        return self

    @property
    def scores_prompt(self) -> bool:
        """Whether tokens of the prompt have log-probabilities."""
        return self.logprob_start_len is not None and self.logprob_start_len >= 0


class FinishReason(BaseModel):
    type: Literal["stop", "length"]


class GenerateDetails(BaseModel):
    """`output_token_logprobs` has (log-probability, token id) per new token, `output_top_logprobs` the most likely
    ones; `input_…` the same for the prompt from `logprob_start_len` on, null for its first token and for pictures. The
    last piece of a stream has counts. `id` is that of the request, if it has one."""

    id: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    finish_reason: FinishReason | None = None
    output_token_logprobs: list[tuple[float, int]] | None = None
    output_top_logprobs: list[list[tuple[float, int]]] | None = None
    input_token_logprobs: list[tuple[float, int] | None] | None = None
    input_top_logprobs: list[list[tuple[float, int]] | None] | None = None


class GenerateAnswer(BaseModel):
    """An answer of `/generate`, or the new part of a streamed answer."""

    text: str
    output_ids: list[int]
    meta_info: GenerateDetails


# --- /tokenize, /detokenize ------------------------------------------------------------------------------------------


class TokenizeRequest(RequestModel):
    """`POST /tokenize`: a raw text, or a conversation in the chat template, pictures included."""

    rules: ClassVar[tuple[dict[str, Any], ...]] = (exactly_one("prompt", "messages"),)

    model: str | None = None
    prompt: str | None = None
    messages: SkipValidation[ChatMessages | None] = None
    add_special_tokens: bool | None = Field(
        None, description="for prompt: add the tokenizer's special tokens; default true"
    )
    add_generation_prompt: bool | None = Field(None, description="for messages; default true")
    chat_template_kwargs: dict[str, Any] | None = None
    return_token_strs: bool = False

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        if (self.prompt is None) == (self.messages is None):
            raise bad_request("give exactly one of prompt and messages", "prompt")
        for name in ("add_generation_prompt", "chat_template_kwargs"):
            if self.prompt is not None and getattr(self, name) is not None:
                raise bad_request(f"{name} requires messages", name)
        if reserved := RESERVED_TEMPLATE_NAMES & set(self.chat_template_kwargs or {}):
            name = f"chat_template_kwargs.{min(reserved)}"
            raise bad_request(f"{name} is set by the server", name)
        if self.messages is not None and self.add_special_tokens is not None:
            raise bad_request(
                "add_special_tokens requires prompt: the chat template adds the special tokens of a conversation",
                "add_special_tokens",
            )
        return self


class TokenizeAnswer(BaseModel):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


class DetokenizeRequest(RequestModel):
    """`POST /detokenize`."""

    model: str | None = None
    tokens: TokenIds
    skip_special_tokens: bool = False


class DetokenizeAnswer(BaseModel):
    prompt: str
