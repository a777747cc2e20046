"""Anthropic's messages API as pydantic models. Every field has an effect or is refused with a 400 that names it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, Field, SkipValidation, field_validator, model_validator

from seesay.serving.anthropic.tool_fields import HAS_CHOICE, ToolChoice, ToolList
from seesay.serving.errors import bad_request
from seesay.serving.requests.document_fields import PageFields
from seesay.serving.requests.fields import StopTexts, StrictModel, check_stop_words
from seesay.serving.requests.grammar_fields import Format, check_format
from seesay.serving.requests.request_model import pick_hints
from seesay.serving.requests.shared_fields import EngineFields
from seesay.serving.requests.thinking_fields import ThinkingOff, ThinkingOn, ThinkingOptions
from seesay.serving.requests.tools import drop_server_tools

# --- content ---------------------------------------------------------------------------------------------------------


class TextBlock(StrictModel):
    type: Literal["text"]
    text: str = Field(min_length=1)
    cache_control: dict[str, Any] | None = Field(None, description="accepted, not used: prefix caching is always on")
    citations: list[Any] | None = Field(None, max_length=0)


class Base64Source(StrictModel):
    """data: a picture of type `media_type`, in base64."""

    type: Literal["base64"]
    media_type: Literal["image/jpeg", "image/png", "image/gif", "image/webp"]
    data: str = Field(min_length=1)


class URLSource(StrictModel):
    """url: http(s), or a data URL."""

    type: Literal["url"]
    url: str


class ImageBlock(StrictModel):
    type: Literal["image"]
    source: Annotated[Base64Source | URLSource, Field(discriminator="type")]
    cache_control: dict[str, Any] | None = None


class Base64Document(StrictModel):
    """data: a PDF, or a TIFF of several pages, in base64."""

    type: Literal["base64"]
    media_type: Literal["application/pdf", "image/tiff"]
    data: str = Field(min_length=1)


class TextDocument(StrictModel):
    type: Literal["text"]
    media_type: Literal["text/plain"]
    data: str = Field(min_length=1)


class ContentDocument(StrictModel):
    type: Literal["content"]
    content: str | list[Annotated[TextBlock | ImageBlock, Field(discriminator="type")]]


class CitationsOff(StrictModel):
    enabled: Literal[False] = False


class DocumentBlock(PageFields):
    """A document. The model sees pictures of the pages of a PDF, with their numbers. title: its name in the prompt.
    context: a text in front of it."""

    type: Literal["document"]
    source: Annotated[Base64Document | URLSource | TextDocument | ContentDocument, Field(discriminator="type")]
    title: str | None = None
    context: str | None = None
    citations: CitationsOff | None = Field(None, description="not supported, except disabled")
    cache_control: dict[str, Any] | None = None


class ToolUseBlock(StrictModel):
    """A tool call. A `tool_result` in the user's next turn answers it."""

    type: Literal["tool_use"]
    id: str = Field(min_length=1)
    name: str
    input: dict[str, Any]
    cache_control: dict[str, Any] | None = None


class ThinkingBlock(StrictModel):
    """A thought of an earlier answer. signature: accepted, not used."""

    type: Literal["thinking"]
    thinking: str
    signature: str


class RedactedThinkingBlock(StrictModel):
    """A thought of an earlier answer that only its own server can read: it is left out of the prompt."""

    type: Literal["redacted_thinking"]
    data: str


class ToolResultBlock(StrictModel):
    """The result of a tool call in the preceding assistant turn: texts, pictures and documents. is_error: the model
    reads "Error: " before the text."""

    type: Literal["tool_result"]
    tool_use_id: str = Field(min_length=1)
    content: str | list[Annotated[TextBlock | ImageBlock | DocumentBlock, Field(discriminator="type")]] | None = None
    is_error: bool | None = None
    cache_control: dict[str, Any] | None = None


UserBlock = Annotated[TextBlock | ImageBlock | DocumentBlock | ToolResultBlock, Field(discriminator="type")]
AssistantBlock = Annotated[
    TextBlock | ThinkingBlock | RedactedThinkingBlock | ToolUseBlock, Field(discriminator="type")
]


class UserMessage(StrictModel):
    """A turn of the user. Consecutive turns of one role count as one."""

    role: Literal["user"]
    content: Annotated[str, Field(min_length=1)] | Annotated[list[UserBlock], Field(min_length=1)]


