"""`/v1/rerank` and `/v1/score`: the cosines of what `/v1/embeddings` returns."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from live_server import LiveServer, make_data_url, make_settings, serve

from seesay import Pipeline, pipeline
from seesay.config import EngineConfig, GenerationConfig
from seesay.engine.front.engine import AsyncEngine
from seesay.serving.errors import ApiError
from seesay.serving.openai.vectors import VectorRoom
from seesay.serving.requests.submission import Answering
from seesay.serving.traffic.metrics import ServerMetrics
from seesay.values import GenerationRequest, OutputDelta

TEXTS = ["the game", "a frame in the game", "something else entirely"]


def picture(seed: int) -> list[dict[str, Any]]:
    return [
        {"type": "image_url", "image_url": {"url": make_data_url(seed=seed)}},
        {"type": "text", "text": "a picture"},
    ]


def embed(server: LiveServer, items: list[Any], **options: Any) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Unit vectors of single requests."""
    rows = []
    for item in items:
        answer = server.post("/v1/embeddings", {"input": item, "normalize": True, **options})
        assert answer.status_code == 200, answer.text
        rows.append(answer.json()["data"][0]["embedding"])
    return np.array(rows)


@pytest.mark.parametrize("pooling", ["mean", "last"])
@pytest.mark.parametrize("documents", [TEXTS, [picture(1), TEXTS[0], picture(2)]], ids=["texts", "pictures"])
def test_documents_are_sorted_by_their_cosine(server: LiveServer, documents: list[Any], pooling: str) -> None:
    body = {"query": TEXTS[0], "documents": documents, "pooling": pooling}
    answer = server.post("/v1/rerank", body)
    assert answer.status_code == 200, answer.text
    vectors = embed(server, [TEXTS[0], *documents], pooling=pooling)
    expected = vectors[1:] @ vectors[0]
    results = answer.json()["results"]
    assert sorted(each["index"] for each in results) == [0, 1, 2]
    for each in results:
        assert each["relevance_score"] == pytest.approx(expected[each["index"]], abs=1e-4)
    scores = [each["relevance_score"] for each in results]
    assert scores == sorted(scores, reverse=True)
    assert answer.json()["usage"]["total_tokens"] > 0 and "document" not in results[0]


def test_items_may_be_objects_as_jinas_and_coheres_clients_send_them(server: LiveServer) -> None:
    """A text alone is what it is without the object; a picture stands before its text."""
    objects = [
        {"image": make_data_url(seed=1), "text": "a picture"},
        {"text": TEXTS[0]},
        {"image": make_data_url(seed=2)},
    ]
    same = [picture(1), TEXTS[0], picture(2)[:1]]
    body = {"query": {"text": TEXTS[1]}, "documents": objects, "return_documents": True}
    answer = server.post("/v1/rerank", body)
    assert answer.status_code == 200, answer.text
    expected = server.post("/v1/rerank", {"query": TEXTS[1], "documents": same}).json()["results"]
    found = answer.json()["results"]
    assert [each["index"] for each in found] == [each["index"] for each in expected]
    for each, other in zip(found, expected, strict=True):
        assert each["relevance_score"] == pytest.approx(other["relevance_score"], abs=1e-4)
        assert each["document"] == objects[each["index"]]
    pairs = {"text_1": TEXTS[1], "text_2": objects}
    scores = {each["index"]: each["score"] for each in server.post("/v1/score", pairs).json()["data"]}
    assert scores == pytest.approx({each["index"]: each["relevance_score"] for each in found}, abs=1e-4)


def test_the_best_and_the_documents_may_be_asked_for(server: LiveServer) -> None:
    body = {"query": TEXTS[1], "documents": TEXTS, "top_n": 1, "return_documents": True}
    [best] = server.post("/v1/rerank", body).json()["results"]
    assert best["index"] == 1 and best["relevance_score"] == pytest.approx(1, abs=1e-4)
    assert best["document"] == {"text": TEXTS[1]}


