"""`/v1/rerank` and `/v1/score`: how near texts and pictures are to each other, by the cosine of their embeddings, by
MaxSim of those that have a vector for each token, or as a cross-encoder says that reads both."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
from fastapi import APIRouter, Request
from pydantic import Field, SkipValidation
from starlette.responses import JSONResponse, Response

from seesay.config import GenerationConfig
from seesay.engine.front.embedding import compare, shape_embedding
from seesay.errors import show
from seesay.serving.errors import bad_request
from seesay.serving.http.bodies import make_api_router, off_loop
from seesay.serving.openai.answer_models import AnswerModel
from seesay.serving.openai.completions import read_prompts
from seesay.serving.openai.embedding_inputs import EmbeddingItem, take_item
from seesay.serving.openai.message_parts import Content
from seesay.serving.openai.vectors import VectorRoom, find_pooling, use_own_prompt
from seesay.serving.openai.wire import make_id
from seesay.serving.requests.caller import caller_of
from seesay.serving.requests.content import read_parts
from seesay.serving.requests.request_model import Refused
from seesay.serving.requests.shared_fields import TextFields
from seesay.serving.requests.state import ServerState
from seesay.serving.requests.submission import Tally
from seesay.values import GenerationRequest, MediaPart, Pooling
from seesay.vl.reranking import Reranker

_MAX_ITEMS = 2048
_MAX_NUMBERS = 1 << 26
"""Most numbers of the vectors that are compared."""
Item = str | Annotated[list[Content], Field(min_length=1)] | EmbeddingItem


class _RankingRequest(TextFields):
    """Fields of both routes."""

    model: str | None = None
    pooling: Pooling | None = Field(
        None, description="extension: tokens is late interaction; default: the server's, or as the model was trained"
    )
    instruction: str | None = Field(
        None,
        min_length=1,
        max_length=8192,
        description="extension: the task, for a cross-encoder, or of the query, for an embedder with a prompt of its "
        "own; default: the model's",
    )
    user: str | None = Field(None, max_length=512)


class RerankRequest(_RankingRequest):
    """`POST /v1/rerank`, in the form of Jina and Cohere."""

    refused: ClassVar[Refused] = {
        "max_tokens_per_doc": ((), "not supported: shorten the documents"),
        "max_chunks_per_doc": ((), "not supported: shorten the documents"),
        "rank_fields": ((), "not supported: send the text that counts"),
    }

    query: SkipValidation[Item] = Field(
        description="a text, or an object with text, image or video; extension: content parts"
    )
    documents: SkipValidation[Annotated[list[Item], Field(min_length=1, max_length=_MAX_ITEMS)]] = Field(
        description="texts, or objects with text, image or video; extension: lists of content parts"
    )
    top_n: int | None = Field(None, ge=1, description="return the best so many; default: all")
    return_documents: bool | None = Field(None, description="the documents in the answer; default false")


class ScoreRequest(_RankingRequest):
    """`POST /v1/score`, in the form of vLLM: each of `text_2` beside `text_1`, or beside the one at its place there."""

    refused: ClassVar[Refused] = {}

    text_1: SkipValidation[str | Annotated[list[Item], Field(min_length=1)]]
    text_2: SkipValidation[str | Annotated[list[Item], Field(min_length=1)]]


class RankingUsage(AnswerModel):
    prompt_tokens: int
    total_tokens: int


class Ranked(AnswerModel):
    """relevance_score: cosine, -1 to 1, or MaxSim, or a cross-encoder's score, 0 to 1. document: as it was sent."""

    index: int
    relevance_score: float
    document: Any = Field(None, exclude_if=lambda value: value is None)


class RerankAnswer(AnswerModel):
    """An answer of `/v1/rerank`, the nearest documents first."""

    id: str
    model: str
    results: list[Ranked]
    usage: RankingUsage


class Score(AnswerModel):
    object: Literal["score"] = "score"
    index: int
    score: float


