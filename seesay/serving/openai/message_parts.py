"""Messages of OpenAI's chat API as pydantic models: for the published schema, and for `--unknown-fields ignore`.

`content.read_messages` reads and validates messages; its errors name the field at fault.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from seesay.serving.fields import StrictModel

_NOTHING = "accepted in an answer that is sent back; not used"


class TextContent(StrictModel):
    type: Literal["text"]
    text: str


class _MediaOptions(StrictModel):
    """The model's family decides which of these options it accepts."""

    detail: Literal["auto", "low", "high"] | None = None
    min_pixels: int | None = None
    max_pixels: int | None = None
    resized_height: int | None = None
    resized_width: int | None = None
    max_dynamic_patch: int | None = None
    transparency: Literal["white", "drop"] | None = None


class ImageURL(_MediaOptions):
    """url: http(s), or `data:image/…;base64,…`. The pixel and tile options are those of the model's family.
    `transparency`: "white" puts transparent parts on white, "drop" ignores the alpha channel."""

    url: str


class ImageContent(StrictModel):
    type: Literal["image_url"]
    image_url: ImageURL


class VideoURL(_MediaOptions):
    """url: http(s), or `data:video/…;base64,…`. `fps` or `num_frames` choose the frames."""

    url: str
    fps: float | None = None
    num_frames: int | None = None
    min_frames: int | None = None
    max_frames: int | None = None


class VideoContent(StrictModel):
    type: Literal["video_url"]
    video_url: VideoURL


Content = Annotated[TextContent | ImageContent | VideoContent, Field(discriminator="type")]


class ChatMessage(StrictModel):
    """One turn. Pictures and videos may appear between texts in any order, in any turn."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[Content] | None = None
    name: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    refusal: Literal[""] | None = Field(None, description=_NOTHING)
    annotations: list[Any] | None = Field(None, max_length=0, description=_NOTHING)
    audio: None = Field(None, description=_NOTHING)
    function_call: None = Field(None, description=_NOTHING)


ChatMessages = Annotated[list[ChatMessage], Field(min_length=1)]