class AssistantMessage(StrictModel):
    """A turn of the assistant. As the last message it is the beginning of the answer, and only then may it be empty."""

    role: Literal["assistant"]
    content: str | list[AssistantBlock]


InputMessage = Annotated[UserMessage | AssistantMessage, Field(discriminator="role")]


# --- requests --------------------------------------------------------------------------------------------------------


class OutputConfig(StrictModel):
    hints: ClassVar[Mapping[str, tuple[object, ...]]] = {"effort": ()}

    format: Format | None = None
    effort: None = Field(None, description="not supported: `thinking` says how much a model thinks")


class CountTokensRequest(EngineFields):
    """`POST /v1/messages/count_tokens`: the fields of a request that make up its prompt."""

    refused: ClassVar[Mapping[str, tuple[tuple[object, ...], str]]] = {
        "mcp_servers": (([],), "not supported"),
        "context_management": ((), "not supported"),
        "container": ((), "not supported"),
        "thread": ((), "not supported: send the whole conversation"),
        "cache_control": (({"type": "ephemeral"},), "not supported, except ephemeral (prefix caching is always on)"),
        "user_profile_id": ((), "not supported"),
        "workspace_id": ((), "not supported"),
        "speed": (("standard",), "not supported, except standard"),
    }

    hints: ClassVar[Mapping[str, tuple[object, ...]]] = pick_hints(
        refused, "context_management", "cache_control", "user_profile_id", "workspace_id", "speed"
    )
    rules: ClassVar[tuple[dict[str, Any], ...]] = (HAS_CHOICE,)
    sources: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "max_new_tokens": ("max_tokens",),
        "stop_words": ("stop_sequences",),
        "enable_thinking": ("thinking",),
        "max_thinking_tokens": ("thinking.budget_tokens",),
        "response_format": ("output_format", "output_config.format"),
    }

    model: str | None = Field(None, description="a name of /v1/models; may be left out")
    messages: SkipValidation[Annotated[list[InputMessage], Field(min_length=1)]] = Field(
        description="the conversation so far"
    )
    system: SkipValidation[str | list[TextBlock] | None] = Field(None, description="the system prompt")
    tools: ToolList | None = Field(None, description="functions that the model may call")
    tool_choice: ToolChoice | None = Field(None, description="default: auto with tools, none without")
    output_format: Format | None = Field(None, description="`{type: json_schema, schema}`")
    thinking: ThinkingOptions | None = Field(None, description="whether the model thinks, and how long at most")
    output_config: OutputConfig | None = Field(None, description="`{format}`: the newer place of output_format")

    @classmethod
    def drop_extra(cls, body: dict[str, Any]) -> Sequence[str]:
        return drop_server_tools(body, ("custom",))

    @model_validator(mode="after")
    def _check_format(self) -> Self:
        newer = None if self.output_config is None else self.output_config.format
        if self.output_format is not None and newer is not None:
            raise bad_request("output_format cannot be combined with output_config.format", "output_format")
        if self.answer_format is not None:
            check_format(self.answer_format, self.field_names("messages"))
        return self

    def request_options(self) -> dict[str, Any]:
        enabled = None if self.thinking is None else not isinstance(self.thinking, ThinkingOff)
        return {**super().request_options(), "enable_thinking": enabled}

    @property
    def thought_limit(self) -> int | None:
        """The most tokens of the thought."""
        return self.thinking.budget_tokens if isinstance(self.thinking, ThinkingOn) else None

    @property
    def answer_format(self) -> dict[str, Any] | None:
        """The `response_format` that the answer follows."""
        return self.output_format if self.output_config is None else self.output_config.format or self.output_format


