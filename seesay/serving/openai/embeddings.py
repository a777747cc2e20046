"""`/v1/embeddings`: pooled last hidden states of texts, token ids, content parts with pictures, or conversations."""

from __future__ import annotations

import base64
from dataclasses import replace
from typing import Any, ClassVar, Literal, Self

import numpy as np
import numpy.typing as npt
from fastapi import APIRouter, Request
from pydantic import Field, SkipValidation, model_validator
from starlette.responses import JSONResponse, Response

from seesay.config import GenerationConfig
from seesay.engine.front.embedding import check_dimensions, choose_scaling, shape_embedding
from seesay.errors import RequestError
from seesay.serving.errors import ApiError, bad_request
from seesay.serving.http.bodies import make_api_router, off_loop
from seesay.serving.openai.answer_models import AnswerModel, SeesayDetails
from seesay.serving.openai.completions import count_prompts, read_prompts
from seesay.serving.openai.embedding_inputs import MAX_INPUTS, Inputs, name_inputs, read_turns
from seesay.serving.openai.message_parts import ChatMessages
from seesay.serving.openai.protocol import RESERVED_TEMPLATE_NAMES
from seesay.serving.openai.vectors import TaskFields, VectorRoom, find_pooling, use_own_prompt
from seesay.serving.openai.wire import make_details, wants_timings
from seesay.serving.requests.caller import caller_of
from seesay.serving.requests.content import read_messages
from seesay.serving.requests.fields import exactly_one
from seesay.serving.requests.request_model import Refused
from seesay.serving.requests.state import ServerState
from seesay.serving.requests.submission import Tally
from seesay.values import GenerationRequest, Pooling

_MAX_NUMBERS = 1 << 23
"""Most numbers in an answer."""
_OF_TEMPLATES = ("add_generation_prompt", "chat_template_kwargs", "continue_final_message")
_NOT_NULL = {"not": {"type": "null"}}
_NEED_MESSAGES = tuple(
    {
        "if": {"required": [name], "properties": {name: _NOT_NULL}},
        "then": {"required": ["messages"], "properties": {"messages": _NOT_NULL}},
    }
    for name in _OF_TEMPLATES
)


class EmbeddingRequest(TaskFields):
    """`POST /v1/embeddings`. Takes exactly one of `input` and `messages`."""

    refused: ClassVar[Refused] = {
        "embed_dtype": (("float32",), "not supported, except float32"),
        "endianness": (("native", "little"), "not supported, except little"),
        "softmax": ((False,), "not supported"),
        "encoding": ((), "not supported: use encoding_format"),
    }

    model: str | None = None
    rules: ClassVar[tuple[dict[str, Any], ...]] = (exactly_one("input", "messages"), *_NEED_MESSAGES)

    input: SkipValidation[Inputs | None] = Field(
        None,
        description="texts, or token ids; extension: content parts, also of pictures, or lists of them; objects with "
        "text, image and video, one for each embedding",
    )
    messages: SkipValidation[ChatMessages | None] = Field(
        None, description="extension: a conversation, which may contain pictures and videos; it gets one embedding"
    )
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = Field(None, ge=1, description="the first numbers of the embedding, scaled to length 1")
    pooling: Pooling | None = Field(
        None,
        description="extension: tokens gives a list of vectors; default: the server's, or as it was trained",
    )
    normalize: bool | None = Field(
        None, description="extension: length 1; default true with dimensions or tokens, or as the model was trained"
    )
    add_generation_prompt: bool | None = Field(None, description="extension, for messages; default true")
    continue_final_message: bool | None = Field(None, description="extension, for messages: leave the last one open")
    chat_template_kwargs: dict[str, Any] | None = Field(None, description="extension, for messages")
    user: str | None = Field(None, max_length=512)

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        if (self.input is None) == (self.messages is None):
            raise bad_request("give exactly one of input and messages", "input")
        for name in _OF_TEMPLATES:
            if self.messages is None and getattr(self, name) is not None:
                raise bad_request(f"{name} requires messages", name)
        if self.continue_final_message and self.add_generation_prompt:
            raise bad_request(
                "continue_final_message and add_generation_prompt cannot both be true", "continue_final_message"
            )
        if reserved := RESERVED_TEMPLATE_NAMES & set(self.chat_template_kwargs or {}):
            name = f"chat_template_kwargs.{min(reserved)}"
            raise bad_request(f"{name} is set by the server", name)
        return self

    @property
    def template_options(self) -> dict[str, Any]:
        """The chat template's variables besides the messages."""
        options = dict(self.chat_template_kwargs or {})
        if self.add_generation_prompt is not None:
            options["add_generation_prompt"] = self.add_generation_prompt
        if self.continue_final_message:
            options["continue_final"] = True
        return options


