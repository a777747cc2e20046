"""OpenAI's Responses API as pydantic models."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import ConfigDict, Field, SkipValidation, model_validator

from seesay.serving.errors import bad_request, requires
from seesay.serving.openai.answer_models import AnswerModel, SeesayDetails, TokenLogprob
from seesay.serving.openai.responses.response_inputs import AnyInput
from seesay.serving.openai.tool_fields import HAS_CHOICE, TOOL_TYPES, ResponseToolChoice, ResponseTools
from seesay.serving.requests.fields import Metadata, StrictModel, needs
from seesay.serving.requests.grammar_fields import Format, check_format
from seesay.serving.requests.request_model import Refused, pick_hints
from seesay.serving.requests.shared_fields import EngineFields
from seesay.serving.requests.thinking_fields import ReasoningOptions, ThoughtLimitFields
from seesay.serving.requests.tools import drop_server_tools

LOGPROBS = "message.output_text.logprobs"
Includes = Annotated[list[str], Field(fail_fast=True, json_schema_extra={"items": {"const": LOGPROBS}})]


class ResponseStreamOptions(StrictModel):
    hints: ClassVar[Mapping[str, tuple[object, ...]]] = {"include_obfuscation": (False,)}

    include_obfuscation: Literal[False] = False


class TextOptions(StrictModel):
    hints: ClassVar[Mapping[str, tuple[object, ...]]] = {"verbosity": ()}

    format: Format | None = Field(None, description="text, json_object, json_schema, or as response_format")
    verbosity: None = None


class ConversationName(StrictModel):
    id: str


class ResponseRequest(ThoughtLimitFields, EngineFields):
    """`POST /v1/responses`."""

    refused: ClassVar[Refused] = {
        "max_tool_calls": ((), "not supported: it counts calls of built-in tools, which there are none of"),
        "context_management": (([],), "not supported"),
        "prompt": ((), "not supported"),
        "moderation": ((), "not supported"),
        "truncation": (("disabled",), "not supported, except disabled"),
        "service_tier": (("auto", "default"), "not supported, except auto and default"),
        "messages": ((), "not supported: use input"),
        "max_tokens": ((), "not supported: use max_output_tokens"),
        "max_completion_tokens": ((), "not supported: use max_output_tokens"),
        "response_format": ((), "not supported: use text.format"),
    }

    hints: ClassVar[Mapping[str, tuple[object, ...]]] = pick_hints(
        refused, "max_tool_calls", "context_management", "truncation", "service_tier"
    )

    rules: ClassVar[tuple[dict[str, Any], ...]] = (needs("stream_options", "stream"), HAS_CHOICE)
    sources: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "max_new_tokens": ("max_output_tokens",),
        "logprobs": ("top_logprobs",),
        "reasoning_effort": ("reasoning.effort",),
        "response_format": ("text.format",),
    }

    model: str | None = None
    input: SkipValidation[str | Annotated[list[AnyInput], Field(min_length=1)]] = Field(
        description="a text, or the turns of a conversation"
    )
    instructions: str | None = Field(None, description="the system message")
    previous_response_id: str | None = Field(None, description="continue after this response, if it is still stored")
    conversation: str | ConversationName | None = Field(
        None, description="continue and extend this conversation of /v1/conversations. Not with previous_response_id"
    )
    max_output_tokens: int | None = Field(None, ge=1)
    tools: ResponseTools | None = Field(None, description="functions that the model may call")
    tool_choice: ResponseToolChoice | None = Field(None, description="default: auto with tools, none without")
    parallel_tool_calls: bool | None = Field(None, description="false: one call at most; default true")
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, gt=0, le=1)
    top_logprobs: int | None = Field(None, ge=0, le=20)
    include: Includes | None = Field(None, description=f"'{LOGPROBS}'")
    text: TextOptions | None = Field(None, description="the form of the answer")
    reasoning: ReasoningOptions | None = Field(None, description="`effort`: how much a model thinks")
    background: bool | None = Field(
        None, description="return at once; the response is stored, and looked at by its id. Not with `stream`"
    )
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

    @classmethod
    def drop_extra(cls, body: dict[str, Any]) -> Sequence[str]:
        include = body.get("include")
        others: list[str] = []
        if isinstance(include, list) and all(isinstance(name, str) for name in include):
            body["include"] = [name for name in include if name == LOGPROBS] or None
            others = [f"include.{name}" for name in include if name != LOGPROBS]
        return [*others, *drop_server_tools(body, TOOL_TYPES)]

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        _check_include(self.include or ())
        if self.stream_options is not None and not self.stream:
            raise requires("stream_options", "stream", self.stream)
        if self.conversation is not None and self.previous_response_id is not None:
            raise bad_request("conversation cannot be combined with previous_response_id: give one", "conversation")
        if self.background and self.store is False:
            raise bad_request("background needs store, which is false", "background")
        if self.answer_format is not None:
            check_format(self.answer_format, self.field_names("input"))
        return self

    def request_options(self) -> dict[str, Any]:
        return {**super().request_options(), **({} if self.reasoning is None else self.reasoning.request_options())}

    @property
    def answer_format(self) -> dict[str, Any] | None:
        """The `response_format` that the answer follows."""
        return None if self.text is None else self.text.format

    @property
    def conversation_id(self) -> str | None:
        return self.conversation.id if isinstance(self.conversation, ConversationName) else self.conversation

    @property
    def wants_logprobs(self) -> bool:
        return bool(self.include) or self.top_logprobs is not None


def _check_include(names: Iterable[str]) -> None:
    for name in names:
        if name != LOGPROBS:
            raise bad_request(f"include: only {LOGPROBS!r} is supported, got {name[:60]!r}", "include")


class InputTokensRequest(ResponseRequest):
    """`POST /v1/responses/input_tokens`: a request for a response, which may also ask nothing more than what it
    continues."""

    input: SkipValidation[str | Annotated[list[AnyInput], Field(min_length=1)] | None] = Field(  # type: ignore[assignment]
        None, description="a text, or the turns of a conversation; may be left out beside what it continues"
    )

    @model_validator(mode="after")
    def _check_input(self) -> Self:
        if self.input is None and self.previous_response_id is None and self.conversation is None:
            why = "the field input is missing: give it, or previous_response_id or conversation"
            raise bad_request(why, "input", code="missing_required_parameter")
        return self


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


class OutputCall(AnswerModel):
    """A call of a function. arguments: JSON text, cut off where the status is incomplete."""

    type: Literal["function_call"] = "function_call"
    id: str
    call_id: str
    name: str
    arguments: str
    status: Literal["in_progress", "completed", "incomplete"]


class OutputCustomCall(AnswerModel):
    """A call of a custom tool. input: the text, cut off where the status is incomplete."""

    type: Literal["custom_tool_call"] = "custom_tool_call"
    id: str
    call_id: str
    name: str
    input: str
    status: Literal["in_progress", "completed", "incomplete"]


class OutputReasoningText(AnswerModel):
    type: Literal["reasoning_text"] = "reasoning_text"
    text: str


class OutputReasoning(AnswerModel):
    """The model's thought."""

    type: Literal["reasoning"] = "reasoning"
    id: str
    summary: list[Any]
    content: list[OutputReasoningText]
    status: Literal["in_progress", "completed", "incomplete"]