class ScoreAnswer(AnswerModel):
    """An answer of `/v1/score`."""

    id: str
    object: Literal["list"] = "list"
    created: int
    model: str
    data: list[Score]
    usage: RankingUsage


def make_router(state: ServerState) -> APIRouter:
    """Return the routes."""
    router = make_api_router("OpenAI")

    @router.post("/rerank", response_model=RerankAnswer, include_in_schema=False)
    @router.post("/v2/rerank", response_model=RerankAnswer, include_in_schema=False)
    @router.post("/v1/rerank", response_model=RerankAnswer)
    async def rerank(body: RerankRequest, http: Request) -> Response:
        """Sort documents by how near they are to a query."""
        documents = _check_list(body.documents, "documents")
        named = {"query": body.query, **{f"documents[{i}]": document for i, document in enumerate(documents)}}
        pairs = [("query", name) for name in named if name != "query"]
        found, usage = await _score(state, body, http, named, pairs)
        scores = np.array(found)
        order = np.argsort(-scores, kind="stable")[: body.top_n]
        results = [
            {
                "index": int(index),
                "relevance_score": float(scores[index]),
                **({"document": _show_document(documents[index])} if body.return_documents else {}),
            }
            for index in order
        ]
        head = {"id": make_id("rerank-"), "model": state.name_model(body.model)}
        return JSONResponse({**head, "results": results, "usage": usage})

    @router.post("/score", response_model=ScoreAnswer, include_in_schema=False)
    @router.post("/v1/score", response_model=ScoreAnswer)
    async def score(body: ScoreRequest, http: Request) -> Response:
        """Compare texts and pictures in pairs."""
        one, two = _as_list(body.text_1, "text_1"), _as_list(body.text_2, "text_2")
        if len(one) not in (1, len(two)):
            raise bad_request(f"text_1 must have 1 entry or {len(two)}, as text_2 has, got {len(one)}", "text_1")
        named = {f"text_1[{i}]": item for i, item in enumerate(one)}
        named |= {f"text_2[{i}]": item for i, item in enumerate(two)}
        names = list(named)
        pairs = list(zip(names[: len(one)] * (len(two) // len(one)), names[len(one) :], strict=True))
        scores, usage = await _score(state, body, http, named, pairs)
        data = [{"object": "score", "index": index, "score": score} for index, score in enumerate(scores)]
        head = {"id": make_id("score-"), "object": "list", "created": int(time.time())}
        return JSONResponse({**head, "model": state.name_model(body.model), "data": data, "usage": usage})

    return router


def _check_list(items: object, name: str) -> list[Any]:
    if not isinstance(items, list) or not 1 <= len(items) <= _MAX_ITEMS:
        raise bad_request(f"{name} must be a list with 1 to {_MAX_ITEMS} entries, got {show(items)}", name)
    return items


def _as_list(items: object, name: str) -> list[Any]:
    return [items] if isinstance(items, str) else _check_list(items, name)


def _show_document(document: object) -> object:
    if isinstance(document, dict):
        return document
    return {"text": document} if isinstance(document, str) else {"content": document}


_Pairs = Sequence[tuple[str, str]]


async def _score(
    state: ServerState, body: _RankingRequest, http: Request, named: Mapping[str, object], pairs: _Pairs
) -> tuple[list[float], dict[str, int]]:
    """Return the scores of pairs of items, by the client's names of them, and the usage."""
    reranker = state.engine.reranker if body.pooling is None else None
    if reranker is None:
        states, usage = await _embed(state, body, http, list(named), partial(_make_requests, state, body, named))
        vectors = dict(zip(named, (shape_embedding(each, normalize=True) for each in states), strict=True))
        return [compare(vectors[one], vectors[two]) for one, two in pairs], usage
    make = partial(_make_pairs, state, body, named, pairs, reranker)
    states, usage = await _embed(state, body, http, [two for _, two in pairs], make)
    return [reranker.score(each) for each in states], usage


async def _embed(
    state: ServerState,
    body: _RankingRequest,
    http: Request,
    names: Sequence[str],
    make: Callable[[], list[GenerationRequest]],
) -> tuple[list[npt.ArrayLike], dict[str, int]]:
    """Return the embeddings of requests by the client's names of them, and the usage."""
    requests = await off_loop(http, make)
    answers = await state.answering.collect(
        requests,
        receive=http.receive,
        caller=caller_of(http.scope),
        names=body.field_names(*names),
        watch=VectorRoom(_MAX_NUMBERS, names[-1].partition("[")[0]).add,
    )
    tally = Tally()
    for index, answer in enumerate(answers):
        tally.add(index, answer.last)
    usage = {"prompt_tokens": tally.prompt_tokens, "total_tokens": tally.prompt_tokens}
    return [answer.last.pooled for answer in answers], usage


def _make_requests(state: ServerState, body: _RankingRequest, named: Mapping[str, object]) -> list[GenerationRequest]:
    prompts = _read_items(state, body, named)
    request = replace(_make_request(body), pooling=find_pooling(state, body.pooling))
    options = body.media_options(state.engine.family)
    found = [replace(request, prompt=options.fill_messages(prompt) if _parts(prompt) else prompt) for prompt in prompts]
    asks = [name == "query" or name.startswith("text_1") for name in named]
    return [
        use_own_prompt(state, each, body.instruction if is_query else None, is_query=is_query)
        for each, is_query in zip(found, asks, strict=True)
    ]


def _make_pairs(
    state: ServerState, body: _RankingRequest, named: Mapping[str, object], pairs: _Pairs, reranker: Reranker
) -> list[GenerationRequest]:
    """Return a request for each pair, whose last hidden state has its score."""
    prompts = _read_items(state, body, {name: _as_parts(_spell_out(item, name)) for name, item in named.items()})
    parts = {name: _parts(prompt) for name, prompt in zip(named, prompts, strict=True)}
    if body.instruction is not None and not reranker.takes_instruction:
        raise bad_request("instruction is not supported: this cross-encoder was trained without", "instruction")
    request = replace(
        _make_request(body), pooling="last", chat_template=reranker.template, continuation=reranker.ending
    )
    options = body.media_options(state.engine.family)
    return [
        replace(request, prompt=options.fill_messages(reranker.make_prompt(parts[one], parts[two], body.instruction)))
        for one, two in pairs
    ]


def _as_parts(item: object) -> object:
    """Return a text as content parts, and other items as they are."""
    return [{"type": "text", "text": item}] if isinstance(item, str) and item else item


def _make_request(body: _RankingRequest) -> GenerationRequest:
    return GenerationRequest(
        prompt="", gen_config=GenerationConfig(max_new_tokens=1), streams=False, **body.request_options()
    )


def _read_items(state: ServerState, body: _RankingRequest, named: Mapping[str, object]) -> list[Any]:
    """Return the prompts of items by the client's names of them."""
    state.check_model(body.model)
    prompts = [_read_item(state, name, _spell_out(item, name)) for name, item in named.items()]
    media = [part for prompt in prompts for part in _parts(prompt) if isinstance(part, MediaPart)]
    if len(media) > (most := state.settings.media.max_items):
        raise bad_request(f"the request has more than {most} pictures and videos", next(iter(named)))
    return prompts


def _spell_out(item: object, name: str) -> object:
    """Return the content parts of an object with text, image or video, or its text where it has nothing else."""
    if not isinstance(item, dict):
        return item
    parts = take_item(item, name)
    return item["text"] if [part["type"] for part in parts] == ["text"] else parts


def _read_item(state: ServerState, name: str, item: object) -> Any:
    """Return the prompt of a text or of content parts."""
    if isinstance(item, str):
        [prompt] = read_prompts(state, item, name)
        return prompt
    if isinstance(item, list) and item:
        return (read_parts(item, state.settings.media, name),)
    raise bad_request(f"{name} must be a text or a list of content parts, got {show(item)}", name)


def _parts(prompt: object) -> list[Any]:
    turns = prompt if isinstance(prompt, tuple) else ()
    return [part for turn in turns for part in getattr(turn, "parts", ())]
