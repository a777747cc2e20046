"""`/v1/embeddings`: pooled last hidden states of texts, token ids, content parts with pictures, or conversations."""

from __future__ import annotations

import base64
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
import numpy.typing as npt
from fastapi import APIRouter, Request
from pydantic import Field, SkipValidation, model_validator
from starlette.responses import JSONResponse, Response

from seesay.config import GenerationConfig
from seesay.engine.front.embedding import check_dimensions, shape_embedding
from seesay.errors import RequestError, show
from seesay.serving.errors import ApiError, bad_request
from seesay.serving.http.bodies import make_api_router, off_loop
from seesay.serving.openai.answer_models import AnswerModel, SeesayDetails
from seesay.serving.openai.completions import count_prompts, name_prompts, read_prompts
from seesay.serving.openai.message_parts import ChatMessages, Content
from seesay.serving.openai.protocol import RESERVED_TEMPLATE_NAMES
from seesay.serving.openai.vectors import VectorRoom, find_pooling
from seesay.serving.openai.wire import make_details, wants_timings
from seesay.serving.requests.caller import caller_of
from seesay.serving.requests.content import read_messages, read_parts
from seesay.serving.requests.fields import Prompts, exactly_one
from seesay.serving.requests.request_model import Refused
from seesay.serving.requests.shared_fields import TextFields
from seesay.serving.requests.state import ServerState
from seesay.serving.requests.submission import Tally
from seesay.values import GenerationRequest, MediaPart, Pooling

_MAX_INPUTS = 2048  # OpenAI's limit
_MAX_NUMBERS = 1 << 23
"""Most numbers in an answer."""
_OF_TEMPLATES = ("add_generation_prompt", "chat_template_kwargs")
_NOT_NULL = {"not": {"type": "null"}}
_NEED_MESSAGES = tuple(
    {
        "if": {"required": [name], "properties": {name: _NOT_NULL}},
        "then": {"required": ["messages"], "properties": {"messages": _NOT_NULL}},
    }
    for name in _OF_TEMPLATES
)


_Parts = Annotated[list[Content], Field(min_length=1)]
Inputs = Prompts | _Parts | Annotated[list[_Parts], Field(min_length=1)]


class EmbeddingRequest(TextFields):
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
        None, description="texts, or token ids; extension: content parts, also of pictures, or lists of them"
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
        None, description="extension: length 1; default true with dimensions or tokens, else false"
    )
    add_generation_prompt: bool | None = Field(None, description="extension, for messages; default true")
    chat_template_kwargs: dict[str, Any] | None = Field(None, description="extension, for messages")
    user: str | None = Field(None, max_length=512)

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        if (self.input is None) == (self.messages is None):
            raise bad_request("give exactly one of input and messages", "input")
        for name in _OF_TEMPLATES:
            if self.messages is None and getattr(self, name) is not None:
                raise bad_request(f"{name} requires messages", name)
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
        data = []
        for index, answer in enumerate(answers):
            tally.add(index, answer.last)
            vector = shape_embedding(answer.last.pooled, dimensions=body.dimensions, normalize=body.normalize)
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
    options = body.media_options(state.engine.family)
    request = GenerationRequest(
        prompt="",
        gen_config=GenerationConfig(max_new_tokens=1),
        pooling=pooling,
        template_options=body.template_options,
        streams=False,
        **body.request_options(),
    )
    prompts: list[Any]
    given: Any = body.input
    if body.messages is not None:
        prompts = [read_messages(body.messages, state.settings.media)]
    elif _has_parts(given):
        prompts = _read_turns(state, given)
    else:
        if (num_inputs := count_prompts(body.input)) > _MAX_INPUTS:
            raise bad_request(f"input has {num_inputs} entries; at most {_MAX_INPUTS} are allowed", "input")
        return [replace(request, prompt=prompt) for prompt in read_prompts(state, body.input, "input")]
    return [replace(request, prompt=options.fill_messages(prompt)) for prompt in prompts]


def _check_dimensions(state: ServerState, dimensions: int, pooling: Pooling) -> None:
    try:
        check_dimensions(dimensions, state.engine.embedding_size(pooling))
    except RequestError as error:
        raise ApiError.from_error(error) from error


def _read_turns(state: ServerState, given: list[Any]) -> list[Any]:
    """Return the conversations, of one turn, of inputs that are lists of content parts."""
    most = state.settings.media.max_items
    prompts = [(read_parts(parts, state.settings.media, name),) for name, parts in _split_parts(given)]
    if sum(isinstance(part, MediaPart) for (turn,) in prompts for part in turn.parts) > most:
        raise bad_request(f"input has more than {most} pictures and videos", "input")
    return prompts


def name_inputs(given: Any) -> list[str]:
    """Return the API's name of each input."""
    return [name for name, _ in _split_parts(given)] if _has_parts(given) else name_prompts(given, "input")


def _has_parts(given: Any) -> bool:
    """Return whether an input is a list of content parts, or a list of such lists."""
    if not isinstance(given, list) or not given:
        return False
    first = given[0]
    return isinstance(first, dict) or (isinstance(first, list) and bool(first) and isinstance(first[0], dict))


def _split_parts(given: list[Any]) -> list[tuple[str, list[Any]]]:
    """Return the name and the content parts of each input. Raises `ApiError` 400 for one that has no parts."""
    if isinstance(given[0], dict):
        return [("input", given)]
    if len(given) > _MAX_INPUTS:
        raise bad_request(f"input has {len(given)} entries; at most {_MAX_INPUTS} are allowed", "input")
    for index, parts in enumerate(given):
        if not isinstance(parts, list) or not parts:
            name = f"input[{index}]"
            raise bad_request(
                f"{name} must be a list of content parts, like the ones before it, got {show(parts)}", name
            )
    return [(f"input[{index}]", parts) for index, parts in enumerate(given)]
