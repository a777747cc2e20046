"""OpenAI's Responses API as pydantic models."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, SkipValidation, model_validator

from seesay.serving.errors import bad_request
from seesay.serving.fields import Metadata, StrictModel, needs
from seesay.serving.openai.protocol import AnswerModel, Refused, RequestModel, SeesayDetails, TokenLogprob

_LATER = "not supported yet"
LOGPROBS = "message.output_text.logprobs"
Includes = Annotated[list[str], Field(fail_fast=True, json_schema_extra={"items": {"const": LOGPROBS}})]


class InputText(StrictModel):
    type: Literal["input_text", "text"]
    text: str


class InputAnswer(StrictModel):
    """A text of an earlier assistant turn."""

    type: Literal["output_text"]
    text: str
    annotations: list[Any] | None = None
    logprobs: list[Any] | None = None


class InputImage(StrictModel):
    """A picture, by its URL."""

    type: Literal["input_image"]
    image_url: str
    detail: Literal["auto", "low", "high"] | None = None
    file_id: None = None


class InputItem(StrictModel):
    """One turn."""

    type: Literal["message"] = "message"
    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[Annotated[InputText | InputAnswer | InputImage, Field(discriminator="type")]]
    id: str | None = None
    status: str | None = None
    phase: str | None = None


class ResponseStreamOptions(StrictModel):
    include_obfuscation: Literal[False] = False


class ResponseRequest(RequestModel):
    """`POST /v1/responses`."""

    refused: ClassVar[Refused] = {
        "tools": (([],), _LATER),
        "tool_choice": (("none", "auto"), f"{_LATER}, except none and auto without tools"),
        "parallel_tool_calls": ((True, False), _LATER),
        "max_tool_calls": ((), _LATER),
        "text": (({"format": {"type": "text"}}, {}), f"{_LATER}, except format type text"),
        "background": ((False,), "not supported"),
        "conversation": ((), "not supported: use previous_response_id"),
        "context_management": (([],), "not supported"),
        "prompt": ((), "not supported"),
        "reasoning": (({},), "not supported"),
        "moderation": ((), "not supported"),
        "truncation": (("disabled",), "not supported, except disabled"),
        "service_tier": (("auto", "default"), "not supported, except auto and default"),
    }

    rules: ClassVar[tuple[dict[str, Any], ...]] = (needs("stream_options", "stream"),)

    model: str | None = None
    input: SkipValidation[str | Annotated[list[InputItem], Field(min_length=1)]] = Field(
        description="a text, or the turns of a conversation"
    )
    instructions: str | None = Field(None, description="the system message")
    previous_response_id: str | None = Field(None, description="continue after this response, if it is still stored")
    max_output_tokens: int | None = Field(None, ge=1)
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, gt=0, le=1)
    top_logprobs: int | None = Field(None, ge=0, le=20)
    include: Includes | None = Field(None, description=f"'{LOGPROBS}'")
    stream: bool | None = None
    stream_options: ResponseStreamOptions | None = None
    store: bool | None = Field(None, description="store the response for previous_response_id; default true")
    metadata: Metadata | None = None
    user: str | None = Field(None, max_length=512, description="accepted, not used")
    safety_identifier: str | None = Field(None, max_length=512, description="accepted, not used")
    prompt_cache_key: str | None = Field(
        None, max_length=512, description="accepted, not used: the prefix cache finds prompts by their content"
    )
    prompt_cache_retention: str | None = Field(
        None, description="accepted, not used: prefixes stay cached while there is room"
    )

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        for name in self.include or ():
            if name != LOGPROBS:
                raise bad_request(f"include: only {LOGPROBS!r} is supported, got {name[:60]!r}", "include")
        if self.stream_options is not None and not self.stream:
            raise bad_request("stream_options requires stream=true", "stream_options")
        return self

    @property
    def wants_logprobs(self) -> bool:
        return bool(self.include) or self.top_logprobs is not None


class OutputText(AnswerModel):
    type: Literal["output_text"] = "output_text"
    text: str
    annotations: list[Any]
    logprobs: list[TokenLogprob]


class OutputMessage(AnswerModel):
    type: Literal["message"] = "message"
    id: str
    status: Literal["in_progress", "completed", "incomplete"]
    role: Literal["assistant"] = "assistant"
    content: list[OutputText]


class InputTokensDetails(AnswerModel):
    cached_tokens: int
    cache_write_tokens: int = 0
    vision_tokens: int


class OutputTokensDetails(AnswerModel):
    reasoning_tokens: int = 0


class ResponseUsage(AnswerModel):
    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class IncompleteDetails(AnswerModel):
    reason: Literal["max_output_tokens"]


class ResponseObject(AnswerModel):
    """An answer of `/v1/responses`."""

    id: str
    object: Literal["response"] = "response"
    created_at: int
    completed_at: int | None = None
    status: Literal["in_progress", "completed", "incomplete"]
    background: Literal[False] = False
    error: None = None
    incomplete_details: IncompleteDetails | None = None
    instructions: str | None = None
    max_output_tokens: int | None = None
    metadata: dict[str, str]
    model: str
    output: list[OutputMessage]
    parallel_tool_calls: bool = False
    previous_response_id: str | None = None
    service_tier: str = "default"
    store: bool
    temperature: float
    text: dict[str, Any]
    tool_choice: Literal["none"] = "none"
    tools: list[Any]
    top_logprobs: int
    top_p: float
    truncation: Literal["disabled"] = "disabled"
    usage: ResponseUsage | None = None
    user: str | None = Field(None, exclude_if=lambda value: value is None)
    seesay: SeesayDetails | None = Field(None, exclude_if=lambda value: value is None)


class ResponseEvent(AnswerModel):
    """One event of a streamed response. Its fields depend on its type."""

    type: Literal[
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
        "response.incomplete",
        "error",
    ]
    sequence_number: int
    response: ResponseObject | None = None
    output_index: int | None = None
    item: OutputMessage | None = None
    item_id: str | None = None
    content_index: int | None = None
    part: OutputText | None = None
    delta: str | None = None
    text: str | None = None
    logprobs: list[TokenLogprob] | None = None
    code: str | None = None
    message: str | None = None
    param: str | None = None


class DeletedResponse(AnswerModel):
    id: str
    object: Literal["response"] = "response"
    deleted: Literal[True] = True
