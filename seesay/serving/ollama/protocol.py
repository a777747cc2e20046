"""Requests of Ollama's API as pydantic models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, SkipValidation

from seesay.serving.errors import bad_request
from seesay.serving.openai.tool_fields import ChatTools
from seesay.serving.requests.fields import StopTexts, StrictModel, Text
from seesay.serving.requests.grammar_fields import check_format
from seesay.serving.requests.request_model import Refused, RequestModel
from seesay.serving.requests.thinking_fields import Effort
from seesay.serving.requests.tools import drop_server_tools

Pictures = Annotated[list[str], Field(fail_fast=True, description="pictures in base64")]


class Options(RequestModel):
    """Options of an answer. `num_predict`: most tokens; -1 and -2: as many as fit."""

    refused: ClassVar[Refused] = {
        "mirostat": ((0,), "not supported, except 0"),
        "typical_p": ((1, 1.0), "not supported, except 1"),
        "tfs_z": ((1, 1.0), "not supported, except 1"),
    }

    temperature: float | None = Field(None, ge=0, le=2)
    num_predict: int | None = Field(None, ge=-2)
    top_k: int | None = Field(None, ge=-1)
    top_p: float | None = Field(None, gt=0, le=1)
    min_p: float | None = Field(None, ge=0, le=1)
    seed: int | None = Field(None, ge=-(1 << 63), lt=1 << 63)
    stop: Text | StopTexts | None = None
    repeat_penalty: float | None = Field(None, ge=0.01, le=100)
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    frequency_penalty: float | None = Field(None, ge=-2, le=2)

    def sampling(self) -> dict[str, Any]:
        """Return the fields of `GenerationConfig`; None where the options have no value."""
        limit = self.num_predict
        return {
            "max_new_tokens": None if limit is None or limit < 0 else max(1, limit),
            "temperature": self.temperature,
            "top_k": self.top_k,
            "top_p": self.top_p,
            "min_p": self.min_p,
            "random_seed": None if self.seed is None or self.seed < 0 else self.seed,
            "stop_words": [self.stop] if isinstance(self.stop, str) else self.stop or None,
            "repetition_penalty": self.repeat_penalty,
            "presence_penalty": self.presence_penalty,
            "frequency_penalty": self.frequency_penalty,
        }


class OllamaRequest(RequestModel):
    """Fields of `/api/chat` and `/api/generate`."""

    sources: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "max_new_tokens": ("options.num_predict",),
        "stop_words": ("options.stop",),
        "repetition_penalty": ("options.repeat_penalty",),
        "random_seed": ("options.seed",),
        "response_format": ("format",),
        "enable_thinking": ("think",),
        "reasoning_effort": ("think",),
    }

    model: str = Field(description="a name of /api/tags, with or without `:latest`")
    stream: bool | None = Field(None, description="default true: lines of JSON")
    format: Literal["", "json"] | dict[str, Any] | None = Field(None, description="'json', or a JSON Schema")
    options: Options | None = None
    think: bool | Effort | None = Field(None, description="whether the model thinks, or how much")
    keep_alive: str | float | None = Field(None, description="accepted, not used: the model stays loaded")

    @property
    def answer_format(self) -> dict[str, Any] | None:
        """The `response_format` that the answer follows. Raises `ApiError` 400."""
        if not self.format:
            return None
        if isinstance(self.format, str):
            return {"type": "json_object"}
        return check_format({"type": "json_schema", "schema": self.format}, self.field_names("messages"))

    def request_options(self) -> dict[str, Any]:
        """Return the fields of `GenerationRequest`."""
        if isinstance(self.think, str):
            return {"reasoning_effort": self.think}
        return {"enable_thinking": self.think}


class CalledFunction(StrictModel):
    name: str
    arguments: dict[str, Any]


class Call(StrictModel):
    id: str | None = None
    function: CalledFunction


class ChatTurn(StrictModel):
    """One turn. A result names the function that it comes from, or the call."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str | None = None
    thinking: str | None = None
    images: Pictures | None = None
    tool_calls: list[Call] | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None


class ChatRequest(OllamaRequest):
    """`POST /api/chat`."""

    messages: list[ChatTurn] = Field(description="the conversation; none: only loads the model, which it is")
    tools: ChatTools | None = Field(None, description="functions that the model may call")

    @classmethod
    def drop_extra(cls, body: dict[str, Any]) -> Sequence[str]:
        return drop_server_tools(body, ("function",))


class GenerateRequest(OllamaRequest):
    """`POST /api/generate`. raw: the prompt as it is, without a chat template."""

    refused: ClassVar[Refused] = {
        "suffix": (("",), "not supported: the model does not insert text"),
        "template": (("",), "not supported: the server sets the chat template"),
        "context": (([],), "not supported: use /api/chat"),
    }

    prompt: str = ""
    system: str | None = None
    images: SkipValidation[Pictures | None] = None
    raw: bool | None = None

    def check_raw(self) -> None:
        """Raise `ApiError` 400 for what a raw prompt has no place for."""
        for name in ("system", "images"):
            if self.raw and getattr(self, name):
                raise bad_request(f"{name} cannot be combined with raw", name)


class ShowRequest(RequestModel):
    """`POST /api/show`."""

    model: str | None = None
    name: str | None = Field(None, description="the older name of model")
    verbose: bool | None = Field(None, description="accepted, not used")
