"""OpenAI's chat and completions API as pydantic models, with our extensions.

Every field has an effect or is refused with a 400 that names it. Unknown fields are refused too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    SkipValidation,
    field_validator,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from seesay.serving.errors import bad_request
from seesay.serving.fields import (
    Biases,
    Metadata,
    Prompts,
    StopIds,
    StopTexts,
    StrictModel,
    Text,
    check_stop_words,
    needs,
)
from seesay.serving.openai.message_parts import ChatMessages

_LATER = "not supported yet"
Refused = Mapping[str, tuple[tuple[object, ...], str]]


class RequestModel(StrictModel):
    """A request body.

    refused: known but unsupported fields. Maps each to the values that are accepted because they change nothing, and
        to the reason why other values are refused.
    rules: JSON schemas of constraints between fields.
    """

    refused: ClassVar[Refused] = {}
    rules: ClassVar[tuple[JsonSchemaValue, ...]] = ()

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Add the fields in `refused`, with their accepted values, and the rules to the published schema."""
        schema = handler.resolve_ref_schema(handler(core_schema))
        if cls.rules:
            schema["allOf"] = list(cls.rules)
        for name, (neutral, why) in cls.refused.items():
            schema["properties"][name] = {"enum": [None, *neutral], "description": why}
        return schema

    @model_validator(mode="before")
    @classmethod
    def _refuse_unsupported(cls, data: Any) -> Any:
        if not isinstance(data, dict) or data.keys().isdisjoint(cls.refused):
            return data
        for name, (neutral, why) in cls.refused.items():
            if name in data and data[name] is not None and not any(_same(data[name], value) for value in neutral):
                raise bad_request(f"{name} is {why}", name, code="unsupported_parameter")
        return {key: value for key, value in data.items() if key not in cls.refused}


def _same(given: object, neutral: object) -> bool:
    return type(given) is type(neutral) and given == neutral


class AnswerModel(BaseModel):
    """A part of an answer. Optional fields are left out unless they were requested."""

    model_config = ConfigDict(protected_namespaces=())


# --- requests ------------------------------------------------------------------------------------------------------


class StreamOptions(StrictModel):
    include_usage: bool = False
    include_obfuscation: Literal[False] = False


class SamplingFields(RequestModel):
    """The fields that chat and text completions have in common."""

    rules: ClassVar[tuple[JsonSchemaValue, ...]] = (needs("stream_options", "stream"),)

    model: str | None = Field(None, description="a name of /v1/models; may be left out")
    temperature: float | None = Field(None, ge=0, le=2, description="0 is greedy")
    top_p: float | None = Field(None, gt=0, le=1)
    n: int | None = Field(None, ge=1, description="answers per prompt")
    stop: Text | StopTexts | None = None
    seed: int | None = Field(None, ge=-(1 << 63), lt=1 << 63)
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    logit_bias: Biases | None = Field(None, description="token id → value added to its logit, -100 to 100")
    user: str | None = Field(None, max_length=512, description="accepted, not used")
    top_k: int | None = Field(None, ge=-1, description="extension; 0 or -1 is off")
    min_p: float | None = Field(None, ge=0, le=1, description="extension")
    repetition_penalty: float | None = Field(None, ge=0.01, le=100, description="extension")
    ignore_eos: bool | None = Field(None, description="extension: continue after an end-of-sequence token")
    skip_special_tokens: bool | None = Field(None, description="extension; default true")
    min_new_tokens: int | None = Field(None, ge=0, description="extension")
    include_stop_str_in_output: bool | None = Field(None, description="extension")
    stop_token_ids: StopIds | None = Field(None, description="extension")
    return_token_ids: bool | None = Field(None, description="extension: `token_ids` in each choice")

    @field_validator("stop")
    @classmethod
    def _check_stop(cls, stop: str | list[str] | None) -> str | list[str] | None:
        check_stop_words([stop] if isinstance(stop, str) else stop or [])
        return stop

    @field_validator("stop_token_ids")
    @classmethod
    def _check_stop_ids(cls, ids: list[int] | None) -> list[int] | None:
        if ids and len(ids) > 256:
            raise ValueError(f"at most 256 token ids are allowed, got {len(ids)}")
        return ids

    @field_validator("logit_bias")
    @classmethod
    def _check_bias(cls, bias: dict[str, float] | None) -> dict[str, float] | None:
        for key, value in (bias or {}).items():
            if not (key.isascii() and key.isdigit() and len(key) < 10):
                raise ValueError(f"keys must be token ids, got {key[:20]!r}")
            if not -100 <= value <= 100:
                raise ValueError(f"values must be in [-100, 100], got {value:g} for {key}")
        return bias

    @model_validator(mode="after")
    def _check_stream_options(self) -> Self:
        if self.stream_options is not None and not self.stream:
            raise bad_request("stream_options requires stream=true", "stream_options")
        return self

    @property
    def stop_words(self) -> list[str]:
        return [self.stop] if isinstance(self.stop, str) else self.stop or []

    def sampling(self) -> dict[str, Any]:
        """Return the fields of `GenerationConfig`; None where the request has no value."""
        bias = {int(token_id): value for token_id, value in (self.logit_bias or {}).items()}
        return {
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": self.top_k,
            "min_p": self.min_p,
            "repetition_penalty": self.repetition_penalty,
            "presence_penalty": self.presence_penalty or None,
            "frequency_penalty": self.frequency_penalty or None,
            "logit_bias": bias or None,
            "random_seed": None if self.seed is None else self.seed % (1 << 63),
            "stop_words": self.stop_words or None,
            "stop_token_ids": self.stop_token_ids or None,
            "ignore_eos": self.ignore_eos,
            "skip_special_tokens": self.skip_special_tokens,
            "min_new_tokens": self.min_new_tokens,
            "include_stop_str_in_output": self.include_stop_str_in_output,
        }


