"""Answers of OpenAI's chat and completions API as pydantic models, with our extensions."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class AnswerModel(BaseModel):
    """A part of an answer. Optional fields are left out unless they were requested."""

    model_config = ConfigDict(protected_namespaces=())


class PromptTokensDetails(AnswerModel):
    """cached_tokens: from the prefix cache. vision_tokens: hold embeddings of pictures and videos (extension).
    audio_tokens: those of audio, where there is any."""

    cached_tokens: int = 0
    vision_tokens: int = 0
    audio_tokens: int | None = Field(None, exclude_if=lambda value: value is None)


class CompletionTokensDetails(AnswerModel):
    """reasoning_tokens: of thoughts. accepted_prediction_tokens, rejected_prediction_tokens: proposed by speculation,
    and kept or not."""

    reasoning_tokens: int = 0
    accepted_prediction_tokens: int = 0
    rejected_prediction_tokens: int = 0


class CompletionUsage(AnswerModel):
    """Details are known at the end of a stream."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    completion_tokens_details: CompletionTokensDetails | None = None
    prompt_tokens_details: PromptTokensDetails | None = None


class TopLogprob(AnswerModel):
    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(TopLogprob):
    top_logprobs: list[TopLogprob]


class ChoiceLogprobs(AnswerModel):
    content: list[TokenLogprob]
    refusal: None = None


class CalledFunction(AnswerModel):
    """arguments: the text of a JSON object, cut off where the answer was."""

    name: str
    arguments: str


class ToolCall(AnswerModel):
    id: str
    type: Literal["function"] = "function"
    function: CalledFunction


class CalledCustomTool(AnswerModel):
    """input: the text that the tool takes, cut off where the answer was."""

    name: str
    input: str


class CustomToolCall(AnswerModel):
    id: str
    type: Literal["custom"] = "custom"
    custom: CalledCustomTool


class AnswerMessage(AnswerModel):
    """content: null where the answer has calls and no text. reasoning_content (extension): the model's thought."""

    role: Literal["assistant"] = "assistant"
    content: str | None
    refusal: None = None
    reasoning_content: str | None = Field(None, exclude_if=lambda value: value is None)
    tool_calls: list[ToolCall | CustomToolCall] | None = Field(None, exclude_if=lambda value: value is None)


FinishReason = Literal["stop", "length", "tool_calls"]


class _Ended(AnswerModel):
    """stop_reason (extension): what ended the answer, if its last tokens came too often."""

    stop_reason: Literal["repetition"] | None = Field(None, exclude_if=lambda value: value is None)


class BoxField(AnswerModel):
    """box: [left, top, right, bottom], in pixels of the upright picture. picture: its index in the prompt."""

    box: list[float]
    label: str
    picture: int


class PointField(AnswerModel):
    point: list[float]
    label: str
    picture: int


class PolygonField(AnswerModel):
    corners: list[list[float]]
    label: str
    picture: int


class TimestampField(AnswerModel):
    start_s: float
    end_s: float
    label: str
    video: int


class _Marked(_Ended):
    """boxes, points, polygons, timestamps (extensions): with `return_boxes`, or `response_format` of the type boxes."""

    boxes: list[BoxField] | None = Field(None, exclude_if=lambda value: value is None)
    points: list[PointField] | None = Field(None, exclude_if=lambda value: value is None)
    polygons: list[PolygonField] | None = Field(None, exclude_if=lambda value: value is None)
    timestamps: list[TimestampField] | None = Field(None, exclude_if=lambda value: value is None)


class ChatChoice(_Marked):
    index: int
    message: AnswerMessage
    logprobs: ChoiceLogprobs | None = None
    finish_reason: FinishReason
    token_ids: list[int] | None = Field(None, exclude_if=lambda value: value is None)


class SeenMedia(AnswerModel):
    """How the model saw a picture, video or audio: its original size and its size in the model, in pixels, or audio_s,
    the duration of audio; the number of pieces for the tower and of tokens; whether it was cached, so that the tower
    did not run; and the time in the video of each frame that was taken; page: its number in a document;
    coordinates: what boxes and points in JSON count."""

    modality: Literal["image", "video", "audio"]
    num_frames: int
    height: int
    width: int
    resized_height: int
    resized_width: int
    num_tiles: int
    num_patches: int
    num_tokens: int
    is_cached: bool
    timestamps_s: list[float]
    page: int | None = None
    coordinates: Literal["pixel", "thousandth"] = "thousandth"
    audio_s: float = 0.0


class SeesayDetails(AnswerModel):
    """timings: seconds per stage of the slowest answer. media: in the order of the prompt."""

    timings: dict[str, float]
    media: list[SeenMedia]


class PromptLogprob(AnswerModel):
    """Of a token at a position of the prompt. rank: 1 for the most likely."""

    logprob: float
    rank: int
    decoded_token: str


PromptLogprobEntries = list[dict[str, PromptLogprob] | None]


class ChatCompletion(AnswerModel):
    """An answer of `/v1/chat/completions`."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: CompletionUsage
    system_fingerprint: str
    prompt_logprobs: PromptLogprobEntries | None = Field(None, exclude_if=lambda value: value is None)
    seesay: SeesayDetails | None = Field(
        None, exclude_if=lambda value: value is None, description="with the header `x-seesay-timings: 1`"
    )


class FunctionDelta(AnswerModel):
    """name: in the first delta of a call. arguments: a piece of their JSON text."""

    name: str | None = None
    arguments: str


class CustomDelta(AnswerModel):
    """name: in the first delta of a call. input: a piece of the text."""

    name: str | None = None
    input: str


class ToolCallDelta(AnswerModel):
    """index: of the call in its message. id, type: in the first delta of a call."""

    index: int
    id: str | None = None
    type: Literal["function", "custom"] | None = None
    function: FunctionDelta | None = Field(None, exclude_if=lambda value: value is None)
    custom: CustomDelta | None = Field(None, exclude_if=lambda value: value is None)


class ChunkDelta(AnswerModel):
    role: Literal["assistant"] | None = None
    content: str | None = None
    refusal: None = None
    reasoning_content: str | None = None
    tool_calls: list[ToolCallDelta] | None = None


class ChunkChoice(_Marked):
    index: int
    delta: ChunkDelta
    logprobs: ChoiceLogprobs | None = None
    finish_reason: FinishReason | None = None
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
    prompt_logprobs: PromptLogprobEntries | None = None
    seesay: SeesayDetails | None = None


class CompletionLogprobs(AnswerModel):
    """One entry per token; `text_offset` counts characters from the beginning of `text`."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionChoice(_Ended):
    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: Literal["stop", "length"] | None = None
    token_ids: list[int] | None = Field(None, exclude_if=lambda value: value is None)
    prompt_logprobs: PromptLogprobEntries | None = Field(None, exclude_if=lambda value: value is None)


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
    """max_model_len (extension): largest number of tokens in a prompt and its answer together. parent (extension): the
    model that an adapter changes."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "seesay"
    max_model_len: int
    parent: str | None = None


class ModelList(AnswerModel):
    object: Literal["list"] = "list"
    data: list[ModelCard]
