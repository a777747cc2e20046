"""The items of the input of OpenAI's Responses API as pydantic models."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from seesay.serving.openai.message_parts import InputAudioContent
from seesay.serving.requests.document_fields import PageFields
from seesay.serving.requests.fields import StrictModel


class InputText(StrictModel):
    type: Literal["input_text", "text"]
    text: str


class InputAnswer(StrictModel):
    """A text of an earlier assistant turn."""

    type: Literal["output_text"]
    text: str
    annotations: list[Any] | None = None
    logprobs: list[Any] | None = None
    parsed: Any = Field(None, description="accepted in an answer that is sent back; not used")


class InputImage(StrictModel):
    """A picture, by its URL."""

    type: Literal["input_image"]
    image_url: str
    detail: Literal["auto", "low", "high"] | None = None
    file_id: None = None


class InputFile(PageFields):
    """A PDF, or a TIFF of several pages: the model sees pictures of its pages, with their numbers. file_url: http(s).
    file_data: `data:application/pdf;base64,…`."""

    type: Literal["input_file"]
    file_url: str | None = None
    file_data: str | None = None
    filename: str | None = Field(None, max_length=1024)
    detail: Literal["auto", "low", "high"] | None = None
    file_id: None = None


InputContent = Annotated[
    InputText | InputAnswer | InputImage | InputFile | InputAudioContent, Field(discriminator="type")
]


class InputItem(StrictModel):
    """One turn."""

    type: Literal["message"] = "message"
    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[InputContent]
    id: str | None = None
    status: str | None = None
    phase: str | None = None


class InputCall(StrictModel):
    """A call of an earlier assistant turn. arguments: JSON, as the model wrote it."""

    type: Literal["function_call"]
    call_id: str = Field(min_length=1)
    name: str = Field(min_length=1)
    arguments: str
    id: str | None = None
    status: str | None = None
    namespace: None = None
    caller: None = None
    parsed_arguments: Any = Field(None, description="accepted in an answer that is sent back; not used")


class InputCallOutput(StrictModel):
    """The result of a call: a text, or texts and pictures."""

    type: Literal["function_call_output"]
    call_id: str = Field(min_length=1)
    output: str | list[InputContent]
    id: str | None = None
    status: str | None = None
    caller: None = None


class InputCustomCall(StrictModel):
    """A call of a custom tool, which takes a text: the model reads it as a call with the argument `input`."""

    type: Literal["custom_tool_call"]
    call_id: str = Field(min_length=1)
    name: str = Field(min_length=1)
    input: str
    id: str | None = None
    status: str | None = None
    namespace: None = None
    caller: None = None


class InputCustomCallOutput(StrictModel):
    """The result of a call of a custom tool."""

    type: Literal["custom_tool_call_output"]
    call_id: str = Field(min_length=1)
    output: str | list[InputContent]
    id: str | None = None
    status: str | None = None
    caller: None = None


class ReasoningText(StrictModel):
    type: Literal["reasoning_text"]
    text: str


class InputReasoning(StrictModel):
    """A thought of an earlier assistant turn. Its summary is not used."""

    type: Literal["reasoning"]
    id: str | None = None
    summary: list[Any] | None = None
    content: list[ReasoningText] | None = None
    encrypted_content: str | None = None
    status: str | None = None


class InputReference(StrictModel):
    """An item of the output of a stored response."""

    type: Literal["item_reference"]
    id: str


AnyInput = (
    InputReference | InputItem | InputCall | InputCallOutput | InputCustomCall | InputCustomCallOutput | InputReasoning
)