OutputItem = OutputMessage | OutputCall | OutputCustomCall | OutputReasoning


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


class ResponseFailure(AnswerModel):
    """Why a response that was answered in the background failed."""

    code: Literal["server_error", "invalid_prompt"]
    message: str


class ResponseObject(AnswerModel):
    """An answer of `/v1/responses`."""

    id: str
    object: Literal["response"] = "response"
    created_at: int
    completed_at: int | None = None
    status: Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]
    background: bool = False
    error: ResponseFailure | None = None
    incomplete_details: IncompleteDetails | None = None
    instructions: str | None = None
    max_output_tokens: int | None = None
    metadata: dict[str, str]
    model: str
    output: list[OutputItem]
    parallel_tool_calls: bool = False
    previous_response_id: str | None = None
    conversation: dict[str, str] | None = Field(None, exclude_if=lambda value: value is None)
    service_tier: str = "default"
    store: bool
    temperature: float
    text: dict[str, Any]
    tool_choice: str | dict[str, Any] = "none"
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
        "response.queued",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.reasoning_text.delta",
        "response.reasoning_text.done",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
        "response.custom_tool_call_input.delta",
        "response.custom_tool_call_input.done",
        "response.output_item.done",
        "response.completed",
        "response.incomplete",
        "error",
    ]
    sequence_number: int
    response: ResponseObject | None = None
    output_index: int | None = None
    item: OutputItem | None = None
    item_id: str | None = None
    content_index: int | None = None
    part: OutputText | OutputReasoningText | None = None
    name: str | None = None
    arguments: str | None = None
    input: str | None = None
    delta: str | None = None
    text: str | None = None
    logprobs: list[TokenLogprob] | None = None
    code: str | None = None
    message: str | None = None
    param: str | None = None


class InputTokens(AnswerModel):
    """The number of tokens in the prompt of a request."""

    object: Literal["response.input_tokens"] = "response.input_tokens"
    input_tokens: int


class StoredItem(AnswerModel):
    """An item of a conversation, with the fields of its type."""

    model_config = ConfigDict(extra="allow")

    id: str
    type: str


class ItemList(AnswerModel):
    """A part of the items of a conversation."""

    object: Literal["list"] = "list"
    data: list[StoredItem]
    first_id: str | None
    last_id: str | None
    has_more: bool


class DeletedResponse(AnswerModel):
    id: str
    object: Literal["response"] = "response"
    deleted: Literal[True] = True