class MessagesRequest(CountTokensRequest):
    """`POST /v1/messages`."""

    refused: ClassVar[Mapping[str, tuple[tuple[object, ...], str]]] = {
        **CountTokensRequest.refused,
        "service_tier": (("auto", "standard_only"), "not supported, except auto and standard_only"),
        "inference_geo": ((), "not supported"),
        "diagnostics": ((), "not supported"),
    }
    hints: ClassVar[Mapping[str, tuple[object, ...]]] = {
        **CountTokensRequest.hints,
        **pick_hints(refused, "service_tier", "inference_geo", "diagnostics"),
    }

    max_tokens: int = Field(ge=1, description="longest answer, in tokens")
    stop_sequences: StopTexts | None = Field(None, max_length=256)
    stream: bool | None = None
    temperature: float | None = Field(None, ge=0, le=2, description="0 is greedy")
    top_k: int | None = Field(None, ge=0)
    top_p: float | None = Field(None, gt=0, le=1)
    metadata: Metadata | None = Field(None, description="accepted, not used")

    @field_validator("stop_sequences")
    @classmethod
    def _check_stop(cls, words: list[str] | None) -> list[str] | None:
        check_stop_words(words or [])
        return words


class Metadata(StrictModel):
    user_id: str | None = Field(None, max_length=512)


# --- answers ---------------------------------------------------------------------------------------------------------


class AnswerText(BaseModel):
    type: Literal["text"] = "text"
    text: str


class AnswerThinking(BaseModel):
    """The model's thought. The signature is empty."""

    type: Literal["thinking"] = "thinking"
    thinking: str
    signature: str


class AnswerToolUse(BaseModel):
    """A call of a function. In an answer that was cut off, the input has the values that are complete."""

    type: Literal["tool_use"] = "tool_use"
    id: str
    name: str
    input: dict[str, Any]


AnswerBlock = Annotated[AnswerText | AnswerThinking | AnswerToolUse, Field(discriminator="type")]


class AnswerUsage(BaseModel):
    """`input_tokens` were computed; `cache_read_input_tokens` came from the prefix cache."""

    input_tokens: int
    cache_creation_input_tokens: int = 0
    cache_read_input_tokens: int = 0
    output_tokens: int


StopReason = Literal["end_turn", "tool_use", "max_tokens", "stop_sequence", "model_context_window_exceeded"]


class MessageAnswer(BaseModel):
    """An answer of `/v1/messages`."""

    id: str
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"
    model: str
    content: list[AnswerBlock]
    stop_reason: StopReason | None
    stop_sequence: str | None
    usage: AnswerUsage


class TokensCount(BaseModel):
    """The answer of `/v1/messages/count_tokens`."""

    input_tokens: int


class MessagesErrorDetail(BaseModel):
    type: str
    message: str


class MessagesErrorResponse(BaseModel):
    """An error of Anthropic's routes."""

    type: Literal["error"] = "error"
    error: MessagesErrorDetail


# --- events ----------------------------------------------------------------------------------------------------------


class MessageStart(BaseModel):
    """The first event. The prompt's tokens are not counted yet; `message_delta` has their number."""

    type: Literal["message_start"] = "message_start"
    message: MessageAnswer


class ContentBlockStart(BaseModel):
    type: Literal["content_block_start"] = "content_block_start"
    index: int
    content_block: AnswerBlock


class TextDelta(BaseModel):
    type: Literal["text_delta"] = "text_delta"
    text: str


class ThinkingDelta(BaseModel):
    type: Literal["thinking_delta"] = "thinking_delta"
    thinking: str


class InputDelta(BaseModel):
    """A piece of the JSON text of a call's input."""

    type: Literal["input_json_delta"] = "input_json_delta"
    partial_json: str


class ContentBlockDelta(BaseModel):
    type: Literal["content_block_delta"] = "content_block_delta"
    index: int
    delta: Annotated[TextDelta | ThinkingDelta | InputDelta, Field(discriminator="type")]


class ContentBlockStop(BaseModel):
    type: Literal["content_block_stop"] = "content_block_stop"
    index: int


class StopDelta(BaseModel):
    stop_reason: StopReason
    stop_sequence: str | None


class MessageDelta(BaseModel):
    type: Literal["message_delta"] = "message_delta"
    delta: StopDelta
    usage: AnswerUsage


class MessageStop(BaseModel):
    type: Literal["message_stop"] = "message_stop"


class MessageStreamEvent(BaseModel):
    """One event of a streamed answer of `/v1/messages`. Its SSE `event:` equals its `type`."""

    event: Annotated[
        MessageStart | ContentBlockStart | ContentBlockDelta | ContentBlockStop | MessageDelta | MessageStop,
        Field(discriminator="type"),
    ]


MessagesRequest.model_rebuild()
