"""Messages of OpenAI's chat API as pydantic models: for the published schema, and for `--unknown-fields ignore`.

`content.read_messages` reads and validates messages; its errors name the field at fault.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from seesay.serving.requests.document_fields import PageFields
from seesay.serving.requests.fields import StrictModel

_NOTHING = "accepted in an answer that is sent back; not used"
_HAS_CONTENT: dict[str, Any] = {"required": ["content"], "properties": {"content": {"not": {"type": "null"}}}}
_HAS_TWO_COUNTS: dict[str, Any] = {
    "anyOf": [
        {"required": [*names], "properties": {name: {"not": {"type": "null"}} for name in names}}
        for names in (("fps", "num_frames"), ("fps", "nframes"), ("num_frames", "nframes"))
    ]
}
_HAS_CALLS: dict[str, Any] = {
    "required": ["tool_calls"],
    "properties": {"tool_calls": {"type": "array", "minItems": 1}},
}


class TextContent(StrictModel):
    type: Literal["text"]
    text: str


class _MediaOptions(StrictModel):
    """The model's family decides which of these options it accepts."""

    detail: Literal["auto", "low", "high"] | None = None
    min_pixels: int | None = Field(None, ge=1, le=1 << 31)
    max_pixels: int | None = Field(None, ge=1, le=1 << 31)
    resized_height: int | None = Field(None, ge=1, le=1 << 31)
    resized_width: int | None = Field(None, ge=1, le=1 << 31)
    max_dynamic_patch: int | None = Field(None, ge=1, le=1024)
    size: int | None = Field(None, ge=1, le=1 << 31)
    do_pan_and_scan: bool | None = None
    pan_and_scan_min_crop_size: int | None = Field(None, ge=1, le=1 << 31)
    pan_and_scan_max_num_crops: int | None = Field(None, ge=1, le=1024)
    pan_and_scan_min_ratio_to_activate: float | None = Field(None, ge=1, le=1000)
    transparency: Literal["white", "drop"] | None = None


class ImageURL(_MediaOptions):
    """url: http(s), or `data:image/…;base64,…`. The pixel and tile options are those of the model's family.
    `transparency`: "white" puts transparent parts on white, "drop" ignores the alpha channel."""

    url: str


class ImageContent(StrictModel):
    type: Literal["image_url"]
    image_url: ImageURL


class VideoURL(_MediaOptions):
    """url: http(s), `data:video/…;base64,…`, or `data:video/jpeg;base64,…,…` with a JPEG per frame. `fps` or
    `num_frames` choose the frames (`nframes`: an even number of them) from `video_start` to `video_end`, in seconds.
    `sample_fps` is the rate of JPEGs. The frames share `total_pixels`, in families that have this option."""

    model_config = ConfigDict(json_schema_extra={"not": _HAS_TWO_COUNTS})

    url: str
    fps: float | None = Field(None, gt=0)
    num_frames: int | None = Field(None, ge=1)
    nframes: int | None = Field(None, ge=1)
    sample_fps: float | None = Field(None, gt=0)
    video_start: float | None = Field(None, ge=0)
    video_end: float | None = Field(None, ge=0)
    total_pixels: int | None = Field(None, ge=1, le=1 << 31)
    min_frames: int | None = Field(None, ge=1)
    max_frames: int | None = Field(None, ge=1)


class VideoContent(StrictModel):
    type: Literal["video_url"]
    video_url: VideoURL


class AudioURL(StrictModel):
    """url: http(s) or `data:audio/…;base64,…` of WAV, MP3, FLAC, Ogg, AAC, MP4 or WebM."""

    url: str


class AudioContent(StrictModel):
    type: Literal["audio_url"]
    audio_url: AudioURL


class InputAudio(StrictModel):
    """data: base64. The content says truly what it is, whatever `format` says."""

    data: str = Field(min_length=1)
    format: Literal["wav", "mp3", "flac", "ogg", "opus", "aac", "m4a", "webm"]


class InputAudioContent(StrictModel):
    type: Literal["input_audio"]
    input_audio: InputAudio


class FileData(PageFields, _MediaOptions):
    """file_data: a PDF, or a TIFF of several pages, as `data:application/pdf;base64,…` or an http(s) URL: the model
    sees pictures of its pages, with their numbers. filename: its name in the prompt. The pixel and tile options are
    those of each picture."""

    file_data: str
    filename: str | None = Field(None, max_length=1024)
    file_id: None = None


class FileContent(StrictModel):
    type: Literal["file"]
    file: FileData


Content = Annotated[
    TextContent | ImageContent | VideoContent | AudioContent | InputAudioContent | FileContent,
    Field(discriminator="type"),
]


class CalledFunction(StrictModel):
    """arguments: JSON, as the model wrote it."""

    name: str
    arguments: str
    parsed_arguments: Any = Field(None, description=_NOTHING)


class ToolCall(StrictModel):
    """A call that an assistant's turn holds."""

    id: str = Field(min_length=1)
    type: Literal["function"]
    function: CalledFunction
    index: Any = Field(None, description=_NOTHING)


class CalledCustomTool(StrictModel):
    """input: the text, as the model wrote it."""

    name: str
    input: str


class CustomToolCall(StrictModel):
    """A call of a custom tool that an assistant's turn holds. The model reads it as one with the argument `input`."""

    id: str = Field(min_length=1)
    type: Literal["custom"]
    custom: CalledCustomTool
    index: Any = Field(None, description=_NOTHING)


class _Turn(StrictModel):
    name: str | None = None
    reasoning_content: str | None = None
    refusal: Literal[""] | None = Field(None, description=_NOTHING)
    annotations: list[Any] | None = Field(None, max_length=0, description=_NOTHING)
    audio: None = Field(None, description=_NOTHING)
    function_call: None = Field(None, description=_NOTHING)


class ChatMessage(_Turn):
    """One turn. Pictures, videos and audio may appear between texts in any order, in any turn."""

    role: Literal["system", "developer", "user"]
    content: str | list[Content]
    tool_calls: list[Any] | None = Field(None, max_length=0, description=_NOTHING)
    tool_call_id: None = Field(None, description=_NOTHING)


class ChatAnswer(_Turn):
    """A turn of the assistant. It has `content`, or `tool_calls`, or both."""

    model_config = ConfigDict(json_schema_extra={"allOf": [{"anyOf": [_HAS_CONTENT, _HAS_CALLS]}]})

    role: Literal["assistant"]
    content: str | list[Content] | None = None
    tool_calls: list[Annotated[ToolCall | CustomToolCall, Field(discriminator="type")]] | None = None
    tool_call_id: None = Field(None, description=_NOTHING)
    parsed: Any = Field(None, description=_NOTHING)


class ChatToolResult(_Turn):
    """The result of a tool call that an earlier turn of the assistant holds."""

    role: Literal["tool"]
    content: str | list[Content]
    tool_calls: list[Any] | None = Field(None, max_length=0, description=_NOTHING)
    tool_call_id: str = Field(min_length=1)


ChatMessages = Annotated[
    list[Annotated[ChatMessage | ChatAnswer | ChatToolResult, Field(discriminator="role")]], Field(min_length=1)
]