@pytest.mark.parametrize(
    ("path", "other"), [("/v1/rerank", "/v2/rerank"), ("/v1/rerank", "/rerank"), ("/v1/score", "/score")]
)
def test_the_paths_of_other_servers_are_the_same_routes(server: LiveServer, path: str, other: str) -> None:
    """Cohere's client has version 2 of its own; vLLM answers without a version, too."""
    bodies = {"rerank": {"query": TEXTS[1], "documents": TEXTS}, "score": {"text_1": TEXTS[1], "text_2": TEXTS}}
    body = bodies[path.rpartition("/")[2]]
    one, two = server.post(path, body).json(), server.post(other, body).json()
    name = "results" if "results" in one else "data"
    assert one[name] == two[name] and one["usage"] == two["usage"]


def test_pairs_are_scored(server: LiveServer) -> None:
    vectors = embed(server, TEXTS)
    one = server.post("/v1/score", {"text_1": TEXTS[0], "text_2": TEXTS}).json()["data"]
    assert [each["score"] for each in one] == pytest.approx(list(vectors @ vectors[0]), abs=1e-4)
    each = server.post("/v1/score", {"text_1": TEXTS, "text_2": TEXTS[::-1]}).json()["data"]
    assert [pair["score"] for pair in each] == pytest.approx(list((vectors * vectors[::-1]).sum(1)), abs=1e-4)
    single = server.post("/v1/score", {"text_1": TEXTS[0], "text_2": TEXTS[1]}).json()
    assert single["object"] == "list" and len(single["data"]) == 1


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/rerank", {"query": "a", "documents": []}, "documents"),
        ("/v1/rerank", {"query": "a", "documents": "a"}, "documents"),
        ("/v1/rerank", {"query": 5, "documents": ["a"]}, "query"),
        ("/v1/rerank", {"query": "a", "documents": ["a", 5]}, "documents[1]"),
        ("/v1/rerank", {"query": "a", "documents": [[{"type": "zoo"}]]}, "documents[0][0].type"),
        ("/v1/rerank", {"query": "a", "documents": ["a", {"text": 5}]}, "documents[1].text"),
        ("/v1/rerank", {"query": {"image": ""}, "documents": ["a"]}, "query.image"),
        ("/v1/rerank", {"query": "a", "documents": [{}]}, "documents[0]"),
        ("/v1/rerank", {"query": "a", "documents": ["a"], "top_n": 0}, "top_n"),
        ("/v1/rerank", {"documents": ["a"]}, "query"),
        ("/v1/score", {"text_1": ["a", "b"], "text_2": ["a"]}, "text_1"),
        ("/v1/score", {"text_1": "a", "text_2": []}, "text_2"),
    ],
)
def test_errors_name_the_field(server: LiveServer, path: str, body: dict[str, Any], param: str) -> None:
    answer = server.post(path, body)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param, answer.text


@pytest.fixture(scope="module")
def retriever(tiny_checkpoint: Callable[[str], Path]) -> Iterator[tuple[LiveServer, Pipeline]]:
    """A server of a model for late interaction, and a pipeline with its engine."""
    config = EngineConfig(device_type="cpu", block_size=4, engine_process=False)
    with pipeline(str(tiny_checkpoint("colqwen2")), backend_config=config) as pipe, serve(pipe.engine) as server:
        yield server, pipe


def page(seed: int) -> list[dict[str, Any]]:
    return [{"type": "image_url", "image_url": {"url": make_data_url(seed=seed)}}]


