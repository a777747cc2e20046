"""`/v1/embeddings`: the mean of a prompt's last hidden states; prompts are texts, token ids, or conversations."""

from __future__ import annotations

import base64
from typing import Any, ClassVar, Literal, Self

import numpy as np
from fastapi import APIRouter, Request
from pydantic import Field, SkipValidation, model_validator
from starlette.responses import JSONResponse, Response

from seesay.config import GenerationConfig
from seesay.serving.answers import Tally
from seesay.serving.bodies import make_api_router, off_loop
from seesay.serving.caller import caller_of
from seesay.serving.content import read_messages
from seesay.serving.errors import bad_request
from seesay.serving.fields import Prompts, exactly_one
from seesay.serving.openai.completions import count_prompts, name_prompts, read_prompts
from seesay.serving.openai.message_parts import ChatMessages
from seesay.serving.openai.protocol import AnswerModel, Refused, RequestModel, SeesayDetails
from seesay.serving.openai.wire import make_details, wants_timings
from seesay.serving.state import ServerState
from seesay.values import GenerationRequest

_MAX_INPUTS = 2048  # OpenAI's limit


class EmbeddingRequest(RequestModel):
    """`POST /v1/embeddings`. Takes exactly one of `input` and `messages`."""

    refused: ClassVar[Refused] = {"dimensions": ((), "not supported: the embedding has the model's own size")}

    model: str | None = None
    rules: ClassVar[tuple[dict[str, Any], ...]] = (exactly_one("input", "messages"),)

    input: SkipValidation[Prompts | None] = Field(None, description="texts, or token ids")
    messages: SkipValidation[ChatMessages | None] = Field(
        None, description="extension: a conversation, which may contain pictures and videos; it gets one embedding"
    )
    encoding_format: Literal["float", "base64"] | None = None
    user: str | None = Field(None, max_length=512)

    @model_validator(mode="after")
    def _check_one(self) -> Self:
        if (self.input is None) == (self.messages is None):
            raise bad_request("give exactly one of input and messages", "input")
        return self


class Embedding(AnswerModel):
    """embedding: numbers, or base64 of float32, little-endian."""

    object: Literal["embedding"] = "embedding"
    index: int
    embedding: list[float] | str


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
        """Embed texts or conversations."""
        requests = await off_loop(http, _make_requests, state, body)
        answers = await state.answering.collect(
            requests,
            receive=http.receive,
            caller=caller_of(http.scope),
            fields=["messages"] if body.messages is not None else name_prompts(body.input, "input"),
        )
        tally = Tally()
        data = []
        for index, answer in enumerate(answers):
            tally.add(index, answer.last)
            vector = np.asarray(answer.last.pooled, dtype="<f4")
            encoded: Any = vector.tolist()
            if body.encoding_format == "base64":
                encoded = base64.b64encode(vector.tobytes()).decode()
            data.append({"object": "embedding", "index": index, "embedding": encoded})
        usage = {"prompt_tokens": tally.prompt_tokens, "total_tokens": tally.prompt_tokens}
        details = {"seesay": make_details(tally)} if wants_timings(http) else {}
        return JSONResponse({"object": "list", "data": data, "model": state.model_name, "usage": usage, **details})

    return router


def _make_requests(state: ServerState, body: EmbeddingRequest) -> list[GenerationRequest]:
    state.check_model(body.model)
    prompts: list[Any]
    if body.messages is not None:
        prompts = [read_messages(body.messages, state.settings.media)]
    else:
        if (num_inputs := count_prompts(body.input)) > _MAX_INPUTS:
            raise bad_request(f"input has {num_inputs} entries; at most {_MAX_INPUTS} are allowed", "input")
        prompts = list(read_prompts(state, body.input, "input"))
    config = GenerationConfig(max_new_tokens=1)
    return [GenerationRequest(prompt=prompt, gen_config=config, pooling="mean", streams=False) for prompt in prompts]
