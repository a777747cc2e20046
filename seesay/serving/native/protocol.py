"""Requests and answers of `/v1/chat/interactive`, `/generate`, `/tokenize` and `/detokenize` as pydantic models.

Names are LMDeploy's where it has the route, else vLLM's. Every field works or is refused with 400 that names it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Self

from pydantic import BaseModel, Field, SkipValidation, model_validator

from seesay.serving.errors import bad_request
from seesay.serving.fields import Texts, TokenIds, exactly_one
from seesay.serving.openai.message_parts import ChatMessages
from seesay.serving.openai.protocol import RESERVED_TEMPLATE_NAMES, RequestModel, SamplingFields

_ONE = ((1,), "not supported here: there is one answer")
_NOT_HERE = ((), "not a field of this route")
_NO_ADAPTERS = ((), "not supported: no adapters can be loaded")


# --- /v1/chat/interactive --------------------------------------------------------------------------------------------


class InteractiveRequest(SamplingFields):
    """`POST /v1/chat/interactive`. Sessions belong to the API key they were begun with.

    With `interactive_mode` the server remembers what was said under a `session_id`; without, it forgets that, and
    answers the prompt alone. `cancel` stops the answer that the session is getting.
    """

    refused: ClassVar[Mapping[str, tuple[tuple[object, ...], str]]] = {
        "n": _ONE,
        "stream_options": _NOT_HERE,
        "return_token_ids": _NOT_HERE,
        "adapter_name": _NO_ADAPTERS,
    }

    prompt: SkipValidation[str | ChatMessages] = Field(description="what the user says, or OpenAI messages")
    image_url: str | Texts | None = Field(None, description="pictures that come with a prompt that is a text")
    session_id: int = Field(-1, ge=-1, lt=1 << 63, description="-1 is no session")
    interactive_mode: bool = False
    request_output_len: int | None = Field(None, ge=0, description="longest answer; default: what fits")
    spaces_between_special_tokens: bool | None = None
    cancel: bool = False

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        if self.cancel and self.session_id < 0:
            raise bad_request("cancel needs the session_id of the answer to stop", "session_id")
        if self.interactive_mode and self.session_id < 0:
            raise bad_request("interactive_mode needs a session_id, 0 or above", "session_id")
        if self.image_url is not None and not isinstance(self.prompt, str):
            raise bad_request("image_url is for prompts that are texts; messages hold their own pictures", "image_url")
        return self

    @property
    def image_urls(self) -> list[str]:
        return [self.image_url] if isinstance(self.image_url, str) else self.image_url or []


class InteractiveAnswer(BaseModel):
    """An answer, or in a stream a piece of it. `tokens` are those generated so far, `input_tokens` what this turn
    adds to the prompt, `history_tokens` those of the turns before, generated ones without a text included;
    `input_tokens` is null until the last piece."""

    text: str
    tokens: int
    input_tokens: int | None
    history_tokens: int
    finish_reason: Literal["stop", "length", "cancel"] | None


# --- /generate -------------------------------------------------------------------------------------------------------


class GenerateRequest(SamplingFields):
    """`POST /generate`: a raw text or token ids, to which no chat template is applied."""

    refused: ClassVar[Mapping[str, tuple[tuple[object, ...], str]]] = {
        "n": _ONE,
        "stream_options": _NOT_HERE,
        "return_token_ids": ((True,), "always on here"),
        "adapter_name": _NO_ADAPTERS,
    }

    rules: ClassVar[tuple[dict[str, Any], ...]] = (exactly_one("prompt", "input_ids"),)

    prompt: str | None = Field(None, description="special tokens in it count; <IMAGE_TOKEN> marks where a picture goes")
    input_ids: TokenIds | None = Field(None, json_schema_extra={"minItems": 1})
    image_data: str | Texts | None = Field(None, description="URLs of the pictures of `prompt`, in order")
    max_tokens: int = Field(128, ge=1)
    return_logprob: bool = False
    spaces_between_special_tokens: bool | None = None

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        if (self.prompt is None) == (self.input_ids is None):
            raise bad_request("give prompt or input_ids, one of them", "prompt")
        if self.input_ids is not None and (not self.input_ids or self.image_data is not None):
            name = "image_data" if self.input_ids else "input_ids"
            raise bad_request(f"{name}: input_ids must not be empty, and take no pictures", name)
        return self

    @property
    def image_urls(self) -> list[str]:
        return [self.image_data] if isinstance(self.image_data, str) else self.image_data or []


class FinishReason(BaseModel):
    type: Literal["stop", "length"]


class GenerateDetails(BaseModel):
    """`output_token_logprobs` has (log-probability, token id) per new token. Counts come with the last piece."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    finish_reason: FinishReason | None = None
    output_token_logprobs: list[tuple[float, int]] | None = None


class GenerateAnswer(BaseModel):
    """An answer of `/generate`, or in a stream what is new of it."""

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
        None, description="of a text: what the tokenizer puts around it; default true"
    )
    add_generation_prompt: bool | None = Field(None, description="of a conversation; default true")
    chat_template_kwargs: dict[str, Any] | None = None
    return_token_strs: bool = False

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        if (self.prompt is None) == (self.messages is None):
            raise bad_request("give prompt or messages, one of them", "prompt")
        for name in ("add_generation_prompt", "chat_template_kwargs"):
            if self.prompt is not None and getattr(self, name) is not None:
                raise bad_request(f"{name} is for messages", name)
        if reserved := RESERVED_TEMPLATE_NAMES & set(self.chat_template_kwargs or {}):
            name = f"chat_template_kwargs.{min(reserved)}"
            raise bad_request(f"{name} is set by the server", name)
        if self.messages is not None and self.add_special_tokens is not None:
            raise bad_request(
                "add_special_tokens is for prompt: a conversation always begins as the model expects",
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