class ChatCompletionRequest(SamplingFields):
    """`POST /v1/chat/completions`."""

    refused: ClassVar[Refused] = {
        "tools": (([],), _LATER),
        "tool_choice": (("none", "auto"), f"{_LATER}, except none and auto without tools"),
        "parallel_tool_calls": ((True, False), _LATER),
        "functions": (([],), "not supported"),
        "function_call": (("none", "auto"), "not supported"),
        "response_format": (({"type": "text"},), f"{_LATER}, except type text"),
        "modalities": ((["text"],), "not supported, except ['text']"),
        "audio": ((), "not supported"),
        "prediction": ((), "not supported"),
        "web_search_options": ((), "not supported"),
        "reasoning_effort": ((), "not supported"),
        "verbosity": ((), "not supported"),
        "store": ((False,), "not supported, except false"),
        "service_tier": (("auto", "default"), "not supported, except auto and default"),
    }

    rules: ClassVar[tuple[JsonSchemaValue, ...]] = (*SamplingFields.rules, needs("top_logprobs", "logprobs"))

    messages: SkipValidation[ChatMessages] = Field(description="the conversation so far")
    max_tokens: int | None = Field(None, ge=1, description="default: as many as fit into the context")
    max_completion_tokens: int | None = Field(None, ge=1, description="the newer name of max_tokens")
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=20)
    metadata: Metadata | None = Field(None, description="accepted, not used: completions are not stored")
    safety_identifier: str | None = Field(None, max_length=512, description="accepted, not used")
    prompt_cache_key: str | None = Field(
        None, max_length=512, description="accepted, not used: the prefix cache finds prompts by their content"
    )
    prompt_cache_retention: str | None = Field(
        None, description="accepted, not used: prefixes stay cached while there is room"
    )
    chat_template_kwargs: dict[str, Any] | None = Field(None, description="extension: variables of the chat template")
    add_generation_prompt: bool | None = Field(None, description="extension; default true")
    continue_final_message: bool | None = Field(None, description="extension: the last message begins the answer")

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        if self.top_logprobs is not None and not self.logprobs:
            raise bad_request("top_logprobs requires logprobs=true", "top_logprobs")
        limits = {self.max_tokens, self.max_completion_tokens} - {None}
        if len(limits) > 1:
            raise bad_request("max_tokens and max_completion_tokens differ: give only one", "max_tokens")
        if self.continue_final_message and self.add_generation_prompt:
            raise bad_request(
                "continue_final_message and add_generation_prompt cannot both be true", "continue_final_message"
            )
        for name in self.chat_template_kwargs or {}:
            if name in RESERVED_TEMPLATE_NAMES:
                raise bad_request(f"chat_template_kwargs.{name} is set by the server", f"chat_template_kwargs.{name}")
        return self

    @property
    def max_new_tokens(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens

    @property
    def template_options(self) -> dict[str, Any]:
        """The chat template's variables besides the messages."""
        options = dict(self.chat_template_kwargs or {})
        if self.add_generation_prompt is not None:
            options["add_generation_prompt"] = self.add_generation_prompt
        if self.continue_final_message:
            options["continue_final"] = True
        return options


RESERVED_TEMPLATE_NAMES = frozenset({"self", "messages", "markers", "tools", "add_generation_prompt", "continue_final"})


class CompletionRequest(SamplingFields):
    """`POST /v1/completions`: raw texts or token ids. No chat template is applied."""

    refused: ClassVar[Refused] = {
        "suffix": (("",), "not supported: the model does not insert text"),
        "service_tier": (("auto", "default"), "not supported, except auto and default"),
    }

    rules: ClassVar[tuple[JsonSchemaValue, ...]] = (*SamplingFields.rules, needs("max_tokens", "echo", {"const": 0}))

    prompt: SkipValidation[Prompts] = Field(description="one prompt, or a list of them")
    max_tokens: int | None = Field(None, ge=0, description="default 16; 0 requires echo")
    logprobs: int | None = Field(None, ge=0, le=20, description="number of alternatives per token")
    echo: bool | None = Field(None, description="begin the answer with the prompt")
    best_of: int | None = Field(None, ge=1, description="must be n")

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        if self.best_of is not None and self.best_of != (self.n or 1):
            raise bad_request("best_of other than n is not supported", "best_of", code="unsupported_parameter")
        if self.max_tokens == 0 and not self.echo:
            raise bad_request("max_tokens=0 requires echo=true", "max_tokens")
        if self.echo and self.logprobs:
            raise bad_request(
                "echo with logprobs above 0 is not supported: prompt tokens have no alternatives; use logprobs=0",
                "logprobs",
            )
        return self


# --- answers -------------------------------------------------------------------------------------------------------


class PromptTokensDetails(AnswerModel):
    """cached_tokens: from the prefix cache. vision_tokens: hold embeddings of pictures and videos (extension)."""

    cached_tokens: int = 0
    vision_tokens: int = 0


class CompletionUsage(AnswerModel):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class TopLogprob(AnswerModel):
    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(TopLogprob):
    top_logprobs: list[TopLogprob]


class ChoiceLogprobs(AnswerModel):
    content: list[TokenLogprob]
    refusal: None = None


class AnswerMessage(AnswerModel):
    role: Literal["assistant"] = "assistant"
    content: str
    refusal: None = None


class ChatChoice(AnswerModel):
    index: int
    message: AnswerMessage
    logprobs: ChoiceLogprobs | None = None
    finish_reason: Literal["stop", "length"]
    token_ids: list[int] | None = Field(None, exclude_if=lambda value: value is None)


class SeenMedia(AnswerModel):
    """How the model saw a picture or video: its original size and its size in the model, in pixels; the number of
    pieces for the vision tower and of tokens; and whether it was cached, so that the tower did not run."""

    modality: Literal["image", "video"]
    num_frames: int
    height: int
    width: int
    resized_height: int
    resized_width: int
    num_tiles: int
    num_patches: int
    num_tokens: int
    is_cached: bool


class SeesayDetails(AnswerModel):
    """timings: seconds per stage of the slowest answer. media: in the order of the prompt."""

    timings: dict[str, float]
    media: list[SeenMedia]


class ChatCompletion(AnswerModel):
    """An answer of `/v1/chat/completions`."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: CompletionUsage
    system_fingerprint: str
    seesay: SeesayDetails | None = Field(
        None, exclude_if=lambda value: value is None, description="with the header `x-seesay-timings: 1`"
    )


class ChunkDelta(AnswerModel):
    role: Literal["assistant"] | None = None
    content: str | None = None
    refusal: None = None


class ChunkChoice(AnswerModel):
    index: int
    delta: ChunkDelta
    logprobs: ChoiceLogprobs | None = None
    finish_reason: Literal["stop", "length"] | None = None
    token_ids: list[int] | None = None


class ChatCompletionChunk(AnswerModel):
    """One event of a streamed answer of `/v1/chat/completions`."""

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChunkChoice]
    usage: CompletionUsage | None = None
    system_fingerprint: str
    seesay: SeesayDetails | None = None


class CompletionLogprobs(AnswerModel):
    """One entry per token; `text_offset` counts characters from the beginning of `text`."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionChoice(AnswerModel):
    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: Literal["stop", "length"] | None = None
    token_ids: list[int] | None = Field(None, exclude_if=lambda value: value is None)


class Completion(AnswerModel):
    """An answer of `/v1/completions`, or one event of it."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: CompletionUsage | None = None
    system_fingerprint: str
    seesay: SeesayDetails | None = Field(None, exclude_if=lambda value: value is None)


class ErrorDetail(AnswerModel):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorResponse(AnswerModel):
    error: ErrorDetail


class ModelCard(AnswerModel):
    """max_model_len (extension): largest number of tokens in a prompt and its answer together."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "seesay"
    max_model_len: int


class ModelList(AnswerModel):
    object: Literal["list"] = "list"
    data: list[ModelCard]