class Embedding(AnswerModel):
    """embedding: numbers, or base64 of float32, little-endian; with the pooling tokens, a list of them."""

    object: Literal["embedding"] = "embedding"
    index: int
    embedding: list[float] | str | list[list[float]] | list[str]


class EmbeddingUsage(AnswerModel):
    prompt_tokens: int
    total_tokens: int


class EmbeddingList(AnswerModel):
    """An answer of `/v1/embeddings`."""

    object: Literal["list"] = "list"
    data: list[Embedding]
    model: str
    usage: EmbeddingUsage
    seesay: SeesayDetails | None = Field(None, exclude_if=lambda value: value is None)


def make_router(state: ServerState) -> APIRouter:
    """Return the route."""
    router = make_api_router("OpenAI")

    @router.post("/v1/embeddings", response_model=EmbeddingList)
    async def create_embedding(body: EmbeddingRequest, http: Request) -> Response:
        """Embed texts, pictures or conversations."""
        requests = await off_loop(http, _make_requests, state, body)
        fields = ["messages"] if body.messages is not None else name_inputs(body.input)
        answers = await state.answering.collect(
            requests,
            receive=http.receive,
            caller=caller_of(http.scope),
            names=body.field_names(*fields),
            watch=VectorRoom(_MAX_NUMBERS, fields[0]).add,
        )
        tally = Tally()
        scaling = choose_scaling(body.normalize, state.engine.normalizes_embeddings)
        data = []
        for index, answer in enumerate(answers):
            tally.add(index, answer.last)
            vector = shape_embedding(answer.last.pooled, dimensions=body.dimensions, normalize=scaling)
            encoded = _encode(vector) if body.encoding_format == "base64" else vector.tolist()
            data.append({"object": "embedding", "index": index, "embedding": encoded})
        usage = {"prompt_tokens": tally.prompt_tokens, "total_tokens": tally.prompt_tokens}
        details = {"seesay": make_details(tally)} if wants_timings(http) else {}
        return JSONResponse(
            {"object": "list", "data": data, "model": state.name_model(body.model), "usage": usage, **details}
        )

    return router


def _encode(vectors: npt.NDArray[np.float32]) -> object:
    """Return base64 of an embedding, or of each of its vectors."""
    if vectors.ndim == 2:
        return [_encode(vector) for vector in vectors]
    return base64.b64encode(vectors.astype("<f4").tobytes()).decode()


def _make_requests(state: ServerState, body: EmbeddingRequest) -> list[GenerationRequest]:
    state.check_model(body.model)
    pooling = find_pooling(state, body.pooling)
    if body.dimensions is not None:
        _check_dimensions(state, body.dimensions, pooling)
    request = GenerationRequest(
        prompt="",
        gen_config=GenerationConfig(max_new_tokens=1),
        pooling=pooling,
        template_options=body.template_options,
        streams=False,
        **body.request_options(),
    )
    found = [replace(request, prompt=prompt) for prompt in _read_prompts(state, body)]
    return [use_own_prompt(state, each, body.instruction, is_query=body.is_query) for each in found]


def _read_prompts(state: ServerState, body: EmbeddingRequest) -> list[Any]:
    """Return the conversations, texts or token ids of a request."""
    options = body.media_options(state.engine.family)
    if body.messages is not None:
        return [options.fill_messages(read_messages(body.messages, state.settings.media))]
    if (turns := read_turns(body.input, state.settings.media)) is not None:
        return [options.fill_messages((turn,)) for turn in turns]
    if (num_inputs := count_prompts(body.input)) > MAX_INPUTS:
        raise bad_request(f"input has {num_inputs} entries; at most {MAX_INPUTS} are allowed", "input")
    return read_prompts(state, body.input, "input")


def _check_dimensions(state: ServerState, dimensions: int, pooling: Pooling) -> None:
    try:
        check_dimensions(dimensions, state.engine.embedding_size(pooling))
    except RequestError as error:
        raise ApiError.from_error(error) from error