def test_late_interaction_is_how_its_models_rank(retriever: tuple[LiveServer, Pipeline]) -> None:
    server, pipe = retriever
    vectors = [np.array(server.post("/v1/embeddings", {"input": item}).json()["data"][0]["embedding"]) for item in
               (TEXTS[0], page(1), page(2), TEXTS[1])]  # fmt: skip
    np.testing.assert_allclose(vectors[0], pipe.embed(TEXTS[0]), atol=1e-5)
    query, *documents = [vector.astype(np.float32) for vector in vectors]
    expected = [(query @ document.T).max(axis=1).sum() for document in documents]
    body = {"query": TEXTS[0], "documents": [page(1), page(2), TEXTS[1]]}
    results = server.post("/v1/rerank", body).json()["results"]
    assert [each["index"] for each in results] == list(np.argsort(-np.array(expected)))
    for each in results:
        assert each["relevance_score"] == pytest.approx(expected[each["index"]], rel=1e-4)
    data = server.post("/v1/score", {"text_1": TEXTS[0], "text_2": body["documents"]}).json()["data"]
    assert [each["score"] for each in data] == pytest.approx(expected, rel=1e-4)
    single = server.post("/v1/rerank", {**body, "pooling": "last"}).json()["results"]
    assert all(abs(each["relevance_score"]) <= 1.0001 for each in single)


def test_vectors_in_base64(retriever: tuple[LiveServer, Pipeline]) -> None:
    server, _ = retriever
    body = {"input": [TEXTS[0], TEXTS[2]], "dimensions": 8}
    plain = server.post("/v1/embeddings", body).json()["data"]
    encoded = server.post("/v1/embeddings", {**body, "encoding_format": "base64"}).json()["data"]
    for one, other in zip(plain, encoded, strict=True):
        decoded = [np.frombuffer(base64.b64decode(vector), dtype="<f4") for vector in other["embedding"]]
        np.testing.assert_allclose(decoded, one["embedding"], atol=1e-6)
        assert np.shape(decoded)[1] == 8


@pytest.mark.parametrize(
    ("path", "body", "param", "message"),
    [
        ("/v1/embeddings", {"input": "a", "dimensions": 25}, "dimensions", "[1, 24]"),
        ("/v1/embeddings", {"input": "a", "pooling": "max"}, "pooling", "tokens"),
        ("/v1/embeddings", {"input": [*page(1), {"type": "text", "text": "a"}]}, "input", "one page alone"),
        ("/v1/rerank", {"query": [*page(1), *page(2)], "documents": ["a"]}, "query", "one page alone"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}, "messages", "writes no text"),
        ("/v1/completions", {"prompt": "a"}, "prompt", "writes no text"),
    ],
)
def test_what_it_cannot_do_is_named(
    retriever: tuple[LiveServer, Pipeline], path: str, body: dict[str, Any], param: str, message: str
) -> None:
    answer = retriever[0].post(path, body)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["param"] == param and message in error["message"], error


def test_an_answer_holds_so_many_numbers() -> None:
    room = VectorRoom(100, "documents")
    for _ in range(4):
        room.add(OutputDelta(request_id=1, finish_reason="stop", pooled=torch.zeros(5, 5)))
    room.add(OutputDelta(request_id=1, finish_reason="stop", pooled=torch.zeros(1000)))  # one vector
    room.add(OutputDelta(request_id=1))
    with pytest.raises(ApiError, match="documents: the vectors of all tokens of this request are more than 100"):
        room.add(OutputDelta(request_id=1, finish_reason="stop", pooled=torch.zeros(1, 1)))


async def test_requests_are_aborted_when_what_watches_them_raises(engine: AsyncEngine) -> None:
    answering = Answering(engine, make_settings(), ServerMetrics(engine))
    room = VectorRoom(1, "input")
    request = GenerationRequest(prompt="the game " * 5, gen_config=GenerationConfig(), pooling="tokens", streams=False)

    async def receive() -> dict[str, Any]:
        await asyncio.Event().wait()
        return {}

    with pytest.raises(ApiError, match="send fewer or shorter"):
        await answering.collect([request] * 3, receive=receive, watch=room.add)
    assert answering.num_running == 0
